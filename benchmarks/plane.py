"""100,000 points in the plane: a two-sample test, a step of an MMD flow and one of SVGD, by waves and by all pairs.

Samples are normal, with σ a quarter of their standard deviation, in float32; the test has 199 permutations. All pairs
are timed for an eighth of the points, and 64 times as long is taken for all. Values are checked at few points.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from jaxgauss import mmd_flow_velocity, mmd_test, svgd_direction

from . import inside
from .few_dimensions import cloud
from .plots import by_method, prose
from .study import Cell, JaxCall, Study, unchecked

NUM, FEWER, PERMUTATIONS, CHECKED = 100_000, 8, 199, 64
TAU = 64.0  # normal points have half a unit's standard deviation
TAUS = np.array([16.0, 64.0, 256.0], np.float32)
TOLERANCE = 1e-4  # of velocities, relative to the size of their terms


def steps(device: str) -> Iterator[Cell]:
    """How much faster waves are than all pairs."""
    x, y = (cloud("normal", NUM, 2, seed) for seed in range(2))
    for name, tau in (("a bandwidth", TAU), ("three bandwidths", TAUS)):
        yield test_of(name, x, y, tau)
    for name, function, exact in (("MMD flow", flow, exact_flow), ("SVGD", svgd, exact_svgd)):
        yield step_of(name, function, exact, x, y)


def test_of(name: str, x: np.ndarray, y: np.ndarray, tau: Any) -> Cell:
    """A test by permutations; by pairs of fewer points the same statistics are found."""
    few = x[::FEWER], y[::FEWER]

    def found(x: np.ndarray, y: np.ndarray, waves: bool) -> np.ndarray:
        pays = inside.mmd_test.blocks_that_pay
        with mock.patch.object(inside.mmd_test, "blocks_that_pay", pays if waves else lambda *_: 0):
            test = mmd_test(x, y, tau, rng_key=jax.random.key(0), num_permutations=PERMUTATIONS)
        return np.append(test.statistic, test.null_statistics)

    methods: dict[str, Callable] = {
        "auto": lambda: unchecked(functools.partial(found, x, y, True)),
        "all pairs": lambda: unchecked(functools.partial(found, *few, False)),
    }
    about = {"figure": "test", "what": f"test, {name}", "n": NUM, "permutations": PERMUTATIONS}
    return Cell(about, methods, times={"all pairs": FEWER**2})


def flow(x: Any, y: Any, **how: str) -> jax.Array:
    """The velocity of x toward y."""
    return mmd_flow_velocity(x, y, TAU, **how)  # type: ignore[arg-type]


def svgd(x: Any, y: Any, **how: str) -> jax.Array:
    """The direction of x toward the density of y."""
    return svgd_direction(x, -4 * x, TAU, **how)  # type: ignore[arg-type]


def kernel_of(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Differences of the first points to all, and τ times their kernel."""
    apart = x[:CHECKED, None].astype(np.float64) - y[None]
    return apart, TAU * np.exp(-TAU / 2 * np.square(apart).sum(-1))[..., None]


def exact_flow(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The velocity of the first particles, and the sizes of its terms."""
    (a, k), (b, h) = kernel_of(x, x), kernel_of(x, y)
    terms = (np.abs(z * w).mean(1) for z, w in ((a, k), (b, h)))
    return (k * a).mean(1) - (h * b).mean(1), sum(terms)  # type: ignore[return-value]


def exact_svgd(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The direction of the first particles, and the sizes of its terms."""
    a, k = kernel_of(x, x)
    drift = -4 / TAU * k * x[None]
    return (drift + k * a).mean(1), (np.abs(drift) + np.abs(k * a)).mean(1)


def step_of(name: str, function: Callable, exact: Callable, x: np.ndarray, y: np.ndarray) -> Cell:
    """A step of a flow, by `auto` and by pairs of fewer points."""
    operands = {"auto": (x, y), "all pairs": (x[::FEWER], y[::FEWER])}
    hows = {"auto": {}, "all pairs": {"method": "blocked"}}
    methods = {
        how: functools.partial(JaxCall, functools.partial(function, **hows[how]), *map(jnp.asarray, operands[how]))
        for how in hows
    }

    def error(found: Any) -> float:
        right, size = exact(*operands["auto" if len(found) == NUM else "all pairs"])
        return float(np.linalg.norm(np.asarray(found[:CHECKED], np.float64) - right) / np.linalg.norm(size))

    about = {"figure": "step", "what": f"{name}, a step", "n": NUM}
    return Cell(about, methods, error, TOLERANCE, times={"all pairs": FEWER**2})


def report(data: dict) -> str:
    """Seconds by both."""
    said = [
        f"{what}: {found['auto']['median']:.2g} s, all pairs {found['all pairs']['median']:.3g} s;"
        for (what,), found in by_method(data["cells"], "what").items()
    ]
    return prose(f"{NUM} points in the plane.", *said)


STUDY = Study(steps, report, ours=("auto", "all pairs"))
