"""What `fuzz.py` calls, and its formulas in float64 with the sizes of their terms."""

# ruff: noqa: E501

import dataclasses
from collections.abc import Callable

import jax
import numpy as np
import torch

import formulas
import jaxgauss
from formulas import PROFILES, form, logsumexp, root, slope, tensors  # noqa: F401
from jaxgauss._kernels.kernels import KERNELS

ALPHA = 2.5
NAMES = ["gauss", "gauss", "matern12", "matern32", "matern52", "imq", "cauchy", "energy", "rational"]
POSITIVE = [x for x in NAMES if x != "energy"]
MESH = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
ROUGH = "fourier", "mixture"  # engines whose errors are relative to Σ|v|
_differences: list[torch.Tensor] = []  # of all pairs, as the formula forms them


def kernel_of(name):
    return jaxgauss.rational_quadratic(ALPHA) if name == "rational" else name


def _u(x, y, tau):
    apart = x[:, None] - y
    if apart.requires_grad:
        apart.retain_grad()
        _differences.append(apart)
    return tau.reshape(-1, 1, 1) * apart.square().sum(-1)


def _profiles(kernel, x, y, tau):
    return PROFILES[kernel_of(kernel)](_u(x, y, tau))


PROFILES.setdefault(kernel_of("rational"), formulas.rational(ALPHA))
formulas.profiles = _profiles  # so that the differences are seen

