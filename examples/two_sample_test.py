"""Two-sample tests tell a photo from its blurred copy; their level and power: `python examples/two_sample_test.py`."""

import argparse
import functools
import textwrap
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_sample_image
from tqdm import tqdm

from jaxgauss import median_tau, mmd_test

ALPHA = 0.05
WIDTH = 4  # patches are 4 × 4 pixels, points of 16 dimensions
SIZES = (20, 60, 200)  # patches of each sample, for the level
BLURS = (0.0, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)  # in pixels, for the power of SIZES[-1] patches
SLIGHT = 0.5  # the blur of the big test
CROP = np.s_[225:275, 225:275]  # what is shown of the photo
FACTORS = 4.0 ** jnp.arange(6)  # of the median heuristic's τ: bandwidths from its σ to σ/32
TESTS = {  # the factors of τ, the resampling, and the color of each
    "median heuristic": (FACTORS[0], "permutation", "tab:red"),
    "six bandwidths": (FACTORS, "permutation", "tab:blue"),
    "six bandwidths, wild bootstrap": (FACTORS, "wild", "tab:orange"),
}


def patches(image):
    """All patches of a gray image, (N, 16)."""
    windows = np.lib.stride_tricks.sliding_window_view(image, (WIDTH, WIDTH))
    return jnp.asarray(windows.reshape(-1, WIDTH**2), jnp.float32)


def two_samples(rng_key, p, q, num):
    """Patches chosen at random from p, and others from q."""
    return (jax.random.choice(key, z, (num,)) for key, z in zip(jax.random.split(rng_key), (p, q), strict=True))


@functools.partial(jax.jit, static_argnames=("num", "resampling"))
def p_values(rng_keys, p, q, tau, num, resampling):
    """P-values of tests of new samples, one for each key."""

    def p_value(rng_key):
        sample_key, test_key = jax.random.split(rng_key)
        x, y = two_samples(sample_key, p, q, num)
        return mmd_test(x, y, tau, rng_key=test_key, num_permutations=99, resampling=resampling).p_value

    return jax.lax.map(p_value, rng_keys)


def main(num=5000, repetitions=300, permutations=999, picture="outputs/two_sample_test.png"):
    """One big test with each bandwidth, the level by sample size, the power by blur, and a picture of them."""
    image = load_sample_image("china.jpg").mean(-1) / 255
    blurred = {width: patches(gaussian_filter(image, width)) for width in BLURS}
    sharp, tau = blurred[0.0], median_tau(blurred[0.0])
    x, y = two_samples(jax.random.key(0), sharp, blurred[SLIGHT], num)
    big = {}
    for name in ("median heuristic", "six bandwidths"):
        start, taus = time.perf_counter(), tau * TESTS[name][0]
        big[name] = mmd_test(x, y, taus, rng_key=jax.random.key(1), num_permutations=permutations, progress=True)
        seconds, statistic, p = time.perf_counter() - start, float(big[name].statistic), float(big[name].p_value)
        print(f"{2 * num} patches, blur {SLIGHT}, {name}: statistic {statistic:.3g}, p-value {p:.3g}, {seconds:.1f} s")
    level, power = {}, {}
    rng_keys = jax.random.split(jax.random.key(2), repetitions)
    runs = [(0.0, size) for size in SIZES] + [(blur, SIZES[-1]) for blur in BLURS[1:]]
    with tqdm(total=len(TESTS) * len(runs), unit="run") as bar:
        for name, (factors, resampling, _) in TESTS.items():
            found = []
            for blur, size in runs:
                found.append(np.asarray(p_values(rng_keys, sharp, blurred[blur], tau * factors, size, resampling)))
                bar.update()
            level[name], power[name] = np.array(found[: len(SIZES)]), np.array(found[len(SIZES) - 1 :])
    for name in TESTS:
        print(f"{name}: rejected {rates(level[name])} for {SIZES} patches without blur")
        print(f"{name}: rejected {rates(power[name])} for {SIZES[-1]} patches with blur {BLURS}")
    share = float(WIDTH**2 * sharp.mean(1).var() / sharp.var(0).sum())  # of E‖x - y‖²
    moved = float(jnp.median(jnp.linalg.norm(blurred[SLIGHT] - sharp, axis=1)))
    why = (
        f"The median heuristic's σ = {tau**-0.5:.2f} is how far apart patches are; {share:.0%} of that, squared, "
        f"is brightness. A blur of {SLIGHT} px moves half of them by less than {moved:.2g}: so wide a kernel misses it."
    )
    print(why)
    draw(image, big, level, power, why, Path(picture))
    return big, level, power


