"""Which pixels of digits depend on one another? By HSIC; its level and power: `python examples/dependence.py`."""

import argparse
import functools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import false_discovery_control
from scipy.stats import t as student
from sklearn.datasets import load_digits
from tqdm import tqdm, trange

from jaxgauss import hsic_test, median_tau

ALPHA = 0.05
PIXEL = 6 * 8 + 4  # the one that is shown: row 6, column 4
PIXEL_TAU = 16.0  # σ is a quarter of the range of brightness
LEVEL_SIZES, POWER_SIZES = (50, 200), (50, 100, 200)  # digits, and points of the toy
ANGLES, SQUARE_TAU = (15, 30, 45), 4.0  # in degrees; σ is half a standard deviation
COLORS, STYLES = ("tab:green", "tab:blue", "tab:red"), {"permutation": "-", "wild": "--"}


@functools.partial(jax.jit, static_argnames="permutations")
def pixel_p_values(rng_key, pixel, images, permutations):
    """P-values of each pixel (N, 64) with one of them, by the wild bootstrap."""

    def p_value(other):
        how = {"num_permutations": permutations, "resampling": "wild"}
        return hsic_test(other, pixel[:, None], PIXEL_TAU, PIXEL_TAU, rng_key=rng_key, **how).p_value

    return jax.lax.map(p_value, images.T[..., None])


def correlation_p_values(images):
    """Of Pearson's correlation of all pairs of pixels; 1 for one that is constant."""
    with np.errstate(all="ignore"):
        r = np.nan_to_num(np.corrcoef(np.asarray(images, float), rowvar=False))
        return 2 * student.sf(abs(r) * np.sqrt((len(images) - 2) / (1 - r**2)), len(images) - 2)


def found(p):
    """Pairs of pixels that depend, (64, 64): a share ALPHA of them is found wrongly (Benjamini & Hochberg)."""
    pairs, dependent = np.triu_indices(64, 1), np.zeros((64, 64), bool)
    dependent[pairs] = false_discovery_control(np.asarray(p, float)[pairs]) <= ALPHA
    return dependent | dependent.T


def columns(rng_key, digits, num):
    """The left column of the middle of digits, (num, 8), and the right one of others, which do not depend on them."""
    left, right = (jax.random.choice(key, digits, (num,)) for key in jax.random.split(rng_key))
    return left[..., 3], right[..., 4]


def square(rng_key, angle, num):
    """Both coordinates of points in a square that is rotated: uncorrelated at every angle, dependent unless it is 0."""
    points = jax.random.uniform(rng_key, (num, 2), minval=-(3**0.5), maxval=3**0.5)
    c, s = jnp.cos(jnp.deg2rad(angle)), jnp.sin(jnp.deg2rad(angle))
    return points @ jnp.stack([c, s])[:, None], points @ jnp.stack([-s, c])[:, None]


@functools.partial(jax.jit, static_argnames=("draw", "num", "resampling"))
def p_values(rng_keys, draw, of, taus, num, resampling):
    """P-values of new pairs, one for each key."""

    def p_value(rng_key):
        sample_key, test_key = jax.random.split(rng_key)
        x, y = draw(sample_key, of, num)
        return hsic_test(x, y, *taus, rng_key=test_key, num_permutations=99, resampling=resampling).p_value

    return jax.lax.map(p_value, rng_keys)


