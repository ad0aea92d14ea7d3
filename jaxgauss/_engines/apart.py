"""Programs apart: what is computed for far points on a CPU is in no caller's program, but behind a callback.

The callback gets arrays of NumPy, as an eager call does. So it looks at the points, decides in plain Python, and runs a
program of that one way, which is compiled when it is first met.

A program must not wait for the pool of threads that runs the callback: with JAX's own client, many threads would wait
for one another for ever. So these programs run on CPU clients of their own, one for each level of callbacks within
callbacks.
"""

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax._src.lib import xla_client  # type: ignore[attr-defined]  # JAX has no public way to make a client
from jax.experimental import buffer_callback

from .._arrays.devices import vary_like
from .._arrays.process import refuse_fork
from .bridge import finish_before_exit, stay
from .scopes import scope

INLINE = -1  # the level of programs that are not run, but counted
_level: Any = jax.make_user_context(0)  # what JAX traces and compiles depends on it


def apart(
    function: Callable[..., Any],
    options: tuple[Any, ...],
    shapes: Any,
    *operands: jax.Array,
    ways: Callable[[], Sequence[Callable[..., Any]]] | None = None,
) -> Any:
    """function(*options, *operands) of NumPy's arrays, in a callback: a tree of arrays like `shapes`.

    The function belongs to a module and the options are hashable, so that equal ones are one callback. `ways`, of which
    it takes one, are functions of the operands that `explain` counts instead.
    """
    if _level.value == INLINE:
        return _one_of(ways() if ways else [functools.partial(function, *options)], operands)
    leaves, tree = jax.tree.flatten(shapes)
    there = [x for x in leaves if math.prod(x.shape)]
    if there:
        callback = _callback(function, options, _level.value, jax.config.jax_enable_x64)  # type: ignore[attr-defined]
        run = buffer_callback.buffer_callback(callback, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in there])
        with scope("apart", function.__module__.rpartition(".")[2]):
            there = run(stay(operands[0]), *operands[1:])
    found = iter(there)
    results = (next(found) if math.prod(x.shape) else jax.numpy.zeros(x.shape, x.dtype) for x in leaves)
    return tree.unflatten([vary_like(x, operands) for x in results])


def inline() -> AbstractContextManager:
    """In the context, programs hold all ways, for `explain`."""
    return _level(INLINE)


def _one_of(ways: Sequence[Callable[..., Any]], operands: Sequence[jax.Array]) -> Any:
    with scope("apart"):
        if len(ways) == 1:
            return ways[0](*operands)
        return jax.lax.switch(operands[0].ravel()[0].astype("int32"), ways, *operands)


@functools.cache
def _callback(function: Callable[..., Any], options: tuple[Any, ...], level: int, x64: bool) -> Callable[..., None]:
    finish_before_exit()

    def callback(_: Any, outputs: Sequence[Any], *inputs: Any) -> None:
        refuse_fork()
        try:
            with (
                jax.enable_x64(x64),
                jax.default_device(device(level)),
                jax.disable_jit(False),
                jax.debug_nans(False),
                jax.transfer_guard("allow"),
                _level(level + 1),
                np.errstate(all="ignore"),
            ):
                results = function(*options, *map(np.asarray, inputs))
                results = [x for x in jax.tree.leaves(results) if np.size(x)]
                for output, result in zip(outputs, results, strict=True):
                    np.asarray(output)[...] = result
        except Exception as error:
            shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
            raise RuntimeError(f"`jaxgauss`: {function.__name__} failed on {shapes}: {error}") from error

    return callback


@functools.cache
def device(level: int) -> Any:
    """The device of programs that run in callbacks of this level; what runs on it is done when the call returns."""
    return xla_client.make_cpu_client(asynchronous=False).local_devices()[0]
