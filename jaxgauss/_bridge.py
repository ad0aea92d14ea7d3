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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.experimental.buffer_callback as jax_buffer_callback
from jax._src.xla_bridge import backends_are_initialized  # JAX has no public way to ask

from ._checks import Settings
from ._varying import vary_like

if TYPE_CHECKING:
    from torch import Tensor

    from torch_backend import Engine, Kernel

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


def kernel_names(name: str, precision: str, platform: str, dtype: str, dim: int) -> tuple[str, str]:
    """The backend and the precision that "auto" stands for there; ValueError if the named ones cannot run."""
    try:
        kernel = backend().select_kernel(name, precision, platform, dtype, dim)
    except ValueError as error:
        raise ValueError(str(error).replace("`torch_backend`", "`jaxgauss.gauss_sum`")) from None
    return kernel.name, kernel.precision


def reach(method: str, precision: str) -> float:
    """R², squared bandwidths from the center, up to which a reduction has the digits that its precision promises."""
    return backend().REACH[method][precision]


def kernel(plan: "Plan", like: jax.Array) -> "Kernel | str":
    """The kernel of a plan for such points (…, N, D); or why there is none, where nobody could ask before."""
    try:
        dim, dtype = like.shape[-1], like.dtype.name
        return backend().select_kernel(plan.backend, plan.precision, plan.platform, dtype, dim)
    except ValueError as error:
        return str(error)


def engine() -> "Engine":
    """PyTorch's attention as an engine for arrays of JAX: one operator in one callback, forward and back."""
    return backend().Engine(_attend, _pull_back)


def _attend(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    kernel: "Kernel",
    *,
    bias: jax.Array | None = None,
    needs_lse: bool = True,
) -> list[jax.Array]:
    tensors = queries, keys, values, *([] if bias is None else [bias])
    batch = jax.numpy.broadcast_shapes(*(x.shape[:2] for x in tensors))
    alarm = [] if kernel.alarm is None else [kernel.alarm]
    callback = _attend_callback(replace(kernel, gate=None, alarm=None), bias is not None, bool(alarm))
    operands = *tensors, *alarm, *_gate(kernel, batch, queries, keys)
    shapes: Any = [(*batch, queries.shape[2], width) for width in (values.shape[3], 1)]
    return _call(callback, shapes, operands, backend().arrays.accumulation_dtype(kernel.dtype))


def _pull_back(*operands: Any) -> list[jax.Array]:
    *tensors, kernel = operands
    batch = jax.numpy.broadcast_shapes(*(x.shape[:2] for x in tensors))
    gate = _gate(kernel, batch, *tensors[1:3])
    callback = _pull_back_callback(replace(kernel, gate=None, alarm=None), bool(gate))
    shapes: Any = [(*batch, *x.shape[2:]) for x in tensors[1:4]]
    return _call(callback, shapes, [*tensors, *gate], backend().arrays.accumulation_dtype(kernel.dtype))


def _gate(kernel: "Kernel", batch: Sequence[Any], queries: jax.Array, keys: jax.Array) -> tuple[jax.Array, ...]:
    """The operands that a gate is for the operator."""
    if kernel.gate is None:
        return ()
    return backend().kernels.gate_starts(kernel.gate, batch[0], queries.shape[2], keys.shape[2])


def torch_refusal(message: str, shapes: Sequence[tuple[int, ...]], operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Results that are never there: the message, as an error, when they are asked for."""
    return _call(_refusal_callback(message), shapes, operands)


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


def _call(
    callback: Callable, shapes: Sequence[tuple[int, ...]], operands: Sequence[jax.Array], dtype: Any = None
) -> list[jax.Array]:
    """The callback's results, in the first operand's dtype if in no other."""
    results = [jax.ShapeDtypeStruct(shape, dtype or operands[0].dtype) for shape in shapes]
    return [vary_like(x, operands) for x in jax_buffer_callback.buffer_callback(callback, results)(*operands)]


# A fresh closure would be compiled afresh: one callback for each setting.


@functools.cache
def _attend_callback(kernel: "Kernel", has_bias: bool, has_alarm: bool) -> Callable:
    attend = backend().ENGINE.attend

    def run(queries: "Tensor", keys: "Tensor", values: "Tensor", *given: "Tensor") -> "Sequence[Tensor]":
        bias, options = given[0] if has_bias else None, given[has_bias:]
        alarm, gate = options[0] if has_alarm else None, options[has_alarm:]
        its = replace(kernel, alarm=alarm, gate=gate or None) if options else kernel
        return attend(queries, keys, values, its, bias=bias)

    return _callback(run, {"backend": kernel.name, "precision": kernel.precision})


@functools.cache
def _pull_back_callback(kernel: "Kernel", is_gated: bool) -> Callable:
    pullback = backend().ENGINE.pullback

    def run(*operands: "Tensor") -> "Sequence[Tensor]":
        tensors, gate = operands[:5], operands[5:]
        return pullback(*tensors, replace(kernel, gate=gate) if is_gated else kernel)

    return _callback(run, {"backend": kernel.name, "precision": kernel.precision, "pullback": "True"})


@functools.cache
def _refusal_callback(message: str) -> Callable:
    def run(*operands: "Tensor") -> "Sequence[Tensor]":
        raise ValueError(message.replace("`torch_backend`: ", ""))

    return _callback(run, {})


@functools.cache
def _wide_callback(function: str, dtype: str, far: bool) -> Callable:
    digits = "float64" if dtype == "float64" else "float32"

    def run(*operands: "Tensor") -> "Sequence[Tensor]":  # PyTorch is loaded when points are found out of reach
        if far and operands[0].shape[-2] * operands[1].shape[-2] >= MANY:
            _say_far()
        results = getattr(backend(), function)(*operands, digits=digits)
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
    return _callback(lambda *operands: [backend().closer(*operands)], {"function": "closer"})


@functools.cache
def _errors_callback() -> Callable:
    return _callback(backend().squared_errors, {"reference": "float64"})


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


def backend() -> Any:
    """`torch_backend`, which is imported at the first use."""
    _torch()
    import torch_backend

    return torch_backend
