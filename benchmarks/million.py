"""What many points in few dimensions are for: Gaussian processes and densities, beside other libraries.

Each row has a process of its own, whose peak memory and seconds count everything: import of arrays, compilation, the
first call. Processes learn two length scales, the variance and the noise, and predict 300 × 300 places with standard
deviations; what they learn from is made up, so that the truth is known, or the terrain that ships with matplotlib.
Densities are of normal points, at as many others; what takes long is timed at a part of them and scaled.
"""

import importlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .plots import having, prose, table
from .rivals import is_installed
from .study import Study, Task, elsewhere, peak_bytes

LENGTHS, NOISE, SIDE = (0.08, 0.05), 0.25, 300  # of the unit box; the random function has variance one
PROCESSES = [("jaxgauss", 2000), ("jaxgauss", 10_000), ("jaxgauss", 100_000), ("jaxgauss", 1_000_000)]
PROCESSES += [("scikit-learn", 2000), ("GPyTorch (SKI)", 10_000)]
TERRAIN = 100_000
DENSITIES = [(2, 1.0), (2, 16.0), (3, 0.125)]  # D, and τ over Scott's
MILLION, GRID = 1_000_000, 1024
LIBRARIES = ("jaxgauss", "scikit-learn", "SciPy", "KDEpy (grid)")
PARTS, CHECKED = {"scikit-learn": 256, "SciPy": 32}, 256  # places that are scored, and compared with differences
Score = Callable[[np.ndarray], np.ndarray]


def steps(device: str) -> Iterator[Task]:
    """Whether a million points fit a laptop's time and memory, and what the others need."""
    for method, num in [x for x in PROCESSES if is_installed(x[0])]:
        about = {"figure": "process", "method": method, "n": num, "d": 2}
        yield Task(about, lambda runs, m=method, n=num: [elsewhere(process, m, n)])
    yield Task({"figure": "terrain", "n": TERRAIN, "d": 2}, lambda runs: [elsewhere(terrain, TERRAIN)])
    for dim, narrower in DENSITIES:
        for method in filter(is_installed, LIBRARIES if (dim, narrower) == DENSITIES[0] else LIBRARIES[:2]):
            about = {"figure": "density", "method": method, "n": MILLION, "d": dim, "narrower": narrower}
            yield Task(about, lambda runs, x=(method, MILLION, dim, narrower): [elsewhere(density, *x)])
    yield Task({"figure": "bandwidth", "n": MILLION, "d": 2}, lambda runs: [elsewhere(bandwidth, MILLION)])


def gibibytes() -> float:
    """The most memory that this process has had."""
    return peak_bytes() / 2**30


