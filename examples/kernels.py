"""Radial kernels, and the mixtures of Gaussians that stand for them on GPUs: `python examples/kernels.py`."""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from tqdm import tqdm

from jaxgauss import kernel_sum, rational_quadratic
from jaxgauss._kernels import kernels
from jaxgauss._kernels.mixtures import mixture

KERNELS = kernels.KERNELS | {"rational_quadratic(2)": rational_quadratic(2.0)}
NAMES = [name for name in KERNELS if name not in ("gauss", "laplace")]  # one Gaussian is itself; laplace is matern12
COLORS = {name: f"C{i}" for i, name in enumerate(["gauss", *NAMES])}
TOLERANCES = {"1e-3": 1e-3, "1e-4": 1e-4, "1e-6": 1e-6}  # for bfloat16, float16 and float32
TAKEN_APART, TO_WITHIN = "imq", "1e-3"
SHOWN = ("imq", "matern32", "matern12")  # with their errors, and summed
FARTHEST = 100  # length scales; the mixture of "energy" holds up to a distance of one


def curves(name, tolerance):
    """Distances, κ, and the Gaussians of its mixture with their weights, (J, R), in float64."""
    found = mixture(KERNELS[name], TOLERANCES[tolerance])
    assert found is not None  # all of these have one
    r = np.concatenate([[0.0], np.geomspace(1e-3, 1.0 if name == "energy" else FARTHEST, 2000)])
    with jax.enable_x64(True):
        exact = np.asarray(KERNELS[name](jnp.asarray(r**2)))
    return r, exact, np.array(found.weights)[:, None] * np.exp(-np.outer(found.scales, r**2) / 2), found.constant


def measure():
    """For each kernel and tolerance: distances, errors at them, and the number of terms."""
    cells = {}
    for name in tqdm(NAMES, unit="kernel"):
        for tolerance in TOLERANCES:
            r, exact, terms, constant = curves(name, tolerance)
            cells[name, tolerance] = r, np.abs(terms.sum(0) - constant - exact), len(terms)
    return cells


def compare_sums(num, dim=16):
    """Relative L2 differences between the sums of kernels by their mixtures and by XLA, which evaluates κ itself."""
    x, y = jax.random.normal(jax.random.key(0), (2, num, dim)) / dim**0.5
    v = jax.random.normal(jax.random.key(1), (num,))
    differences = {}
    for name in SHOWN:
        exact, by_mixture = (kernel_sum(x, y, v, kernel=name, engine=method) for method in ("blocked", "mixture"))
        differences[name] = float(jnp.linalg.norm(by_mixture - exact) / jnp.linalg.norm(exact))
    return differences


def main(num=1000, picture="outputs/kernels.png"):
    """Print how many Gaussians make a kernel and how well, check sums, and draw them."""
    cells = measure()
    print(f"{'kernel':<21}" + "".join(f"{f'{t}: terms':>15}{'error':>9}" for t in TOLERANCES))
    for name in NAMES:
        row = [cells[name, tolerance] for tolerance in TOLERANCES]
        print(f"{name:<21}" + "".join(f"{terms:>15}{errors.max():>9.1e}" for _, errors, terms in row))
    differences = compare_sums(num)
    print(f"kernel_sum of {num} points, by mixture and by XLA, relative difference: ", end="")
    print(", ".join(f"{name} {difference:.0e}" for name, difference in differences.items()))
    draw(cells, Path(picture))
    return cells, differences


def draw(cells, path):
    """The kernels, the Gaussians that one of them is made of, and the mixtures' errors."""
    fig, axes = plt.subplots(1, 3, figsize=(16, 4.4), width_ratios=[1, 1, 1.5], layout="constrained")
    r = np.linspace(0, 4, 400)
    for name, color in COLORS.items():
        axes[0].plot(r, KERNELS[name](jnp.asarray(r**2)), color=color, label=name)
    axes[0].set(title="kernels", xlabel="r/σ", ylabel="κ", ylim=(-0.55, 1.03))
    axes[0].legend(fontsize="small", ncols=2, loc="lower right")
    r, exact, terms, _ = curves(TAKEN_APART, TO_WITHIN)
    axes[1].semilogx(r, exact, color=COLORS[TAKEN_APART], lw=4, alpha=0.5, label=TAKEN_APART)
    for term, label in zip(terms, [f"{len(terms)} weighted Gaussians"] + [None] * (len(terms) - 1), strict=True):
        axes[1].semilogx(r, term, color="0.5", lw=1, label=label)
    axes[1].semilogx(r, terms.sum(0), "k--", label="their sum")
    axes[1].set(title=f"{TAKEN_APART} as a mixture, to within {TO_WITHIN}", xlabel="r/σ", xlim=(1e-2, FARTHEST))
    axes[1].legend(fontsize="small")
    for name in SHOWN:
        for tolerance, style in zip(TOLERANCES, ("-", "--", ":"), strict=True):
            r, errors, terms = cells[name, tolerance]
            label = f"{name}, {tolerance}: {terms} terms"
            axes[2].loglog(r[1:], errors[1:], style, color=COLORS[name], lw=1.2, label=label)
    axes[2].set(title="|κ - mixture|", xlabel="r/σ", ylim=(1e-9, 1e-1))
    axes[2].legend(fontsize="x-small", ncols=3, loc="upper center")
    for ax in axes:
        ax.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=100)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num", type=int, default=1000, help="points of the sums that are compared")
    parser.add_argument("--picture", default="outputs/kernels.png", help="where to save it")
    main(**vars(parser.parse_args()))
