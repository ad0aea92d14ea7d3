"""What the library has to know of a card, and cannot compute without one: what PyTorch and XLA do there.

FlexAttention has float32's digits if products are taken in three parts of TF32; the log-sum-exp of flash and cuDNN has
them if points are two float16 numbers. Errors are those of sums, relative to the result and to the sum of their terms'
sizes; those of bare attention are of its results.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn.functional import pad

from jaxgauss import Attention, gauss_sum, mmd_squared
from torch_backend import attention, layout
from torch_backend.kernels import KERNELS, AttentionKernel

from .. import applications, grids
from ..rivals import ROWS, Problem, waiting
from ..study import Call, Cell, JaxCall, Task, elsewhere, quartiles, relative

product: Any = itertools.product  # whose types nobody knows here
BLOCKS = {  # of FlexAttention, by name; in the first one it chooses
    "its own": {},
    **{
        f"{rows} × {columns}, {warps} warps": {"BLOCK_M": rows, "BLOCK_N": columns, "num_warps": warps, "num_stages": 2}
        for rows, columns, warps in ((128, 32, 4), (64, 64, 4), (128, 64, 8))
    },
}
NAMES = ("flash", "cudnn")
EIGHT = 8  # columns of values, the fewest
NO_AUTOTUNER = "--xla_gpu_experimental_enable_fusion_autotuner=false"
CALLS = 5  # of a conditional, before the host looks at the time


@dataclasses.dataclass(frozen=True)
class Positive(Problem):
    """The same with positive values."""

    @functools.cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The values' sizes in the place of values."""
        q, k, v, g = super().arrays
        return q, k, np.abs(v), g


def probes(sizes: SimpleNamespace) -> Iterator[Cell | Task]:
    """In order of worth; what takes long to compile, and may be chosen later, comes last."""
    own, *others = BLOCKS
    yield from flex(sizes, "tf32x3", [own])
    yield from logarithms(sizes)
    yield from splits(sizes)
    yield from first_calls(sizes)
    yield conditional(sizes.matrices)
    yield conditional(sizes.matrices, by_torch=True)
    yield from widths(sizes)
    yield from flex(sizes, "tf32x3", others)
    yield from flex(sizes, "tf32", BLOCKS)
    yield from flex(sizes, "ieee", [own])


def summed(figure: str, problem: Problem, what: str, methods: Mapping[str, Callable[[], Call]]) -> Cell:
    """The cell of a sum, which nothing has to be right in."""
    cell = grids.cell(figure, problem, "forward", [])
    return dataclasses.replace(cell, about=cell.about | {"what": what}, methods=methods, series="")


def flex(sizes: SimpleNamespace, precision: str, blocks: Iterable[str]) -> Iterator[Cell]:
    """FlexAttention in float32: products in a precision, by blocks of a size."""
    for num, name, (dim, channels) in list(product(sizes.nums[::-1], blocks, sizes.pairs))[:: sizes.every]:
        torch.compiler.reset()  # there is a limit to what one function is compiled for
        problem = Problem(num, dim, channels, device=sizes.device)
        prepare = functools.partial(by_flex, problem, precision, BLOCKS[name])
        cell = summed("FlexAttention", problem, precision, {name: prepare})
        yield dataclasses.replace(cell, about=cell.about | {"blocks": name})