def rates(p):
    """The share of p-values that reject, of each run."""
    return (p <= ALPHA).mean(1).round(3)


def curve(ax, x, p, name):
    """Rejection rates with two standard errors."""
    _, resampling, color = TESTS[name]
    rate = rates(p)
    errors, style = 2 * np.sqrt(rate * (1 - rate) / p.shape[1]), "--" if resampling == "wild" else "-"
    ax.errorbar(x, rate, errors, marker="o", linestyle=style, color=color, label=name, capsize=2, markersize=4)


def draw(image, big, level, power, why, path):
    """The picture and the blur that is tested, the big test, level and power."""
    fig, axes = plt.subplot_mosaic("Anlp;Bnlp", figsize=(15, 4.2), width_ratios=[0.5, 1.2, 1, 1], layout="constrained")
    for key, blur in (("A", 0), ("B", SLIGHT)):
        axes[key].imshow(gaussian_filter(image, blur)[CROP], cmap="gray", vmin=0, vmax=1)
        axes[key].set(title=f"blurred by {blur:g} px" if blur else "a part of the photo", xticks=[], yticks=[])
    for name, test in big.items():
        center, scale = test.null_statistics.mean(), test.null_statistics.std()
        color, null = TESTS[name][2], (test.null_statistics - center) / scale
        axes["n"].hist(null, 30, alpha=0.4, color=color, label=f"{name}: random labelings")
        label = f"{name}: observed, p = {test.p_value:.3g}"
        axes["n"].axvline(float((test.statistic - center) / scale), color=color, label=label)
    axes["n"].set(title=f"one test, blur {SLIGHT} px: where the statistic lies", ylabel="random labelings in a bin")
    axes["n"].set_xlabel("MMD statistic, in standard deviations of random labelings")
    axes["n"].legend(loc="upper center", fontsize="small")
    inset = axes["l"].inset_axes((0.62, 0.62, 0.36, 0.36))
    inset.axline((0, 0), slope=1, color="black", lw=1)
    for shift, (name, p) in zip((0.95, 1, 1.05), level.items(), strict=True):
        curve(axes["l"], np.array(SIZES) * shift, p, name)
        inset.plot(np.sort(p.ravel()), np.linspace(0, 1, p.size), color=TESTS[name][2])
        curve(axes["p"], BLURS, power[name], name)
    inset.set(xlabel="t", ylabel="share with p ≤ t", xticks=[0, 1], yticks=[0, 1])
    axes["l"].axhline(ALPHA, color="black", lw=1)
    axes["l"].set(title="level: no blur", xlabel="patches in each sample", ylabel=f"share with p ≤ {ALPHA}")
    axes["l"].set(xscale="log", ylim=(0, 0.2))
    axes["l"].set_xticks(SIZES, [str(size) for size in SIZES])
    axes["l"].minorticks_off()
    axes["p"].axhline(ALPHA, color="black", lw=1, label=f"level {ALPHA}")
    axes["p"].set(
        title=f"power: {SIZES[-1]} patches in each sample", xlabel="blur in pixels", ylabel=f"share with p ≤ {ALPHA}"
    )
    axes["p"].legend(loc="upper left", fontsize="small")
    axes["p"].text(0.03, 0.66, textwrap.fill(why, 39), transform=axes["p"].transAxes, va="top", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num", type=int, default=5000, help="patches of each sample in the big test")
    parser.add_argument("--repetitions", type=int, default=300, help="tests for a point of the level and power curves")
    parser.add_argument("--permutations", type=int, default=999, help="random labelings of the big test")
    parser.add_argument("--picture", default="outputs/two_sample_test.png", help="where to save it")
    main(**vars(parser.parse_args()))