LOGS = {
    "gauss": lambda u: -u / 2,
    "matern12": lambda u: -root(u),
    "matern32": lambda u: torch.log1p(root(3 * u)) - root(3 * u),
    "matern52": lambda u: torch.log1p(root(5 * u) + 5 * u / 3) - root(5 * u),
    "imq": lambda u: -torch.log1p(u) / 2,
    "cauchy": lambda u: -torch.log1p(u),
    "rational": lambda u: -ALPHA * torch.log1p(u / (2 * ALPHA)),
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a function is called, of which operands, and what it should give."""

    call: Callable
    operands: tuple[str, ...]
    formula: Callable | None = None
    size: Callable | None = None  # of the terms of its results
    kernels: tuple[str, ...] = ("gauss",)
    options: dict = dataclasses.field(default_factory=dict)
    engines: bool = True
    differentiable: bool = True
    taus: bool = False
    batches: bool = True
    probabilities: bool = False
    finite: bool = True
    looser: float = 1.0


def labels(number):
    return np.arange(number) % 3


def _mask(case, m, n):
    options, mask = dict(case.options), torch.ones(m, n, dtype=torch.float64)
    if options.get("segments"):
        mask = torch.tensor(labels(m)[:, None] == labels(n)).double()
    if options.get("exclude_self"):
        mask = mask * (1 - torch.eye(m, n))
    return mask


def _sum_of(function, with_kernel=True):
    def call(case, options, x, y, v, tau):
        options = dict(options)
        if options.pop("segments", False):
            m, n = (y if options.get("exclude_self") else x).shape[-2], y.shape[-2]
            options["segments"] = labels(m), labels(n)
        if with_kernel:
            options["kernel"] = kernel_of(case.kernel)
        x = y if options.get("exclude_self") else x
        return function(x, y, v, tau, **options)

    return call


def _weighed(case, x, y, v, tau, absolute=False):
    x = y if dict(case.options).get("exclude_self") else x
    kappa = _profiles(case.kernel, x, y, tau)[0] * _mask(case, len(x), len(y))
    rough = absolute and dict(case.options).get("engine") in ROUGH
    kappa, v = (torch.ones_like(kappa) if rough else kappa.abs(), v.abs()) if absolute else (kappa, v)
    total = kappa @ v
    return total if tau.ndim else total[0]


def _logs(case, x, y, lw, tau):
    x = y if dict(case.options).get("exclude_self") else x
    logs = LOGS[case.kernel](_u(x, y, tau)) + torch.log(_mask(case, len(x), len(y)))
    total = torch.logsumexp(logs + lw, -1)
    return total if tau.ndim else total[0]


def _at_least_one(f):
    return lambda case, *z: torch.clamp(f(case, *z).abs(), min=1)


def _mean(case, x, y, v, tau):
    shares = torch.softmax(LOGS[case.kernel](_u(x, y, tau)), -1)
    total = shares @ v
    return total if tau.ndim else total[0]


def _balanced(case, *weights):
    return [a / a.sum() for a in weights] if dict(case.options).get("normalize") else weights


def _estimator(case):
    return dict(case.options).get("estimator", "biased")


def _mmd(case, x, y, a, b, tau=None, absolute=False):
    a, b = _balanced(case, a, b)
    tau = torch.ones((), dtype=torch.float64) if tau is None else tau
    own = [formulas.matrix(case.kernel, z, z, tau) for z in (x, y)]
    both = formulas.matrix(case.kernel, x, y, tau)
    if absolute:
        return sum(form(k.abs(), w.abs(), "biased") for k, w in zip(own, (a, b), strict=True)) + 2 * (
            a.abs() @ both.abs() @ b.abs()
        )
    return sum(form(k, w, _estimator(case)) for k, w in zip(own, (a, b), strict=True)) - 2 * a @ both @ b


def _norm(case, y, b, tau, absolute=False):
    (b,), kappa = _balanced(case, b), formulas.matrix(case.kernel, y, y, tau)
    return form(kappa.abs(), b.abs(), "biased") if absolute else form(kappa, b, _estimator(case))


def _witness(case, x, y, a, b, tau, absolute=False):
    a, b = _balanced(case, a, b)
    first, second = (formulas.matrix(case.kernel, y, z, tau) for z in (x, y))
    return first.abs() @ a.abs() + second.abs() @ b.abs() if absolute else first @ a - second @ b


def _pulls(case, x, y, weights, tau):
    """Σ |w| τ ψ ‖x - y‖ at each point, a coordinate of which is at most as large."""
    u = _u(x, y, tau).requires_grad_(True)
    kappa = PROFILES[kernel_of(case.kernel)](u)[0].sum()
    psi = -2 * torch.autograd.grad(kappa, u)[0] if u.numel() else u
    apart = (x[:, None] - y).square().sum(-1).sqrt()
    return ((tau.reshape(-1, 1, 1) * psi.abs() * apart).mean(0) @ weights.abs())[:, None].expand(-1, x.shape[1])


def _flow(case, x, y, a, b, tau):
    a, b = _balanced(case, a, b)
    return -slope(lambda z: formulas.witness_at(z, case.kernel, x, y, a, b, tau), x)


def _flow_size(case, x, y, a, b, tau):
    a, b = _balanced(case, a, b)
    return _pulls(case, x, x, a, tau) + _pulls(case, x, y, b, tau)


def _svgd(case, x, s, tau):
    return formulas.svgd(case.kernel, s, x, None, None, tau, None)


def _svgd_size(case, x, s, tau):
    ones = torch.ones(len(x), dtype=torch.float64)
    return (formulas.matrix(case.kernel, x, x, tau).abs() @ s.abs() + _pulls(case, x, x, ones, tau)) / len(x)


def _ksd(case, x, s, a, tau, absolute=False):
    (a,) = _balanced(case, a)
    if not absolute:
        return form(formulas.stein(case.kernel, x, s, tau).mean(0), a, _estimator(case))
    kappa, psi, u_chi = _profiles(case.kernel, x, x, tau)
    along = ((s[:, None] - s).abs() * (x[:, None] - x).abs()).sum(-1)
    terms = kappa * (s.abs() @ s.abs().T) + tau.reshape(-1, 1, 1) * (psi * (along + x.shape[1]) + u_chi.abs())
    return form(terms.mean(0), a.abs(), "biased")


def _logpdf(case, x, y, b, tau):
    volume = KERNELS.get(case.kernel, kernel_of(case.kernel)).log_integral(y.shape[1])
    logs = LOGS[case.kernel](_u(x, y, tau)) + y.shape[1] / 2 * tau.reshape(-1, 1, 1).log() + torch.log(b / b.sum())
    return torch.logsumexp(logs, (0, 2)) - np.log(max(1, tau.numel())) - volume


def _score(case, x, y, b, tau):
    return slope(lambda z: _logpdf(case, z, y, b, tau), x)


def _score_size(case, x, y, b, tau):
    shares = torch.softmax(LOGS[case.kernel](_u(x, y, tau)) + torch.log(b / b.sum()), -1)
    u = _u(x, y, tau).requires_grad_(True)
    psi = torch.autograd.grad(LOGS[case.kernel](u).sum(), u)[0].abs() * 2
    apart = (x[:, None] - y).square().sum(-1).sqrt()
    return (tau.reshape(-1, 1, 1) * psi * apart * shares).sum(-1).mean(0)[:, None].expand(-1, x.shape[1])


def _hsic(case, x, z, a, tau, absolute=False):
    a = a / a.sum()
    k, h = (formulas.matrix("gauss", p, p, tau) for p in (x, z))
    if absolute:
        return (a @ k @ a) * (a @ h @ a)
    return a @ (k * h) @ a - 2 * a @ ((k @ a) * (h @ a)) + (a @ k @ a) * (a @ h @ a)


def _sets(case, y, b, tau, absolute=False):
    own = [np.flatnonzero(labels(len(y)) == i) for i in range(min(3, len(y)))]
    plain = dataclasses.replace(case, options=tuple(x for x in case.options if x[0] != "normalize"))
    zero = 0 * b.sum()
    rows = [[_mmd(plain, y[i], y[j], b[i], b[j], tau, absolute) if i is not j else zero for j in own] for i in own]
    return torch.stack([torch.stack(row) for row in rows])


def _uniformity(case, x, a, tau):
    weights = torch.log(a[:, None] * a * (1 - torch.eye(len(a))))
    logs = LOGS["gauss"](_u(x, x, tau)) + weights
    return torch.logsumexp(logs, (0, 1, 2)) - torch.logsumexp(weights, (0, 1)) - np.log(max(1, tau.numel()))


def _alignment(case, x, s, a):
    return (a / a.sum()) @ (x - s).square().sum(-1)


def _absolute(f):
    return lambda *z: f(*z, absolute=True)


def _method(function, *, kernel=True, weights=(), **fixed):
    """A call of the operands before weights and τ, and of these by name; τ comes last."""

    def call(case, options, *operands):
        how = dict(options) | fixed | ({"kernel": kernel_of(case.kernel)} if kernel else {})
        points = operands[: len(operands) - len(weights) - 1]
        return function(*points, operands[-1], **dict(zip(weights, operands[len(points) :], strict=False)), **how)

    return call


SUM = {"kernels": tuple(NAMES), "formula": _weighed, "size": _absolute(_weighed), "taus": True}
ASKED = {"segments": (True,), "exclude_self": (True,), "forward_mode": (True,)}
LOG = {"formula": _logs, "size": _at_least_one(_logs), "taus": True}
TWO, ONE = ("x", "y", "a", "b", "tau"), ("y", "b", "tau")
WEIGHED = {"estimator": ("unbiased", "biased"), "normalize": (True,)}
NONE = {"differentiable": False, "batches": False}
TARGETS = {
    "gauss_sum": Kind(_sum_of(jaxgauss.gauss_sum, False), ("x", "y", "v", "tau"), _weighed, _absolute(_weighed), options=ASKED, taus=True),
    "kernel_sum": Kind(_sum_of(jaxgauss.kernel_sum), ("x", "y", "v", "tau"), **SUM, options=ASKED),
    "gauss_sum_blocked": Kind(_sum_of(jaxgauss.gauss_sum_blocked, False), ("x", "y", "v", "tau"), _weighed, _absolute(_weighed), engines=False),
    "gauss_sum_dense": Kind(_sum_of(jaxgauss.gauss_sum_dense, False), ("x", "y", "v", "tau"), _weighed, _absolute(_weighed), engines=False),
    "kernel_sum_sharded": Kind(
        lambda case, o, *z: jaxgauss.kernel_sum_sharded(*z, mesh=MESH, key_axis="data", kernel=kernel_of(case.kernel), **o),
        ("x", "y", "v", "tau"), **SUM),
    "kernel_sum_streamed": Kind(
        lambda case, o, x, y, v, tau: jaxgauss.kernel_sum_streamed(x, [(y, v)], tau, kernel=kernel_of(case.kernel), **o),
        ("x", "y", "v", "tau"), **SUM | NONE),
    "log_gauss_sum": Kind(_sum_of(jaxgauss.log_gauss_sum, False), ("x", "y", "l", "tau"), **LOG, options={"segments": (True,), "exclude_self": (True,)}),
    "log_kernel_sum": Kind(_sum_of(jaxgauss.log_kernel_sum), ("x", "y", "l", "tau"), **LOG, kernels=tuple(NAMES), options={"exclude_self": (True,)}),
    "kernel_mean": Kind(_sum_of(jaxgauss.kernel_mean), ("x", "y", "v", "tau"), _mean,
                        lambda case, x, y, v, tau: v.abs().max() * torch.ones_like(_mean(case, x, y, v, tau)),
                        kernels=tuple(NAMES), taus=True),
    "mmd_squared": Kind(_method(jaxgauss.mmd_squared, weights=("x_weights", "y_weights")), TWO, _mmd, _absolute(_mmd), tuple(NAMES), WEIGHED, taus=True),
    "embedding_norm_squared": Kind(_method(jaxgauss.embedding_norm_squared, weights=("weights",)), ONE, _norm, _absolute(_norm), tuple(POSITIVE), WEIGHED, taus=True),
    "energy_distance": Kind(lambda case, o, x, y, a, b: jaxgauss.energy_distance(x, y, x_weights=a, y_weights=b, **o), TWO[:4], _mmd, _absolute(_mmd), ("energy",), WEIGHED),
    "mmd_witness": Kind(lambda case, o, x, y, a, b, tau: jaxgauss.mmd_witness(y, x, y, tau, x_weights=a, y_weights=b, kernel=kernel_of(case.kernel), **o), TWO, _witness, _absolute(_witness), tuple(NAMES), {"normalize": (True,)}, taus=True),
    "mmd_flow_velocity": Kind(_method(jaxgauss.mmd_flow_velocity, weights=("x_weights", "y_weights")), TWO, _flow, _flow_size, tuple(NAMES), {"normalize": (True,)}, taus=True, looser=2),
    "svgd_direction": Kind(_method(jaxgauss.svgd_direction), ("x", "s", "tau"), _svgd, _svgd_size, tuple(POSITIVE), taus=True, looser=2),
    "ksd_squared": Kind(_method(jaxgauss.ksd_squared, weights=("weights",)), ("x", "s", "a", "tau"), _ksd, _absolute(_ksd), ("gauss", "imq", "matern52", "rational", "matern12"), WEIGHED, taus=True, looser=2),
    "kde_logpdf": Kind(_method(jaxgauss.kde_logpdf, weights=("weights",)), ("x", "y", "b", "tau"), _logpdf, _at_least_one(_logpdf), tuple(POSITIVE), taus=True, probabilities=True),
    "kde_score": Kind(_method(jaxgauss.kde_score, weights=("weights",)), ("x", "y", "b", "tau"), _score, _score_size, tuple(POSITIVE), taus=True, probabilities=True, looser=2),
    "hsic": Kind(lambda case, o, x, z, a, tau: jaxgauss.hsic(x, z, tau, tau, weights=a, **o), ("x", "z", "a", "tau"), _hsic, _absolute(_hsic), taus=True, probabilities=True),
    "hsic unbiased": Kind(lambda case, o, x, z, a, tau: jaxgauss.hsic(x, z, tau, tau, weights=a, estimator="unbiased", **o), ("x", "z", "a", "tau"), taus=True, probabilities=True),
    "mmd_squared_matrix": Kind(lambda case, o, y, b, tau: jaxgauss.mmd_squared_matrix(y, tau, segments=labels(y.shape[-2]), weights=b, kernel=kernel_of(case.kernel), **o), ONE, _sets, _absolute(_sets), tuple(NAMES), {"estimator": ("unbiased", "biased")}, taus=True, batches=False),
    "uniformity": Kind(_method(jaxgauss.uniformity, kernel=False, weights=("weights",)), ("x", "a", "tau"), _uniformity, _at_least_one(_uniformity), taus=True, probabilities=True),
    "alignment": Kind(lambda case, o, x, s, a: jaxgauss.alignment(x, s, weights=a, **o), ("x", "s", "a"), _alignment, _alignment, engines=False, probabilities=True),
    "mmd_squared_to_normal": Kind(_method(jaxgauss.mmd_squared_to_normal, kernel=False, weights=("weights",)), ("x", "a", "tau"), options=WEIGHED, probabilities=True),
    "drift": Kind(_method(jaxgauss.drift), ("x", "y", "tau"), kernels=tuple(POSITIVE), engines=False, taus=True),
    "mean_shift": Kind(lambda case, o, x, y, tau: jaxgauss.mean_shift(x, y, tau, max_steps=4, **o)[0], ("x", "y", "tau"), **NONE),
    "kernel_herding": Kind(_method(lambda y, tau, **o: jaxgauss.kernel_herding(y, tau, 2, **o)), ("y", "tau"), kernels=tuple(POSITIVE), **NONE),
    "leave_one_out_tau": Kind(lambda case, o, y: jaxgauss.leave_one_out_tau(y, kernel=kernel_of(case.kernel), **o).tau, ("y",), kernels=("gauss", "matern32"), **NONE),
    "median_tau": Kind(lambda case, o, y: jaxgauss.median_tau(y), ("y",), engines=False, **NONE),
    "mmd_estimate": Kind(lambda case, o, x, y, tau: jaxgauss.mmd_estimate(x, y, tau, **o)[0], ("x", "y", "tau"), **NONE),
}  # fmt: skip


def exact_of(case, operands, g):
    """Pairs of what is exact and the size of its terms: of the result; or, at a cotangent, of value and gradients."""
    kind = TARGETS[case.target]
    if kind.formula is None:
        return None
    given = tensors(*operands)
    with torch.enable_grad():
        size = kind.size(case, *given).detach().abs().numpy()
        if g is None:
            return [(kind.formula(case, *given).detach().numpy(), size)]
        given, g = [x.requires_grad_() for x in given], torch.tensor(g)
        _differences.clear()
        value = (g * kind.formula(case, *given)).sum()
        slopes = torch.autograd.grad(value, [*given, *_differences], materialize_grads=True, allow_unused=True)
    slopes, of_pairs = slopes[: len(given)], slopes[len(given) :]
    pulls = sum(float(x.abs().sum(1).norm() + x.abs().sum(0).norm()) for x in of_pairs if x.numel())
    spread = sum(float((x * y.detach()).abs().sum()) for x, y in zip(of_pairs, _differences, strict=True))
    size = float(np.abs(g.numpy() * size).sum())
    sizes = []
    for name, x, d in zip(kind.operands, given, slopes, strict=True):
        largest = float(x.detach().abs().max()) if x.numel() else 0.0
        if name == "tau":
            found = spread / (2 * float(x.detach().min()))
        elif name in ("x", "y", "z"):
            found = np.inf if dict(case.options).get("engine") in ROUGH else pulls
        else:
            found = size / largest if largest else np.inf  # as large as all terms together
        sizes.append(max(found, float(d.norm())))
    value, slopes = float(value.detach()), [d.numpy() for d in slopes]
    if case.how == "jvp":
        sums = [float(np.abs(d).sum()) for d in slopes]
        return [
            (value, size),
            (
                sum(float(d.sum()) for d in slopes),
                sum(sums) + sum(s * max(1, x.numel()) ** 0.5 for s, x in zip(sizes, given, strict=True)),
            ),
        ]
    return [(value, size), *zip(slopes, sizes, strict=True)]
