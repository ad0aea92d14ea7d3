"""OTT-JAX's and lineax's solvers on our sums, beside OTT's own geometries.

Sinkhorn: two log-sum-exps, those of one iteration, by size and dimension; the agreement of potentials, costs and
gradients at 2,000 points; ten iterations of 50,000 points in 64 dimensions. Linear systems (K + σ²I) x = y of smooth
values with noise, σ² = 0.01: steps and residuals with and without the preconditioner, and the log-determinant.
"""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

import jaxgauss

from .plots import by_method, having, power, prose, table
from .rivals import otts_point_cloud
from .study import Cell, JaxCall, Study, Task, exact_matrix, peak_mebibytes, relative

DIMS, SIZES = (3, 64), (2000, 5000, 20_000)
LARGEST_MATRIX = 5000  # points of OTT's dense geometry
LARGE = 50_000, 64
AGREEING, SYSTEMS, RANKS = 2000, (2000, 20_000), (0, 100, 200, 400)
TAU, NOISE, ROWS = 5.0, 1e-2, 200
TOLERANCE = 1e-4  # of a potential, relative to the largest: beyond it nothing is timed


def steps(device: str) -> Iterator[Cell | Task]:
    """Whether solvers of other libraries run faster, on more points and as exactly, on our sums."""
    yield Task({"figure": "large", "n": LARGE[0], "d": LARGE[1]}, large)
    yield Task({"figure": "agreement", "n": AGREEING, "d": 3}, agreement)
    for num in SIZES:
        for dim in DIMS:
            yield iterations(num, dim)
    for num in SYSTEMS:
        about = {"figure": "system", "n": num, "d": 3, "noise": NOISE, "tau": TAU}
        yield Task(about, lambda runs, num=num: systems(num))
    for num in SYSTEMS:
        yield Task({"figure": "log-determinant", "n": num}, lambda runs, num=num: determinant(num))


def clouds(num: int, dim: int) -> tuple[jax.Array, ...]:
    """Points N(0, I) and N(0.3, 0.64 I)."""
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(a + b * rng.standard_normal((num, dim)), jnp.float32) for a, b in ((0, 1), (0.3, 0.8)))


def geometries(num: int) -> dict[str, Callable]:
    """Ours and theirs."""
    theirs = otts_point_cloud()
    found = {"jaxgauss": jaxgauss.ott.PointCloud, "OTT online": functools.partial(theirs, batch_size=1024)}
    return found | ({"OTT dense": theirs} if num <= LARGEST_MATRIX else {})


