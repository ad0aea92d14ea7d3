"""The CUDA device that kernels run on, and what it cannot do: PyTorch's dispatcher knows, its operators do not."""

import functools
from typing import NamedTuple

FLASH = 8, 0  # the lowest compute capability with FlashAttention, cuDNN's attention and bfloat16
SMALL = (8, 6), (8, 9)  # capabilities with little shared memory (also 12.0 and up): widths of 193 to 224 do not fit
FAULTY_CUDNN = 91500  # the last version that is wrong for lengths that are no multiple of 128


class Card(NamedTuple):
    """A CUDA device, and the version of cuDNN (9.15.0 is 91500, none is 0)."""

    name: str
    capability: tuple[int, int]
    cudnn: int

    @property
    def has_flash(self) -> bool:
        """Whether it runs more than the memory-efficient kernel in float16 and float32."""
        return self.capability >= FLASH

    @property
    def is_small(self) -> bool:
        """Whether flash attention's backward pass runs at no width of 193 to 224."""
        return self.capability in SMALL or self.capability >= (12, 0)

    @property
    def prefers_cudnn(self) -> bool:
        """Whether cuDNN's attention is written for it, FlashAttention-2 being for Ampere; and right for all lengths."""
        return self.capability[0] in (9, 10) and self.cudnn > FAULTY_CUDNN

    def cudnn_takes(self, num_queries: int, num_keys: int) -> bool:
        """Whether cuDNN is right for so many."""
        return num_keys > 1 and (self.cudnn > FAULTY_CUDNN or (num_queries % 128 == 0 and num_keys % 128 == 0))

    def __str__(self) -> str:
        cudnn = f"{self.cudnn // 10000}.{self.cudnn // 100 % 100}.{self.cudnn % 100}"
        return f"{self.name}, compute capability {self.capability[0]}.{self.capability[1]}, cuDNN {cudnn}"


@functools.cache
def card() -> Card:
    """The CUDA device; the one of least compute capability, where there are several."""
    import torch

    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    if not found:
        return Card("no CUDA device", FLASH, 0)
    least = min(found, key=lambda x: (x.major, x.minor))
    try:
        cudnn = torch.backends.cudnn.version() or 0
    except RuntimeError:  # the loaded cuDNN is not the one that PyTorch was built for
        cudnn = 0
    return Card(least.name, (least.major, least.minor), cudnn)
