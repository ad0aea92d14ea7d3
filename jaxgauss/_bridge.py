"""The one door to PyTorch: `buffer_callback` with DLPack inside. Nothing else knows both libraries.

Buffers become tensors without a copy and are valid during the callback alone. On CUDA the callback only enqueues work,
on the stream that XLA runs on, and never waits for it. No input is written, no JAX function is called.
"""

import atexit
import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.experimental.buffer_callback as jax_buffer_callback
from jax._src.xla_bridge import backends_are_initialized  # JAX has no public way to ask

from ._checks import Settings
from ._varying import vary_like

if TYPE_CHECKING:
    from torch import Tensor

    from ._plan import Plan

DLPACK_CUDA = 2
MANY = 2**22  # pairs of points whose sum takes long enough to be spoken of


def serves(platform: str) -> bool:
    """Whether the PyTorch that is installed runs on a platform of JAX."""
    if platform == "cpu":
        return True
    return platform == "cuda" and _torch().cuda.is_available()


def refuse_fork() -> None:
    """Raise RuntimeError in a process forked after JAX was used: it would wait forever for threads it has not got."""
    if os.getpid() in _FORKED_LATE:
        raise RuntimeError(
            "`jaxgauss`: a process must not be forked after JAX was used, for the threads of JAX and PyTorch stay"
            f" behind; got process {os.getpid()}, forked late. Use multiprocessing.get_context('spawn')."
        )


_FORKED_LATE: set[int] = set()  # this process, if it was forked after JAX had made its threads


def _remember_fork() -> None:
    if backends_are_initialized():
        _FORKED_LATE.add(os.getpid())


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_remember_fork)


def kernel_names(backend: str, precision: str, platform: str, dtype: str, dim: int) -> tuple[str, str]:
    """The backend and the precision that "auto" stands for there; ValueError if the named ones cannot run."""
    torch_backend = _torch_backend()
    try:
        kernel = torch_backend.select_kernel(backend, precision, platform, getattr(_torch(), dtype), dim)
    except ValueError as error:
        raise ValueError(str(error).replace("`torch_backend`", "`jaxgauss.gauss_sum`")) from None
    return kernel.name, kernel.precision


def reach(method: str, precision: str) -> float:
    """R², squared bandwidths from the center, up to which a reduction has the digits that its precision promises."""
    return _torch_backend().REACH[method][precision]


