"""What many points in few dimensions are for: Gaussian processes beside scikit-learn's.

Each row has a process of its own, whose peak memory and seconds count everything: import of arrays, compilation, the
first call. Processes learn two length scales, the variance and the noise from a made-up function, whose truth is known,
and predict 300 × 300 places with standard deviations.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .plots import listing
from .study import Study, Task, elsewhere, peak_bytes

LENGTHS, NOISE, SIDE = (0.08, 0.05), 0.25, 300  # of the unit box; the random function has variance one
PROCESSES = [*(("jaxgauss", num) for num in (2000, 10_000, 100_000, 1_000_000)), ("scikit-learn", 2000)]


def steps(device: str) -> Iterator[Task]:
    """Whether a process of a million points fits a laptop's time and memory, and what scikit-learn needs."""
    for method, num in PROCESSES:
        about = {"figure": "process", "method": method, "n": num, "d": 2}
        yield Task(about, lambda runs, m=method, n=num: [elsewhere(process, m, n)])


def made_up(num: int) -> tuple[np.ndarray, np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Points, noisy values of a random function, and the function."""
    rng = np.random.default_rng(0)
    frequencies, phases = rng.normal(size=(2, 3000)) / np.array(LENGTHS)[:, None], rng.uniform(0, 2 * np.pi, 3000)

    def function(x: np.ndarray) -> np.ndarray:
        parts = np.array_split(x, 1 + len(x) // 5000)
        return np.concatenate([np.cos(part @ frequencies + phases).sum(1) / math.sqrt(1500) for part in parts])

    points = rng.uniform(size=(num, 2))
    return points, function(points) + math.sqrt(NOISE) * rng.normal(size=num), function


def process(method: str, num: int) -> dict:
    """Seconds to learn and to predict; error, and the share of new values within two standard deviations."""
    points, values, function = made_up(num)
    x = (np.arange(SIDE) + 0.5) / SIDE
    places = np.stack(np.meshgrid(x, x), -1).reshape(-1, 2)
    fit = {"jaxgauss": ours, "scikit-learn": by_scikit_learn}[method]
    start = time.perf_counter()
    predict = fit(points, values)
    learned = time.perf_counter()
    mean, std = predict(places)
    last, peak, truth = time.perf_counter(), peak_bytes() / 2**30, function(places)
    new = truth + math.sqrt(NOISE) * np.random.default_rng(1).normal(size=len(truth))
    row = {"learn": learned - start, "predict": last - learned, "gib": peak}
    row["error"] = float(np.sqrt(np.square(mean - truth).mean()))
    return row | {"within": float((np.abs(new - mean) < 2 * std).mean())}


def ours(points: np.ndarray, values: np.ndarray) -> Callable:
    """The process of `jaxgauss.sklearn`."""
    from jaxgauss.sklearn import GaussianProcess

    model = GaussianProcess(length_scale=[0.2, 0.2], random_state=0).fit(points, values)
    return lambda x: model.predict(x, return_std=True)


def by_scikit_learn(points: np.ndarray, values: np.ndarray) -> Callable:
    """That of scikit-learn, which factors the matrix."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    start: Any = [0.2, 0.2]
    kernel = ConstantKernel() * RBF(start, (1e-3, 1e2)) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, normalize_y=True).fit(points, values)

    def predict(x: np.ndarray) -> list[np.ndarray]:
        parts = [model.predict(part, return_std=True) for part in np.array_split(x, 30)]
        return [np.concatenate(y) for y in zip(*parts, strict=True)]

    return predict


def report(data: dict) -> str:
    """A row for every process."""
    columns = {"": "{method}", "N": "{n:,}", "learn, s": "{learn:.1f}", "predict, s": "{predict:.1f}"}
    columns |= {"GiB": "{gib:.2f}", "error": "{error:.3f}", "within ±2σ": "{within:.1%}"}
    return listing(data["cells"], columns)


STUDY = Study(steps, report)
