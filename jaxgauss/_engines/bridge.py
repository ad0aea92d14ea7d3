"""The bridge: callbacks from XLA to PyTorch, by DLPack, or to NumPy.

Buffers become tensors without a copy and are valid only during the callback. On CUDA the callback enqueues work on
XLA's stream and never waits for it. A callback writes to no input and calls no JAX function.

On CUDA XLA also records what a callback launches, in a graph, and from then on replays that without Python, as long as
the operands lie where they lay. So what is launched depends on shapes alone, and temporary tensors keep their memory,
which the graphs share: they run one after another.
"""

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jax.experimental import buffer_callback
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .._arrays.devices import vary_like
from .._arrays.process import is_forked_late, refuse_fork

if TYPE_CHECKING:
    from torch_backend.devices import Card

DLPACK_CUDA = 2
Shapes: TypeAlias = Sequence[tuple[int, ...]]


def serves(platform: str) -> bool:
    """Whether the installed PyTorch runs on a platform of JAX."""
    if platform == "cpu":
        return True
    return platform == "cuda" and _torch().cuda.is_available()


def call(
    make: Callable,
    options: tuple[Any, ...],
    shapes: Shapes,
    operands: Sequence[jax.Array],
    dtype: Any = None,
    *,
    prepare: Callable[[], None] | None = None,
) -> tuple[jax.Array, ...]:
    """The results of make(*options), a function of tensors: arrays of these shapes, in `dtype` or that of the operands.

    The function is made once for equal options, because XLA would compile the program again for a new one. `prepare` is
    called where a program with the callback is lowered, so before any runs; not where it is only traced.
    """
    results = [jax.ShapeDtypeStruct(shape, dtype or operands[0].dtype) for shape in shapes]
    in_turn = "CONCURRENT" not in os.environ.get("XLA_FLAGS", "")  # the default; else two might share memory at once
    callback = buffer_callback.buffer_callback(buffered(make, options), results, command_buffer_compatible=in_turn)
    return tuple(vary_like(x, operands) for x in callback(stay(operands[0], prepare), *operands[1:]))


