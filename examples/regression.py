"""A photo from a tenth of its pixels, and its colors from a few hundred: `python examples/regression.py`.

Kernel regression (Nadaraya-Watson) with the bandwidth that leave-one-out prefers. A gray photo is colored by the place
and the brightness of pixels, with bandwidths learned by the gradient of leave-one-out errors.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_sample_image
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor
from tqdm import tqdm, trange

from jaxgauss import kernel_mean, leave_one_out_tau

SIGMAS = np.geomspace(0.6, 8, 15)  # pixels
NEIGHBORS = {"n_neighbors": [1, 2, 3, 4, 6, 8, 12, 16], "weights": ["uniform", "distance"]}


def rmse(predicted, values):
    """Root of the mean square, over pixels and colors."""
    return float(np.sqrt(np.square(np.asarray(predicted) - np.asarray(values)).mean()))


def load_pixels(num, stride):
    """A photo with every so many pixels, their places and colors, `num` (or that share) that are known, the others."""
    image = load_sample_image("china.jpg")[::stride, ::stride] / np.float32(255)
    places = np.indices(image.shape[:2]).reshape(2, -1).T.astype(np.float32)
    num = round(num * len(places)) if num < 1 else num
    known, others = np.split(np.random.default_rng(0).permutation(len(places)), [num])
    return image, jnp.asarray(places), jnp.asarray(image.reshape(-1, 3)), known, others


def inpaint(share, stride):
    """Choose σ, predict all pixels, and do so with scikit-learn's neighbors."""
    image, places, colors, known, others = load_pixels(share, stride)
    keys, values, some, start = places[known], colors[known], others[:5000], time.perf_counter()
    search = jax.block_until_ready(leave_one_out_tau(keys, SIGMAS**-2, values=values, progress=True))
    print(f"leave-one-out: {len(SIGMAS)} bandwidths, {len(keys)} of {len(places)} pixels,", end=" ")
    print(f"{time.perf_counter() - start:.1f} s with compiling: σ = {search.tau**-0.5:.2f} pixels")
    bar = tqdm(SIGMAS, desc="held out", unit="bandwidth")
    curve = [rmse(kernel_mean(places[some], keys, values, sigma**-2), colors[some]) for sigma in bar]
    grid = GridSearchCV(KNeighborsRegressor(), NEIGHBORS, scoring="neg_mean_squared_error", cv=5).fit(keys, values)
    predict = {"kernel_mean": lambda x: kernel_mean(x, keys, values, search.tau), "neighbors": grid.predict}
    pictures, errors = {"known": np.ones_like(colors)}, {}
    pictures["known"][known] = values
    for name, function in predict.items():
        start = time.perf_counter()
        pictures[name] = np.asarray(function(places))
        seconds, errors[name] = time.perf_counter() - start, rmse(pictures[name][others], colors[others])
        print(f"{name}: held-out error {errors[name]:.4f}, all pixels in {seconds:.2f} s")
    print(f"neighbors, by cross-validation: {grid.best_params_}")
    return search, curve, errors, {name: x.reshape(image.shape) for name, x in pictures.items()}


def loss(log_scales, points, values):
    """Mean square of what leave-one-out misses, of coordinates that are scaled."""
    return -leave_one_out_tau(points * jnp.exp(log_scales), jnp.ones(1), values=values).scores[0]


def colorize(num, stride, steps):
    """Predict the colors of a gray photo from those of a few pixels, and learn 1/σ for row, column and brightness."""
    image, places, colors, known, others = load_pixels(num, stride)
    gray = colors.mean(1, keepdims=True)
    points, values = jnp.concatenate([places, gray], 1), (colors - gray)[known]
    optimizer, descend = optax.adam(0.1), jax.jit(jax.value_and_grad(loss))
    log_scales: Any = -jnp.log(jnp.array([10.0, 10.0, 0.1]))
    moments, losses = optimizer.init(log_scales), []
    for _ in trange(steps, desc="bandwidths", unit="step"):
        now, gradient = descend(log_scales, points[known], values)
        losses.append(float(now))
        updates, moments = optimizer.update(gradient, moments)
        log_scales = optax.apply_updates(log_scales, updates)
    row, column, brightness = np.exp(-log_scales)
    print(f"{num} colored pixels, {steps} steps: σ {row:.1f}, {column:.1f} pixels, {brightness:.3f} of brightness")
    tau, scaled = leave_one_out_tau(places[known], SIGMAS**-2 / 16, values=values).tau, points * jnp.exp(log_scales)
    found = {
        "gray": gray + jnp.zeros((1, 3)),
        "by place": gray + kernel_mean(places, places[known], values, tau),
        "by place and brightness": gray + kernel_mean(scaled, scaled[known], values),
    }
    errors = {name: rmse(x[others], colors[others]) for name, x in found.items()}
    print("held-out errors:", ", ".join(f"{name} {error:.4f}" for name, error in errors.items()))
    return errors, losses, {name: np.reshape(x, image.shape) for name, x in found.items()}


def main(share=0.1, stride=2, num=500, steps=100, picture="outputs/regression.png"):
    """Fill in the photo, color its gray copy, and draw both."""
    search, curve, errors, pictures = inpaint(share, stride)
    of_colors, losses, colored = colorize(num, stride, steps)
    draw(search, curve, errors | of_colors, losses, pictures | colored, num, Path(picture))
    return search, curve, errors, of_colors, losses


def draw(search, curve, errors, losses, pictures, num, path):
    """What is known of the photo, what is made of it, and errors by bandwidth."""
    fig, axes = plt.subplots(2, 4, figsize=(16, 5.6), layout="constrained")
    for ax, (name, image) in zip(axes[:, :3].flat, pictures.items(), strict=True):
        ax.imshow(np.clip(image, 0, 1))
        title = {"known": "the pixels that are known", "gray": f"gray; {num} colors are known"}.get(name, name)
        ax.set(title=title, xlabel=f"held-out error {errors[name]:.4f}" if name in errors else "", xticks=[], yticks=[])
    left_out = np.sqrt(-np.asarray(search.scores) / 3)  # scores add up three colors
    axes[0, 3].semilogx(search.taus**-0.5, left_out, "o-", markersize=4, label="leave-one-out")
    axes[0, 3].semilogx(SIGMAS, curve, "--", label="5000 held-out pixels")
    axes[0, 3].axvline(float(search.tau**-0.5), color="tab:red", label=f"chosen: σ = {search.tau**-0.5:.2f}")
    axes[0, 3].set(title="bandwidth", xlabel="σ in pixels", ylabel="error, of brightness from 0 to 1")
    axes[0, 3].set_xticks([0.6, 1, 2, 4, 8], ["0.6", "1", "2", "4", "8"])
    axes[0, 3].minorticks_off()
    axes[0, 3].legend(fontsize="small")
    axes[1, 3].plot(np.sqrt(np.array(losses) / 3))
    axes[1, 3].set(title="bandwidths of place and brightness", xlabel="step of Adam", ylabel="leave-one-out error")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--share", type=float, default=0.1, help="of the pixels that are known")
    parser.add_argument("--stride", type=int, default=2, help="every so many pixels of the photo are used")
    parser.add_argument("--num", type=int, default=500, help="pixels whose colors are known, of the gray photo")
    parser.add_argument("--steps", type=int, default=100, help="of the gradient")
    parser.add_argument("--picture", default="outputs/regression.png", help="where to save it")
    main(**vars(parser.parse_args()))
