"""The attention kernels of PyTorch, what each of them takes, and how "auto" chooses among them.

An engine runs a kernel. Its `attend` takes queries (B, H, M, W), keys and values (B, H, N, W) of one dtype and width,
and perhaps biases: of keys (B, H, 1, N), and of queries (B, H, M, 1). It returns softmax(q·k + biases) v in any
floating dtype, and the log-sum-exp of the logits (B, H, M, 1) in float32 or better. B and H broadcast. PyTorch's engine
is in `attention`.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from . import devices, exact
from .dtypes import BITS, HALF, Array, accumulation_dtype

DTYPES = tuple(BITS)
TWO_PARTS = {
    "float16x2": "float16",
    "bfloat16x2": "bfloat16",
}  # two-part points: coordinates are sums of two
PRECISIONS = {name: name for name in DTYPES} | TWO_PARTS
GAP = 193, 224  # widths without a backward pass of flash attention on cards with little shared memory: see `devices`
PROBES = 2  # columns that the pullback adds to those of points and norms


Attend: TypeAlias = Callable[..., tuple[Array, Array]]


class Engine(NamedTuple):
    """The functions that run a kernel.

    Attributes:
        attend: (queries, keys, values, kernel, *, biases=(), needs_lse=True) -> (out, lse); without `needs_lse`, lse
            may be anything.
        pullback: (cotangent, queries, keys, values, lse, kernel) -> (S k, Sᵀ q, Pᵀ g), P = exp(q·k - lse), S = P ∘ (g
            vᵀ).
    """

    attend: Attend
    pullback: Callable[..., tuple[Array, ...]]


@dataclass(frozen=True)
class AttentionKernel:
    """An attention kernel and the dtype it runs in, by name.

    Attributes:
        name, device: cpu; flash, efficient, cudnn or flex on cuda.
        dtypes: in which the kernel can compute.
        multiple, max_width: operands must have a width that is a multiple of the first, and at most the second; of
            flex a power of two as well.
        gap: first and last width without a backward pass on the device; the next width above is used instead.
        dtype, parts: in use; with 2 parts each coordinate is the sum of two numbers of that dtype.
        fine: whether sums and logarithms are made of log-sum-exps alone: then two parts have float32's digits.
        exact: whether columns are those of `exact`, for points that lie anywhere.
        gate: a boolean on the device; if it is false, the memory-efficient kernel computes nothing.
        reported: R² of the points on the device, of which `guard` warns if it is too large for the second kernel.
    """

    name: str
    device: str
    dtypes: tuple[str, ...]
    multiple: int
    max_width: int | None
    gap: tuple[int, int] = (0, 0)
    dtype: str = "float32"
    parts: int = 1
    fine: bool = False
    exact: bool = False
    gate: Array | None = None
    reported: Array | None = None

    def __str__(self) -> str:
        return f"{self.name} in {self.precision}"

    @property
    def precision(self) -> str:
        """The name of its precision."""
        return "float32" if self.fine else self.dtype + ("x2" if self.parts == 2 else "")

    @property
    def half(self) -> bool:
        """Whether it computes in half precision."""
        return self.dtype in HALF

    @property
    def is_flex(self) -> bool:
        """Whether it is FlexAttention, which is compiled at run time and adds any numbers to the logits."""
        return self.name == "flex"

    @property
    def takes_bias(self) -> bool:
        """Whether it takes the norms of the keys as a bias that is not rounded to half precision."""
        return self.is_flex or (self.name == "cpu" and not self.half)

    @property
    def backward(self) -> "AttentionKernel":
        """The kernel of the pullback and of means: some have none in float32, or none that takes our log-sum-exp."""
        return (
            replace(KERNELS["efficient"], dtype="float32", reported=self.reported)
            if self.is_flex or self.fine
            else self
        )

    @property
    def norm_columns(self) -> int:
        """The number of columns for the norms of the keys where they are no bias: one more than the parts."""
        if self.is_flex:
            return 0
        return 1 + self.parts if self.half else 1

    @property
    def probes(self) -> int:
        """The number of columns that its own pullback adds."""
        return 0 if self.is_flex else PROBES

    def columns(self, dim: int) -> int:
        """The number of columns for points and norms."""
        return exact.count(dim) if self.exact else dim * (3 if self.parts == 2 else 1) + self.norm_columns

    def width(self, columns: int) -> int:
        """The width at which the kernel runs for this number of columns."""
        if self.name == "cpu":  # no limits, but narrow products are slow: 16 columns take less time than 2 to 15
            return columns if columns <= 1 or columns >= 16 else 16
        if self.is_flex:
            return max(self.multiple, 1 << (columns - 1).bit_length())
        width = -(-columns // self.multiple) * self.multiple
        return self.gap[1] + self.multiple if self.gap[0] <= width <= self.gap[1] else width

    def value_width(self, channels: int, width: int) -> int:
        """The width of values for points of this width: of two kernels it need not be the same."""
        return self.width(channels) if self.name in ("efficient", "flex") else width

    def channels(self, channels: int) -> int:
        """The number of channels per call."""
        return channels if self.max_width is None else min(channels, self.max_width)

    def fits(self, columns: int) -> bool:
        """Whether one call takes this number of columns."""
        return self.max_width is None or self.width(columns) <= self.max_width


KERNELS = {
    "cpu": AttentionKernel("cpu", "cpu", DTYPES, 1, None),
    "flash": AttentionKernel("flash", "cuda", HALF, 8, 256),
    "efficient": AttentionKernel("efficient", "cuda", (*HALF, "float32"), 8, None),
    "cudnn": AttentionKernel("cudnn", "cuda", HALF, 8, 128),
    "flex": AttentionKernel("flex", "cuda", ("float32",), 16, 128),
}


@functools.cache
def select_kernel(backend: str, precision: str, device: str, dtype: Any, dim: int) -> AttentionKernel:
    """Choose the kernel for points of this dtype (or its name) and dimension on "cpu" or "cuda".

    Precision "auto" is float32 or float64 on a CPU, float32 for FlexAttention, else half precision on CUDA. Backend
    "auto" on CUDA is flash attention if dtype, width and compute capability (8.0) allow it, else the memory-efficient
    kernel. Flash attention and cuDNN have float32's digits by two-part points and log-sum-exps alone: see `signed`.
    Two-part points too wide for flash attention take the memory-efficient kernel in float32, which costs the same and
    is more precise. Below compute capability 8.0, bfloat16 becomes float16.

    Raises:
        ValueError: the kernel or precision does not exist, or cannot run there.
    """
    dtype = str(dtype).removeprefix("torch.")
    if precision not in ("auto", *PRECISIONS):
        raise ValueError(f"`torch_backend`: precision must be one of auto, {', '.join(PRECISIONS)}; got {precision!r}.")
    if backend not in ("auto", *KERNELS):
        raise ValueError(f"`torch_backend`: backend must be one of auto, {', '.join(KERNELS)}; got {backend!r}.")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"`torch_backend`: tensors must be on a CPU or CUDA device; got device {device}.")

    if precision == "auto":
        precision = accumulation_dtype(dtype) if device == "cpu" else dtype
        if backend == "flex" and precision != "float64":
            precision = "float32"
        elif device == "cuda" and precision == "float32":
            precision = "float16"
    dtype, parts = PRECISIONS[precision], 2 if precision in TWO_PARTS else 1
    card = devices.card() if device == "cuda" else None
    if backend == "auto":
        flash = replace(KERNELS["flash"], dtype=dtype, parts=parts)
        if card is None:
            backend = "cpu"
        elif dtype in HALF and card.has_flash and flash.fits(flash.columns(dim) + PROBES):
            backend = "flash"
        else:
            backend, dtype, parts = "efficient", "float32" if parts == 2 else dtype, 1
            dtype = "float16" if dtype == "bfloat16" and not card.has_flash else dtype

    kernel = replace(KERNELS[backend], dtype=dtype, parts=parts)
    if dtype == "float32" and backend in ("flash", "cudnn"):
        kernel = replace(kernel, dtype="float16", parts=2, fine=True)
    if backend == "flash" and card is not None and card.is_small:
        kernel = replace(kernel, gap=GAP)
    if kernel.device != device:
        raise ValueError(
            f"`torch_backend`: `backend` must be one for {device}, where the points are; got {backend!r}, which runs on"
            f" {kernel.device}. Use backend='auto'."
        )
    if card is not None and not card.has_flash and (backend in ("flash", "cudnn", "flex") or dtype == "bfloat16"):
        raise ValueError(
            f"`torch_backend`: backend {backend!r} in {dtype} needs compute capability 8.0; got {card}. Use"
            " backend='efficient', in float16 or float32."
        )
    if kernel.is_flex and (lacking := devices.lacking_for_flex()):
        raise ValueError(
            f"`torch_backend`: backend 'flex' is compiled by Triton and a C compiler when it is first called; got"
            f" {lacking}. Use backend='efficient'."
        )
    if kernel.dtype not in kernel.dtypes:
        has = ", ".join(kernel.dtypes)
        raise ValueError(f"`torch_backend`: backend {backend!r} computes in {has}; got {dtype}. Choose one of these.")
    if not kernel.fits(kernel.columns(dim) + kernel.probes):
        raise ValueError(
            f"`torch_backend`: backend {backend!r} takes at most {kernel.max_width} columns; got points of dimension"
            f" {dim}, which take {kernel.columns(dim) + kernel.probes} in {precision}. Use backend='efficient'."
        )
    return kernel


def finest_kernel(device: str, dtype: str) -> AttentionKernel:
    """The kernel with the most accurate sums on "cpu" or "cuda", for points of any width."""
    return replace(KERNELS["efficient" if device == "cuda" else "cpu"], dtype=dtype, exact=device == "cuda")