@functools.cache
def buffered(make: Callable, options: tuple[Any, ...]) -> Callable:
    """A buffer callback that writes make(*options)(*inputs) into the outputs."""
    function, made = make(*options), f"{make.__name__}({', '.join(map(str, options))})"
    finish_before_exit()

    def run(tensor: Callable[[Any], Any], outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        tensors = [tensor(x) for x in inputs]
        for output, result in zip(outputs, function(*tensors), strict=True):
            tensor(output).copy_(result)

    def callback(context: Any, outputs: Sequence[Any], *inputs: Any) -> None:
        refuse_fork()
        torch = _torch()
        device_type, index = inputs[0].__dlpack_device__()
        try:
            with torch.inference_mode():
                if device_type == DLPACK_CUDA:
                    device = torch.device("cuda", index)
                    stream = torch.cuda.ExternalStream(context.stream, device=device)
                    with torch.cuda.stream(stream), torch.cuda.use_mem_pool(_memory(index), device):
                        run(torch.from_dlpack, outputs, inputs)
                else:  # a capsule: to ask about streams, as from_dlpack(x) does, takes as long again
                    run(lambda x: torch.from_dlpack(x.__dlpack__()), outputs, inputs)
        except Exception as error:
            shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
            raise RuntimeError(
                _failure(error, f"{shapes} on {'cuda' if device_type == DLPACK_CUDA else 'cpu'}, {made}")
            ) from error

    return callback


@functools.cache
def _memory(index: int) -> Any:
    """The memory of a device that graphs use for temporary tensors; PyTorch gives it to nobody else."""
    return _torch().cuda.MemPool()


def call_numpy(write: Callable, options: tuple[Any, ...], shape: tuple[int, ...], operands: Sequence[jax.Array]) -> Any:
    """An array that write(*options, output, *operands) fills, in the last operand's dtype; NumPy arrays, on a CPU."""
    result = jax.ShapeDtypeStruct(shape, operands[-1].dtype)
    callback = buffer_callback.buffer_callback(_of_numpy(write, options), result, vmap_method="sequential")
    return vary_like(callback(stay(operands[0]), *operands[1:]), operands)


# A callback cannot leave the process. This primitive is an identity; its lowering for `jax.export` is an error. For
# other programs it prepares what the callback runs.
_stay_p = Primitive("jaxgauss_stay")


def stay(x: jax.Array, prepare: Callable[[], None] | None = None) -> jax.Array:
    """The operand of a callback, which keeps its program in this process."""
    return _stay_p.bind(x, prepare=prepare)


def _prepared(x: Any, *, prepare: Callable[[], None] | None) -> Any:
    if prepare is not None:
        prepare()
    return x


def _lowered(context: Any, x: Any, *, prepare: Callable[[], None] | None) -> list[Any]:
    if context.module_context.lowering_parameters.for_export:
        raise ValueError(
            "`jaxgauss`: a program for `jax.export` must run in XLA alone; got one with a callback, by which PyTorch or"
            " finufft sums, or XLA where points are far. Pass engine='blocked' to the sum."
        )
    return [_prepared(x, prepare=prepare)]


_stay_p.def_impl(_prepared)
_stay_p.def_abstract_eval(lambda x, **_: x)
mlir.register_lowering(_stay_p, _lowered)
batching.primitive_batchers[_stay_p] = lambda x, axes, **options: (_stay_p.bind(*x, **options), *axes)


@functools.cache
def _of_numpy(write: Callable, options: tuple[Any, ...]) -> Callable:
    finish_before_exit()

    def callback(_: Any, output: Any, *inputs: Any) -> None:
        refuse_fork()
        try:
            with np.errstate(all="ignore"):
                write(*options, np.asarray(output), *map(np.asarray, inputs))
        except Exception as error:
            shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
            raise RuntimeError(f"`jaxgauss`: {write.__module__} failed on {shapes}: {error}") from error

    return callback


@functools.cache
def finish_before_exit() -> None:
    """Wait for running sums when the process ends: a callback without an interpreter would abort it."""

    @atexit.register
    def finish() -> None:
        if is_forked_late():
            return  # a forked child has none of XLA's threads
        last = jax.numpy.zeros(()) + 1  # XLA runs the programs of a thread in order
        for x in (last, *jax.live_arrays()):
            with contextlib.suppress(Exception):  # the failure of a result that nobody used
                x.block_until_ready()
        warn_of_earlier_sums()


def warn_of_earlier_sums() -> None:
    """Warn of points that earlier sums on CUDA have found beyond the reach of their precision."""
    if guard := sys.modules.get("torch_backend.guard"):  # no PyTorch, no such sums
        guard.warn_of_earlier_sums()


def _failure(error: Exception, call: str) -> str:
    hint = ""
    if isinstance(error, _torch().OutOfMemoryError):
        hint = (
            " XLA reserves 75 % of the card for itself, and PyTorch allocates beside it: set"
            " XLA_PYTHON_CLIENT_PREALLOCATE=false or XLA_PYTHON_CLIENT_MEM_FRACTION=.5 before JAX starts."
        )
    return f"`jaxgauss`: PyTorch failed on {call}: {error}{hint}"


def _torch() -> Any:
    # Imported at the first use: importing jaxgauss stays cheap, and sums in XLA on a CPU never load PyTorch.
    try:
        import torch
    except ImportError as error:
        raise ImportError("`jaxgauss` needs PyTorch: pip install --upgrade jaxgauss torch") from error
    return torch


def torch_backend():  # pyright knows the type of the module
    """The package `torch_backend`, imported at the first use."""
    _torch()
    import torch_backend.devices
    import torch_backend.guard

    return torch_backend


def card() -> "Card":
    """The CUDA device that PyTorch runs on."""
    return torch_backend().devices.card()
