"""One call, (out, lse), for every attention kernel that PyTorch ships, and its backward pass.

The only file that names an aten operator. Operands are (B, H, M, W), (B, H, N, W), (B, H, N, W) of one dtype and one
width, logits are unscaled inner products, lse is the natural log-sum-exp (B, H, M, 1) in float32 or better. B and H of
1 are broadcast, by stride, where another operand has more.
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .layout import accumulation_dtype, broadcast_shapes

HALF = (torch.float16, torch.bfloat16)
DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
SPLIT = {"float16x2": torch.float16, "bfloat16x2": torch.bfloat16}  # points as the sum of two half-precision numbers
PRECISIONS = DTYPES | SPLIT
PROBES = 2  # columns that the pullback adds to those of the points and of their norms
SHORT = 512  # queries or keys over which half precision adds up
MAX_GRID = 65535  # CUDA's limit on batch and on heads in one launch
MAX_POINTS = 2**16  # in one call: kernels add block after block, and millions of terms would cost them digits
MAX_ELEMENTS = 2**31 - 1  # of a matrix: some kernels count in 32 bits


@dataclass(frozen=True)
class Kernel:
    """A fused attention kernel and the dtype it runs in."""

    name: str
    device: str
    dtypes: tuple[torch.dtype, ...]
    public: SDPBackend  # its name for the public function
    multiple: int  # widths are multiples of this
    max_width: int | None
    dtype: torch.dtype = torch.float32
    parts: int = 1  # numbers of that dtype that make up a coordinate
    gate: Tensor | None = (
        None  # a boolean on the device: the memory-efficient kernel computes nothing where it is false
    )

    @property
    def precision(self) -> str:
        """The name of its precision."""
        return str(self.dtype).removeprefix("torch.") + ("x2" if self.parts == 2 else "")

    @property
    def takes_bias(self) -> bool:
        """Whether norms can enter the logits as a bias that is not rounded to half precision."""
        return self.name == "cpu" and self.dtype not in HALF

    @property
    def norm_columns(self) -> int:
        """Columns that hold the norms of the keys where they are no bias: one more than those of a coordinate."""
        return 1 + self.parts if self.dtype in HALF else 1

    def columns(self, dim: int) -> int:
        """Columns of the points and of the norms of the keys."""
        return dim * (3 if self.parts == 2 else 1) + self.norm_columns

    def width(self, columns: int) -> int:
        """The width that the kernel runs at for this many columns."""
        if self.name == "cpu":  # no limits, but narrow matrix products are slow: 16 columns cost less than 2 to 15
            return columns if columns <= 1 or columns >= 16 else 16
        return -(-columns // self.multiple) * self.multiple

    def limits(self, dim: int, channels: int) -> tuple[int, int]:
        """How many queries, and how many keys, one call may have; and how many channels."""
        most = channels if self.max_width is None else self.max_width
        width = self.width(max(self.columns(dim) + PROBES, min(channels, most) + 1))
        return min(MAX_POINTS, max(1, MAX_ELEMENTS // width)), most

    def fits(self, columns: int) -> bool:
        """Whether this many columns can be reduced in one call."""
        return self.max_width is None or self.width(columns) <= self.max_width


KERNELS = {
    "cpu": Kernel("cpu", "cpu", tuple(DTYPES.values()), SDPBackend.FLASH_ATTENTION, 1, None),
    "flash": Kernel("flash", "cuda", HALF, SDPBackend.FLASH_ATTENTION, 8, 256),
    "efficient": Kernel("efficient", "cuda", (*HALF, torch.float32), SDPBackend.EFFICIENT_ATTENTION, 8, None),
    "cudnn": Kernel("cudnn", "cuda", HALF, SDPBackend.CUDNN_ATTENTION, 8, 128),
}


@functools.cache
def select_kernel(backend: str, precision: str, device: str, dtype: torch.dtype, dim: int) -> Kernel:
    """The kernel for points of this dtype and dimension on "cpu" or "cuda"; "auto" leaves the choice to us.

    Precision "auto" is the points' own dtype on a CPU (float32 for half-precision points) and half precision on CUDA.
    Backend "auto" on CUDA is flash where dtype and width allow it and the memory-efficient kernel elsewhere. Points
    that are too wide to be split in the flash kernel get float32 in the memory-efficient one: it multiplies three times
    too, and keeps more.

    Raises:
        ValueError: the kernel or precision does not exist, or cannot run there.
    """
    if precision not in ("auto", *PRECISIONS):
        raise ValueError(f"`torch_backend`: precision must be one of auto, {', '.join(PRECISIONS)}; got {precision!r}.")
    if backend not in ("auto", *KERNELS):
        raise ValueError(f"`torch_backend`: backend must be one of auto, {', '.join(KERNELS)}; got {backend!r}.")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"`torch_backend`: tensors must be on a CPU or CUDA device; got device {device}.")

    if precision == "auto":
        precision = str(accumulation_dtype(dtype) if device == "cpu" else dtype).removeprefix("torch.")
        if device == "cuda" and precision == "float32":
            precision = "float16"
    dtype, parts = PRECISIONS[precision], 2 if precision in SPLIT else 1
    if backend == "auto":
        flash = replace(KERNELS["flash"], dtype=dtype, parts=parts)
        if device == "cpu":
            backend = "cpu"
        elif dtype in HALF and flash.fits(flash.columns(dim) + PROBES):
            backend = "flash"
        else:
            backend, dtype, parts = "efficient", torch.float32 if parts == 2 else dtype, 1

    kernel = replace(KERNELS[backend], dtype=dtype, parts=parts)
    if kernel.device != device:
        raise ValueError(
            f"`torch_backend`: backend {backend!r} runs on {kernel.device}; got points on {device}. Use backend='auto'."
        )
    if dtype not in kernel.dtypes:
        has = ", ".join(name for name, its in DTYPES.items() if its in kernel.dtypes)
        raise ValueError(f"`torch_backend`: backend {backend!r} computes in {has}; got {dtype}. Choose one of these.")
    if not kernel.fits(kernel.columns(dim) + PROBES):
        raise ValueError(
            f"`torch_backend`: backend {backend!r} takes at most {kernel.max_width} columns; got points of dimension"
            f" {dim}, which take {kernel.columns(dim) + PROBES} in {precision}. Use backend='efficient'."
        )
    return kernel


def wide_kernel(device: str, dtype: torch.dtype) -> Kernel:
    """The kernel that holds the most digits on "cpu" or "cuda", for points of any width."""
    return replace(KERNELS["efficient"] if device == "cuda" else KERNELS["cpu"], dtype=dtype)


def attention(
    queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel, *, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(q·k + bias) v, (B, H, M, W), and the log-sum-exp of the logits, (B, H, M, 1), float32 or better.

    With a `kernel.gate` that is false nothing is computed, and what is returned is arbitrary.
    """
    if torch.is_grad_enabled() and any(x.requires_grad for x in (queries, keys, values)):
        raise ValueError(
            "`torch_backend`: the log-sum-exp of a fused kernel has no derivative in PyTorch; got tensors that require"
            " a gradient. Use method='reweight', `gauss_sum_pullback`, or torch.no_grad()."
        )
    operands = _broadcast(queries, keys, values, *([] if bias is None else [bias]))
    forward = (
        functools.partial(_efficient_gated, gate=kernel.gate) if kernel.gate is not None else _FORWARD[kernel.name]
    )
    out, lse = _over_grid(forward, operands, kernel)
    dtype = accumulation_dtype(kernel.dtype)
    return out.to(dtype), lse.to(dtype)[..., None]


