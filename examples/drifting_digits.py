"""A generator learns handwritten digits by drifting, in one step from noise: `python examples/drifting_digits.py`."""

import argparse
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits
from tqdm import trange

from jaxgauss import drift, mmd_squared

RADII = np.array([0.15, 0.3, 1.0], "float32")  # of e^(-d/R): digits are about 3 apart
TAUS = RADII**-2
WIDTHS = (32, 256, 256, 64)  # latent, hidden, hidden, 8 × 8 pixels
COMPARED = 20  # steps whose losses are those of the dense form
TIMED = {256: 20, 2048: 5, 8192: 3}  # batches of which steps are timed, and how many


def field(x, real):
    """The drifting field of generated images x (G, 64) towards real ones."""
    return drift(x, real, TAUS, unit_rms=True)


def field_dense(x, real):
    """The same with the matrix of all pairs, as it is usually written."""
    num, targets = len(x), jnp.concatenate([x, real])
    squared = jnp.square(x).sum(-1)[:, None] + jnp.square(targets).sum(-1) - 2 * x @ targets.T
    distances = jnp.sqrt(jnp.maximum(squared, 1e-8))
    total = 0
    for radius in RADII:
        logits = -distances / radius - 1e6 * jnp.eye(num, len(targets))  # no point is its own negative
        affinity = jnp.sqrt(jax.nn.softmax(logits, 1) * jax.nn.softmax(logits, 0))
        negative, positive = affinity[:, :num], affinity[:, num:]
        attracted = positive * negative.sum(1, keepdims=True) @ real
        force = attracted - negative * positive.sum(1, keepdims=True) @ x
        total += force / jnp.sqrt(jnp.square(force).mean())
    return total