def made_up(num: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Points, noisy values of a random function, and the function."""
    rng = np.random.default_rng(seed)
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
    fit = {"jaxgauss": ours, "scikit-learn": by_scikit_learn, "GPyTorch (SKI)": by_gpytorch}[method]
    start = time.perf_counter()
    predict, lengths, noise = fit(points, values)
    learned = time.perf_counter()
    mean, std = predict(places)
    last, peak, truth = time.perf_counter(), gibibytes(), function(places)
    new = truth + math.sqrt(NOISE) * np.random.default_rng(1).normal(size=len(truth))
    return {
        "learn": learned - start,
        "predict": last - learned,
        "gib": peak,
        "error": float(np.sqrt(np.square(mean - truth).mean())),
        "within": float((np.abs(new - mean) < 2 * std).mean()),
        "lengths": [float(y) for y in lengths],
        "noise": float(noise),
    }


def ours(points: np.ndarray, values: np.ndarray) -> tuple[Callable, Any, float]:
    """The process of `jaxgauss.sklearn`."""
    from jaxgauss.sklearn import GaussianProcess

    model = GaussianProcess(length_scale=[0.2, 0.2], random_state=0).fit(points, values)
    return lambda x: model.predict(x, return_std=True), model.length_scale_, model.noise_variance_


def by_scikit_learn(points: np.ndarray, values: np.ndarray) -> tuple[Callable, Any, float]:
    """That of scikit-learn, which factors the matrix."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    start: Any = [0.2, 0.2]
    kernel = ConstantKernel() * RBF(start, (1e-3, 1e2)) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, normalize_y=True).fit(points, values)
    found: Any = model.kernel_
    variance = found.k2.noise_level * values.var()

    def predict(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = [model.predict(part, return_std=True) for part in np.array_split(x, 30)]
        return np.concatenate([y[0] for y in parts]), np.concatenate([y[1] for y in parts])

    return predict, found.k1.k2.length_scale, variance


def by_gpytorch(points: np.ndarray, values: np.ndarray, steps: int = 50) -> tuple[Callable, Any, float]:
    """Structured kernel interpolation of GPyTorch, by Adam, as in its documentation; variances by LOVE."""
    import torch

    gpytorch: Any = importlib.import_module("gpytorch")
    x, y = (torch.tensor(z, dtype=torch.float32) for z in (points, values))

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            radial = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))
            radial.base_kernel.lengthscale = 0.2
            self.covar_module = gpytorch.kernels.GridInterpolationKernel(
                radial, grid_size=[100, 100], num_dims=2, grid_bounds=[(-0.02, 1.02)] * 2
            )

        def forward(self, z: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(z), self.covar_module(z))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(likelihood)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -marginal(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval(), likelihood.eval()

    def predict(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            found = likelihood(model(torch.tensor(z, dtype=torch.float32)))
            return found.mean.numpy(), found.variance.sqrt().numpy()

    lengths = model.covar_module.base_kernel.base_kernel.lengthscale.detach().numpy().ravel()
    return predict, lengths, float(likelihood.noise)


def terrain(num: int) -> dict:
    """The same for heights of the terrain, of which the rest are predicted."""
    from matplotlib.cbook import get_sample_data

    from jaxgauss.sklearn import GaussianProcess

    data: Any = get_sample_data("jacksboro_fault_dem.npz")
    heights = data["elevation"].astype(float)
    places, order = np.indices(heights.shape).reshape(2, -1).T.astype(float), np.random.default_rng(0)
    order = order.permutation(heights.size)
    seen, others = order[:num], order[num:]
    start = time.perf_counter()
    model = GaussianProcess(length_scale=[5.0, 5.0], num_samples=32, random_state=0)
    model.fit(places[seen], heights.ravel()[seen])
    learned = time.perf_counter()
    mean, std = model.predict(places[others], return_std=True)
    last, errors = time.perf_counter(), mean - heights.ravel()[others]
    return {
        "method": "jaxgauss",
        "learn": learned - start,
        "predict": last - learned,
        "gib": gibibytes(),
        "error": float(np.sqrt(np.square(errors).mean())),
        "within": float((np.abs(errors) < 2 * std).mean()),
        "lengths": model.length_scale_.tolist(),
        "noise": float(model.noise_variance_),
    }


def density(method: str, num: int, dim: int, narrower: float) -> dict:
    """Seconds to learn normal points and to score as many others, and the largest error of a log-density."""
    from jaxgauss import kde_logpdf

    points, others = np.random.default_rng(0).normal(size=(2, num, dim))
    tau, part = narrower * num ** (2 / (dim + 4)), others[: PARTS.get(method, num)]
    start = time.perf_counter()
    score = DENSITY[method](points, tau)
    learned = time.perf_counter()
    scores = score(part)
    last, peak, few = time.perf_counter(), gibibytes(), others[:CHECKED].astype("float32")
    exact = np.asarray(kde_logpdf(few, points.astype("float32"), tau, method="differences"))
    error = float(np.abs(scores[:CHECKED] - exact[: len(part)]).max())
    seconds = learned - start + (last - learned) * num / len(part)
    return {"median": seconds, "part": len(part), "gib": peak, "error": error}


def density_of_ours(points: np.ndarray, tau: float) -> Score:
    """Log-densities of `jaxgauss.sklearn`."""
    from jaxgauss.sklearn import KernelDensity

    return KernelDensity(tau=tau).fit(points).score_samples


def density_by_scikit_learn(points: np.ndarray, tau: float) -> Score:
    """Those of scikit-learn's tree."""
    from sklearn.neighbors import KernelDensity

    least: Any = 1e-4
    return KernelDensity(bandwidth=tau**-0.5, rtol=least).fit(points).score_samples


def density_by_scipy(points: np.ndarray, tau: float) -> Score:
    """Those of all pairs; the kernel has the shape of the cloud, which is round here but for a thousandth."""
    from scipy.stats import gaussian_kde

    cloud = gaussian_kde(points.T, bw_method=tau**-0.5)
    return lambda x: cloud.logpdf(x.T)


def density_by_kdepy(points: np.ndarray, tau: float) -> Score:
    """Those of KDEpy's transform on a grid, between whose places the logarithm is interpolated."""
    from scipy.interpolate import RegularGridInterpolator

    kdepy: Any = importlib.import_module("KDEpy")
    grid, values = kdepy.FFTKDE(bw=tau**-0.5).fit(points).evaluate(GRID)
    with np.errstate(divide="ignore"):
        logs = np.log(values.reshape(GRID, GRID))
    return RegularGridInterpolator([np.unique(x) for x in grid.T], logs, bounds_error=False)


DENSITY: dict[str, Callable[[np.ndarray, float], Score]] = dict(
    zip(LIBRARIES, (density_of_ours, density_by_scikit_learn, density_by_scipy, density_by_kdepy), strict=True)
)


def bandwidth(num: int) -> dict:
    """Seconds of a search among seven bandwidths, from Scott's on, each a quarter of the one before."""
    from jaxgauss import leave_one_out_tau

    points = np.random.default_rng(0).normal(size=(num, 2)).astype("float32")
    taus = (num ** (1 / 3) * 4.0 ** np.arange(-2, 5)).astype("float32")
    start = time.perf_counter()
    found = leave_one_out_tau(points, taus)
    best = float(found.tau)
    return {
        "method": "jaxgauss",
        "median": time.perf_counter() - start,
        "gib": gibibytes(),
        "best": best / num ** (1 / 3),
    }


def report(data: dict) -> str:
    """A table of processes, one of densities, and the search."""
    rows = [["", "N", "learn, s", "predict, s", "GiB", "error", "within ±2σ"]]
    for c in data["cells"]:
        if c["figure"] in ("process", "terrain"):
            name = c["method"] if c["figure"] == "process" else f"{c['method']}, terrain"
            error = f"{c['error']:.3f}" if c["figure"] == "process" else f"{c['error']:.1f} m"
            times = (f"{c['learn']:.1f}", f"{c['predict']:.1f}", f"{c['gib']:.2f}")
            rows.append([name, f"{c['n']:,}", *times, error, f"{100 * c['within']:.1f} %"])
    densities = [["", *(f"D = {d}, τ = {x:.3g} × Scott's" for d, x in DENSITIES)]]
    for method in LIBRARIES:
        found = {(c["d"], c["narrower"]): c for c in having(data["cells"], figure="density", method=method)}
        cells = [f"{c['median']:.3g} ({c['error']:.0e})" if (c := found.get(x)) else "–" for x in DENSITIES]
        densities.append([method, *cells])
    (search,) = having(data["cells"], figure="bandwidth")
    text = prose(
        f"A search among seven bandwidths, each point left out in turn, takes {search['median']:.0f} s and",
        f"{search['gib']:.1f} GiB for {search['n']:,} points in the plane.",
    )
    return f"{table(rows)}\n\n{table(densities)}\n\n{text}"


STUDY = Study(steps, report)
