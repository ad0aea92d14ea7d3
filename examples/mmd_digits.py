"""An Optax-trained generator learns handwritten digits by minimizing MMD²: `python examples/mmd_digits.py`."""

import argparse
from itertools import pairwise
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


def mean_kernel(x, y, kernel_sum=gauss_sum):
    """The mean of exp(-τ/2 ‖x_i - y_j‖²) over all pairs and all of TAUS."""
    return kernel_sum(x, y, jnp.full(len(y), 1 / len(y)), TAUS).mean()


def mmd(x, y):
    """Maximum mean discrepancy of two samples (the biased estimate)."""
    return float(jnp.sqrt(mean_kernel(x, x) - 2 * mean_kernel(x, y) + mean_kernel(y, y)))


def generate(params, rng_key, num):
    """Images (num, 64) from noise, by a multilayer perceptron."""
    x = jax.random.normal(rng_key, (num, WIDTHS[0]))
    for weights, bias in params[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    return jax.nn.sigmoid(x @ params[-1][0] + params[-1][1])


def main(steps=4000, batch=1024, dense=False, picture="outputs/mmd_digits.png"):
    """Train, report the held-out MMD before and after, and draw samples beside real digits."""
    kernel_sum = gauss_sum_dense if dense else gauss_sum
    images = jnp.asarray(load_digits(return_X_y=True)[0] / 16, jnp.float32)
    train, held_out = jnp.split(jax.random.permutation(jax.random.key(1), images), [1437])
    init = jax.nn.initializers.he_normal()
    params = [(init(jax.random.key(m), (m, n)), jnp.zeros(n)) for m, n in pairwise(WIDTHS)]
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-3, steps))
    state = optimizer.init(params)
    constant = mean_kernel(train, train)  # of MMD²: no gradient flows through it

    @jax.jit
    def step(params, state, rng_key):
        def mmd_squared(params):
            x = generate(params, rng_key, batch)
            return mean_kernel(x, x, kernel_sum) - 2 * mean_kernel(x, train, kernel_sum) + constant

        loss, gradients = jax.value_and_grad(mmd_squared)(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    before, losses = mmd(generate(params, jax.random.key(2), 5000), held_out), []
    for i in (bar := trange(steps, unit="step", mininterval=0.5)):
        params, state, loss = step(params, state, jax.random.fold_in(jax.random.key(0), i))
        if i % 25 == 0 or i == steps - 1:
            losses.append((i, float(loss)))
            bar.set_postfix_str(f"MMD² {losses[-1][1]:.5f}")
    after = mmd(generate(params, jax.random.key(2), 5000), held_out)
    print(f"held-out MMD: {before:.4f} before, {after:.4f} after ({mmd(train, held_out):.4f} between real digits)")
    draw(generate(params, jax.random.key(3), 60), held_out[:60], losses, Path(picture))
    return before, after, losses


def draw(samples, real, losses, path):
    """Samples, real digits and the loss, side by side."""
    fig, axes = plt.subplots(1, 3, figsize=(13, 3.2), width_ratios=[1, 1, 1.1], layout="constrained")
    for ax, images, title in ((axes[0], samples, "generated"), (axes[1], real, "real, held out")):
        grid = jnp.pad(images.reshape(6, 10, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1))).transpose(0, 2, 1, 3)
        ax.imshow(grid.reshape(60, 100), cmap="gray_r", vmin=0, vmax=1)
        ax.set(title=title, xticks=[], yticks=[])
    axes[2].semilogy(*zip(*losses, strict=True))
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
    parser.add_argument("--picture", default="outputs/mmd_digits.png", help="where to save it")
    main(**vars(parser.parse_args()))
