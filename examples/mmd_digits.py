"""An Optax-trained generator learns handwritten digits by minimizing MMD²: `python examples/mmd_digits.py`."""

import argparse
import functools
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

from jaxgauss import embedding_norm_squared, kernel_sum, mmd_squared

KERNELS = ("gauss", "matern12", "matern32", "matern52", "imq", "cauchy", "energy")
TAUS = (0.1, 0.3, 1.0)  # 1/σ², a mixture of bandwidths: pixels are in [0, 1], digits about 3 apart
SAMPLES = 5000  # generated images of which MMD is reported
WIDTHS = (32, 512, 512, 64)  # latent, hidden, hidden, 8 × 8 pixels


def mmd_squared_dense(x, y, tau, y_norm_squared=None, kernel="gauss"):
    """The same with kernel matrices, Gaussian ones in plain JAX."""

    def mean(x, y):
        if kernel != "gauss":
            return kernel_sum(x, y, jnp.full(len(y), 1 / len(y)), tau, kernel=kernel, engine="dense").mean()
        products = jnp.matmul(x, y.T, precision="highest")
        squared = jnp.square(x).sum(-1)[:, None] + jnp.square(y).sum(-1) - 2 * products
        return jnp.exp(-jnp.asarray(tau)[..., None, None] / 2 * squared).mean()

    return mean(x, x) - 2 * mean(x, y) + (mean(y, y) if y_norm_squared is None else y_norm_squared)


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


def save(params, path):
    """Write the weights and biases to a file that NumPy reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, *jax.tree.leaves(params))


def train_step(loss_function, optimizer, images, constant, batch):
    """One step of the generator down MMD², and of the bandwidths, if they are learned, up."""

    def loss(variables, rng_key):
        known = None if "log_taus" in variables else constant
        taus = jnp.exp(variables["log_taus"]) if known is None else jnp.array(TAUS)
        return loss_function(generate(variables["params"], rng_key, batch), images, taus, y_norm_squared=known)

    @jax.jit
    def step(variables, state, rng_key):
        value, gradients = jax.value_and_grad(loss)(variables, rng_key)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(variables, updates), state, value

    return step


def shown_steps(steps):
    """Where samples are shown: of 4000 steps 15 (noise), 62 (first strokes), 250 and 1000."""
    return sorted({steps // 4**i for i in range(1, 5)} - {0})


def main(steps=4000, batch=1024, kernel="gauss", dense=False, learn_tau=False, picture="outputs/mmd_digits.png"):
    """Train, keep the state that is best on validation images, report the held-out MMD, and draw samples."""
    images = jax.random.permutation(jax.random.key(1), jnp.asarray(load_digits(return_X_y=True)[0] / 16, jnp.float32))
    train, validation, held_out = jnp.split(images, [1257, 1527])
    print(f"{steps} steps of {batch} images towards {len(train)} real ones")
    variables: dict[str, Any] = {"params": initial()} | ({"log_taus": jnp.log(jnp.array(TAUS))} if learn_tau else {})
    schedule = optax.warmup_cosine_decay_schedule(0, 1e-3, steps // 20, steps)
    ascent = optax.chain(optax.scale(-1), optax.adam(1e-3))  # bandwidths that tell the samples apart
    optimizer = optax.partition({"params": optax.adam(schedule), "log_taus": ascent}, {k: k for k in variables})
    state = optimizer.init(variables)
    taus = jnp.array(TAUS)
    constant = embedding_norm_squared(train, taus, kernel=kernel)  # of MMD²: it need not be summed at every step
    loss_function = functools.partial(mmd_squared_dense if dense else mmd_squared, kernel=kernel)
    step = train_step(loss_function, optimizer, train, constant, batch)
    sample = jax.jit(generate, static_argnums=2)

    @jax.jit
    def mmd(params, real):
        return jnp.sqrt(mmd_squared(generate(params, jax.random.key(2), SAMPLES), real, taus, kernel=kernel))

    before, losses, shown = float(mmd(variables["params"], held_out)), [], []
    checks = sorted({1, *shown_steps(steps), *range(0, steps, max(1, steps // 20)), steps})
    best, best_params = np.inf, variables["params"]
    for i in (bar := trange(1, steps + 1, unit="step", mininterval=0.5)):
        variables, state, loss = step(variables, state, jax.random.fold_in(jax.random.key(0), i))
        if i in checks:  # for a moment the best so far is that which is seen and kept
            current = float(mmd(variables["params"], validation))
            losses.append((i, float(loss), current))
            bar.set_postfix_str(f"MMD² {loss:.5f}, validation MMD {current:.4f}")
            if current < best:
                best, best_params = current, variables["params"]
                save(best_params, Path(picture).with_suffix(".npz"))
        if i in shown_steps(steps):
            shown.append((f"step {i}", sample(variables["params"], jax.random.key(3), 30)))
    after = float(mmd(best_params, held_out))
    between = float(jnp.sqrt(mmd_squared(train, held_out, taus, kernel=kernel)))
    print(f"held-out MMD: {before:.4f} before, {after:.4f} after ({between:.4f} between real digits)")
    if learn_tau:
        print(f"learned bandwidths: tau = {', '.join(f'{x:.3f}' for x in jnp.exp(variables['log_taus']))}")
    print(f"best state: {Path(picture).with_suffix('.npz')}")
    shown += [("best", sample(best_params, jax.random.key(3), 30)), ("real, held out", held_out[:30])]
    draw(shown, losses, Path(picture))
    return before, after, losses


def draw(shown, losses, path):
    """Samples from the same noise at several steps beside real digits, and the loss."""
    widths = [1] * len(shown) + [1.7]
    fig, axes = plt.subplots(1, len(shown) + 1, figsize=(15, 2.6), width_ratios=widths, layout="constrained")
    for ax, (title, images) in zip(axes, shown, strict=False):
        grid = jnp.pad(images.reshape(6, 5, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1))).transpose(0, 2, 1, 3)
        ax.imshow(grid.reshape(60, 50), cmap="gray_r", vmin=0, vmax=1)
        ax.set(title=title, xticks=[], yticks=[])
    steps, loss, validation = zip(*losses, strict=True)
    axes[-1].loglog(steps, loss, ".-", label="training")
    axes[-1].loglog(steps, np.square(validation), ".-", label="validation")
    axes[-1].set(title="loss", xlabel="step", ylabel="MMD² (biased)")
    axes[-1].legend(loc="lower left", fontsize=8)
    axes[-1].grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=1024, help="generated images a step")
    parser.add_argument("--kernel", choices=KERNELS, default="gauss", help="the kernel of MMD², of all the bandwidths")
    parser.add_argument("--dense", action="store_true", help="train with kernel matrices instead")
    parser.add_argument("--learn-tau", action="store_true", help="adapt the bandwidths, against the generator")
    parser.add_argument(
        "--picture", default="outputs/mmd_digits.png", help="where to save it; the best state beside it"
    )
    arguments = parser.parse_args()
    if arguments.learn_tau and arguments.kernel == "energy":
        parser.error("the energy kernel has no bandwidth to learn: tau only scales it")
    main(**vars(arguments))
