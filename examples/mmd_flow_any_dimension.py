"""100,000 particles in 64 dimensions flow to handwritten digits: `python examples/mmd_flow_any_dimension.py`.

A step downhill in MMD² sums 10¹⁰ pairs. Random directions make that O(N) in any dimension (docs/any_dimension.md), and
a new key for each step keeps steps unbiased. All pairs of fewer particles take as many steps, for comparison; what a
step of all particles takes by pairs is estimated from that. Digits get new noise at each step, so that they are a
density and not points. `--num`, `--few`, `--steps` and `--directions` make it smaller.
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits
from tqdm import trange

from jaxgauss import Sliced, mmd_flow_velocity, mmd_squared

TAU, KERNEL = 0.3, "imq"  # its tails reach across the digits, which are 3 apart
STEP, MOMENTUM = 4.0, 0.8
NOISE = 0.1  # standard deviation, of each pixel of a target
CHECKED = 2000  # particles whose MMD² to digits held out is exact
TRAIN = 1437  # digits; the other 360 are held out


def noisy(images, rng_key):
    """The images with noise."""
    return images + NOISE * jax.random.normal(rng_key, images.shape)


@jax.jit
def distance(x, held_out):
    """Exact unbiased MMD² of some particles to digits that no step has seen."""
    return mmd_squared(x[:CHECKED], held_out, TAU, kernel=KERNEL, estimator="unbiased")


def flow(images, held_out, num, steps, directions=None):
    """Particles at a few steps, (step, MMD²) at more, and seconds a step; without directions by all pairs."""
    x = 0.5 + 0.3 * jax.random.normal(jax.random.key(0), (num, images.shape[1]))
    optimizer = optax.sgd(optax.cosine_decay_schedule(STEP, steps), MOMENTUM)

    @jax.jit
    def step(x, state, rng_key):
        of_directions, of_noise = jax.random.split(rng_key)
        engine = Sliced(directions, frequencies=1, rng_key=of_directions) if directions else "auto"
        velocity = mmd_flow_velocity(x, noisy(images, of_noise), TAU, kernel=KERNEL, engine=engine)
        updates, state = optimizer.update(-velocity, state)  # minus: Optax descends
        return optax.apply_updates(x, updates), state

    frames, curve, seconds, state = {0: x}, [(0, float(distance(x, held_out)))], [], optimizer.init(x)
    for i in (bar := trange(1, steps + 1, desc=f"{num} particles", unit="step", mininterval=0.5)):
        before = time.perf_counter()
        x, state = jax.block_until_ready(step(x, state, jax.random.fold_in(jax.random.key(1), i)))
        seconds.append(time.perf_counter() - before)
        if i in (steps // 8, steps // 3, steps):
            frames[i] = x
        if i % max(1, steps // 20) == 0 or i == steps:
            curve.append((i, float(distance(x, held_out))))
            bar.set_postfix_str(f"MMD² {curve[-1][1]:.1e}")
    return frames, curve, float(np.median(seconds))


def main(num=100_000, few=3000, steps=200, directions=256, picture="outputs/mmd_flow_any_dimension.png"):
    """Let both flow, report what steps take and where they end, and draw particles as images."""
    digits = jax.random.permutation(jax.random.key(1), jnp.asarray(load_digits(return_X_y=True)[0] / 16, jnp.float32))
    images, held_out = digits[:TRAIN], noisy(digits[TRAIN:], jax.random.key(2))
    flows = {
        f"{num:,} by {directions} directions": (num, *flow(images, held_out, num, steps, directions)),
        f"{few:,} by all pairs": (few, *flow(images, held_out, few, steps)),
    }
    scale = float(distance(noisy(images, jax.random.key(3)), held_out))
    for name, (_, _, curve, seconds) in flows.items():
        print(f"{name}: {1e3 * seconds:.0f} ms a step; MMD² {curve[0][1]:.1e} before, {curve[-1][1]:.1e} after")
    fast, slow = (seconds for *_, seconds in flows.values())
    all_pairs = slow * num * (num + TRAIN) / (few * (few + TRAIN))
    print(f"{num:,} by all pairs: about {all_pairs:.1f} s a step, {all_pairs / fast:.0f} times as long")
    print(f"MMD² of the digits themselves, with noise, to those held out: {scale:.1e}")
    draw(flows, held_out, scale, Path(picture))
    return flows, scale


def draw(flows, held_out, scale, path):
    """Some particles as images on their way, digits that no step has seen, and MMD²."""
    (_, frames, _, _), *_ = flows.values()
    shown = {f"step {i}": x for i, x in frames.items()} | {"held out, with noise": held_out}
    widths = [1] * len(shown) + [1.7]
    fig, axes = plt.subplots(1, len(widths), figsize=(15, 3), width_ratios=widths, layout="constrained")
    for ax, (title, x) in zip(axes, shown.items(), strict=False):
        grid = np.pad(np.asarray(x[:30]).reshape(6, 5, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1))).transpose(0, 2, 1, 3)
        ax.imshow(grid.reshape(60, 50), cmap="gray_r", vmin=0, vmax=1)
        ax.set(title=title, xticks=[], yticks=[])
    for name, (_, _, curve, _) in flows.items():
        axes[-1].plot(*zip(*curve, strict=True), ".-", label=name)
    axes[-1].axhline(scale, color="0.5", linestyle="--", label="the digits themselves")
    axes[-1].set_yscale("symlog", linthresh=1e-3)  # an unbiased estimate may be negative
    axes[-1].set(title="unbiased MMD² to digits held out", xlabel="step")
    axes[-1].grid(alpha=0.3)
    axes[-1].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=130)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=100_000, help="particles whose sums are over random directions")
    parser.add_argument("--few", type=int, default=3000, help="particles of all pairs")
    parser.add_argument("--steps", type=int, default=200, help="steps of each flow")
    parser.add_argument("--directions", type=int, default=256, help="random directions of a step")
    parser.add_argument("--picture", default="outputs/mmd_flow_any_dimension.png", help="where to save it")
    main(**vars(parser.parse_args()))
