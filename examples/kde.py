"""The colors of a photograph: bandwidth, log-density and modes of 10000 points: `python examples/kde.py`."""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image
from sklearn.neighbors import KernelDensity
from tqdm import tqdm, trange

from jaxgauss import kde_logpdf, kde_score, leave_one_out_tau, median_tau

LUMA = np.array([0.299, 0.587, 0.114])  # how bright red, green and blue look
GRID = 150  # points of the contours along an axis
STARTS = 300  # of the mean shift


def load_colors(num):
    """The photograph; the chroma (blue - luma, red - luma) and the RGB values of 2 · num of its pixels."""
    image = load_sample_image("flower.jpg")
    rng = np.random.default_rng(0)
    rgb = rng.permutation(image.reshape(-1, 3))[: 2 * num]
    rgb = (rgb + rng.uniform(size=rgb.shape)) / 256  # 8-bit values are spread over their steps
    chroma = rgb[:, [2, 0]] - (rgb @ LUMA)[:, None]
    return image, jnp.asarray(chroma, jnp.float32), rgb


def scott_tau(points):
    """τ of Scott's rule: σ is N^{-1/(D + 4)} times the standard deviation of a coordinate."""
    num, dim = points.shape
    return num ** (2 / (dim + 4)) / points.var(0).mean()


def compare_scikit_learn(samples, points, tau):
    """Mean log-density of the points by both libraries, and the seconds they take."""
    kde_logpdf(points, samples, tau).block_until_ready()  # compiles
    start = time.perf_counter()
    ours = float(kde_logpdf(points, samples, tau).mean())
    middle = time.perf_counter()
    theirs = KernelDensity(bandwidth=float(tau**-0.5)).fit(samples).score_samples(points).mean()
    return ours, theirs, middle - start, time.perf_counter() - middle


def mean_shift(points, samples, tau, steps):
    """The paths of points up the density, (steps + 1, P, D): x + ∇ log p(x) / τ is the mean of the kernel at x."""
    paths = [points]
    for _ in trange(steps, desc="mean shift", unit="step"):
        paths.append(paths[-1] + kde_score(paths[-1], samples, tau) / tau)
    return jnp.stack(paths)


def find_modes(ends, tau):
    """For every end of a path the first one that is within σ of it."""
    return np.asarray((tau * jnp.square(ends[:, None] - ends).sum(-1) < 1).argmax(1))


def main(num=10000, steps=200, picture="outputs/kde.png"):
    """Choose a bandwidth, check it on held-out pixels, climb to the modes, and draw it all."""
    image, chroma, rgb = load_colors(num)
    train, held_out = jnp.split(chroma, 2)
    start = time.perf_counter()
    search = jax.block_until_ready(leave_one_out_tau(train, progress=True))
    seconds = time.perf_counter() - start
    print(f"leave-one-out: {len(search.taus)} bandwidths, {num} points, {seconds:.1f} s with compiling")
    rules = {"leave-one-out": search.tau, "Scott's rule": scott_tau(train), "median heuristic": median_tau(train)}
    bar = tqdm(search.taus, desc="held out", unit="bandwidth")
    curve = [float(kde_logpdf(held_out, train, tau).mean()) for tau in bar]
    for name, tau in rules.items():
        print(f"{name}: σ = {tau**-0.5:.4f}, held-out log-likelihood {kde_logpdf(held_out, train, tau).mean():.4f}")
    print("the same by scikit-learn")
    ours, theirs, seconds, their_seconds = compare_scikit_learn(train, held_out, search.tau)
    print(f"jaxgauss {ours:.6f} in {seconds:.2f} s, scikit-learn {theirs:.6f} in {their_seconds:.2f} s", end="")
    print(f", difference {abs(ours - theirs):.1e}")
    tau = rules["Scott's rule"]
    paths = mean_shift(train[:STARTS], train, tau, steps)
    modes = find_modes(paths[-1], tau)
    print(f"{len(np.unique(modes))} modes at σ = {tau**-0.5:.4f}; drawing densities at {GRID} × {GRID} points")
    draw(image, train, rgb, search, curve, rules, paths, modes, Path(picture))
    return search, ours, theirs, paths, modes


def contours(ax, samples, tau):
    """The log-density, five powers of ten down from its top."""
    low, high = samples.min(0) - 0.02, samples.max(0) + 0.02
    grid = jnp.stack(jnp.meshgrid(*jnp.linspace(low, high, GRID).T), -1)
    logs = kde_logpdf(grid.reshape(-1, 2), samples, tau).reshape(GRID, GRID)
    top = float(logs.max())
    levels = top - np.log(10) * np.arange(5, -0.1, -0.5)
    ax.contourf(grid[..., 0], grid[..., 1], logs, levels=levels, cmap="Greys", vmin=levels[0], vmax=top + 6)
    ax.set(xlabel="blue - luma", ylabel="red - luma", aspect="equal")


def draw(image, train, rgb, search, curve, rules, paths, modes, path):
    """The photo, the likelihoods, the density with pixels in their own colors, and the paths to the modes."""
    fig, axes = plt.subplots(1, 4, figsize=(16, 3.9), width_ratios=[1.25, 1.25, 1, 1], layout="constrained")
    axes[0].imshow(image)
    axes[0].set(title="the photo", xticks=[], yticks=[])
    axes[1].semilogx(search.taus**-0.5, search.scores, "o-", markersize=4, label="leave-one-out")
    axes[1].semilogx(search.taus**-0.5, curve, "--", label="held-out pixels")
    for color, (name, tau) in zip(("tab:green", "tab:red", "tab:purple"), rules.items(), strict=True):
        axes[1].axvline(float(tau**-0.5), color=color, label=f"{name}: σ = {tau**-0.5:.3f}")
    top, best = float(search.scores.max()), float(search.tau**-0.5)
    axes[1].set(title="bandwidth", xlabel="σ", ylabel="mean log-likelihood")
    axes[1].set(xlim=(best / 8, None), ylim=(top - 3, top + 0.2))
    axes[1].legend(fontsize="small", loc="lower center", framealpha=1)
    contours(axes[2], train, search.tau)
    axes[2].scatter(*train[:3000].T, c=rgb[: len(train)][:3000], s=2)
    axes[2].set_title(f"log-density of chroma, σ = {best:.3f}")
    tau = rules["Scott's rule"]
    contours(axes[3], train, tau)
    axes[3].plot(*jnp.moveaxis(paths, -1, 0), color="tab:red", lw=0.5)
    for mode in np.unique(modes):
        arrived = rgb[: len(modes)][modes == mode]
        style = {"markersize": 6 + 12 * (len(arrived) / len(modes)) ** 0.5, "markeredgecolor": "black"}
        axes[3].plot(*paths[-1, mode], "o", color=arrived.mean(0), **style)
    axes[3].set_title(f"mean shift to {len(np.unique(modes))} modes, σ = {tau**-0.5:.3f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num", type=int, default=10000, help="pixels of the estimate, and as many held out")
    parser.add_argument("--steps", type=int, default=200, help="steps of the mean shift")
    parser.add_argument("--picture", default="outputs/kde.png", help="where to save it")
    main(**vars(parser.parse_args()))
