"""Particles that start far from the letters JAX flow there, downhill in MMD²: `python examples/mmd_flow.py`.

A Gaussian does not feel what lies many bandwidths away: its particles push one another apart, and half never arrive.
"imq", of the same bandwidths, has tails that reach most of them; "energy" pulls at any distance alike and has no
bandwidth. Steps are x + η v, with η falling to zero from 3, for the Gaussian the best of 1, 3 and 10, and for "energy"
from 1: at 3 it ends nearer still, but overshoots at first. (Gauss sums of points so many σ apart are in float64, slow.)
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath
from tqdm import trange

from jaxgauss import energy_distance, mmd_flow_velocity

TEXT = "JAX"
TAUS = np.array([1.0, 10.0], np.float32)  # 1/σ², a mixture: half the text, and two strokes
KERNELS = {"gauss": (TAUS, 3.0), "imq": (TAUS, 3.0), "energy": (1.0, 1.0)}  # τ, of energy only a factor; first η
CENTER, BLOB = (-4.0, 0.0), 0.3  # of the particles at the start, and their standard deviation; the text is 2 wide
NEAR = 0.1  # two thirds of a stroke's width


def letters(rng, num):
    """Points (num, 2), uniform in the strokes of TEXT."""
    outlines = TextPath((0, 0), TEXT, prop=FontProperties(family="DejaVu Sans", weight="bold")).to_polygons()
    low, high = np.concatenate(outlines).min(0), np.concatenate(outlines).max(0)
    points = np.empty((0, 2))
    while len(points) < num:
        box = rng.uniform(low, high, (num, 2))
        inside = np.sum([Outline(outline).contains_points(box) for outline in outlines], 0) == 1  # 2: an A's hole
        points = np.concatenate([points, box[inside]])
    return jnp.asarray((points[:num] - (low + high) / 2) * 2 / (high - low)[0], jnp.float32)


def distance(x, y):
    """Energy distance, in float64: in the end it lies near the rounding of float32."""
    with jax.enable_x64(True):
        return float(energy_distance(np.asarray(x, np.float64), np.asarray(y, np.float64)))


def arrived(x, y):
    """The share of the particles that are near a point of the target."""
    return float((jnp.square(x[:, None] - y).sum(-1).min(1) < NEAR**2).mean())


def flow(kernel, x, y, steps):
    """The particles at a few steps, and their distance to the target at more of them."""
    tau, first = KERNELS[kernel]
    eta = optax.cosine_decay_schedule(first, steps)
    step = jax.jit(lambda x, i: x + eta(i) * mmd_flow_velocity(x, y, tau, kernel=kernel))
    frames, curve = {0: x}, [(0, distance(x, y))]
    measured = set(np.geomspace(1, steps, 30).astype(int))
    for i in (bar := trange(1, steps + 1, desc=kernel, unit="step", mininterval=0.5)):
        x = step(x, i - 1)
        if i in (max(1, steps // 20), steps):
            frames[i] = x
        if i in measured:
            curve.append((i, distance(x, y)))
            bar.set_postfix_str(f"energy distance {curve[-1][1]:.1e}")
    return frames, curve


def main(num=1500, targets=2000, steps=300, picture="outputs/mmd_flow.png"):
    """Let the particles flow by each kernel, report how far they come, and draw them on their way."""
    rng = np.random.default_rng(0)
    y, independent = letters(rng, targets), letters(rng, num)
    x = jnp.array(CENTER) + BLOB * jax.random.normal(jax.random.key(0), (num, 2))
    flows = {kernel: flow(kernel, x, y, steps) for kernel in KERNELS}
    scale = distance(independent, y)
    print(f"energy distance: {distance(x, y):.1e} before, {scale:.1e} for {num} independent points of the target")
    for kernel, (frames, curve) in flows.items():
        print(f"{kernel:<7} {curve[-1][1]:.1e} after {steps} steps, {arrived(frames[steps], y):.0%} of them arrived")
    draw(flows, y, scale, Path(picture))
    return {kernel: curve for kernel, (_, curve) in flows.items()}, scale


def draw(flows, y, scale, path):
    """A row of pictures for each kernel, the last one enlarged, and the distances over the steps."""
    fig = plt.figure(figsize=(15, 7.6), layout="constrained")
    grid = fig.add_gridspec(len(flows), 5, width_ratios=[1, 1, 1, 1.5, 1.5])
    everything = np.concatenate([y, *(x for frames, _ in flows.values() for x in frames.values())])
    windows = [(everything.min(0) - 0.2, everything.max(0) + 0.2)] * 3 + [(y.min(0) - 0.2, y.max(0) + 0.2)]
    start = np.asarray(flows["energy"][0][0])[:, 0]
    colors = plt.get_cmap("turbo")(np.clip(0.5 + (start - CENTER[0]) / (4 * BLOB), 0.03, 0.97))
    for row, (kernel, (frames, _)) in enumerate(flows.items()):
        for column, ((low, high), step) in enumerate(zip(windows, [*frames, max(frames)], strict=True)):
            ax = fig.add_subplot(grid[row, column])
            ax.scatter(*y.T, s=4, color="0.85", linewidths=0)
            ax.scatter(*frames[step].T, s=4, c=colors, linewidths=0)
            ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal", xticks=[], yticks=[])
            ax.spines[:].set_color("0.8")
            ax.set_title(f"step {step}" if column < 3 else f"enlarged: {arrived(frames[step], y):.0%} arrived")
            if column == 0:
                ax.set_ylabel(kernel, fontsize="large")
    ax = fig.add_subplot(grid[:, 4])
    for kernel, (_, curve) in flows.items():
        ax.semilogy(*zip(*curve, strict=True), ".-", label=kernel)
    ax.axhline(scale, color="0.5", linestyle="--", label="independent points")
    ax.set(title="energy distance to the target", xlabel="step")
    ax.grid(alpha=0.3)
    ax.legend(loc="upper right")
    fig.supxlabel("color: where a particle started, from left to right; gray: the target", fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=95)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=1500, help="particles")
    parser.add_argument("--targets", type=int, default=2000, help="points of the text")
    parser.add_argument("--steps", type=int, default=300, help="steps of each flow")
    parser.add_argument("--picture", default="outputs/mmd_flow.png", help="where to save it")
    main(**vars(parser.parse_args()))
