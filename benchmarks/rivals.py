"""The Gauss sum by everything that one could use for it, each in its best usual form, as calls to be timed.

A method is a function of a `Problem` and of what is wanted, "forward" or "gradients" (the sum, and the gradients of
queries, keys and values for a cotangent). It prepares a call, or returns the reason why there is none.
"""

import functools
import importlib.util
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from jaxgauss import Attention, gauss_sum
from torch_backend import attention, select_kernel

from . import inside
from .study import Call, JaxCall, exact_matrix, relative, unchecked

for variable in ("PYKEOPS_VERBOSE", "KEOPS_VERBOSE"):  # before its import: it would write into the progress bar
    os.environ.setdefault(variable, "0")

LARGEST_MATRIX = {"cpu": 2**31, "cuda": 2**35}  # bytes: dense methods are left out beyond
ROWS = 256  # of the first problem of a batch, which are compared with float64


@dataclass(frozen=True)
class Problem:
    """`batch` problems of `num` queries and keys, N(0, I/D), `channels` normal values, τ = 1."""

    num: int
    dim: int
    channels: int
    batch: int = 1
    dtype: str = "float32"
    device: str = "cpu"

    @functools.cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Queries, keys, values and a cotangent, (batch, num, ·), or without the batch if it is one."""
        rng = np.random.default_rng(0)
        widths = [self.dim, self.dim, self.channels, self.channels]
        scales = [self.dim**-0.5, self.dim**-0.5, 1.0, 1.0]
        batch = (self.batch,) if self.batch > 1 else ()
        return tuple(
            (rng.standard_normal((*batch, self.num, width), np.float32) * np.float32(scale))
            for width, scale in zip(widths, scales, strict=True)
        )

    @functools.cached_property
    def jax(self) -> tuple[jax.Array, ...]:
        """The same in JAX."""
        return tuple(jnp.asarray(x).astype(self.dtype) for x in self.arrays)

    @functools.cached_property
    def torch(self) -> tuple[torch.Tensor, ...]:
        """The same in PyTorch."""
        return tuple(torch.tensor(x, device=self.device, dtype=getattr(torch, self.dtype)) for x in self.arrays)

    @property
    def matrix_bytes(self) -> int:
        """Of all kernel matrices."""
        return self.batch * self.num**2 * np.dtype(np.float16 if self.dtype == "float16" else np.float32).itemsize

    @property
    def first(self) -> list[np.ndarray]:
        """The first problem of the batch, in float64."""
        return [np.asarray(x if self.batch == 1 else x[0], np.float64) for x in self.jax]

    @functools.cached_property
    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """The first rows of the sum in float64, and of the sum of its terms' sizes."""
        q, k, v, _ = self.first
        rows = exact_matrix(q[:ROWS], k)  # (rows, N)
        return rows @ v, rows @ np.abs(v)

    @functools.cached_property
    def gradients(self) -> list[np.ndarray]:
        """The first rows of the gradients of queries, keys and values, in float64."""
        q, k, v, g = self.first
        rows = exact_matrix(q[:ROWS], k)  # (rows, N)
        columns = exact_matrix(k[:ROWS], q)  # (rows, M): those of Φᵀ
        by_queries, by_keys = rows * (g[:ROWS] @ v.T), columns * (v[:ROWS] @ g.T)
        d_queries = by_queries @ k - by_queries.sum(1)[:, None] * q[:ROWS]
        d_keys = by_keys @ q - by_keys.sum(1)[:, None] * k[:ROWS]
        return [d_queries, d_keys, columns @ g]

    def error(self, what: str, results: Any) -> float:
        """The largest L2 error of the results, relative to them."""
        exact = [self.sums[0], *(self.gradients if what == "gradients" else [])]
        return max(relative(x, y) for x, y in zip(self._rows(what, results), exact, strict=True))

    def error_of_terms(self, what: str, results: Any) -> float:
        """The L2 error of the sum, relative to Σ Φ|v|, the sum of its terms' sizes."""
        (exact, sizes), found = self.sums, next(self._rows(what, results))
        return float(np.linalg.norm(found - exact) / np.linalg.norm(sizes))

    def _rows(self, what: str, results: Any) -> Iterator[np.ndarray]:
        """What there is to compare of the sum, and of the gradients."""
        for x in [results] if what == "forward" else results:
            first = x if self.batch == 1 else x[0]
            yield np.asarray(first.cpu() if isinstance(first, torch.Tensor) else first)[:ROWS]


Method = Callable[[Problem, str], Call | str]


def value_and_pullback(function: Callable, q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array):
    """The sum, and its gradients for the cotangent g."""
    value, pullback = jax.vjp(function, q, k, v)
    return value, *pullback(g)


def in_jax(function: Callable) -> Callable[[Problem, str], Call]:
    """A method under jit, with JAX's derivatives."""

    def method(problem: Problem, what: str) -> Call:
        q, k, v, g = problem.jax
        if what == "forward":
            return JaxCall(function, q, k, v)
        return JaxCall(functools.partial(value_and_pullback, function), q, k, v, g)

    return method


