"""MMD² with its error bar as a metric of generated images (CMMD), beside the FID: `python examples/cmmd.py`."""

import argparse
import time
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
from compare_dense import peak_bytes
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from tqdm import tqdm

from jaxgauss import median_tau, mmd_estimate

SIZES = (50, 100, 200, 400, 800, 1600)  # of samples
WRONG = {"noise {}": (0.1, 0.2, 0.4), "blur {}": (0.4, 0.6, 0.8), "{} classes": (9, 7, 4), "{} images": (100, 30, 10)}
COLORS = {"FID": "tab:red", "MMD², biased": "tab:orange", "MMD², unbiased": "tab:blue"}


def embed(network, images):
    """Features (N, 32) of images (N, 64), of unit length: what the network's last layer sees."""
    (a, b, _), (c, d, _) = network.coefs_, network.intercepts_
    x = np.tanh(np.tanh(images @ a + c) @ b + d)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def frechet(x, y):
    """The Fréchet distance of Gaussians with the moments of x and y, ‖μ - ν‖² + tr(A + B - 2(AB)^½)."""
    a, b = (np.cov(z, rowvar=False, dtype=np.float64) for z in (x, y))
    root = np.sqrt(np.maximum(np.linalg.eigvals(a @ b).real, 0)).sum()
    return float(np.square(x.mean(0) - y.mean(0)).sum() + np.trace(a) + np.trace(b) - 2 * root)


def corrupt(images, labels, what, level):
    """Images that have something wrong with them."""
    if what == "noise {}":
        return np.clip(images + level * np.random.default_rng(0).normal(size=images.shape), 0, 1)
    if what == "blur {}":
        return gaussian_filter(images.reshape(-1, 8, 8), (0, level, level)).reshape(-1, 64)
    return images[labels < level] if what == "{} classes" else images[np.arange(len(images)) % level]


def by_size(x, y, tau, repetitions):
    """Metrics of samples drawn from the points, with replacement, and MMD²'s standard errors, over those of all."""
    rng, found, errors = np.random.default_rng(1), {name: [] for name in COLORS}, []
    for size in tqdm(SIZES, desc="metrics", unit="size"):
        pairs = [z[rng.integers(len(z), size=(repetitions, size))] for z in (x, y)]
        for how in ("biased", "unbiased"):
            result = jax.lax.map(lambda pair, how=how: mmd_estimate(pair[0], pair[1], tau, estimator=how), pairs)
            found[f"MMD², {how}"].append(np.asarray(result.mmd_squared))
        errors.append(float(result.standard_error.mean()))
        found["FID"].append([frechet(*pair) for pair in zip(*pairs, strict=True)])
    exact = dict.fromkeys(COLORS, float(mmd_estimate(x, y, tau, estimator="biased")[0])) | {"FID": frechet(x, y)}
    ratios = {name: np.array(found[name]).T / exact[name] for name in COLORS}  # (repetitions, sizes)
    return {name: (x.mean(0), x.std(0)) for name, x in ratios.items()}, np.array(errors) / exact["MMD², unbiased"]


def stream(num, chunk=5000, dim=64, shift=0.1):
    """MMD² of embeddings that are made up, Gaussian ones, a chunk at a time, and the exact value."""

    def chunks(seed):
        rngs = (np.random.default_rng((seed, i)) for i in range(num // chunk))
        return (np.float32(seed * shift) + rng.standard_normal((chunk, dim), np.float32) for rng in rngs)

    tau, before, start = 1 / dim, peak_bytes(), time.perf_counter()
    value, error = mmd_estimate(lambda: chunks(0), lambda: chunks(1), tau, progress=True)
    exact = 2 * (1 + 2 * tau) ** (-dim / 2) * -np.expm1(-dim * shift**2 * tau / 2 / (1 + 2 * tau))
    print(f"{num} × {num} made-up embeddings: MMD² {value:.5f} ± {error:.5f} (exact: {exact:.5f})", end=", ")
    print(f"{time.perf_counter() - start:.0f} s, peak memory + {(peak_bytes() - before) / 2**20:.0f} MiB")


def main(repetitions=30, picture="outputs/cmmd.png"):
    """Train the network on half of the digits, and judge what was done to a quarter of them by another quarter."""
    images, labels = (x[np.random.default_rng(0).permutation(1797)] for x in load_digits(return_X_y=True))
    network = MLPClassifier((128, 32), activation="tanh", tol=1e-3, random_state=0).fit(images[:899] / 16, labels[:899])
    real, others, classes = embed(network, images[899:1348] / 16), images[1348:] / 16, labels[1348:]
    made = {"real": others} | {w.format(x): corrupt(others, classes, w, x) for w in WRONG for x in WRONG[w]}
    tau, found = float(median_tau(real)), {name: embed(network, x) for name, x in made.items()}
    scores = {name: (*map(float, mmd_estimate(real, x, tau)), frechet(real, x)) for name, x in found.items()}
    rows = [f"{name:10} MMD² {value:8.5f} ± {error:.5f}, FID {fid:.4f}" for name, (value, error, fid) in scores.items()]
    print(f"accuracy of the network: {network.score(images[899:] / 16, labels[899:]):.1%}", *rows, sep="\n")
    ratios, errors = by_size(real, found["noise 0.2"], tau, repetitions)
    draw(made, scores, ratios, errors, Path(picture))
    return scores, ratios, errors


def draw(made, scores, ratios, errors, path):
    """Noisy and blurred digits, both metrics by what is wrong, and by sample size over their exact values."""
    fig, axes = plt.subplot_mosaic("imr;ifr", figsize=(15, 4.4), width_ratios=[0.5, 1.5, 1.3], layout="constrained")
    digits = np.array([np.pad(made[name][:5].reshape(5, 8, 8), ((0, 0), (1, 1), (1, 1))) for name in list(made)[:7]])
    axes["i"].imshow(digits.transpose(0, 2, 1, 3).reshape(70, 50), cmap="gray_r")
    axes["i"].set(title="made", xticks=[], yticks=np.arange(4.5, 70, 10), yticklabels=list(made)[:7])
    values, bars, fids = np.transpose(list(scores.values()))
    axes["m"].errorbar(list(scores), values, 2 * bars, fmt="o", capsize=3, color=COLORS["MMD², unbiased"])
    axes["f"].plot(list(scores), fids, "o", color=COLORS["FID"])
    axes["m"].set(title=f"{len(made['real'])} images made, as many real ones", ylabel="MMD² ± 2 errors", xticks=[])
    axes["f"].set(ylabel="FID", ylim=(0, None))
    axes["f"].tick_params("x", rotation=40)
    axes["m"].axhline(0, color="black", lw=0.5)
    sizes = [str(size) for size in SIZES]  # in equal steps of their logarithm
    for name, color in COLORS.items():
        axes["r"].errorbar(sizes, *ratios[name], color=color, fmt="o-", capsize=3, label=name)
    axes["r"].fill_between(sizes, 1 - errors, 1 + errors, color="tab:blue", alpha=0.15, label="MMD²'s standard error")
    axes["r"].set(title="noise 0.2: estimate / exact value, mean and spread", xlabel="images in each sample")
    axes["r"].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--streamed", type=int, default=0, help="stream so many made-up embeddings instead, say 100000")
    parser.add_argument("--picture", default="outputs/cmmd.png", help="where to save it")
    options = parser.parse_args()
    stream(options.streamed) if options.streamed else main(picture=options.picture)
