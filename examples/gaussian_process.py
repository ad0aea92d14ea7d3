"""A Gaussian process of 50,000 pixels of a photo fills in the others: `python examples/gaussian_process.py`.

Bandwidth and noise are learned by the gradient of the likelihood on a part of the photo, whose matrices are never
formed: conjugate gradients by lineax, log-determinants by matfree. Beside it scikit-learn, on 2,000 pixels.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lineax
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib.patches import Rectangle
from sklearn.datasets import load_sample_image
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from tqdm import tqdm, trange

from jaxgauss import kernel_sum
from jaxgauss.lineax import gauss_operator, log_determinant

CORNER = (150, 250)  # of the part that hyperparameters are learned on
SOLVER = lineax.CG(rtol=1e-3, atol=3e-3, stabilise_every=None, max_steps=500)  # brightness is from 0 to 1


def rmse(predicted, values):
    """Root of the mean square, over pixels and colors."""
    return float(np.sqrt(np.square(np.asarray(predicted) - np.asarray(values)).mean()))


def solve(operator, values, tick=None):
    """(K + σ²I)⁻¹ of each color (N, 3), which share their sums; a product with the matrix calls `tick`."""

    def product(vector):
        if tick is not None:
            jax.debug.callback(tick)
        return operator.mv(vector)

    tags = lineax.symmetric_tag, lineax.positive_semidefinite_tag
    ticking = lineax.FunctionLinearOperator(product, operator.in_structure(), tags)
    return jax.vmap(lambda y: lineax.linear_solve(ticking, y, SOLVER).value, 1, 1)(values)


def loss(logs, points, values, rng_key):
    """Minus the log-likelihood of a pixel, but for a constant, of s²(K + σ²I): the scale s² is the best for each color.

    The gradient of yᵀA⁻¹y is that of 2yᵀc - cᵀAc at c = A⁻¹y, which needs no second solution.
    """
    operator = gauss_operator(points, jnp.exp(logs["tau"]), noise=jnp.exp(logs["noise"]))
    c = jax.lax.stop_gradient(solve(jax.lax.stop_gradient(operator), values))
    quadratic = (2 * values * c - c * jax.vmap(operator.mv, 1, 1)(c)).sum(0)
    log_det = log_determinant(operator, rng_key=rng_key, num_samples=8, num_matvecs=40).value
    return (jnp.log(quadratic / len(points)) + log_det / len(points)).mean() / 2


def learn(points, values, steps):
    """Bandwidth and noise by Adam, and the losses."""
    logs: Any = {"tau": jnp.log(1 / 9), "noise": jnp.log(0.1)}
    optimizer, descend, losses = optax.adam(0.1), jax.jit(jax.value_and_grad(loss)), []
    moments = optimizer.init(logs)
    for step in trange(steps, desc="likelihood", unit="step"):
        now, gradient = descend(logs, points, values, jax.random.key(step))
        losses.append(float(now))
        updates, moments = optimizer.update(gradient, moments)
        logs = optax.apply_updates(logs, updates)
    return float(jnp.exp(logs["tau"])), float(jnp.exp(logs["noise"])), losses


def predict(points, seen, values, tau, noise):
    """The posterior mean at points, (P, 3)."""
    mean = values.mean(0, keepdims=True)
    with tqdm(desc=f"{len(seen)} pixels", unit="product") as bar:
        solved = jax.jit(lambda values: solve(gauss_operator(seen, tau, noise=noise), values, bar.update))
        coefficients = jax.block_until_ready(solved(values - mean))
        jax.effects_barrier()
    print(f"{len(seen)} pixels: {bar.n} products with the matrix", end=", ")
    return mean + kernel_sum(points, seen, coefficients, tau)


def beside_scikit_learn(seen, values, others, exact, tau, noise):
    """Errors and seconds of both on the same few pixels, each with its own bandwidth and noise."""
    kernel = ConstantKernel() * RBF(3.0, (0.5, 50)) + WhiteKernel(0.1)
    start = time.perf_counter()
    model = GaussianProcessRegressor(kernel, normalize_y=True).fit(seen, values)
    theirs = rmse(model.predict(others), exact)
    print(
        f"scikit-learn on {len(seen)} pixels: error {theirs:.4f}, {time.perf_counter() - start:.1f} s; {model.kernel_}"
    )
    start = time.perf_counter()
    ours = rmse(predict(others, seen, values, tau, noise), exact)
    print(f"error {ours:.4f}, {time.perf_counter() - start:.1f} s with compiling")
    return theirs, ours


def main(num=50_000, side=100, steps=40, stride=1, picture="outputs/gaussian_process.png"):
    """Learn on a part, compare there, predict the photo and draw it."""
    image = load_sample_image("flower.jpg")[::stride, ::stride] / np.float32(255)
    places = np.indices(image.shape[:2]).reshape(2, -1).T.astype(np.float32)
    colors, is_seen = image.reshape(-1, 3), np.zeros(len(places), bool)
    is_seen[np.random.default_rng(0).permutation(len(places))[:num]] = True
    inside = np.all((places >= np.array(CORNER) // stride) & (places < np.array(CORNER) // stride + side), 1)
    part, rest = inside & is_seen, inside & ~is_seen
    start = time.perf_counter()
    tau, noise, losses = learn(jnp.asarray(places[part]), jnp.asarray(colors[part] - colors[part].mean(0)), steps)
    seconds, few = time.perf_counter() - start, np.flatnonzero(part)[:2000]
    print(f"learned on {part.sum()} pixels in {seconds:.0f} s: σ = {tau**-0.5:.2f} pixels, noise {noise:.3f}")
    errors = beside_scikit_learn(places[few], colors[few], places[rest], colors[rest], tau, noise)
    start = time.perf_counter()
    predicted = np.asarray(predict(places, places[is_seen], colors[is_seen], tau, noise))
    error = rmse(predicted[~is_seen], colors[~is_seen])
    seconds, size = time.perf_counter() - start, 4e-9 * is_seen.sum() ** 2
    print(f"error {error:.4f}, {seconds:.0f} s; the matrix would take {size:.1f} GB")
    shown = np.where(is_seen[:, None], colors, 1)
    draw([x.reshape(image.shape) for x in (shown, predicted, colors)], losses, error, side, stride, Path(picture))
    return losses, errors, error


def draw(pictures, losses, error, side, stride, path):
    """What is seen of the photo, what is predicted, the photo; below the part that was learned on; and the loss."""
    fig, axes = plt.subplots(2, 4, figsize=(16, 6.2), layout="constrained", width_ratios=[1, 1, 1, 0.9])
    (top, left), size = np.array(CORNER) // stride, side
    titles = ["seen", f"predicted, error {error:.4f}", "the photo"]
    for column, (title, picture) in enumerate(zip(titles, pictures, strict=True)):
        axes[0, column].imshow(np.clip(picture, 0, 1))
        axes[0, column].add_patch(Rectangle((left, top), size, size, fill=False, color="white"))
        axes[1, column].imshow(np.clip(picture[top : top + size, left : left + size], 0, 1))
        axes[0, column].set(title=title, xticks=[], yticks=[])
        axes[1, column].set(xticks=[], yticks=[])
    for ax in axes[:, 3]:
        ax.remove()
    ax = fig.add_subplot(axes[0, 3].get_gridspec()[:, 3])
    ax.plot(losses)
    ax.set(title="learning bandwidth and noise", xlabel="step of Adam", ylabel="minus log-likelihood of a pixel")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num", type=int, default=50_000, help="pixels that are seen")
    parser.add_argument("--side", type=int, default=100, help="of the part that is learned on")
    parser.add_argument("--steps", type=int, default=40, help="of Adam")
    parser.add_argument("--stride", type=int, default=1, help="every so many pixels of the photo are used")
    parser.add_argument("--picture", default="outputs/gaussian_process.png", help="where to save it")
    main(**vars(parser.parse_args()))
