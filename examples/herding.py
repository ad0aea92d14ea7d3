"""Herding chooses a few digits that stand for all, and 500 of 50000 points: `python examples/herding.py`."""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from compare_dense import peak_bytes
from sklearn.datasets import load_digits
from tqdm import tqdm

from jaxgauss import embedding_norm_squared, kernel_herding, median_tau, mmd_squared

RANDOM = 20  # choices
SIZES = 6  # of the curves
SHOWN = 30  # digits
BLOBS = 12  # of the mixture
MIXTURE_TAU = 4.0  # σ = 0.5
PRECISE = "float64"  # small differences of large sums


def random_choices(points, tau, sizes):
    """The MMD of random choices from all points, (sizes, RANDOM)."""
    norm = embedding_norm_squared(points, tau, precision=PRECISE)
    rng, found = np.random.default_rng(0), []
    for size in tqdm(sizes, desc="random choices", unit="size"):
        chosen = jnp.asarray(np.array([rng.choice(len(points), size, replace=False) for _ in range(RANDOM)]))
        squared = jax.lax.map(
            lambda i: mmd_squared(points[i], points, tau, y_norm_squared=norm, precision=PRECISE), chosen
        )
        found.append(np.sqrt(np.maximum(squared, 0)))
    return np.array(found)


def mixture(num):
    """Points (num, 2) of Gaussians of several widths on a ring."""
    rng = np.random.default_rng(0)
    which, angles = rng.integers(BLOBS, size=num), 2 * np.pi * np.arange(BLOBS) / BLOBS
    centers, widths = 3 * np.stack([np.cos(angles), np.sin(angles)], 1), np.linspace(0.1, 0.6, BLOBS)
    return jnp.asarray(centers[which] + widths[which, None] * rng.normal(size=(num, 2)), jnp.float32)


def main(num=200, points=50000, chosen=500, picture="outputs/herding.png"):
    """Herd the digits and compare with random choices; herd many points; draw both."""
    data: Any = load_digits()
    digits = jnp.asarray(data.data / 16, jnp.float32)  # (1797, 64)
    tau = median_tau(digits)
    herd = kernel_herding(digits, tau, num, precision=PRECISE)
    sizes = np.unique(np.geomspace(1, num, SIZES).astype(int))
    bar = tqdm(sizes, desc="optimal weights", unit="size")
    weighted = [float(kernel_herding(digits, tau, int(size), precision=PRECISE).weighted_mmd) for size in bar]
    random = random_choices(digits, tau, sizes)
    print(
        f"{num} of {len(digits)} digits: MMD {herd.mmd[-1]:.2e} by herding, {weighted[-1]:.2e} with optimal weights,",
        end=" ",
    )
    print(f"{np.median(random[-1]):.2e} by random choices (median of {RANDOM})")
    better = np.flatnonzero(np.asarray(herd.mmd) < np.median(random[-1]))[0] + 1
    print(f"herding reaches with {better} what takes {num} random ones")
    first = np.bincount(data.target[np.asarray(herd.indices[:SHOWN])], minlength=10)
    print(f"of each digit, 0 to 9, among the first {min(SHOWN, num)}: {first}")
    x = mixture(points)
    before, start = peak_bytes(), time.perf_counter()
    big = jax.block_until_ready(kernel_herding(x, MIXTURE_TAU, chosen))
    seconds, memory = time.perf_counter() - start, (peak_bytes() - before) / 2**20
    others = random_choices(x, MIXTURE_TAU, [chosen])[0]
    print(f"{chosen} of {points} points: MMD {big.mmd[-1]:.2e}, {np.median(others):.2e} by random choices;", end=" ")
    print(f"{seconds:.1f} s with compiling, peak memory + {memory:.0f} MiB", end=" ")
    print(f"(the matrix of all pairs: {8 * points**2 / 2**20:.0f} MiB)")
    draw(digits, herd, sizes, weighted, random, x, big, Path(picture))
    return herd, sizes, weighted, random, big, others


def draw(digits, herd, sizes, weighted, random, x, big, path):
    """The first digits, MMDs over steps, and the points that are chosen from the mixture."""
    fig, axes = plt.subplots(1, 3, figsize=(15, 4.6), width_ratios=[1.1, 1.3, 1], layout="constrained")
    images = np.asarray(digits[herd.indices[:SHOWN]]).reshape(-1, 8, 8)
    images = np.pad(images, ((0, -len(images) % 6), (1, 1), (1, 1)))[:SHOWN]
    images = images.reshape(-1, 6, 10, 10).swapaxes(1, 2).reshape(-1, 60)
    axes[0].imshow(images, cmap="gray_r")
    axes[0].set(title=f"the first {min(SHOWN, len(herd.indices))} digits, row by row", xticks=[], yticks=[])
    steps = np.arange(1, len(herd.mmd) + 1)
    low, middle, high = np.quantile(random, [0.25, 0.5, 0.75], axis=1)
    axes[1].loglog(
        sizes, middle, "o-", color="tab:gray", markersize=4, label=f"random: median and quartiles of {RANDOM}"
    )
    axes[1].fill_between(sizes, low, high, color="tab:gray", alpha=0.3)
    axes[1].loglog(steps, herd.mmd, color="tab:blue", label="herding")
    axes[1].loglog(sizes, weighted, "o-", color="tab:red", markersize=4, label="herding, optimal weights")
    axes[1].loglog(steps, middle[0] / steps**0.5, ":", color="black", label="1/√t and 1/t")
    axes[1].loglog(steps, middle[0] / steps, ":", color="black")
    axes[1].set(title=f"{len(digits)} digits", xlabel="t, digits that are chosen", ylabel="MMD from all digits")
    axes[1].legend(fontsize="small", loc="lower left")
    axes[2].plot(*x[:: max(1, len(x) // 10000)].T, ".", color="0.8", markersize=1)
    axes[2].plot(*x[big.indices].T, ".", color="tab:blue", markersize=3)
    axes[2].set(title=f"{len(big.indices)} of {len(x)} points", xticks=[], yticks=[], aspect="equal")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num", type=int, default=200, help="digits to choose")
    parser.add_argument("--points", type=int, default=50000, help="points of the mixture")
    parser.add_argument("--chosen", type=int, default=500, help="of these")
    parser.add_argument("--picture", default="outputs/herding.png", help="where to save it")
    main(**vars(parser.parse_args()))
