"""Particles flow from a blob onto the letters JAX, downhill in MMD²: `python examples/mmd_flow.py`."""

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

from jaxgauss import mmd_flow_velocity, mmd_squared

TEXT = "JAX"
TAUS = np.array([1.0, 10.0, 100.0, 500.0], np.float32)  # 1/σ², a mixture: half the text to a fraction of a stroke
BLOB = 0.3  # standard deviation of the particles at the start; the text is 2 wide
FRAMES = 6


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
    """MMD² (the biased estimate), in float64: in the end it lies below the rounding of float32."""
    with jax.enable_x64(True):
        return float(mmd_squared(np.asarray(x, np.float64), np.asarray(y, np.float64), np.float64(TAUS)))


def main(num=3000, targets=4000, steps=300, noise=0.0, picture="outputs/mmd_flow.png"):
    """Let the particles flow, report MMD² before and after, and draw them on their way."""
    rng = np.random.default_rng(0)
    y, independent = letters(rng, targets), letters(rng, num)
    x = BLOB * jax.random.normal(jax.random.key(0), (num, 2))
    level = optax.linear_schedule(noise, 0, steps)
    # A short memory: particles far off, on which the forces have become weak, move on at the full step size.
    optimizer = optax.adam(optax.cosine_decay_schedule(0.02, steps), b1=0.5, b2=0.9)
    state = optimizer.init(x)

    @jax.jit
    def step(x, state, i):
        rng_key = jax.random.fold_in(jax.random.key(1), i)
        moved = x + level(i) * jax.random.normal(rng_key, x.shape)  # noise injection (Arbel et al. 2019), if any
        velocity = mmd_flow_velocity(moved, y, TAUS)
        updates, state = optimizer.update(-velocity, state)  # minus: Optax descends, the velocity is where to go
        return optax.apply_updates(x, updates), state

    wanted = {round(steps * (i / (FRAMES - 1)) ** 2.5) for i in range(FRAMES)}  # most of it happens early
    frames = [(0, x, distance(x, y))]
    for i in (bar := trange(1, steps + 1, unit="step", mininterval=0.5)):
        x, state = step(x, state, i)
        if i in wanted:
            frames.append((i, x, distance(x, y)))
        if i % 25 == 0:
            bar.set_postfix_str(f"MMD² {distance(x, y):.1e}")
    before, after, scale = frames[0][2], frames[-1][2], distance(independent, y)
    print(f"MMD²: {before:.2e} before, {after:.2e} after ({scale:.2e} for {num} independent points of the target)")
    draw(frames, y, Path(picture))
    return before, after, scale


def draw(frames, y, path):
    """The particles at some steps, colored by where they started, over the target."""
    start = np.asarray(frames[0][1])[:, 0]
    colors = plt.get_cmap("turbo")(np.clip(0.5 + start / (4 * BLOB), 0.03, 0.97))
    everything = np.concatenate([y, *(x for _, x, _ in frames)])
    low, high = everything.min(0) - 0.05, everything.max(0) + 0.05  # nobody leaves the picture
    width, columns = 13, FRAMES // 2
    height = 2 * (width / columns * np.divide(*(high - low)[::-1]) + 0.4)
    fig, axes = plt.subplots(2, columns, figsize=(width, height), layout="constrained", squeeze=False)
    for ax in axes.flat:
        ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal", xticks=[], yticks=[])
        ax.spines[:].set_color("0.8")
    for ax, (step, x, value) in zip(axes.flat, frames, strict=False):
        ax.scatter(*y.T, s=7, color="0.9", linewidths=0)
        ax.scatter(*x.T, s=4, c=colors, linewidths=0)
        ax.set_title(f"step {step}, MMD² = {value:.1e}")
    fig.supxlabel("color: where a particle started, from left to right; gray: the target", fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num", type=int, default=3000, help="particles")
    parser.add_argument("--targets", type=int, default=3000, help="points of the text")
    parser.add_argument("--steps", type=int, default=300, help="Adam steps")
    parser.add_argument("--noise", type=float, default=0.0, help="standard deviation of injected noise at the start")
    parser.add_argument("--picture", default="outputs/mmd_flow.png", help="where to save it")
    main(**vars(parser.parse_args()))
