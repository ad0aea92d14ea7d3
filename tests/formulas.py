"""The kernel methods as textbooks write them, with full matrices, in PyTorch's float64."""

import numpy as np
import torch
from scipy.special import logsumexp

from jaxgauss import rational_quadratic
from jaxgauss._kernels.kernels import KERNELS


def root(u):
    """√u, whose gradient at zero is zero."""
    return torch.where(u > 0, torch.where(u > 0, u, 1).sqrt(), 0)


def gauss(u):
    phi = torch.exp(-u / 2)
    return phi, phi, u * phi


def matern32(u):
    s = root(3 * u)
    e = torch.exp(-s)
    return torch.where(u > 0, (1 + s) * e, 1 - 3 / 2 * u), 3 * e, 3 * s * e


def matern52(u):
    s = root(5 * u)
    e = torch.exp(-s)
    kappa, psi = (1 + s + s**2 / 3) * e, 5 / 3 * (1 + s) * e  # at zero they are smooth, as s is not
    return torch.where(u > 0, kappa, 1 - 5 / 6 * u), torch.where(u > 0, psi, 5 / 3 - 25 / 6 * u), 25 / 3 * u * e


def rational(alpha):
    def profile(u):
        t = 1 + u / (2 * alpha)
        return t**-alpha, t ** (-alpha - 1), (alpha + 1) / alpha * u * t ** (-alpha - 2)

    return profile


def cauchy(u):
    t = 1 + u
    return 1 / t, 2 * t**-2, 8 * u * t**-3


# κ(u); of kernels with two derivatives also ψ = -2κ' and u χ, χ = -2ψ'
PROFILES = {
    "gauss": gauss,
    "matern12": lambda u: (torch.exp(-root(u)),),
    "matern32": matern32,
    "matern52": matern52,
    "imq": rational(0.5),
    "cauchy": cauchy,
    "energy": lambda u: (-root(u),),
    rational_quadratic(2.5): rational(2.5),
    rational_quadratic(4.0): rational(4.0),
}


def tensors(*operands):
    return [torch.tensor(np.array(x, np.float64)) for x in operands]


def profiles(kernel, x, y, tau):
    """Of all pairs and bandwidths, (T, M, N)."""
    return PROFILES[kernel](tau.reshape(-1, 1, 1) * (x[:, None] - y).square().sum(-1))


def matrix(kernel, x, y, tau):
    """κ of all pairs, the mean over bandwidths, (M, N)."""
    return profiles(kernel, x, y, tau)[0].mean(0)


def kernel_matrix(x, y=None, tau=1.0, kernel="gauss"):
    """The same in NumPy."""
    return matrix(kernel, *tensors(x, x if y is None else y, tau)).numpy()


def form(matrix, a, estimator):
    """Σ a_i a_j matrix_ij, or (Σa)² times its weighted mean over i ≠ j."""
    products = a[:, None] * a
    if estimator == "biased":
        return (products * matrix).sum()
    products = products * (1 - torch.eye(len(a)))
    return (products * matrix).sum() / products.sum() * a.sum() ** 2


def slope(function, points):
    """Its gradient where only these points move."""
    moving = points.clone().requires_grad_()
    return torch.autograd.grad(function(moving).sum(), moving, create_graph=True)[0]


def mmd(kernel, x, y, a, b, tau, estimator):
    own = form(matrix(kernel, x, x, tau), a, estimator) + form(matrix(kernel, y, y, tau), b, estimator)
    return own - 2 * a @ matrix(kernel, x, y, tau) @ b


def norm(kernel, x, _y, a, _b, tau, estimator):
    return form(matrix(kernel, x, x, tau), a, estimator)


def witness_at(points, kernel, x, y, a, b, tau):
    return matrix(kernel, points, x, tau) @ a - matrix(kernel, points, y, tau) @ b


def witness(kernel, x, y, a, b, tau, _estimator):
    return witness_at(y + 1, kernel, x, y, a, b, tau)


def flow(kernel, x, y, a, b, tau, _estimator):
    return -slope(lambda z: witness_at(z, kernel, x, y, a, b, tau), x)


def svgd(kernel, x, y, _a, _b, tau, _estimator):
    """Of particles y whose scores are the first points of x."""
    repulsion = slope(lambda z: matrix(kernel, z, y, tau), y)
    return (matrix(kernel, y, y, tau) @ x[: len(y)] - repulsion) / len(y)


def stein(kernel, x, s, tau):
    """The Stein kernel of all pairs, for scores s, (T, N, N)."""
    kappa, psi, u_chi = profiles(kernel, x, x, tau)
    along = ((s[:, None] - s) * (x[:, None] - x)).sum(-1)
    return kappa * (s @ s.T) + tau.reshape(-1, 1, 1) * (psi * (along + x.shape[1]) - u_chi)


def ksd(kernel, x, y, _a, b, tau, estimator):
    """Of points y whose scores are the first points of x."""
    return form(stein(kernel, y, x[: len(y)], tau).mean(0), b, estimator)


def logpdf_at(points, kernel, y, b, tau):
    kappa, scale = profiles(kernel, points, y, tau)[0], y.shape[1] / 2 * tau.reshape(-1, 1, 1).log()
    logs = torch.where(kappa > 0, torch.where(kappa > 0, kappa, 1).log() + scale, -torch.inf)
    largest = logs.detach().amax((0, 2), keepdim=True)
    volume = KERNELS.get(kernel, kernel).log_integral(y.shape[1])
    return (torch.exp(logs - largest) @ (b / b.sum())).mean(0).log() + largest[0, :, 0] - volume


def logpdf(kernel, x, y, _a, b, tau, _estimator):
    return logpdf_at(x, kernel, y, b, tau)


def score(kernel, x, y, _a, b, tau, _estimator):
    return slope(lambda z: logpdf_at(z, kernel, y, b, tau), x)


FORMULAS = {f.__name__: f for f in (mmd, norm, witness, flow, svgd, ksd, logpdf, score)}


def soft_maximum(num, statistics):
    """Of normalized statistics (T, P) of n points: (1/λ) log mean_t exp(λ u_t), λ = √(n(n - 1))."""
    sharpness = (num * (num - 1)) ** 0.5
    return logsumexp(sharpness * np.asarray(statistics), axis=0, b=1 / len(statistics)) / sharpness


def gradients(function, operands, twice=()):
    """Those of Σ sin of it with respect to all operands; or, `twice`, of Σ sin of those by the operands so numbered."""
    operands = [x.requires_grad_() for x in tensors(*operands)]
    loss = torch.sin(function(*operands)).sum()
    if twice:
        first = torch.autograd.grad(loss, [operands[i] for i in twice], create_graph=True)
        loss = sum(torch.sin(x).sum() for x in first)
    return [x.numpy() for x in torch.autograd.grad(loss, operands, materialize_grads=True, allow_unused=True)]


def exact(name, operands, kernel="gauss", estimator="biased"):
    """What a method is of x, y, a, b and τ."""
    return FORMULAS[name](kernel, *tensors(*operands), estimator).detach().numpy()


def exact_gradients(name, operands, kernel="gauss", estimator="biased", twice=()):
    return gradients(lambda *z: FORMULAS[name](kernel, *z, estimator), operands, twice)
