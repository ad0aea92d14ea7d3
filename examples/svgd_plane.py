"""SVGD with 100,000 particles in the plane, beside the density they are to follow: `python examples/svgd_plane.py`.

The density is a banana: x₁ is normal, and x₂ is x₁² and noise. Divided by the density of the particles at each, the
direction is a velocity, and steps need no Adam. All pairs of a step are 10¹⁰ exponentials; in the plane a step takes
O(N) (docs/few_dimensions.md). Time and memory are printed. `--points` makes it smaller.
"""

import argparse
import resource
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from tqdm import trange

from jaxgauss import gauss_sum, mmd_squared, svgd_direction

NOISE, BEND = 0.5, 0.5  # of the banana
TAU = 1 / 0.2**2  # σ is less than half of its width
STEP = 0.04
WINDOW, BINS = ((-3.4, 3.4), (-2.2, 4.4)), 100


def log_density(x):
    """Of the banana at one point (2,)."""
    return -(x[0] ** 2) / 2 - ((x[1] - BEND * (x[0] ** 2 - 1)) / NOISE) ** 2 / 2 - jnp.log(2 * jnp.pi * NOISE)


def exact_sample(rng_key, num):
    """Independent points of the banana."""
    z = jax.random.normal(rng_key, (num, 2))
    return jnp.stack([z[:, 0], BEND * (z[:, 0] ** 2 - 1) + NOISE * z[:, 1]], 1)


def bins(x):
    """The share of points in each bin of the window."""
    return np.histogram2d(*np.asarray(x).T, bins=BINS, range=WINDOW)[0].T / len(x)


def exact_bins():
    """The probability of each bin, by the density at its center."""
    (a, b), (c, d) = WINDOW
    first, second = (low + (np.arange(BINS) + 0.5) * (high - low) / BINS for low, high in ((a, b), (c, d)))
    centers = jnp.asarray(np.stack(np.meshgrid(first, second), -1), jnp.float32)
    area = (b - a) * (d - c) / BINS**2
    return np.exp(np.asarray(jax.vmap(jax.vmap(log_density))(centers))) * area


def move(x, truth, steps):
    """The particles after all steps, and (step, MMD² to points of the banana) at some of them."""
    scores = jax.vmap(jax.grad(log_density))
    share = jnp.full(len(x), 1 / len(x))

    @jax.jit
    def step(x):
        return x + STEP * svgd_direction(x, scores(x), TAU) / gauss_sum(x, x, share, TAU)[:, None]

    distance = jax.jit(lambda x: mmd_squared(x, truth, TAU))
    curve = [(0, float(distance(x)))]
    for i in (bar := trange(1, steps + 1, unit="step", mininterval=0.5)):
        x = step(x)
        if i % 10 == 0 or i == steps:
            curve.append((i, float(distance(x))))
            bar.set_postfix_str(f"MMD² {curve[-1][1]:.1e}")
    return x, curve


def main(points=100_000, steps=100, picture="outputs/svgd_plane.png"):
    """Move the particles, compare them with the density, report time and memory, and draw them."""
    keys = jax.random.split(jax.random.key(0), 3)
    truth, others = (exact_sample(key, points) for key in keys[:2])
    start = time.perf_counter()
    x, curve = move(jax.random.normal(keys[2], (points, 2)), truth, steps)
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    scale, exact = float(mmd_squared(others, truth, TAU)), exact_bins()
    print(f"{points} particles: {steps} steps in {seconds:.0f} s, {memory:.0f} MiB at most")
    print(f"MMD²: {curve[0][1]:.1e} before, {curve[-1][1]:.1e} after; {scale:.1e} of independent points")
    means, sds = ((np.asarray(f(x, 0)), np.asarray(f(truth, 0))) for f in (jnp.mean, jnp.std))
    print("mean and sd of the particles - of the sample: {} {}".format(*((a - b).round(3) for a, b in (means, sds))))
    wrong = {name: np.abs(bins(z) - exact).sum() / 2 for name, z in (("particles", x), ("independent points", others))}
    print("total variation to the density, in bins: " + ", ".join(f"{wrong[name]:.3f} of {name}" for name in wrong))
    draw(x, exact, curve, scale, Path(picture))
    return x, curve, scale, wrong


def draw(x, exact, curve, scale, path):
    """The density of the particles and the exact one, the marginals of both, and the distance over the steps."""
    fig, axes = plt.subplot_mosaic("pea;pem", figsize=(14, 4.6), width_ratios=[1, 1, 1.1], layout="constrained")
    found = bins(x)
    for name, share, title in (("p", found, f"{len(x)} particles"), ("e", exact, "the density")):
        axes[name].imshow(share, origin="lower", extent=(*WINDOW[0], *WINDOW[1]), cmap="magma", vmax=1.1 * exact.max())
        axes[name].set(title=title, xlabel="x₁", ylabel="x₂", aspect="auto")
    for d, (low, high) in enumerate(WINDOW):
        at, width = low + (np.arange(BINS) + 0.5) * (high - low) / BINS, (high - low) / BINS
        axes["a"].plot(at, exact.sum(d) / width, color="black", lw=1, label="exact" if d == 0 else None)
        axes["a"].plot(at, found.sum(d) / width, color=f"C{d}", lw=1, label=f"particles, x{'₁₂'[d]}")
    axes["a"].set(title="marginal densities", xlabel="x₁ and x₂", ylabel="density")
    axes["m"].semilogy(*np.transpose(curve), color="C3", label="particles")
    axes["m"].axhline(scale, color="0.5", linestyle="--", label="independent points")
    axes["m"].set(xlabel="step", ylabel="MMD² to a sample")
    for name in "am":
        axes[name].grid(alpha=0.3)
        axes[name].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000, help="particles")
    parser.add_argument("--steps", type=int, default=100, help="steps")
    parser.add_argument("--picture", default="outputs/svgd_plane.png", help="where to save it")
    main(**vars(parser.parse_args()))
