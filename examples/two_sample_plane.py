"""Where do two samples of 100,000 points in the plane differ? A test, and a map: `python examples/two_sample_plane.py`.

Both are of three blobs; of the second sample one point in 125 has moved to a spot of its own. `mmd_test` takes O(N) for
each permutation in the plane. The map is the witness function on a grid: a gauss_sum whose channels are the samples and
random labelings of all points. These give the band that the witness leaves at one point of the grid with probability
5 % if there is no difference, and one that it leaves anywhere with 5 %. Time and memory are printed.
"""

import argparse
import resource
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from tqdm import tqdm

from jaxgauss import gauss_sum, mmd_test

LEVEL = 0.05
CENTERS, SDS = np.array([[-1.6, -0.8], [0.2, 1.1], [1.7, -0.6]]), np.array([0.5, 0.7, 0.4])
SPOT, SPREAD, SHARE = np.array([0.2, -0.9]), 0.15, 0.008  # where the second sample has more points, and how many
TAU = 1 / 0.2**2  # of the map
TAUS = np.array([1.0, 4.0, 16.0], np.float32) * np.float32(TAU / 4)  # of the test
WINDOW = (-3.4, 3.4), (-2.8, 3.2)
AT_ONCE = 20  # labelings in one sum


def blobs(rng, num):
    """Points of a mixture of three normal densities."""
    which = rng.integers(3, size=num)
    return CENTERS[which] + SDS[which, None] * rng.normal(size=(num, 2))


def two_samples(rng, num):
    """Points of the blobs, and others of which some are at the spot."""
    x, y = blobs(rng, num), blobs(rng, num)
    moved = rng.uniform(size=num) < SHARE
    y[moved] = SPOT + SPREAD * rng.normal(size=(moved.sum(), 2))
    return x.astype("float32"), y.astype("float32")


def witness_map(rng, x, y, grid, permutations):
    """The witness at the grid, of the samples (G,) and of random labelings (P, G)."""
    points, found = jnp.asarray(np.concatenate([x, y])), []
    weights = np.repeat(np.array([1 / len(x), -1 / len(y)], np.float32), [len(x), len(y)])
    columns = [weights, *(rng.permutation(weights) for _ in range(permutations))]
    # by name, waves leave no point of the grid in doubt: the error is relative to the largest values, as the map's is
    sums = jax.jit(lambda v: gauss_sum(grid, points, v, TAU, engine="fourier"))
    with tqdm(total=len(columns), unit="labeling", desc="map") as bar:
        for start in range(0, len(columns), AT_ONCE):
            some = columns[start : start + AT_ONCE]
            padded = np.stack(some + [weights] * (AT_ONCE - len(some)), 1)
            found.extend(np.asarray(sums(padded)).T[: len(some)])
            bar.update(len(some))
    return found[0], np.array(found[1:])


def bands(null):
    """Half the width of the band at each point of the grid, and of the one for all points at once."""
    sd = null.std(0)
    farthest = (np.abs(null) / sd).max(1)
    return np.quantile(np.abs(null), 1 - LEVEL, axis=0), sd * np.quantile(farthest, 1 - LEVEL)


def main(points=100_000, permutations=199, side=96, picture="outputs/two_sample_plane.png"):
    """The test, the map with its bands, time and memory, and a picture."""
    rng = np.random.default_rng(0)
    x, y = two_samples(rng, points)
    start = time.perf_counter()
    how = {"rng_key": jax.random.key(0), "num_permutations": permutations, "progress": True}
    test = mmd_test(x, y, TAUS, **how)
    seconds = time.perf_counter() - start
    print(f"2 × {points} points, {permutations} permutations, three bandwidths: p = {float(test.p_value):.3g}", end="")
    print(f", statistic {float(test.statistic):.3g}, {seconds:.1f} s")
    axes = [np.linspace(low, high, side, dtype=np.float32) for low, high in WINDOW]
    grid = jnp.asarray(np.stack(np.meshgrid(*axes), -1).reshape(-1, 2))
    start = time.perf_counter()
    witness, null = witness_map(rng, x, y, grid, permutations)
    seconds = time.perf_counter() - start
    pointwise, everywhere = bands(null)
    outside = [np.abs(witness) > band for band in (pointwise, everywhere)]
    counts = gauss_sum(grid, np.concatenate([x, y]), np.ones(2 * points, np.float32), TAU, engine="fourier")
    dense = np.asarray(counts) > 2e-3 * points
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"map of {side} × {side} points: {seconds:.1f} s, {memory:.0f} MiB at most")
    shares = ", ".join(f"{name} {(z & dense).sum() / dense.sum():.1%}" for name, z in zip(BANDS, outside, strict=True))
    print(f"of the map where there are points, outside of the band: {shares}")
    draw(x, y, test, witness, outside, dense, axes, Path(picture))
    return test, witness.reshape(side, side), [z.reshape(side, side) for z in outside], axes


BANDS = "at each point", "everywhere"


def draw(x, y, test, witness, outside, dense, axes, path):
    """Both samples, the test, and the map with the regions outside of the bands."""
    side, extent = len(axes[0]), (*WINDOW[0], *WINDOW[1])
    fig, (left, middle, statistics, right) = plt.subplots(1, 4, figsize=(16, 4.2), layout="constrained")
    for ax, z, name in ((left, x, "first sample"), (middle, y, "second sample")):
        count = np.histogram2d(*z.T, bins=100, range=WINDOW)[0].T
        ax.imshow(count, origin="lower", extent=extent, cmap="magma")
        ax.set(title=f"{name}: {len(z)} points", xticks=[], yticks=[])
    null = np.asarray(test.null_statistics)
    statistics.hist((null - null.mean()) / null.std(), 30, color="0.7", label="permutations")
    observed = (float(test.statistic) - null.mean()) / null.std()
    statistics.axvline(observed, color="C3", label=f"observed, p = {float(test.p_value):.3g}")
    statistics.set(title="MMD test, three bandwidths", ylabel="permutations in a bin")
    statistics.set_xlabel("statistic, in standard deviations of permutations")
    statistics.legend(fontsize="small")
    most = np.abs(witness).max()
    shown = right.imshow(
        witness.reshape(side, side), origin="lower", extent=extent, cmap="RdBu_r", vmin=-most, vmax=most
    )
    for region, style, color in zip(outside, (":", "-"), ("0.4", "black"), strict=True):
        marked = (region & dense).reshape(side, side).astype(float)
        right.contour(*axes, marked, [0.5], colors=color, linestyles=style, linewidths=1)
    right.set(title="witness, and where it leaves the band:\nat each point (dotted), everywhere (solid)")
    right.set(xticks=[], yticks=[])
    fig.colorbar(shown, ax=right, label="denser in: second (-), first (+)", shrink=0.8)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000, help="points of each sample")
    parser.add_argument("--permutations", type=int, default=199, help="random labelings")
    parser.add_argument("--side", type=int, default=96, help="points of a side of the map")
    parser.add_argument("--picture", default="outputs/two_sample_plane.png", help="where to save it")
    main(**vars(parser.parse_args()))