def by_flex(problem: Problem, precision: str, blocks: dict[str, int]) -> Call:
    """The sum as out times exp(lse), whose logits have the norms added."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    q, k, v, _ = problem.torch
    query_norms, key_norms = (layout.half_squared_norms(x)[:, 0] for x in (q, k))
    operands = [pad(x, (0, max(16, x.shape[1]) - x.shape[1]))[None, None].contiguous() for x in (q, k, v)]
    options: Any = {"FLOAT32_PRECISION": f"'{precision}'", "ROWS_GUARANTEED_SAFE": True, **blocks}

    def exponents(score: Any, batch: Any, head: Any, row: Any, column: Any) -> Any:
        return score - query_norms[row] - key_norms[column]

    def function(*operands: torch.Tensor) -> torch.Tensor:
        wanted = AuxRequest(lse=True)
        found: Any = flex_attention(
            *operands, score_mod=exponents, scale=1.0, kernel_options=options, return_aux=wanted
        )
        out, aux = found
        return (out * aux.lse.exp()[..., None])[0, 0, :, : problem.channels]

    function = torch.compile(function, dynamic=False) if problem.device == "cuda" else function
    return waiting(lambda: function(*operands), problem.device)


def in_two_parts(name: str) -> AttentionKernel:
    """The kernel for points that are two float16 numbers."""
    return dataclasses.replace(KERNELS[name], dtype="float16", parts=2)


def logarithms(sizes: SimpleNamespace) -> Iterator[Cell]:
    """The log-sum-exp alone, whose values are not looked at: as wide as points, or of eight columns."""
    for num, dim in product(sizes.nums, sizes.logarithms):
        problem = Positive(num, dim, 1, device=sizes.device)
        by = functools.partial(by_logarithm, problem)
        methods = {name: functools.partial(by, name) for name in NAMES}
        methods |= {f"{name}, 8 columns": functools.partial(by, name, columns=EIGHT) for name in NAMES}
        yield summed("log-sum-exp alone", problem, "float16x2", methods)


def splits(sizes: SimpleNamespace) -> Iterator[Cell]:
    """The same with the keys in several heads."""
    nums, dims, heads = sizes.splits
    for num, dim in product(nums, dims):
        problem = Positive(num, dim, 1, device=sizes.device)
        methods = {
            f"{name}, S = {number}": functools.partial(by_logarithm, problem, name, heads=number)
            for name, number in product(NAMES, heads)
        }
        yield summed("keys in S heads", problem, "float16x2", methods)


def by_logarithm(problem: Problem, name: str, columns: int | None = None, heads: int = 1) -> Call:
    """Sums of positive values, which are weights: exp(lse) of every head, added."""
    kernel = in_two_parts(name)
    q, k, v, _ = problem.torch
    query_columns, key_columns, norms = layout.exponent_columns(q, k, kernel, torch.log(v))
    width = kernel.width(kernel.columns(problem.dim))
    queries, keys = (layout.pack(*x, width=width, dtype="float16") for x in (query_columns, key_columns))
    queries = queries.expand(1, heads, -1, -1)
    queries = queries.contiguous() if name == "cudnn" else queries
    keys = keys.reshape(1, heads, -1, width)
    values = torch.ones_like(keys[..., : columns or width])

    def call() -> torch.Tensor:
        lse = attention.attention(queries, keys, values, kernel)[1]
        return (lse[0] - norms).exp().sum(0)

    return waiting(call, problem.device)


def widths(sizes: SimpleNamespace) -> Iterator[Cell]:
    """Bare attention in float16 at widths up to 256, with values as wide, and of eight columns."""
    num, every = sizes.widths
    for width, columns in product(every, (None, EIGHT)):
        columns = columns or width
        operands = functools.cache(functools.partial(drawn, num, width, columns, sizes.device))

        def call(name: str, operands: Callable = operands) -> Call:
            (q, k, v), kernel = operands(), dataclasses.replace(KERNELS[name], dtype="float16")
            return waiting(lambda: attention.attention(q, k, v, kernel), sizes.device)

        def error(found: tuple, operands: Callable = operands) -> float:
            q, k, v = (x[0, 0].double().cpu() for x in operands())
            logits = q[:ROWS] @ k.T
            exact = (torch.softmax(logits, -1) @ v, torch.logsumexp(logits, -1, keepdim=True))
            return max(relative(x[0, 0, :ROWS].cpu(), np.asarray(y)) for x, y in zip(found, exact, strict=True))

        about = {"figure": "widths", "n": num, "d": width, "c": columns, "dtype": "float16", "what": "attention"}
        yield Cell(about, {name: functools.partial(call, name) for name in NAMES}, error, grids.TOLERANCE)


def drawn(num: int, width: int, columns: int, device: str) -> list[torch.Tensor]:
    """Queries, keys and values."""
    rng = np.random.default_rng(0)
    numbers = (rng.standard_normal((1, 1, num, x), np.float32) for x in (width, width, columns))
    return [torch.tensor(x, device=device).half() / 10 for x in numbers]


def first_calls(sizes: SimpleNamespace) -> Iterator[Task]:
    """The value and gradient of MMD² in a process of their own: with XLA's defaults, and without one autotuner."""
    num, dim = sizes.first
    for method, flags in {"mmd_squared": "", "without the fusion autotuner": NO_AUTOTUNER}.items():

        def find(runs: int, method: str = method, flags: str = flags) -> list[dict]:
            return [row | {"method": method} for row in elsewhere(first_call, num, dim, runs, flags=flags)]

        yield Task({"figure": "first call", "n": num, "d": dim, "what": "gradients", "method": method}, find)


def first_call(num: int, dim: int, runs: int) -> list[dict]:
    """In this process, where JAX has been used."""
    jax.block_until_ready(jnp.zeros(1) + 1)
    x, y = applications.samples(num, dim)
    function = jax.value_and_grad(functools.partial(mmd_squared, tau=1.0))

    def error(found: tuple) -> float:
        return relative(found[1][:ROWS], applications.mmd_gradient(x, y))

    methods = {"": lambda: JaxCall(function, x, y)}
    return Cell({}, methods, error, grids.TOLERANCE).found(runs, [""], [])[0]


def conditional(size: int, by_torch: bool = False) -> Task:
    """Does a conditional make the host wait? Seconds until calls return, and until they are done.

    With a call of PyTorch in the branch that is taken: can XLA record it there, and is it right?
    """

    def attended(y: jax.Array) -> jax.Array:
        return y + gauss_sum(y[:, :3], y[:, :3], y[:, :1], engine=Attention(precision="float16"))

    taken = attended if by_torch else jnp.exp

    def function(x: jax.Array, y: jax.Array, branch: bool = True) -> jax.Array:
        for _ in range(4):
            y = jnp.sin(y @ y) / 64
        y = jax.lax.cond(jnp.abs(x).max() > 3, lambda y: y @ y.T @ y, taken, y) if branch else taken(y)
        for _ in range(4):
            y = jnp.cos(y @ y) / 64
        return y

    def find(runs: int) -> list[dict]:
        x, y, jitted, found = jnp.ones((64, 64)), jnp.ones((size, size)), jax.jit(function), []
        seconds: dict[str, list[float]] = {"returned": [], "done": []}
        for _ in range(runs + 1):  # of which the first one compiles
            start = time.perf_counter()
            found = [jitted(x, y) for _ in range(CALLS)]
            seconds["returned"].append(time.perf_counter() - start)
            jax.block_until_ready(found)
            seconds["done"].append(time.perf_counter() - start)
        alone = jax.jit(functools.partial(function, branch=False))(x, y)
        error = relative(np.asarray(found[-1]), np.asarray(alone))
        rows = [{"method": name, "seconds": x[1:], "error": error} for name, x in seconds.items()]
        return [row | quartiles(row) for row in rows]

    what = f"{CALLS} calls" + (", of PyTorch in a branch" if by_torch else "")
    return Task({"figure": "conditional", "n": size, "what": what}, find)
