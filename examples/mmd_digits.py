"""An Optax-trained generator learns handwritten digits by minimizing MMD²: `python examples/mmd_digits.py`."""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from sklearn.datasets import load_digits
from tqdm import trange

from jaxgauss import gauss_sum, gauss_sum_dense

TAUS = jnp.array([0.1, 0.3, 1.0])  # 1/σ², a mixture of bandwidths: pixels are in [0, 1], digits about 3 apart
WIDTHS = (32, 512, 512, 64)  # latent, hidden, hidden, 8 × 8 pixels


def mmd_squared(x, y, kernel_sum=gauss_sum):
    """MMD² of two samples (biased), the mean over TAUS: wᵀ K w with weights 1/n on x and -1/m on y."""
    points = jnp.concatenate([x, y])
    weights = jnp.concatenate([jnp.full(len(x), 1 / len(x)), jnp.full(len(y), -1 / len(y))])
    return (kernel_sum(points, points, weights, TAUS) @ weights).mean()


def init(rng_key):
    """Weights and biases of the generator, a multilayer perceptron."""
    sizes = list(zip(WIDTHS[:-1], WIDTHS[1:], strict=True))
    keys = jax.random.split(rng_key, len(sizes))
    return [(jax.random.normal(k, (m, n)) * (2 / m) ** 0.5, jnp.zeros(n)) for k, (m, n) in zip(keys, sizes, strict=True)]


def generate(params, rng_key, num):
    """Images (num, 64) from noise."""
    x = jax.random.normal(rng_key, (num, WIDTHS[0]))
    for weights, bias in params[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    return jax.nn.sigmoid(x @ params[-1][0] + params[-1][1])


def main(steps=4000, batch=1024, dense=False, seed=0, picture="outputs/mmd_digits.png"):
    """Train, report the held-out MMD before and after, and draw samples beside real digits."""
    kernel_sum = gauss_sum_dense if dense else gauss_sum
    digits = jax.random.permutation(jax.random.key(1), jnp.asarray(load_digits().data / 16, jnp.float32))
    train, held_out = digits[:1437], digits[1437:]
    rng_key = jax.random.key(seed)
    params = init(rng_key)
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-3, steps))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, rng_key):
        loss, gradients = jax.value_and_grad(lambda p: mmd_squared(generate(p, rng_key, batch), train, kernel_sum))(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    def evaluate(params):
        return float(jnp.sqrt(jnp.maximum(mmd_squared(generate(params, jax.random.key(2), 5000), held_out), 0)))

    before, losses = evaluate(params), []
    for i in (bar := trange(steps, unit="step", mininterval=0.5)):
        params, state, loss = step(params, state, jax.random.fold_in(rng_key, i))
        if i % 25 == 0 or i == steps - 1:
            losses.append((i, float(loss)))
            bar.set_postfix_str(f"MMD² {losses[-1][1]:.5f}")
    after, floor = evaluate(params), float(jnp.sqrt(mmd_squared(train, held_out)))
    print(f"held-out MMD: {before:.4f} before, {after:.4f} after (training digits themselves: {floor:.4f})")
    draw(generate(params, jax.random.key(3), 60), held_out[:60], losses, Path(picture))
    return before, after, losses


def draw(samples, real, losses, path):
    """Samples, real digits and the loss, side by side."""
    fig, axes = plt.subplots(1, 3, figsize=(13, 4.2), width_ratios=[1, 1, 1.1], layout="constrained")
    for ax, images, title in ((axes[0], samples, "generated"), (axes[1], real, "real, held out")):
        grid = jnp.pad(images.reshape(6, 10, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1))).transpose(0, 2, 1, 3)
        ax.imshow(grid.reshape(60, 100), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        ax.set(title=title, xticks=[], yticks=[])
    axes[2].semilogy(*zip(*losses, strict=True), color="tab:blue")
    axes[2].set(title="loss", xlabel="step", ylabel="MMD² (training, biased)")
    axes[2].grid(alpha=0.3, which="both")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000, help="Adam steps")
    parser.add_argument("--batch", type=int, default=1024, help="generated images a step")
    parser.add_argument("--dense", action="store_true", help="the kernel matrix in memory, to compare times")
    parser.add_argument("--seed", type=int, default=0, help="of weights and noise")
    parser.add_argument("--picture", default="outputs/mmd_digits.png", help="where to save it")
    main(**vars(parser.parse_args()))
