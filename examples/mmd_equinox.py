"""An Equinox generator learns digits by class from joint MMD², data parallel: `python examples/mmd_equinox.py`."""

import argparse
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits
from tqdm import trange

from jaxgauss import embedding_norm_squared, mmd_squared

TAUS = np.array([0.1, 0.3, 1.0], np.float32)  # 1/σ²: pixels are in [0, 1], digits about 3 apart
APART = 6.0  # what a label is multiplied by: images of two classes are further apart by √2 times that
LATENT, HELD_OUT, COLUMNS = 32, 517, 8  # columns of the picture


class Generator(eqx.Module):
    """One image (64,) from noise and a class: `jax.vmap` makes many."""

    classes: eqx.nn.Embedding
    layers: eqx.nn.MLP

    def __call__(self, latent: jax.Array, label: jax.Array) -> jax.Array:
        """Of an integer label, or of the weights (10,) of classes in between."""
        vector = self.classes(label) if label.ndim == 0 else label @ self.classes.weight
        return self.layers(jnp.concatenate([latent, vector]))


def joint(images, labels):
    """Points (N, 74) of images with their labels: their Gaussian kernel is that of images times one of labels."""
    return jnp.concatenate([images, APART * jax.nn.one_hot(labels, 10, dtype=images.dtype)], 1)


@eqx.filter_jit
def train_step(model, state, data, norm_squared, rng_key, optimizer, mesh, batch):
    """Down MMD² of images with their labels: each device makes its part of them, and sums its rows of the kernels."""
    latents, labels = jax.random.normal(rng_key, (batch, LATENT)), jnp.arange(batch) % 10
    latents, labels = eqx.filter_shard((latents, labels), NamedSharding(mesh, PartitionSpec("data")))

    @eqx.filter_value_and_grad
    def loss(model):
        made = joint(jax.vmap(model)(latents, labels), labels)
        return mmd_squared(made, data, TAUS, y_norm_squared=norm_squared, mesh=mesh, query_axis="data")

    value, gradients = loss(model)
    updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), state, value


def begin(mesh, steps):
    """The generator and its optimizer, on every device; digits with labels, shared out; and those held out."""
    order = np.random.default_rng(0).permutation(1797)
    digits, labels = (np.asarray(x)[order] for x in load_digits(return_X_y=True))
    points = joint(jnp.asarray(digits / 16, jnp.float32), labels)
    held_out, train = points[:HELD_OUT], points[HELD_OUT:][: (len(points) - HELD_OUT) // mesh.size * mesh.size]
    layers = eqx.nn.MLP(LATENT + 16, 64, 512, 2, final_activation=jax.nn.sigmoid, key=jax.random.key(0))
    model = Generator(eqx.nn.Embedding(10, 16, key=jax.random.key(1)), layers)
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0, 4e-3, steps // 10, steps))
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))  # activations are leaves as well
    model, state = eqx.filter_shard((model, state), NamedSharding(mesh, PartitionSpec()))
    return model, optimizer, state, eqx.filter_shard(train, NamedSharding(mesh, PartitionSpec("data"))), held_out


def main(steps=1200, batch=512, picture="outputs/mmd_equinox.png"):
    """Train on all devices, report the held-out MMD, and draw samples of every class, and of those in between."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    model, optimizer, state, train, held_out = begin(mesh, steps)
    data = train, embedding_norm_squared(train, TAUS, mesh=mesh, query_axis="data")
    labels, noise = jnp.repeat(jnp.arange(10), 200), jax.random.normal(jax.random.key(2), (2000, LATENT))
    generate = eqx.filter_jit(lambda model, noise, labels: jax.vmap(model)(noise, labels))

    losses, held, shown = [], [], []
    for i in (bar := trange(steps + 1, unit="step", mininterval=0.5)):
        if i > 0:
            model, state, loss = train_step(model, state, *data, jax.random.key(i), optimizer, mesh, batch)
            losses.append(float(loss))
        if i % max(1, steps // 15) == 0 or i == steps:
            made = generate(model, noise, labels)
            held.append((i, float(jnp.sqrt(mmd_squared(joint(made, labels), held_out, TAUS)))))
            bar.set_postfix_str(f"held-out MMD {held[-1][1]:.4f}")
            if i in (steps // 15, steps):
                shown.append((f"step {i}, by class", made.reshape(10, -1, 64)[:, :COLUMNS]))
    (_, before), (_, after), between = held[0], held[-1], jnp.sqrt(mmd_squared(train, held_out, TAUS))
    print(f"held-out joint MMD: {before:.4f} before, {after:.4f} after ({between:.4f} between real digits)")
    whole, share = jnp.repeat(jnp.eye(10), COLUMNS, 0), jnp.tile(jnp.linspace(0, 1, COLUMNS), 10)[:, None]
    mixed = (1 - share) * whole + share * jnp.roll(whole, 1, 1)  # of a class and the next
    shown.append(("from class to class", generate(model, 0 * noise[: len(mixed)], mixed)))
    draw(shown, losses, held, Path(picture))
    return losses, held


def draw(shown, losses, held, path):
    """Digits in a row for each class, and the loss."""
    fig, axes = plt.subplots(1, 4, figsize=(12, 3.4), width_ratios=[1, 1, 1, 1.4], layout="constrained")
    for ax, (title, images) in zip(axes, shown, strict=False):
        grid = np.pad(np.asarray(images).reshape(10, -1, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1))).transpose(0, 2, 1, 3)
        ax.imshow(grid.reshape(100, -1), cmap="gray_r", vmin=0, vmax=1)
        ax.set(title=title, xticks=[], yticks=[])
    steps, mmds = zip(*held, strict=True)
    axes[-1].semilogy(np.arange(1, len(losses) + 1), losses, color="tab:blue", alpha=0.7, label="training")
    axes[-1].semilogy(steps, np.square(mmds), "o-", color="tab:orange", markersize=3, label="held out")
    axes[-1].set(title="loss", xlabel="step", ylabel="joint MMD² (biased)")
    axes[-1].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=1200, help="optimizer steps")
    parser.add_argument("--picture", default="outputs/mmd_equinox.png", help="where to save it")
    main(**vars(parser.parse_args()))
