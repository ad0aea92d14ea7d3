"""OTT-JAX's and lineax's solvers on our sums, beside OTT's own geometries: `python -m benchmarks.neighbours`.

Sinkhorn: two log-sum-exps, those of one iteration, by size and dimension, checked against float64 and then timed in
turns; the agreement of potentials, costs and gradients at 2,000 points; ten iterations of 50,000 points in 64
dimensions. Linear systems (K + σ²I) x = y of smooth values with noise, σ² = 0.01: steps and residuals with and without
the preconditioner, and the log-determinant. Results go to outputs/benchmarks, with `--keep` to benchmarks/results.
"""

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp
from tqdm import tqdm

import jaxgauss

from .measure import (
    JaxCall,
    add_destination,
    destination,
    environment,
    exact_matrix,
    in_turns,
    peak_mebibytes,
    quartiles,
    relative,
    save,
    shown,
)
from .rivals import otts_point_cloud

DIMS, SIZES = (3, 64), (2000, 5000, 20_000)
LARGEST_MATRIX = 5000  # points of OTT's dense geometry
LARGE = 50_000, 64
AGREEING, SYSTEMS, RANKS = 2000, (2000, 20_000), (0, 100, 200, 400)
TAU, NOISE = 5.0, 1e-2
TOLERANCE = 1e-4  # of a potential, relative to the largest: beyond it nothing is timed


def clouds(num: int, dim: int) -> tuple[jax.Array, ...]:
    """Points N(0, I) and N(0.3, 0.64 I)."""
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(a + b * rng.standard_normal((num, dim)), jnp.float32) for a, b in ((0, 1), (0.3, 0.8)))


def geometries(num: int) -> dict[str, Callable]:
    """Ours and theirs."""
    theirs = otts_point_cloud()
    found = {"jaxgauss": jaxgauss.ott.PointCloud, "OTT online": functools.partial(theirs, batch_size=1024)}
    return found | ({"OTT dense": theirs} if num <= LARGEST_MATRIX else {})