def in_torch(function: Callable) -> Callable[[Problem, str], Call]:
    """A method of PyTorch with its derivatives."""

    def method(problem: Problem, what: str) -> Call:
        q, k, v, g = problem.torch

        def forward():
            with torch.no_grad():
                return function(q, k, v)

        def gradients():
            operands = [x.detach().requires_grad_() for x in (q, k, v)]
            value = function(*operands)
            return value.detach(), *torch.autograd.grad(value, operands, g)

        return waiting(forward if what == "forward" else gradients, problem.device)

    return method


def where(holds: Callable[[Problem, str], bool], reason: str, method: Method) -> Method:
    """A method of some problems."""
    return lambda problem, what: method(problem, what) if holds(problem, what) else reason


def dense(method: Method, arrays: int = 1) -> Method:
    """A method that holds so many kernel matrices, three times as many for gradients, where memory holds them."""

    def fits(problem: Problem, what: str) -> bool:
        return problem.matrix_bytes * arrays * (1 if what == "forward" else 3) <= LARGEST_MATRIX[problem.device]

    return where(fits, "matrix too large", method)


def ours(**options: Any) -> Method:
    """The sum, with options."""
    return in_jax(functools.partial(gauss_sum, **options))


def dense_jax(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The formula with the square multiplied out."""
    dot = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None)
    squared = jnp.square(q).sum(-1)[..., :, None] + jnp.square(k).sum(-1)[..., None, :] - 2 * dot(q, k.mT)
    return dot(jnp.exp(-squared / 2), v)


def blocked_jax(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The same for as many queries at a time as fill a tile; gradients compute the tiles again."""

    @jax.checkpoint
    def of_one(query: jax.Array) -> jax.Array:
        return dense_jax(query[..., None, :], k, v)[..., 0, :]

    entries = 2**26 if jax.default_backend() == "gpu" else 2**18 * (1 + v.shape[-1] // 16)  # by measurement
    rows = max(1, entries // (k.size // k.shape[-1]))
    return jnp.moveaxis(jax.lax.map(of_one, jnp.moveaxis(q, -2, 0), batch_size=rows), 0, -2)


def dense_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch."""
    squared = q.square().sum(-1)[..., :, None] + k.square().sum(-1)[..., None, :] - 2 * q @ k.mT
    return torch.exp(-squared / 2) @ v


def by_torch_compile(problem: Problem, what: str) -> Call:
    """The same compiled for the problem's shapes."""
    torch.compiler.reset()  # there is a limit to the shapes that one function is compiled for
    return in_torch(torch.compile(dense_torch, dynamic=False))(problem, what)


def otts_point_cloud() -> type:
    """Of OTT-JAX, which forms blocks of its cost matrix as it goes if it has a `batch_size`."""
    from jax.interpreters import batching

    if not hasattr(batching, "is_vmappable"):  # which OTT 0.6 asks for, and JAX has since removed
        batching.is_vmappable = lambda _: False  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "JAXopt is no longer maintained")
        from ott.geometry.pointcloud import PointCloud
    return PointCloud


def ott_sum(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """OTT's PointCloud with `batch_size`, which forms blocks of its cost matrix as it goes."""
    return otts_point_cloud()(q, k, epsilon=2.0, batch_size=1024).apply_kernel(v[:, 0], axis=1)[:, None]


def by_keops(problem: Problem, what: str, formula: str = "Exp(-p*SqDist(x,y))", parameter: float = 0.5) -> Call | str:
    """PyKeOps' compiled reduction of the formula, and of its derivatives."""
    from pykeops.torch import Genred  # pyright: ignore[reportMissingImports]

    aliases = [f"x=Vi({problem.dim})", f"y=Vj({problem.dim})", f"b=Vj({problem.channels})", "p=Pm(1)"]
    reduction = Genred(f"({formula})*b", aliases, reduction_op="Sum", axis=1)
    p = torch.tensor([parameter], device=problem.device, dtype=getattr(torch, problem.dtype))
    backend = {"cpu": "CPU", "cuda": "GPU_1D"}[problem.device]
    return in_torch(lambda q, k, v: reduction(q, k, v, p, backend=backend))(problem, what)


def by_scikit_learn(problem: Problem, what: str) -> Call:
    """`rbf_kernel`, a matrix, times the values."""
    from sklearn.metrics.pairwise import rbf_kernel

    q, k, v, _ = problem.arrays
    return lambda: rbf_kernel(q, k, gamma=0.5) @ v


def bare_attention(problem: Problem, what: str) -> Call:
    """The attention call alone, on ready-made tensors at the width that `rescale` runs at. Not a Gauss sum."""
    kernel = select_kernel("auto", "auto", problem.device, getattr(torch, problem.dtype), problem.dim)
    width = kernel.width(max(problem.dim + (0 if kernel.takes_bias else kernel.norm_columns), problem.channels))
    shape = (problem.batch, 1, problem.num, width)
    drawn = (torch.randn(shape, device=problem.device) / width**0.5 for _ in range(3))
    q, k, v = (x.to(getattr(torch, kernel.dtype)) for x in drawn)

    def call() -> Any:
        with torch.inference_mode():
            return attention.attention(q, k, v, kernel)

    return unchecked(waiting(call, problem.device))


def is_forward(problem: Problem, what: str) -> bool:
    """Whether only the sum is wanted."""
    return what == "forward"


OURS = {
    "auto": ours(),
    "rescale": ours(engine="rescale"),
    "prescale": ours(engine="prescale"),
    "reweight": ours(engine="reweight"),
    "float16x2": ours(engine="rescale", precision="float16x2"),
}
VARIANTS = {  # of ours, that are of interest on some devices or points; cuDNN's needs columns for norms, and others
    "float32": where(
        lambda p, what: p.dtype == "float32", "half-precision points", ours(engine="rescale", precision="float32")
    ),
    "auto in float32": where(lambda p, what: p.dtype == "float32", "half-precision points", ours(precision="float32")),
    "cudnn": where(
        lambda p, what: max(p.dim + 4, p.channels) <= 128, "too wide", ours(engine=Attention(kernel="cudnn"))
    ),
    "waves": ours(engine="fourier"),
}
JAX_NATIVE = {"dense JAX": dense(in_jax(dense_jax)), "blocked JAX": in_jax(blocked_jax)}
OTHERS = {
    "OTT online": where(lambda p, what: p.channels == p.batch == 1, "one vector", dense(in_jax(ott_sum))),
    "PyKeOps": by_keops,
    "torch eager": dense(in_torch(dense_torch), 2),
    "torch.compile": dense(by_torch_compile),
    "scikit-learn": where(
        lambda p, what: is_forward(p, what) and p.batch == 1 and p.device == "cpu",
        "no gradients, no batch, no GPU",
        dense(by_scikit_learn, 2),
    ),
}
BARE = "bare attention"  # whose results are not a Gauss sum, and are not compared with one
KNOWN = OURS | VARIANTS | JAX_NATIVE | OTHERS | {BARE: where(is_forward, "the sum only", bare_attention)}
NEEDS = {"OTT online": "ott", "PyKeOps": "pykeops", "scikit-learn": "sklearn", "finufft": "finufft"}


def is_installed(name: str) -> bool:
    """Whether there is what the method needs."""
    return name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None


def calls(names: Iterable[str], problem: Problem, what: str) -> dict[str, Callable[[], Call | str]]:
    """What prepares the calls of those methods that are installed here."""
    return {name: functools.partial(KNOWN[name], problem, what) for name in names if is_installed(name)}


def waiting(call: Call, device: str) -> Call:
    """The call of PyTorch that waits for its results."""

    def waited() -> Any:
        results = call()
        torch.cuda.synchronize()
        return results

    return waited if device == "cuda" else call


def rates(device: str, dtype: str, size: int = 2048, runs: int = 30) -> dict[str, float]:
    """Multiply-adds and exponentials a second that the device reaches in PyTorch or JAX: the physical limit."""
    size = 4 * size if device == "cuda" else size
    x = torch.rand(size, size, device=device).to(getattr(torch, dtype))
    y = jnp.asarray(np.random.default_rng(0).random((size, size)), dtype)
    calls: dict[tuple, Call] = {
        ("matmul", "torch"): waiting(lambda: x @ x, device),
        ("matmul", "jax"): JaxCall(lambda y: y @ y, y),
    }
    # sums, which need not be written to memory, of a matrix, and of one that is not read from memory either
    for exp, operands in itertools.product((jnp.exp, inside.exponential.exp2), ((y,), (y[:, :1], y[:1]))):
        calls["exp", exp, len(operands)] = JaxCall(lambda *z, exp=exp: exp(sum(z)).sum(-1), *operands)
    times = inside.costs.in_turns(calls, runs)  # for seconds: less may be one busy moment
    work = {"matmul": size**3, "exp": size**2}
    return {what: work[what] / min(min(x) for key, x in times.items() if key[0] == what) for what in work}


def limit(problem: Problem, what: str, rates: dict[str, float]) -> float:
    """Seconds that the exponentials, or the products, of the fewest sums take at the device's rates."""
    d, c = problem.dim, problem.channels
    products, exponentials = d + c, 1
    if what == "gradients":  # by two sums of C (D + 1) channels; or a sum, and a backward pass that forms Φ again
        products, exponentials = min(2 * (d + c * (d + 1)), (d + c) + (d + c + c + 2 * d)), 2
    pairs = problem.batch * problem.num**2
    return max(pairs * products / rates["matmul"], pairs * exponentials / rates["exp"])
