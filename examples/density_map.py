"""A map of the density of a million points: `python examples/density_map.py`.

Orbits of Clifford's attractor visit the points. The bandwidth is the most likely one, each point left out in turn. Then
come the log-density of as many other points, and of a grid. Beside it scikit-learn's tree and SciPy, at a few points.
"""

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import scipy.stats
import sklearn.neighbors

from jaxgauss import leave_one_out_tau
from jaxgauss.sklearn import KernelDensity

A, B, C, D = -1.4, 1.6, 1.0, 0.7
ORBITS = 1000
FEW = 500  # points at which the others are timed


def attractor(num, seed):
    """Points (num, 2) that orbits from random starts visit."""
    x, y = np.random.default_rng(seed).uniform(-1, 1, (2, ORBITS))
    points = np.empty((-(-num // ORBITS) + 20, ORBITS, 2), np.float32)
    for one in points:
        x, y = np.sin(A * y) + C * np.cos(A * x), np.sin(B * x) + D * np.cos(B * y)
        one[:] = np.stack([x, y], 1)
    return points[20:].reshape(-1, 2)[:num]


def scott_tau(points):
    """τ of Scott's rule: σ is N^{-1/(D + 4)} times the standard deviation of a coordinate."""
    num, dim = points.shape
    return num ** (2 / (dim + 4)) / points.var(0).mean()


def compare(train, points, tau):
    """Log-densities of a few points by scikit-learn and SciPy, and seconds of each for all points at its rate."""
    least: Any = 1e-5
    theirs = sklearn.neighbors.KernelDensity(bandwidth=tau**-0.5, rtol=least).fit(train)
    start = time.perf_counter()
    by_tree = theirs.score_samples(points[:FEW])
    middle = time.perf_counter()
    cloud = scipy.stats.gaussian_kde(train.T, bw_method=1.0)
    cloud.set_bandwidth(tau**-0.5 / np.sqrt(np.trace(cloud.covariance) / 2))  # its kernel has the shape of the cloud
    cloud.logpdf(points[: FEW // 10].T)
    last = time.perf_counter()
    share = len(points) / FEW
    return by_tree, share * (middle - start), 10 * share * (last - middle)


def main(points=1_000_000, grid=500, taus=7, picture="outputs/density_map.png"):
    """Choose a bandwidth, score other points, map the density, and draw it."""
    train, others = attractor(points, 0), attractor(points, 1)
    candidates = scott_tau(train) * 4.0 ** np.arange(taus).astype(np.float32)
    start = time.perf_counter()
    search = jax.block_until_ready(leave_one_out_tau(train, candidates, progress=True))
    tau = float(search.tau)
    seconds = time.perf_counter() - start
    print(f"leave-one-out: {taus} bandwidths, {points} points, {seconds:.1f} s; σ = {tau**-0.5:.4f}")
    start = time.perf_counter()
    model = KernelDensity(tau=tau).fit(train)
    scores = model.score_samples(others)
    seconds = time.perf_counter() - start
    print(f"log-density of {points} other points: {seconds:.2f} s with compiling, mean {scores.mean():.4f}")
    by_tree, tree, by_scipy = compare(train, others, tau)
    print(f"at their rate scikit-learn's tree (rtol=1e-5) takes {tree:.0f} s, and SciPy {by_scipy:.0f} s; ", end="")
    print(f"the largest difference to the tree at {FEW} points is {np.abs(by_tree - scores[:FEW]).max():.1e}")
    low, high = train.min(0) - 0.05, train.max(0) + 0.05
    x, y = (np.linspace(*ends, grid, dtype=np.float32) for ends in zip(low, high, strict=True))
    start = time.perf_counter()
    shown = model.score_samples(np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)).reshape(grid, grid)
    print(f"a map of {grid} × {grid}: {time.perf_counter() - start:.2f} s with compiling; ", end="")
    print(f"peak memory of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")
    draw(train, shown, [*low, *high], search, Path(picture))
    return search, scores, by_tree, shown


def draw(train, shown, ends, search, path):
    """A histogram of the points, the map of their log-density, and the likelihood of bandwidths."""
    fig, axes = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained", width_ratios=[1, 1, 0.7])
    extent, few = (ends[0], ends[2], ends[1], ends[3]), train[:20_000]
    axes[0].plot(*few.T, ",", color="black", alpha=0.5)
    axes[0].set(title=f"{len(few)} of {len(train)} points", xlim=extent[:2], ylim=extent[2:], aspect="equal")
    top = shown.max()
    image = axes[1].imshow(shown, origin="lower", extent=extent, cmap="inferno", vmin=top - 12, vmax=top)
    fig.colorbar(image, ax=axes[1], label="log-density")
    axes[1].set_title(f"their density, σ = {float(search.tau) ** -0.5:.4f}")
    axes[2].semilogx(np.asarray(search.taus) ** -0.5, search.scores, "o-")
    axes[2].set(title="each point left out in turn", xlabel="σ", ylabel="mean log-density")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=130)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000, help="of the density, and of those it is asked for")
    parser.add_argument("--grid", type=int, default=500, help="points of the map along an axis")
    parser.add_argument("--taus", type=int, default=7, help="candidates, each four times the one before")
    parser.add_argument("--picture", default="outputs/density_map.png", help="where to save it")
    main(**vars(parser.parse_args()))