def torch_sum(plan: "Plan", queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> jax.Array:
    """The Gauss sum of operands of equal rank and one dtype, by `torch_backend.gauss_sum`."""
    operands = queries, keys, values, tau
    (total,) = _call(
        _sum_callback(plan.method, plan.precision, plan.backend), _shapes_of_means(*operands)[:1], operands
    )
    return total


def torch_pullback(plan: "Plan", *operands: jax.Array) -> tuple[jax.Array, ...]:
    """The pullback at queries, keys, values, tau and a cotangent, by `torch_backend.gauss_sum_pullback`."""
    shapes = [x.shape for x in operands[:3]]
    return tuple(_call(_pullback_callback(plan.precision, plan.backend), shapes, operands))


def torch_means(plan: "Plan", *operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Means and logarithms of sums at queries, keys, values, tau and log-weights, by `torch_backend.log_gauss_sum`."""
    means, logs = _call(_means_callback(plan.precision, plan.backend), _shapes_of_means(*operands), operands)
    return means, logs


def torch_wide_sum(settings: Settings, *operands: jax.Array) -> jax.Array:
    """The Gauss sum of operands in float64, with the digits of a dtype, by `torch_backend.wide_sum`."""
    return _call(_wide_callback("wide_sum", settings.dtype, settings.far), _shapes_of_means(*operands)[:1], operands)[0]


def torch_wide_pullback(settings: Settings, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """The pullback likewise, by `torch_backend.wide_pullback`."""
    callback = _wide_callback("wide_pullback", settings.dtype, settings.far)
    return tuple(_call(callback, [x.shape for x in operands[:3]], operands))


def torch_wide_means(settings: Settings, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """Means and logarithms likewise, by `torch_backend.wide_means`."""
    callback = _wide_callback("wide_means", settings.dtype, settings.far)
    return tuple(_call(callback, _shapes_of_means(*operands), operands))


def torch_closer(_: Settings, points: jax.Array, tau: jax.Array) -> jax.Array:
    """The points (…, P, D) of one sum, or one set of sums, closer together, by `torch_backend.closer`."""
    return _call(_closer_callback(), [points.shape], [points, tau])[0]


def torch_errors(*operands: jax.Array) -> list[jax.Array]:
    """Squared errors, squared sizes and largest ratios (M,) at queries, keys, values, tau and the sums, in float64."""
    return _call(_errors_callback(), [operands[0].shape[-2:-1]] * 3, operands)


def _shapes_of_means(queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array, *others: jax.Array):
    """Of sums or means (…, M, C), and of their logarithms (…, M, 1)."""
    batch = jax.numpy.broadcast_shapes(tau.shape, *(x.shape[:-2] for x in (queries, keys, values, *others)))
    return [(*batch, queries.shape[-2], width) for width in (values.shape[-1], 1)]


def _call(callback: Callable, shapes: Sequence[tuple[int, ...]], operands: Sequence[jax.Array]) -> list[jax.Array]:
    dtype = operands[0].dtype
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return [vary_like(x, operands) for x in jax_buffer_callback.buffer_callback(callback, results)(*operands)]


# A fresh closure would be compiled afresh: one callback for each setting.


@functools.cache
def _sum_callback(method: str, precision: str, backend: str) -> Callable:
    gauss_sum = _torch_backend().gauss_sum
    options = {"method": method, "precision": precision, "backend": backend}
    guard = method != "rescale" or _is_guarded(precision, backend)
    return _callback(lambda *operands: [gauss_sum(*operands, **options, guard=guard)], options)


@functools.cache
def _pullback_callback(precision: str, backend: str) -> Callable:
    options, guard = {"precision": precision, "backend": backend}, _is_guarded(precision, backend)
    return _callback(functools.partial(_torch_backend().gauss_sum_pullback, **options, guard=guard), options)


@functools.cache
def _means_callback(precision: str, backend: str) -> Callable:
    options = {"precision": precision, "backend": backend}
    return _callback(functools.partial(_torch_backend().log_gauss_sum, **options), options)


@functools.cache
def _wide_callback(function: str, dtype: str, far: bool) -> Callable:
    digits = "float64" if dtype == "float64" else "float32"

    def run(*operands: "Tensor") -> "Sequence[Tensor]":  # PyTorch is loaded when points are found out of reach
        if far and operands[0].shape[-2] * operands[1].shape[-2] >= MANY:
            _say_far()
        results = getattr(_torch_backend(), function)(*operands, digits=digits)
        return results if isinstance(results, tuple) else [results]

    return _callback(run, {"function": function, "precision": "float64"})


@functools.cache
def _say_far() -> None:
    """Warn once that sums are slow."""
    with contextlib.suppress(UserWarning):  # made an error by a filter, it would end the sum
        warnings.warn(
            "jaxgauss: points lie farther from their center, in bandwidths, than float32 has digits for (see"
            " `jaxgauss.explain`): they are summed in float64, which takes three to eight times as long.",
            stacklevel=2,
        )


@functools.cache
def _closer_callback() -> Callable:
    return _callback(lambda *operands: [_torch_backend().closer(*operands)], {"function": "closer"})


@functools.cache
def _errors_callback() -> Callable:
    return _callback(_torch_backend().squared_errors, {"reference": "float64"})


def _is_guarded(precision: str, backend: str) -> bool:
    """Whether PyTorch looks after the reach of the precision: on a CPU, XLA has done so for float32 and float64."""
    return backend != "cpu" or precision not in ("float32", "float64")


def _callback(function: "Callable[..., Sequence[Tensor]]", options: dict[str, str]) -> Callable:
    """A buffer callback that writes function(*inputs) into the outputs."""
    _finish_before_exit()

    def run(torch: Any, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        tensors = [torch.from_dlpack(x) for x in inputs]
        for output, result in zip(outputs, function(*tensors), strict=True):
            torch.from_dlpack(output).copy_(result)

    def callback(context: Any, outputs: Sequence[Any], *inputs: Any) -> None:
        refuse_fork()
        torch = _torch()
        device_type, index = inputs[0].__dlpack_device__()
        try:
            with torch.inference_mode():
                if device_type == DLPACK_CUDA:
                    device = torch.device("cuda", index)
                    with torch.cuda.stream(torch.cuda.ExternalStream(context.stream, device=device)):
                        run(torch, outputs, inputs)
                else:
                    run(torch, outputs, inputs)
        except Exception as error:
            shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
            raise RuntimeError(
                _failure(error, f"{shapes} on {'cuda' if device_type == DLPACK_CUDA else 'cpu'}, {options}")
            ) from error

    return callback


@functools.cache
def _finish_before_exit() -> None:
    """When the process ends, wait for sums under way: a callback that finds no interpreter would abort it."""

    @atexit.register
    def finish() -> None:
        if os.getpid() in _FORKED_LATE:
            return  # a child that was forked has none of their threads
        last = jax.numpy.zeros(()) + 1  # XLA takes the programs of a thread in turn
        for x in (last, *jax.live_arrays()):
            with contextlib.suppress(Exception):  # a failure that nobody has asked for
                x.block_until_ready()


def _failure(error: Exception, call: str) -> str:
    hint = ""
    if isinstance(error, _torch().OutOfMemoryError):
        hint = (
            " XLA reserves 75 % of the card for itself, and PyTorch allocates beside it: set"
            " XLA_PYTHON_CLIENT_PREALLOCATE=false or XLA_PYTHON_CLIENT_MEM_FRACTION=.5 before JAX starts."
        )
    return f"`jaxgauss`: PyTorch failed on {call}: {error}{hint}"


def _torch() -> Any:
    # Imported at the first use: importing jaxgauss stays cheap, and what XLA serves on a CPU loads PyTorch only when
    # points are found to be out of reach.
    try:
        import torch
    except ImportError as error:
        raise ImportError("`jaxgauss` needs PyTorch: pip install 'torch>=2.11,<2.14'.") from error
    return torch


def _torch_backend() -> Any:
    _torch()
    import torch_backend

    return torch_backend
