"""Training by steps of MMD, each of what the one before has found, as trainings are: in buffers that alternate.

A call with the same arrays finds them where they were; a step of a loop does not, unless it may write over its argument
(`donate_argnums`).
"""

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..applications import DENSE, ROWS, mmd_gradient, mmd_losses, samples
from ..grids import TOLERANCE
from ..study import Call, Cell, relative

STEPS = 20  # of a call
RATE = 0.1  # times N: of the descent


def loops(sizes: SimpleNamespace) -> Iterator[Cell]:
    """Milliseconds a step, of ours and of the formula, with and without donation."""
    nums, dim = sizes.loops
    for num in nums:
        x, y = samples(num, dim)

        def error(found: np.ndarray, x: jax.Array = x, y: jax.Array = y) -> float:
            return relative(found, -RATE * len(x) * mmd_gradient(x, y))

        losses = mmd_losses(num, sizes.device, DENSE["cuda"])
        methods = {
            name + ", donated" * donated: functools.partial(descent, loss, donated, x, y)
            for name, loss in losses.items()
            for donated in (False, True)
        }
        about = {"figure": "MMD loop", "n": num, "d": dim}
        yield Cell(about, methods, error, TOLERANCE, times=dict.fromkeys(methods, 1 / STEPS))


def descent(loss: Callable, donated: bool, x: jax.Array, y: jax.Array) -> Call:
    """Steps of gradient descent, from where the call before ended; what is found is how far the first one moved."""
    rate = RATE * len(x)
    step = jax.jit(lambda x, y: x - rate * jax.grad(loss)(x, y, 1.0), donate_argnums=(0,) if donated else ())
    state: jax.Array = jnp.copy(x)
    moved: Any = None

    def call() -> np.ndarray:
        nonlocal state, moved
        for _ in range(STEPS):
            state = step(state, y)
            moved = np.asarray(state - x)[:ROWS] if moved is None else moved
        jax.block_until_ready(state)
        return moved

    return call
