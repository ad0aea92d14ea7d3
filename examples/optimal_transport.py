"""Two photos exchange their colors by optimal transport: `python examples/optimal_transport.py`.

OTT-JAX's Sinkhorn algorithm on our geometry, between colors of 10,000 pixels of each photo, without a matrix of costs.
The map that comes of it, a mean of colors by a Gaussian kernel, moves those of all pixels.
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from ott.problems.linear import linear_problem
from ott.solvers.linear import acceleration, sinkhorn
from sklearn.datasets import load_sample_image
from tqdm import tqdm

from jaxgauss import kernel_mean
from jaxgauss.ott import PointCloud

NAMES = ("china", "flower")


def solver(bar=None):
    """Sinkhorn's algorithm, which moves a bar by ten iterations at a time."""

    def show(status):
        iteration, inner, _, state = status
        errors = np.asarray(state.errors).ravel()
        if bar is not None and (iteration + 1) % inner == 0:
            bar.update(int(inner))
            bar.set_postfix_str(f"error {errors[errors > 0][-1]:.1e}")

    return jax.jit(sinkhorn.Sinkhorn(momentum=acceleration.Momentum(value=1.6), progress_fn=show))


def transport(x, y, epsilon):
    """Potentials of the transport of colors (n, 3) to colors (m, 3)."""
    start = time.perf_counter()
    with tqdm(desc="Sinkhorn", unit="iteration") as bar:
        out = jax.block_until_ready(solver(bar)(linear_problem.LinearProblem(PointCloud(x, y, epsilon=epsilon))))
        jax.effects_barrier()
    seconds, size = time.perf_counter() - start, 4e-6 * len(x) * len(y)
    print(f"{len(x)} and {len(y)} colors, ε = {epsilon}: {int(out.n_iters)} iterations in {seconds:.1f} s", end=" ")
    print(f"with compiling, cost {float(out.reg_ot_cost):.4f}; the matrix would take {size:.0f} MB")
    return out


def moved(colors, to, potential, epsilon):
    """Where colors go: the mean of `to` by the plan, Σ_j exp((g_j - ‖x - y_j‖²)/ε) y_j, normalized."""
    return kernel_mean(colors, to, to, 2 / epsilon, log_weights=potential / epsilon)


def main(num=10_000, epsilon=0.01, stride=1, picture="outputs/optimal_transport.png"):
    """Transport the colors of each photo to those of the other."""
    images = [load_sample_image(f"{name}.jpg")[::stride, ::stride] / np.float32(255) for name in NAMES]
    colors = [jnp.asarray(image.reshape(-1, 3)) for image in images]
    rng = np.random.default_rng(0)
    x, y = (c[rng.choice(len(c), min(num, len(c)), replace=False)] for c in colors)
    out = transport(x, y, epsilon)
    start = time.perf_counter()
    pairs = zip(colors, (y, x), (out.g, out.f), strict=True)
    exchanged = [np.asarray(moved(c, to, potential, epsilon)) for c, to, potential in pairs]
    print(f"{sum(len(c) for c in colors)} pixels moved in {time.perf_counter() - start:.1f} s")
    means = [np.mean(c, 0) for c in (*colors, *exchanged[::-1])]
    before, after = (np.abs(means[i] - means[j]).max() for i, j in ((0, 1), (0, 2)))
    print(f"means of colors differ by {after:.4f}, before by {before:.4f}")
    draw(images, [e.reshape(image.shape) for e, image in zip(exchanged, images, strict=True)], (x, y), Path(picture))
    return out, before, after


def draw(images, exchanged, samples, path):
    """The photos, the photos with their colors exchanged, and the colors."""
    fig = plt.figure(figsize=(13, 6), layout="constrained")
    for row in range(2):
        for column, picture in enumerate((images[row], exchanged[row])):
            ax = fig.add_subplot(2, 3, 3 * row + column + 1)
            ax.imshow(np.clip(picture, 0, 1))
            ax.set(xticks=[], yticks=[], title=NAMES[row] if column == 0 else f"in the colors of {NAMES[1 - row]}")
        ax = fig.add_subplot(2, 3, 3 * row + 3, projection="3d", elev=20, azim=-60)
        shown = np.asarray(samples[row])[:3000]
        ax.scatter(*shown.T, c=np.clip(shown, 0, 1), s=3)
        ax.set(
            xlabel="red",
            ylabel="green",
            zlabel="blue",
            xticks=[0, 1],
            yticks=[0, 1],
            zticks=[0, 1],
            title=f"colors of {NAMES[row]}",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num", type=int, default=10_000, help="colors of each photo that are transported")
    parser.add_argument("--epsilon", type=float, default=0.01, help="entropic regularization, of colors from 0 to 1")
    parser.add_argument("--stride", type=int, default=1, help="every so many pixels of the photos are used")
    parser.add_argument("--picture", default="outputs/optimal_transport.png", help="where to save it")
    main(**vars(parser.parse_args()))