def generate(params, rng_key, num):
    """Images (num, 64) from noise, by a multilayer perceptron."""
    x = jax.random.normal(rng_key, (num, WIDTHS[0]))
    for weights, bias in params[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    return jax.nn.sigmoid(x @ params[-1][0] + params[-1][1])


def initial():
    """Weights and biases."""
    init = jax.nn.initializers.he_normal()
    return [(init(jax.random.key(m), (m, n)), jnp.zeros(n)) for m, n in pairwise(WIDTHS)]


def train_step(field, optimizer, real, batch):
    """One step: images move to where they drift."""

    def loss(params, rng_key):
        x = generate(params, rng_key, batch)
        return jnp.square(x - jax.lax.stop_gradient(x + field(x, real))).mean()

    @jax.jit
    def step(params, state, rng_key):
        value, gradients = jax.value_and_grad(loss)(params, rng_key)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    return step


def compared(optimizer, real, batch):
    """Losses of the first steps by both forms, from the same start."""
    losses = {}
    for f in (field, field_dense):
        params, step = initial(), train_step(f, optimizer, real, batch)
        state = optimizer.init(params)
        for i in range(1, COMPARED + 1):
            params, state, loss = step(params, state, jax.random.fold_in(jax.random.key(0), i))
            losses.setdefault(f, []).append(float(loss))
    ours, dense = (np.array(x) for x in losses.values())
    return float(np.abs(ours / dense - 1).max())


def measured(optimizer, real):
    """Steps a second, and megabytes of a step's program, of both forms by batch; steps in turns."""
    found = {}
    for batch, num in TIMED.items():
        params = initial()
        given = params, optimizer.init(params), jax.random.key(0)
        steps: Any = {f: train_step(f, optimizer, real, batch).lower(*given).compile() for f in (field, field_dense)}
        seconds = {f: [] for f in steps}
        for i in range(num + 1):
            for f, step in steps.items():
                start = time.perf_counter()
                jax.block_until_ready(step(*given))
                seconds[f] += [time.perf_counter() - start] if i else []  # the first one warms up
        memory = {f: step.memory_analysis().temp_size_in_bytes / 1e6 for f, step in steps.items()}
        found[batch] = [(1 / np.median(seconds[f]), memory[f]) for f in steps]
        for (rate, megabytes), name in zip(found[batch], ("drift", "dense"), strict=True):
            print(f"batch {batch}: {name} {rate:.3g} steps a second, {megabytes:.3g} MB")
    return found


def shown_steps(steps):
    """Where samples are shown: of 3000 steps 11 (noise), 46, 187 and 750."""
    return sorted({steps // 4**i for i in range(1, 5)} - {0})


def main(steps=3000, batch=256, picture="outputs/drifting_digits.png"):
    """Train, report the held-out MMD, compare with the dense form, and draw samples and curves."""
    images = jax.random.permutation(jax.random.key(1), jnp.asarray(load_digits(return_X_y=True)[0] / 16, jnp.float32))
    train, held_out = jnp.split(images, [1437])
    print(f"{steps} steps of {batch} images towards {len(train)} real ones")
    optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0, 1e-3, steps // 20, steps))
    params, step = initial(), train_step(field, optimizer, train, batch)
    state, sample = optimizer.init(params), jax.jit(generate, static_argnums=2)
    taus = jnp.array([0.1, 0.3, 1.0])

    @jax.jit
    def mmd(params):
        return jnp.sqrt(mmd_squared(generate(params, jax.random.key(2), 2000), held_out, taus))

    curve, shown = [(0, float(mmd(params)))], []
    checks = sorted({*shown_steps(steps), *np.geomspace(1, steps, 25).astype(int).tolist(), steps})
    for i in (bar := trange(1, steps + 1, unit="step", mininterval=0.5)):
        params, state, loss = step(params, state, jax.random.fold_in(jax.random.key(0), i))
        if i in checks:
            curve.append((i, float(mmd(params))))
            bar.set_postfix_str(f"loss {loss:.4f}, held-out MMD {curve[-1][1]:.4f}")
        if i in shown_steps(steps):
            shown.append((f"step {i}", sample(params, jax.random.key(3), 30)))
    between = float(jnp.sqrt(mmd_squared(train, held_out, taus)))
    print(f"held-out MMD: {curve[0][1]:.4f} before, {curve[-1][1]:.4f} after ({between:.4f} between real digits)")
    apart = compared(optimizer, train, batch)
    print(f"losses of the first {COMPARED} steps: {apart:.0e} from those of the dense form, at most")
    costs = measured(optimizer, train)
    shown += [(f"step {steps}", sample(params, jax.random.key(3), 30)), ("real, held out", held_out[:30])]
    draw(shown, curve, between, costs, Path(picture))
    return curve, apart, costs


def draw(shown, curve, between, costs, path):
    """Samples from the same noise at several steps beside real digits; the held-out MMD; what steps cost."""
    widths = [1] * len(shown) + [1.5, 1.9]
    fig, axes = plt.subplots(1, len(widths), figsize=(16, 2.6), width_ratios=widths, layout="constrained")
    for ax, (title, images) in zip(axes, shown, strict=False):
        grid = jnp.pad(images.reshape(6, 5, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1))).transpose(0, 2, 1, 3)
        ax.imshow(grid.reshape(60, 50), cmap="gray_r", vmin=0, vmax=1)
        ax.set(title=title, xticks=[], yticks=[])
    steps, mmd = zip(*curve[1:], strict=True)
    axes[-2].semilogx(steps, mmd, ".-", label="generated")
    axes[-2].axhline(between, color="gray", ls="--", label="real")
    axes[-2].set(title="MMD from held-out digits", xlabel="step", ylim=0)
    for i, (name, marker, side) in enumerate((("drift", "o-", -14), ("dense", "s--", 6))):
        axes[-1].loglog([*costs], [x[i][1] for x in costs.values()], marker, label=name)
        for batch, x in costs.items():
            at = {"xytext": (0, side), "textcoords": "offset points", "ha": "center", "fontsize": 8}
            rate = x[i][0]
            axes[-1].annotate(f"{rate:.0f}/s" if rate > 10 else f"{rate:.2g}/s", (batch, x[i][1]), **at)
    axes[-1].set(title="memory, and steps a second", xlabel="batch", ylabel="MB")
    axes[-1].set_xticks([*costs], [str(batch) for batch in costs])
    axes[-1].minorticks_off()
    axes[-1].margins(0.2)
    for ax, loc in zip(axes[-2:], ("upper right", "upper left"), strict=True):
        ax.grid(alpha=0.3)
        ax.legend(fontsize=8, loc=loc)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=256, help="generated images a step")
    parser.add_argument("--picture", default="outputs/drifting_digits.png", help="where to save it")
    main(**vars(parser.parse_args()))