def public_attention(queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel) -> Tensor:
    """softmax(q·k) v by the public, differentiable function, restricted to the kernel; float32 or better."""

    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
        with sdpa_kernel(kernel.public):
            return (scaled_dot_product_attention(q, k, v, scale=1.0),)

    (out,) = _over_grid(forward, _broadcast(queries, keys, values), kernel)
    return out.to(accumulation_dtype(kernel.dtype))


def attention_pullback(
    cotangent: Tensor, queries: Tensor, keys: Tensor, values: Tensor, lse: Tensor, kernel: Kernel
) -> tuple[Tensor, ...]:
    """(S k, Sᵀ q, Pᵀ g) for P = exp(q·k - lse) and S = P ∘ (g vᵀ), by the kernel's backward pass.

    A backward pass computes S = P ∘ (g vᵀ - δ) with δ = Σ g·out, the derivative of the normalization. We hand it
    out = 0: without δ, and with an lse of our choice, it is the pullback of the *unnormalized* sum P v.
    """
    operands = _broadcast(cotangent, queries, keys, values, lse)
    if kernel.gate is not None:
        return _over_grid(functools.partial(_efficient_gated_backward, gate=kernel.gate), operands, kernel)
    if kernel.name != "cpu":
        return _over_grid(_BACKWARD[kernel.name], operands, kernel)
    if kernel.dtype in HALF:
        return _in_short_sums(*operands)
    # The CPU kernel shares out batch and heads alone: give every thread some of the queries, as heads.
    batch, heads, num_queries, width = operands[1].shape
    parts = torch.get_num_threads() // (batch * heads)
    if parts < 2 or num_queries < 2 * parts:
        return _cpu_backward(*operands)
    size = -(-num_queries // parts)
    operands = [x.reshape(batch * heads, 1, *x.shape[2:]) for x in operands]

    def split(x: Tensor) -> Tensor:  # zero rows of g change nothing
        return torch.nn.functional.pad(x, (0, 0, 0, size * parts - num_queries)).unflatten(2, (parts, size))[:, 0]

    def share(x: Tensor) -> Tensor:
        return x.expand(-1, parts, -1, -1)

    g, q, k, v, lse = operands
    sk, sq, pg = _cpu_backward(split(g), split(q), share(k), share(v), split(lse))
    sk = sk.reshape(batch, heads, parts * size, width)[..., :num_queries, :]
    return sk, sq.sum(1).reshape(batch, heads, -1, width), pg.sum(1).reshape(batch, heads, -1, width)


def _in_short_sums(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
    """The CPU kernel's backward pass adds blocks up in half precision: here, few at a time, and the rest in float32."""
    totals = tuple(torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (q, k, v))
    rows, columns = (range(0, x.shape[2], SHORT) for x in (q, k))
    for i, j in itertools.product(rows, columns):
        queries, keys = slice(i, i + SHORT), slice(j, j + SHORT)
        parts = _cpu_backward(g[:, :, queries], q[:, :, queries], k[:, :, keys], v[:, :, keys], lse[:, :, queries])
        for total, part, part_of in zip(totals, parts, (queries, keys, keys), strict=True):
            total[:, :, part_of] += part
    return totals


def _broadcast(*operands: Tensor) -> list[Tensor]:
    """Operands with a common batch and number of heads, as views."""
    axes = broadcast_shapes(*(x.shape[:2] for x in operands))
    return [x if x.shape[:2] == axes else x.expand(*axes, -1, -1) for x in operands]


def _over_grid(function: Callable[..., tuple], operands: list[Tensor], kernel: Kernel) -> tuple[Tensor, ...]:
    """`function` over parts of batch and heads that CUDA's grid can hold."""
    for axis in (0, 1):
        if kernel.device == "cuda" and operands[0].shape[axis] > MAX_GRID:
            parts = zip(*(x.split(MAX_GRID, axis) for x in operands), strict=True)
            results = zip(*(_over_grid(function, list(part), kernel) for part in parts), strict=True)
            return tuple(torch.cat(result, axis) for result in results)
    return function(*operands)


def _aten(name: str) -> Callable[..., tuple]:
    try:
        return getattr(torch.ops.aten, "_scaled_dot_product_" + name).default
    except AttributeError as error:
        raise ImportError(
            f"torch {torch.__version__} has no _scaled_dot_product_{name}. Install torch>=2.11,<2.14, or use"
            " method='reweight'."
        ) from error


def _cpu(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return _aten("flash_attention_for_cpu")(q, k, v, 0.0, False, attn_mask=bias, scale=1.0)


def _flash(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _aten("flash_attention")(q, k, v, 0.0, False, False, scale=1.0)[:2]


def _efficient(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = _aten("efficient_attention")(q, k, v, None, True, 0.0, False, scale=1.0)[:2]
    return out, lse[..., : q.shape[-2]]  # the kernel rounds M up to 32


# What half precision does not hold is computed again in float32, if the device finds that there is any; the host does
# not wait to hear. The memory-efficient kernel reads the lengths of its sequences from the device, and leaves a block
# of queries beyond them at once. Its operands are packed: (1, B·M, H, W), and the B + 1 places where sequences start.


def _efficient_gated(q: Tensor, k: Tensor, v: Tensor, *, gate: Tensor) -> tuple[Tensor, Tensor]:
    starts = [_starts(x, gate) for x in (q, k)]
    packed, sizes = [_packed(x) for x in (q, k, v)], (q.shape[2], k.shape[2])
    forward = torch.ops.aten._efficient_attention_forward.default
    out, lse = forward(*packed, None, *starts, *sizes, 0.0, 0, True, scale=1.0)[:2]
    return _unpacked(out, q), lse[..., : q.shape[2]]


def _efficient_gated_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, *, gate: Tensor) -> tuple:
    starts = [_starts(x, gate) for x in (q, k)]
    packed, sizes = [_packed(x) for x in (g, q, k, v)], (q.shape[2], k.shape[2])
    backward, seed = torch.ops.aten._efficient_attention_backward.default, torch.zeros((), dtype=torch.int64)
    gradients = backward(
        *packed,
        None,
        torch.zeros_like(packed[0]),
        *starts,
        *sizes,
        _padded_lse(lse),
        0.0,
        seed,
        seed,
        0,
        False,
        scale=1.0,
    )
    return tuple(_unpacked(x, like) for x, like in zip(gradients, (q, k, v), strict=False))


def _starts(x: Tensor, gate: Tensor) -> Tensor:
    return torch.arange(x.shape[0] + 1, dtype=torch.int32, device=x.device) * (x.shape[2] * gate).to(torch.int32)


def _packed(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(1, -1, x.shape[1], x.shape[3])


def _unpacked(x: Tensor, like: Tensor) -> Tensor:
    return x.reshape(like.shape[0], like.shape[2], like.shape[1], -1).transpose(1, 2)


def _padded_lse(lse: Tensor) -> Tensor:
    """(B, H, M, 1) -> (B, H, M rounded up to 32), as the memory-efficient kernel leaves it."""
    return torch.nn.functional.pad(lse[..., 0], (0, -lse.shape[2] % 32), value=math.inf)


def _cudnn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # cuDNN refuses strides of zero
    out, lse = _aten("cudnn_attention")(q, k, v, None, True, 0.0, False, False, scale=1.0)[:2]
    return out, lse.reshape(q.shape[:-1])


def _cpu_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple:
    return _aten("flash_attention_for_cpu_backward")(
        g, q, k, v, torch.zeros_like(g), lse[..., 0].contiguous(), 0.0, False, scale=1.0
    )


def _flash_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple:
    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of the dropout that we do not use
    return _aten("flash_attention_backward")(
        g, q, k, v, torch.zeros_like(g), lse[..., 0].contiguous(), None, None, q.shape[2], k.shape[2], 0.0, False, seed,
        torch.zeros((), dtype=torch.uint64, device=q.device), scale=1.0,
    )  # fmt: skip


def _efficient_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple:
    seed, wanted = torch.zeros((), dtype=torch.int64), [True, True, True, False]
    return _aten("efficient_attention_backward")(
        g, q, k, v, None, torch.zeros_like(g), _padded_lse(lse), seed, seed, 0.0, wanted, False, scale=1.0
    )[:3]


_FORWARD = {"cpu": _cpu, "flash": _flash, "efficient": _efficient, "cudnn": _cudnn}
_BACKWARD = {
    "flash": _flash_backward,
    "efficient": _efficient_backward,
    "cudnn": _flash_backward,  # serves the same dtypes and widths
}