def iterations(num: int, dim: int, runs: int) -> list[dict]:
    """Two log-sum-exps, over rows and over columns, in every geometry."""
    x, y = clouds(num, dim)
    epsilon = float(jaxgauss.ott.PointCloud(x, y).epsilon)
    rows, columns = np.asarray(x[:200], np.float64), np.asarray(y, np.float64)
    cost: Any = np.square(rows).sum(1)[:, None] + np.square(columns).sum(1) - 2 * rows @ columns.T
    exact = epsilon * np.asarray(logsumexp(-cost / epsilon, axis=1))

    def both(geometry: Callable, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        g = geometry(x, y, epsilon=epsilon)
        f = g.apply_lse_kernel(jnp.zeros(len(x)), jnp.zeros(len(y)), epsilon, axis=1)[0]
        return f, g.apply_lse_kernel(-f, jnp.zeros(len(y)), epsilon, axis=0)[0]

    calls = {name: JaxCall(functools.partial(both, g), x, y) for name, g in geometries(num).items()}
    about = {"suite": "neighbours", "figure": "iteration", "n": num, "d": dim, "epsilon": epsilon}
    found = {}
    for name, call in calls.items():
        error = float(np.abs(np.asarray(call()[0][:200]) - exact).max() / np.abs(exact).max())
        if not error <= TOLERANCE:
            raise AssertionError(f"{name}, n = {num}, D = {dim}: error {error}")
        found[name] = {"error": error, "mib": peak_mebibytes(call)}
    times = in_turns(calls, runs)
    return [about | {"method": m, "seconds": times[m]} | x | quartiles({"seconds": times[m]}) for m, x in found.items()]


def solved(geometry: Callable, x: jax.Array, y: jax.Array, **options: Any) -> Any:
    """Sinkhorn's algorithm, so many iterations."""
    from ott.solvers import linear

    return linear.solve(geometry(x, y, **options), min_iterations=50, max_iterations=50)


def agreement() -> list[dict]:
    """Relative differences from OTT's dense geometry in float64."""
    from ott.tools import sinkhorn_divergence

    def found(geometry: Any, x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
        out = solved(geometry, x, y, epsilon=0.3)
        options = {"min_iterations": 50, "max_iterations": 50}
        divergence: Any = functools.partial(sinkhorn_divergence.sinkhorn_divergence, geometry, epsilon=0.5)
        gradient = jax.grad(lambda x: divergence(x, y, solve_kwargs=options)[0])(x)
        return {"f": out.f, "g": out.g, "cost": out.reg_ot_cost, "gradient": gradient}

    points = clouds(AGREEING, 3)
    ours = jax.jit(functools.partial(found, jaxgauss.ott.PointCloud))(*points)
    with jax.enable_x64(True):
        exact = jax.jit(functools.partial(found, otts_point_cloud()))(*(x.astype(jnp.float64) for x in points))
    about = {"suite": "neighbours", "figure": "agreement", "n": AGREEING, "d": 3, "method": "jaxgauss"}
    return [about | {"what": name, "error": relative(ours[name], np.asarray(exact[name]))} for name in ours]


def large() -> list[dict]:
    """Ten iterations of many points: seconds with compiling, and memory above the start."""
    from ott.solvers import linear

    x, y = clouds(*LARGE)
    sinkhorn: Any = linear.solve
    solve = jax.jit(lambda x, y: sinkhorn(jaxgauss.ott.PointCloud(x, y), max_iterations=10).f)
    start = time.perf_counter()
    mebibytes = peak_mebibytes(lambda: jax.block_until_ready(solve(x, y)))
    about = {"suite": "neighbours", "figure": "large", "n": LARGE[0], "d": LARGE[1], "method": "jaxgauss"}
    return [about | {"iterations": 10, "seconds": [time.perf_counter() - start], "mib": mebibytes}]


def system(num: int) -> tuple[jax.Array, jax.Array]:
    """Points in a cube, and smooth values with noise."""
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (num, 3))
    values = np.sin(3 * points[:, 0]) * np.cos(2 * points[:, 1]) + points[:, 2]
    return jnp.asarray(points, jnp.float32), jnp.asarray(values + 0.1 * rng.standard_normal(num), jnp.float32)


@functools.partial(jax.jit, static_argnames=("rank", "tolerance"))
def solution(points: jax.Array, values: jax.Array, rank: int, tolerance: float = 1e-5) -> tuple[jax.Array, jax.Array]:
    """By conjugate gradients in float32, and the steps."""
    import lineax as lx

    from jaxgauss.lineax import gauss_operator, nystrom_preconditioner

    operator = gauss_operator(points, TAU, noise=NOISE)
    options = {"preconditioner": nystrom_preconditioner(operator, rank, rng_key=jax.random.key(0))} if rank else {}
    solver = lx.CG(tolerance, tolerance, stabilise_every=None, max_steps=5000)
    found = lx.linear_solve(operator, values, solver, options=options, throw=False)
    return found.value, found.stats["num_steps"]


def systems(num: int) -> list[dict]:
    """Steps, seconds and residuals of every rank; then refined in float64; and against Cholesky, where there is one."""
    points, values = system(num)
    cells = []
    with jax.enable_x64(True):
        wide = jaxgauss.lineax.gauss_operator(points.astype(jnp.float64), TAU, noise=NOISE)
        product = jax.jit(lambda x: wide.mv(x))
        y = np.asarray(values, np.float64)
    exact = None
    if num <= AGREEING:
        matrix = exact_matrix(np.asarray(points), np.asarray(points), TAU) + NOISE * np.eye(num)
        exact = cho_solve(cho_factor(matrix), y)
    for rank in tqdm(RANKS, desc=f"N = {num}", unit="rank"):
        cell = {"suite": "neighbours", "figure": "system", "n": num, "d": 3, "noise": NOISE, "tau": TAU, "rank": rank}
        if rank:  # without one it takes minutes
            jax.block_until_ready(solution(points, values, rank))
        start = time.perf_counter()
        found, steps = jax.block_until_ready(solution(points, values, rank))
        cell |= {"seconds": [time.perf_counter() - start], "steps": int(steps)}
        x = np.asarray(found, np.float64)
        for name in ("residual", "refined"):
            with jax.enable_x64(True):
                rest = y - np.asarray(product(jnp.asarray(x)))
            cell[name] = float(np.linalg.norm(rest) / np.linalg.norm(y))
            if exact is not None:
                cell[f"error {name}"] = relative(x, exact)
            if not rank:
                break
            if name == "residual":
                size = np.abs(rest).max()
                correction, again = solution(points, jnp.asarray(rest / size, jnp.float32), rank, 1e-3)
                x, cell["more steps"] = x + size * np.asarray(correction, np.float64), int(again)
        cells.append(cell)
    return cells


def determinants(num: int) -> dict:
    """The estimate, its standard error, and the exact value where a matrix can be had."""
    from jaxgauss.lineax import gauss_operator, log_determinant, nystrom_preconditioner

    points, _ = system(num)

    @jax.jit
    def estimate(points: jax.Array, key: jax.Array) -> Any:
        operator = gauss_operator(points, TAU, noise=NOISE)
        inverse = nystrom_preconditioner(operator, RANKS[-1], rng_key=key)
        return log_determinant(operator, rng_key=key, preconditioner=inverse)

    jax.block_until_ready(estimate(points, jax.random.key(0)))
    start = time.perf_counter()
    value, error = map(float, jax.block_until_ready(estimate(points, jax.random.key(1))))
    cell = {"suite": "neighbours", "figure": "log-determinant", "n": num, "rank": RANKS[-1], "value": value}
    cell |= {"standard_error": error, "seconds": [time.perf_counter() - start]}
    if num <= AGREEING:
        matrix = exact_matrix(np.asarray(points), np.asarray(points), TAU) + NOISE * np.eye(num)
        cell["exact"] = float(np.linalg.slogdet(matrix)[1])
    return cell


def report(cells: list[dict]) -> str:
    """An iteration of Sinkhorn: times relative to ours, and memory; and linear systems."""
    from .plots import table

    def of(figure: str) -> list[dict]:
        return [c for c in cells if c["figure"] == figure]

    found = {(c["n"], c["d"], c["method"]): c for c in of("iteration")}
    rows = [["n", "D", "jaxgauss", *(f"{name} ÷ ours" for name in ("OTT online", "OTT dense")), "MiB, ours", "online"]]
    for n, d in dict.fromkeys(key[:2] for key in found):
        ours, online, dense = (found.get((n, d, name)) for name in ("jaxgauss", "OTT online", "OTT dense"))
        assert ours and online
        ratios = [f"{c['median'] / ours['median']:.1f}" if c else "–" for c in (online, dense)]
        memory = [f"{c['mib']:.0f}" for c in (ours, online)]
        rows.append([f"{n:,}", str(d), f"{ours['median']:.3g} s", *ratios, *memory])
    systems = [["N", "rank", "steps", "seconds", "residual", "refined: steps", "residual"]]
    for c in of("system"):
        numbers = [f"{c['seconds'][0]:.1f}", f"{c['residual']:.1e}"]
        numbers += [f"{c['more steps']}", f"{c['refined']:.1e}"] if c["rank"] else ["–", "–"]
        systems.append([f"{c['n']:,}", f"{c['rank'] or 'none'}", str(c["steps"]), *numbers])
    return f"{table(rows)}\n{table(systems)}"


def main(runs: int, out: Path | None, keep: bool = False) -> None:
    """Measure, write the JSON, print the tables."""
    info, cells = environment("cpu"), []
    path = destination(info, "neighbours", out, keep)
    steps: list[Callable[[], list[dict]]] = [large, agreement]
    steps += [functools.partial(iterations, num, dim, runs) for num in SIZES for dim in DIMS]
    steps += [functools.partial(systems, num) for num in SYSTEMS]
    steps += [lambda num=num: [determinants(num)] for num in SYSTEMS]
    for step in tqdm(steps, unit="step"):
        cells += step()
        save(info | {"cells": cells}, path)
    print(report(cells))
    print(f"raw data: {shown(path)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="timed runs of each iteration (default: 10)")
    add_destination(parser)
    jax.config.update("jax_platforms", "cpu")
    main(**vars(parser.parse_args()))
