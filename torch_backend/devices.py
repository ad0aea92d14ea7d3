"""Limits of CUDA devices. PyTorch's dispatcher checks them; its operators, which are called here directly, do not."""

import functools
import importlib.util
import os
import shutil
from typing import NamedTuple

FLASH = 8, 0  # the lowest compute capability with FlashAttention, cuDNN's attention and bfloat16
SMALL = (8, 6), (8, 9)  # capabilities with little shared memory (also 12.0 and up): widths of 193 to 224 do not fit
BLACKWELL = 10, 11  # major capabilities of its data centers' cards
COMPILERS = "cc", "gcc", "clang"  # of C, which Triton calls
FAULTY_CUDNN = 91500  # the last version that is wrong for lengths that are no multiple of 128


class Card(NamedTuple):
    """A CUDA device, and the version of cuDNN (9.15.0 is 91500; 0 without cuDNN)."""

    name: str
    capability: tuple[int, int]
    cudnn: int

    @property
    def has_flash(self) -> bool:
        """Whether it runs flash attention, and so bfloat16."""
        return self.capability >= FLASH

    @property
    def is_small(self) -> bool:
        """Whether flash attention has no backward pass for widths of 193 to 224."""
        return self.capability in SMALL or self.capability >= (12, 0)

    @property
    def prefers_cudnn(self) -> bool:
        """Whether cuDNN's attention is written for the card (FlashAttention-2 is for Ampere) and is correct."""
        return self.capability[0] in (9, 10) and self.cudnn > FAULTY_CUDNN

    @property
    def keys_at_once(self) -> int:
        """The keys of a block of FlexAttention for which there are registers and shared memory at every width."""
        return 32 if self.capability[0] == 9 else 16

    def cudnn_takes(self, num_queries: int, num_keys: int) -> bool:
        """Whether cuDNN gives right results for these numbers of queries and keys.

        A single query is refused or wrong on Blackwell by cuDNN 9.19 to 9.25.0 (PyTorch 2.14.1, pytorch#193893).
        """
        if num_queries == 1 and self.capability[0] in BLACKWELL:
            return False
        return num_keys > 1 and (self.cudnn > FAULTY_CUDNN or (num_queries % 128 == 0 and num_keys % 128 == 0))

    def __str__(self) -> str:
        cudnn = f"{self.cudnn // 10000}.{self.cudnn // 100 % 100}.{self.cudnn % 100}"
        return f"{self.name}, compute capability {self.capability[0]}.{self.capability[1]}, cuDNN {cudnn}"


@functools.cache
def card() -> Card:
    """The CUDA device; if there are several, the one of the lowest compute capability."""
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


def names() -> list[str]:
    """The CUDA devices, any of which a program may run on."""
    import torch

    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


@functools.cache
def lacking_for_flex() -> str:
    """What keeps FlexAttention from being compiled here; empty if nothing does."""
    import torch

    if importlib.util.find_spec("triton") is None:
        return "a machine without Triton"
    if not os.environ.get("CC") and not any(map(shutil.which, COMPILERS)):
        return "a machine without a C compiler (cc, gcc, clang or $CC)"
    if not hasattr(importlib.import_module("torch.nn.attention.flex_attention"), "AuxRequest"):
        return f"torch {torch.__version__}, whose FlexAttention does not return its log-sum-exp"
    return ""
