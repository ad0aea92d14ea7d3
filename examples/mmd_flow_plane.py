"""100,000 particles flow into the letters JAX, downhill in MMD² to 100,000 points: `python examples/mmd_flow_plane.py`.

All pairs of a step are 2·10¹⁰ exponentials. In the plane a Gaussian is a short Fourier series, and a step takes O(N);
both bandwidths share its waves (docs/few_dimensions.md). Time and memory are printed. `--points` makes it smaller.
"""

import argparse
import resource
import time
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from mmd_flow import letters
from tqdm import trange

from jaxgauss import embedding_norm_squared, mmd_flow_velocity, mmd_squared

TAUS = np.array([1 / 0.4**2, 1 / 0.1**2], np.float32)  # σ: a letter, and a stroke
RADIUS = 0.7  # of the disc in which the particles start; the text is 2 wide
STEP, MOMENTUM = 0.2, 0.9
BINS = 160


def flow(x, y, steps, frames):
    """The particles at so many steps, and (step, MMD²) at more of them."""
    optimizer = optax.sgd(STEP, MOMENTUM, nesterov=True)  # Adam would fling out what is alone, and the box would grow
    norm = embedding_norm_squared(y, TAUS)

    @jax.jit
    def step(x, state):
        updates, state = optimizer.update(-mmd_flow_velocity(x, y, TAUS), state)  # minus: Optax descends
        return optax.apply_updates(x, updates), state

    loss = jax.jit(lambda x: mmd_squared(x, y, TAUS, y_norm_squared=norm))
    shown = set(np.linspace(0, steps, frames).astype(int).tolist())
    pictures, curve, state = {0: x}, [(0, float(loss(x)))], optimizer.init(x)
    for i in (bar := trange(1, steps + 1, unit="step", mininterval=0.5)):
        x, state = step(x, state)
        if i % 5 == 0 or i == steps:
            curve.append((i, float(loss(x))))
            bar.set_postfix_str(f"MMD² {curve[-1][1]:.1e}")
        if i in shown:
            pictures[i] = x
    return pictures, curve


def main(points=100_000, steps=80, frames=6, picture="outputs/mmd_flow_plane.png"):
    """Let the particles flow, report the loss, time and memory, and draw them on their way."""
    rng = np.random.default_rng(0)
    y, independent = letters(rng, points), letters(rng, points)
    x = RADIUS * jax.random.ball(jax.random.key(0), 2, shape=(points,))
    start = time.perf_counter()
    pictures, curve = flow(x, y, steps, frames)
    seconds = time.perf_counter() - start
    scale = float(mmd_squared(independent, y, TAUS))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{points} particles, {points} points: {steps} steps in {seconds:.0f} s, {memory:.0f} MiB at most")
    print(f"MMD²: {curve[0][1]:.1e} before, {curve[-1][1]:.1e} after; {scale:.1e} of independent points")
    draw(pictures, y, curve, scale, Path(picture))
    return pictures, curve, scale


def draw(pictures, y, curve, scale, path):
    """Densities of the particles at a few steps and of the target, and the loss."""
    panels = {**{f"step {i}": x for i, x in pictures.items()}, "target": y}
    columns = -(-(len(panels) + 1) // 2)
    fig, axes = plt.subplots(2, columns, figsize=(3.3 * columns, 5), layout="constrained")
    window = (-1.15, 1.15), (-0.8, 0.8)
    counts = {name: np.histogram2d(*np.asarray(x).T, bins=BINS, range=window)[0].T for name, x in panels.items()}
    most = np.quantile(counts["target"][counts["target"] > 0], 0.98)
    for ax, (name, count) in zip(axes.flat, counts.items(), strict=False):
        ax.imshow(count, origin="lower", extent=(*window[0], *window[1]), cmap="magma", vmax=1.3 * most, aspect="equal")
        ax.set(title=name, xticks=[], yticks=[])
    last, *rest = axes.flat[len(panels) :]
    last.semilogy(*np.transpose(curve), color="C3", label="particles")
    last.axhline(scale, color="0.5", linestyle="--", label="independent points")
    last.set(title="MMD² to the target", xlabel="step")
    last.grid(alpha=0.3)
    last.legend()
    for ax in rest:
        ax.axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000, help="particles, and points of the target")
    parser.add_argument("--steps", type=int, default=80, help="steps of the flow")
    parser.add_argument("--frames", type=int, default=6, help="steps that are drawn")
    parser.add_argument("--picture", default="outputs/mmd_flow_plane.png", help="where to save it")
    main(**vars(parser.parse_args()))