def iterations(num: int, dim: int) -> Cell:
    """Two log-sum-exps, over rows and over columns, in every geometry."""
    x, y = clouds(num, dim)
    epsilon = float(jaxgauss.ott.PointCloud(x, y).epsilon)

    def both(geometry: Callable, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        g = geometry(x, y, epsilon=epsilon)
        f = g.apply_lse_kernel(jnp.zeros(len(x)), jnp.zeros(len(y)), epsilon, axis=1)[0]
        return f, g.apply_lse_kernel(-f, jnp.zeros(len(y)), epsilon, axis=0)[0]

    def error(found: Any) -> float:
        rows, columns = np.asarray(x[:ROWS], np.float64), np.asarray(y, np.float64)
        cost: Any = np.square(rows).sum(1)[:, None] + np.square(columns).sum(1) - 2 * rows @ columns.T
        exact = epsilon * np.asarray(logsumexp(-cost / epsilon, axis=1))
        return float(np.abs(np.asarray(found[0][:ROWS]) - exact).max() / np.abs(exact).max())

    calls = {name: functools.partial(JaxCall, functools.partial(both, g), x, y) for name, g in geometries(num).items()}
    return Cell({"figure": "iteration", "n": num, "d": dim, "epsilon": epsilon}, calls, error, TOLERANCE)


def solved(geometry: Callable, x: jax.Array, y: jax.Array, **options: Any) -> Any:
    """Sinkhorn's algorithm, so many iterations."""
    from ott.solvers import linear

    return linear.solve(geometry(x, y, **options), min_iterations=50, max_iterations=50)


def agreement(runs: int) -> list[dict]:
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
    return [{"what": name, "error": relative(ours[name], np.asarray(exact[name]))} for name in ours]


def large(runs: int) -> list[dict]:
    """Ten iterations of many points: seconds with compiling, and memory above the start."""
    from ott.solvers import linear

    x, y = clouds(*LARGE)
    sinkhorn: Any = linear.solve
    solve = jax.jit(lambda x, y: sinkhorn(jaxgauss.ott.PointCloud(x, y), max_iterations=10).f)
    start = time.perf_counter()
    mebibytes = peak_mebibytes(lambda: jax.block_until_ready(solve(x, y)))
    return [{"iterations": 10, "seconds": [time.perf_counter() - start], "mib": mebibytes}]


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
    exact = cho_solve(cho_factor(matrix(points)), y) if num <= AGREEING else None
    for rank in RANKS:
        if rank:  # without one it takes minutes
            jax.block_until_ready(solution(points, values, rank))
        start = time.perf_counter()
        found, steps = jax.block_until_ready(solution(points, values, rank))
        cell = {"rank": rank, "seconds": [time.perf_counter() - start], "steps": int(steps)}
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


def matrix(points: jax.Array) -> np.ndarray:
    """K + σ²I in float64."""
    return exact_matrix(points, points, TAU) + NOISE * np.eye(len(points))


def determinant(num: int) -> list[dict]:
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
    row = {"rank": RANKS[-1], "value": value, "standard_error": error, "seconds": [time.perf_counter() - start]}
    return [row | ({"exact": float(np.linalg.slogdet(matrix(points))[1])} if num <= AGREEING else {})]


def report(data: dict) -> str:
    """An iteration of Sinkhorn: times relative to ours, and memory; linear systems; and the rest in sentences."""
    found = by_method(having(data["cells"], figure="iteration"), "n", "d")
    rows = [["n", "D", "jaxgauss", "OTT online ÷ ours", "OTT dense ÷ ours", "MiB, ours", "online"]]
    for (n, d), methods in found.items():
        ours, *others = (methods.get(name, {}) for name in ("jaxgauss", "OTT online", "OTT dense"))
        ratios = [f"{c['median'] / ours['median']:.1f}" if "median" in c else "–" for c in others]
        memory = [f"{c['mib']:.0f}" for c in (ours, others[0])]
        rows.append([f"{n:,}", str(d), f"{ours['median']:.3g} s", *ratios, *memory])
    systems = [["N", "rank", "steps", "seconds", "residual", "refined: steps", "residual"]]
    for c in having(data["cells"], figure="system"):
        numbers = [f"{c['seconds'][0]:.1f}", f"{c['residual']:.1e}"]
        numbers += [f"{c['more steps']}", f"{c['refined']:.1e}"] if c["rank"] else ["–", "–"]
        systems.append([f"{c['n']:,}", f"{c['rank'] or 'none'}", str(c["steps"]), *numbers])
    (large,) = having(data["cells"], figure="large")
    errors = {c["what"]: c["error"] for c in having(data["cells"], figure="agreement")}
    small, many = having(data["cells"], figure="log-determinant")
    text = prose(
        f"{data['device_name']}, {data['cores']} cores. {large['n']:,} points in {large['d']} dimensions: ten",
        f"iterations in {large['seconds'][0]:.0f} s with compiling, {large['mib']:.0f} MiB above the start. At",
        f"{having(data['cells'], figure='agreement')[0]['n']:,} points in 3-D, potentials, cost and the divergence's",
        f"gradient differ from OTT's dense geometry in float64 by {power(max(errors['f'], errors['g']))},",
        f"{power(errors['cost'])} and {power(errors['gradient'])}. log det(K + σ²I) with rank {small['rank']}:",
        f"{small['value']:.2f} ± {small['standard_error']:.2f} at N = {small['n']:,}, where it is",
        f"{small['exact']:.2f}; {many['value']:.2f} ± {many['standard_error']:.2f} at {many['n']:,}, in",
        f"{many['seconds'][0]:.0f} s.",
    )
    return f"{table(rows)}\n{table(systems)}\n{text}"


STUDY = Study(steps, report, ours=("jaxgauss",))
