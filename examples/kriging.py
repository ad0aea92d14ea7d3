"""Kriging of 100,000 elevations in the plane: `python examples/kriging.py`.

A terrain of 344 × 403 heights ships with matplotlib. A Gaussian process sees `--points` of them, learns length scales
and noise, and predicts the whole terrain with standard deviations. The heights that it has not seen tell its error, and
whether its bands hold what they claim. Beside it the height of the nearest point that is seen, and scikit-learn's
process of 2,000 points.
"""

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cbook import get_sample_data
from matplotlib.colors import LightSource
from scipy.special import ndtr
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.neighbors import KNeighborsRegressor

from jaxgauss.sklearn import GaussianProcess

FEW = 2000  # points of scikit-learn's process, which factors their matrix


def load_terrain(num):
    """Heights in meters (344, 403), the places of all (N, 2), and which are seen."""
    data: Any = get_sample_data("jacksboro_fault_dem.npz")
    heights = data["elevation"].astype(float)
    places = np.indices(heights.shape).reshape(2, -1).T.astype(float)
    is_seen = np.zeros(len(places), bool)
    is_seen[np.random.default_rng(0).permutation(len(places))[:num]] = True
    return heights, places, is_seen


def rmse(predicted, values):
    """Root of the mean square, in meters."""
    return float(np.sqrt(np.square(predicted - values).mean()))


def others(seen, values, unseen):
    """What the nearest point says, and what scikit-learn's process of a few points does."""
    nearest = KNeighborsRegressor(1).fit(seen, values).predict(unseen)
    few = np.random.default_rng(1).permutation(len(seen))[:FEW]
    scale: Any = [5.0, 5.0]
    kernel = ConstantKernel() * RBF(scale, (0.1, 1e3)) + WhiteKernel(0.01, (1e-8, 10))
    start = time.perf_counter()
    process = GaussianProcessRegressor(kernel, normalize_y=True).fit(seen[few], values[few])
    return nearest, process.predict(unseen), time.perf_counter() - start


def main(points=100_000, samples=32, picture="outputs/kriging.png"):
    """Learn, predict, compare with what was not seen, and draw it."""
    heights, places, is_seen = load_terrain(points)
    values, start = heights.ravel(), time.perf_counter()
    process = GaussianProcess(length_scale=[5.0, 5.0], num_samples=samples, progress=True, random_state=0)
    process.fit(places[is_seen], values[is_seen])
    learned = time.perf_counter()
    mean, std = process.predict(places, return_std=True)
    seconds = time.perf_counter() - learned
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    down, right = process.length_scale_
    print(
        f"{is_seen.sum()} heights, learned in {learned - start:.0f} s: length scales of {down:.2f} and {right:.2f} ",
        end="",
    )
    print(f"pixels, σ = {process.variance_**0.5:.0f} m, noise of {process.noise_variance_**0.5:.1f} m")
    print(f"all heights predicted, with standard deviations, in {seconds:.0f} s, {peak:.2f} GiB at most; ", end="")
    print(f"the matrix would take {is_seen.sum() ** 2 * 8 / 2**30:.0f} GiB")
    truth, unseen = values[~is_seen], places[~is_seen]
    nearest, of_few, their_seconds = others(places[is_seen], values[is_seen], unseen)
    scores = (truth - mean[~is_seen]) / std[~is_seen]
    held = float((np.abs(scores) < 2).mean())
    errors = [rmse(x, truth) for x in (mean[~is_seen], nearest, of_few)]
    print(f"error where nothing was seen: {errors[0]:.1f} m; {100 * held:.1f}% of the heights are within ±2σ")
    print(f"the nearest point: {errors[1]:.1f} m; scikit-learn's process of {FEW} points: {errors[2]:.1f} m", end="")
    print(f" in {their_seconds:.0f} s")
    maps = [np.where(is_seen, values, np.nan), mean, values, std]
    draw([x.reshape(heights.shape) for x in maps], scores, errors[0], Path(picture))
    return process, errors, held


def draw(maps, scores, error, path):
    """What is seen, predicted and true, lit from the north-west; the deviations, and their calibration."""
    fig, axes = plt.subplots(2, 3, figsize=(14, 8), layout="constrained")
    light, limits = LightSource(azdeg=315, altdeg=45), {"vmin": np.nanmin(maps[2]), "vmax": np.nanmax(maps[2])}
    axes[0, 0].imshow(maps[0], cmap="gist_earth", **limits)
    axes[0, 0].set_title(f"{np.isfinite(maps[0]).sum()} heights that are seen")
    for ax, heights, title in zip(
        axes[0, 1:], maps[1:3], (f"predicted, error {error:.1f} m", "the terrain"), strict=True
    ):
        ax.imshow(light.shade(heights, plt.get_cmap("gist_earth"), blend_mode="soft", vert_exag=0.1, **limits))
        ax.set_title(title)
    shown = axes[1, 0].imshow(maps[3], cmap="magma", vmax=np.percentile(maps[3], 99.5))
    fig.colorbar(shown, ax=axes[1, 0], label="m")
    axes[1, 0].set_title("standard deviation of a new height")
    bins = np.linspace(-5, 5, 81)
    axes[1, 1].hist(scores, bins, density=True, color="tab:blue", alpha=0.6, label="heights that were not seen")
    axes[1, 1].plot(bins, norm.pdf(bins), "k", lw=1, label="normal distribution")
    axes[1, 1].set(title="errors in standard deviations", xlabel="(height - mean) / σ")
    axes[1, 1].legend(fontsize="small")
    levels = np.linspace(0.02, 0.98, 49)
    bands = norm.ppf((1 + levels) / 2)
    axes[1, 2].plot(levels, [(np.abs(scores) < x).mean() for x in bands], "o", ms=3)
    axes[1, 2].plot([0, 1], [0, 1], "k", lw=1)
    axes[1, 2].set(title="calibration", xlabel="share that a band should hold", ylabel="share that it holds")
    axes[1, 2].axvline(2 * ndtr(2) - 1, color="tab:gray", lw=0.8)
    for ax in (*axes[0], axes[1, 0]):
        ax.set(xticks=[], yticks=[])
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000, help="heights that are seen, of 138,632")
    parser.add_argument("--samples", type=int, default=32, help="that standard deviations are made of")
    parser.add_argument("--picture", default="outputs/kriging.png", help="where to save it")
    main(**vars(parser.parse_args()))
