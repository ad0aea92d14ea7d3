"""A generator in Flax NNX learns digits by MMD², data parallel: `python examples/mmd_flax.py`."""

import argparse
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits
from tqdm import trange

from jaxgauss import embedding_norm_squared, mmd_squared

TAUS = np.array([0.1, 0.3, 1.0], np.float32)  # 1/σ²: pixels are in [0, 1], digits about 3 apart
WIDTHS = (32, 512, 512, 64)  # latent, hidden, hidden, 8 × 8 pixels
HELD_OUT = 517


class Generator(nnx.Module):
    """Images (N, 64) from noise (N, 32), whose hidden units are normalized over the batch."""

    def __init__(self, rngs: nnx.Rngs):
        *hidden, last = pairwise(WIDTHS)
        self.layers = nnx.List([nnx.Linear(m, n, use_bias=False, rngs=rngs) for m, n in hidden])
        self.norms = nnx.List([nnx.BatchNorm(n, momentum=0.95, rngs=rngs) for _, n in hidden])
        self.last = nnx.Linear(*last, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """In `train` mode by the moments of the whole batch, in `eval` mode by those of past ones."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = nnx.relu(norm(layer(x)))
        return nnx.sigmoid(self.last(x))


@nnx.jit(static_argnames=("mesh", "batch"))
def train_step(generator, optimizer, rngs, images, norm_squared, *, mesh, batch):
    """One step: each device makes its part of the batch and sums its rows of the kernels."""
    latents = jax.random.normal(rngs.latents(), (batch, WIDTHS[0]))
    latents = jax.lax.with_sharding_constraint(latents, NamedSharding(mesh, PartitionSpec("data")))

    def loss(generator):
        made = generator(latents)
        return mmd_squared(made, images, TAUS, y_norm_squared=norm_squared, mesh=mesh, query_axis="data")

    value, gradients = nnx.value_and_grad(loss)(generator)
    optimizer.update(generator, gradients)
    return value


def begin(mesh, steps):
    """The generator, its optimizer and its random numbers, on every device; and the images, shared out."""
    digits = np.random.default_rng(0).permutation(np.float32(load_digits(return_X_y=True)[0] / 16))
    images = digits[HELD_OUT:][: (len(digits) - HELD_OUT) // mesh.size * mesh.size]
    images = jax.device_put(images, NamedSharding(mesh, PartitionSpec("data")))
    rngs = nnx.Rngs(params=0, latents=1)
    generator = Generator(rngs)
    schedule = optax.warmup_cosine_decay_schedule(0, 3e-3, steps // 10, steps)
    optimizer = nnx.Optimizer(generator, optax.adam(schedule), wrt=nnx.Param)
    nodes = generator, optimizer, rngs
    nnx.update(nodes, jax.device_put(nnx.state(nodes), NamedSharding(mesh, PartitionSpec())))
    return *nodes, images, jnp.asarray(digits[:HELD_OUT])


def main(steps=1200, batch=512, picture="outputs/mmd_flax.png"):
    """Train on all devices, report the held-out MMD, and draw samples from the same noise at several steps."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    generator, optimizer, rngs, images, held_out = begin(mesh, steps)
    norm_squared = embedding_norm_squared(images, TAUS, mesh=mesh, query_axis="data")
    generate = nnx.jit(lambda generator, latents: generator(latents))
    noise = jax.random.normal(jax.random.key(2), (2000, WIDTHS[0]))

    def sample():
        generator.eval()
        made = generate(generator, noise)
        generator.train()
        return made, float(jnp.sqrt(mmd_squared(made, held_out, TAUS)))

    losses, held, shown = [], [(0, sample()[1])], []
    for step in (bar := trange(1, steps + 1, unit="step", mininterval=0.5)):
        losses.append(float(train_step(generator, optimizer, rngs, images, norm_squared, mesh=mesh, batch=batch)))
        if step % max(1, steps // 15) == 0 or step in (steps // 100, steps):
            made, mmd = sample()
            held.append((step, mmd))
            bar.set_postfix_str(f"held-out MMD {mmd:.4f}")
            if step in (steps // 100, steps // 15, steps):
                shown.append((f"step {step}", made[:30]))
    between = jnp.sqrt(mmd_squared(images, held_out, TAUS))
    print(f"held-out MMD: {held[0][1]:.4f} before, {held[-1][1]:.4f} after ({between:.4f} between real digits)")
    draw([*shown, ("real, held out", held_out[:30])], losses, held, Path(picture))
    return losses, held


def draw(shown, losses, held, path):
    """Samples beside real digits, and the loss."""
    fig, axes = plt.subplots(1, 5, figsize=(12, 2.6), width_ratios=[1, 1, 1, 1, 1.7], layout="constrained")
    for ax, (title, images) in zip(axes, shown, strict=False):
        grid = np.pad(np.asarray(images).reshape(6, 5, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1))).transpose(0, 2, 1, 3)
        ax.imshow(grid.reshape(60, 50), cmap="gray_r", vmin=0, vmax=1)
        ax.set(title=title, xticks=[], yticks=[])
    axes[-1].semilogy(np.arange(1, len(losses) + 1), losses, color="tab:blue", alpha=0.7, label="training")
    steps, mmds = zip(*held, strict=True)
    axes[-1].semilogy(steps, np.square(mmds), "o-", color="tab:orange", markersize=3, label="held out")
    axes[-1].set(title="loss", xlabel="step", ylabel="MMD² (biased)")
    axes[-1].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=1200, help="optimizer steps")
    parser.add_argument("--picture", default="outputs/mmd_flax.png", help="where to save it")
    main(**vars(parser.parse_args()))
