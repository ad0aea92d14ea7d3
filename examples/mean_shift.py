"""Mean shift makes segments of a photo's colors, each climbing to its mode: `python examples/mean_shift.py`."""

import argparse
import time
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import MeanShift
from sklearn.datasets import load_sample_image
from sklearn.neighbors import NearestNeighbors

from jaxgauss import mean_shift

FEW = 2000  # pixels that do not belong to the data and climb by themselves: do they end where the nearest pixel does?
SHARE = 0.005  # of the pixels: a mode with fewer is not drawn in the color space


def project(colors):
    """Of colors (N, 3) the brightness, and how much more red than blue they are."""
    return colors.mean(1), colors[:, 0] - colors[:, 2]


def same_variance(sigma, dim=3):
    """The radius of scikit-learn's flat kernel: of its density, Epanechnikov's, with the variance of the Gaussian."""
    return sigma * (dim + 4) ** 0.5


def compare_scikit_learn(colors, sigma):
    """The numbers of modes by both libraries, and the seconds they take."""
    mean_shift(colors, colors, sigma**-2, max_steps=1).points.block_until_ready()  # loads and compiles
    start = time.perf_counter()
    ours = mean_shift(colors, colors, sigma**-2)
    num, middle = int(ours.labels.max()) + 1, time.perf_counter()
    theirs = MeanShift(bandwidth=same_variance(sigma)).fit(np.asarray(colors))
    return num, len(theirs.cluster_centers_), middle - start, time.perf_counter() - middle


def main(num=4000, sigma=0.05, subset=1000, picture="outputs/mean_shift.png"):
    """Let a sample of the pixels climb, give every pixel the mode of the nearest one, and draw the segments."""
    image = load_sample_image("china.jpg")
    pixels = image.reshape(-1, 3) / np.float32(255)
    data, others = np.split(np.random.default_rng(0).permutation(pixels)[: num + FEW], [num])
    start = time.perf_counter()
    found = mean_shift(jnp.asarray(data), jnp.asarray(data), sigma**-2, progress=True)
    seconds, labels = time.perf_counter() - start, np.asarray(found.labels)
    modes = np.asarray(found.points)[np.unique(labels, return_index=True)[1]]
    print(
        f"{num} pixels, σ = {sigma}: {len(modes)} modes after {found.num_steps} steps, {seconds:.1f} s with compiling"
    )
    nearest = NearestNeighbors(n_neighbors=1).fit(data)
    of_all = labels[nearest.kneighbors(pixels, return_distance=False)[:, 0]]
    shares = np.bincount(of_all, minlength=len(modes)) / len(pixels)
    largest = np.argsort(-shares)[:5]
    print("largest segments: " + ", ".join(f"{shares[i]:.1%} {np.round(255 * modes[i]).astype(int)}" for i in largest))
    ends = np.asarray(mean_shift(jnp.asarray(others), jnp.asarray(data), sigma**-2).points)
    by_themselves = np.square(ends[:, None] - modes).sum(-1).argmin(1)
    agree = float((by_themselves == labels[nearest.kneighbors(others, return_distance=False)[:, 0]]).mean())
    print(f"{agree:.1%} of {FEW} other pixels climb to the mode of the nearest pixel of the sample")
    ours, theirs, seconds, their_seconds = compare_scikit_learn(jnp.asarray(data[:subset]), sigma)
    print(f"{subset} pixels: jaxgauss {ours} modes in {seconds:.2f} s", end="")
    print(f", scikit-learn (flat kernel, radius {same_variance(sigma):.3f}) {theirs} in {their_seconds:.2f} s")
    draw(image, data, modes, labels, of_all, shares, sigma, Path(picture))
    return modes, of_all, agree, ours, theirs


def draw(image, data, modes, labels, of_all, shares, sigma, path):
    """The photo, its segments in the colors of their modes, and the color space with both."""
    fig, axes = plt.subplots(1, 4, figsize=(16, 3.7), width_ratios=[1.3, 1.3, 1, 1], layout="constrained")
    pictures = {"the photo": image, f"{len(modes)} segments in the colors of their modes": modes[of_all]}
    for ax, (title, shown) in zip(axes, pictures.items(), strict=False):
        ax.imshow(shown.reshape(image.shape))
        ax.set(title=title, xticks=[], yticks=[])
    large = shares >= SHARE
    climbed = f"where they climb, σ = {sigma:g}"
    for ax, (title, colors) in zip(
        axes[2:], {f"{len(data)} pixels": data, climbed: modes[labels]}.items(), strict=True
    ):
        ax.scatter(*project(data), c=colors, s=3)
        ax.set(title=title, xlabel="brightness", ylabel="red - blue", facecolor="0.9")
    axes[3].scatter(
        *project(modes[large]), c=modes[large], s=40 + 600 * shares[large], edgecolor="tab:red", linewidth=1.5
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num", type=int, default=4000, help="pixels of the density, which climb")
    parser.add_argument("--sigma", type=float, default=0.05, help="bandwidth of colors from 0 to 1")
    parser.add_argument("--subset", type=int, default=1000, help="pixels for the comparison with scikit-learn")
    parser.add_argument("--picture", default="outputs/mean_shift.png", help="where to save it")
    main(**vars(parser.parse_args()))