def main(num=200, repetitions=200, permutations=999, picture="outputs/dependence.png"):
    """Test all pairs of pixels, then pairs that are independent, then ones that are more and more dependent."""
    data: Any = load_digits()
    digits = jnp.asarray(np.random.default_rng(0).permutation(data.images / 16), jnp.float32)
    images, start = digits[:num].reshape(num, 64), time.perf_counter()
    p = [pixel_p_values(jax.random.key(i), images[:, i], images, permutations) for i in trange(64, unit="pixel")]
    seconds = time.perf_counter() - start
    by_hsic, by_correlation = found(jnp.stack(p)), found(correlation_p_values(images))
    both, either = (int(which.sum()) // 2 for which in (by_hsic & by_correlation, by_hsic | by_correlation))
    print(f"2016 pairs of pixels, {num} digits: HSIC finds {by_hsic.sum() // 2} dependent, correlation", end=" ")
    print(f"{by_correlation.sum() // 2}, both {both}, either {either}; {seconds:.1f} s")
    rng_keys, level, power = jax.random.split(jax.random.key(2), repetitions), {}, {}
    taus = median_tau(digits[..., 3]), median_tau(digits[..., 4])
    for resampling in tqdm(STYLES, unit="kind of resampling"):
        for size in LEVEL_SIZES:
            level[resampling, size] = np.asarray(p_values(rng_keys, columns, digits, taus, size, resampling))
            rejected = (level[resampling, size] <= ALPHA).mean()
            print(f"{resampling}: rejected {rejected:.3f} for {size} columns of different digits")
        for angle in ANGLES:
            how = square, float(angle), (SQUARE_TAU,) * 2
            rates = [float((p_values(rng_keys, *how, n, resampling) <= ALPHA).mean()) for n in POWER_SIZES]
            power[resampling, angle] = rates
            print(f"{resampling}: rejected {np.round(rates, 3)} for {POWER_SIZES} points of a square at {angle}°")
    draw(images, by_hsic, by_correlation, level, power, repetitions, Path(picture))
    return by_hsic, by_correlation, level, power


def draw(images, by_hsic, by_correlation, level, power, repetitions, path):
    """What depends on one pixel, p-values of what is independent, and the power for a rotated square."""
    fig, axes = plt.subplots(1, 4, figsize=(15, 4), width_ratios=[0.7, 0.7, 1, 1], layout="constrained")
    for ax, name, dependent in zip(axes, ("HSIC", "correlation"), (by_hsic, by_correlation), strict=False):
        ax.imshow(images.mean(0).reshape(8, 8), cmap="gray_r", vmax=1.2)
        for color, shown in (("tab:red", ~(by_hsic & by_correlation)), ("tab:blue", by_hsic & by_correlation)):
            rows, across = np.divmod(np.flatnonzero((dependent & shown)[PIXEL]), 8)
            ax.plot(across, rows, "o", color=color, markersize=5)
        ax.plot(*np.divmod(PIXEL, 8)[::-1], "s", color="black", markersize=16, fillstyle="none", mew=2)
        ax.set(title=f"{name}: {dependent[PIXEL].sum()} depend on □", xticks=[], yticks=[])
        ax.set_xlabel("red: only by this, blue: by both")
    shares = np.arange(101) / 100  # the values that p takes
    bound = 2 * np.sqrt(shares * (1 - shares) / repetitions)
    axes[2].fill_between(shares, -bound, bound, color="0.88", label="uniform, ± 2 standard errors")
    for (resampling, size), values in level.items():
        style = {"color": COLORS[LEVEL_SIZES.index(size)], "label": f"{resampling}, {size} digits"}
        axes[2].plot(shares, (values <= shares[:, None] + 1e-6).mean(1) - shares, STYLES[resampling], **style)
    axes[2].set(title="level: columns of different digits", xlabel="t", ylabel="share with p ≤ t, less t")
    axes[2].set_ylim(-0.13, 0.13)
    axes[2].legend(fontsize="small", loc="lower center", ncols=2)
    for (resampling, angle), rates in power.items():
        style = {"color": COLORS[ANGLES.index(angle)], "label": f"{angle}°, {resampling}"}
        axes[3].plot(POWER_SIZES, rates, "o" + STYLES[resampling], markersize=4, **style)
    axes[3].set(title="power: a rotated square", xlabel="points", ylabel=f"share with p ≤ {ALPHA}", ylim=(0, 1.35))
    axes[3].set_xticks(POWER_SIZES)
    axes[3].legend(fontsize="small", loc="upper left", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num", type=int, default=200, help="digits whose pixels are tested")
    parser.add_argument("--repetitions", type=int, default=200, help="tests for a curve or point of level and power")
    parser.add_argument("--permutations", type=int, default=999, help="resamplings of the tests of pixels")
    parser.add_argument("--picture", default="outputs/dependence.png", help="where to save it")
    main(**vars(parser.parse_args()))
