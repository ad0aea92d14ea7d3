"""The quadratic form of MMD², and its rule: value and gradients from the same passes over the pairs."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.custom_rule import Wanted, chosen, with_rule
from .._arrays.devices import has_cuda
from .._arrays.points import unbroadcast, weighted_sum
from .._arrays.shapes import are_known
from .._checks.settings import Settings
from .._sums.moments import Reduction, with_reduction

BLOCKS, WORTH_BLOCKS = 2, 1024  # blocks of rows, and points from which they pay, measured on CPUs

# Derivatives. With factors f, h (one for the biased estimate), the form and its sums, each over all of z = (x, y), are
#
#     F = f aᵀK_xx a - 2 aᵀK_xy b + h bᵀK_yy b = aᵀW + bᵀV,    W = f K_xx a - K_xy b,    V = h K_yy b - K_yx a
#     dx_i = 2 a_i τ Σ_z Φ(x_i, z) w_z (z - x_i),  w = (f a, -b);      dy_j likewise from (-a, h b)
#     da = 2W,  db = 2V,  df = aᵀK_xx a,  dh = bᵀK_yy b
#     dτ = -½ (Σ a_i w_z Φ ‖z - x_i‖² + likewise of y) = (Σ x·dx + Σ y·dy) / 2τ, at any origin
#
# A cotangent only scales these, so the pass that gives W also gives dx (channels [w z, w]), and one more channel,
# r = K_xy b, separates the terms. If only x moves, V is not needed: F = aᵀW - aᵀr + h bᵀK_yy b. If f = h = 1 and both
# samples move, one pass over all pairs of z gives W and -V, with the weights (a, -b).
# Everything consists of Gauss sums with rules of their own, so it can be differentiated again.
# For several bandwidths F = Σ_t share_t F_t is the form of one kernel, whose own τ is one. If τ is learned, each
# bandwidth has its own dτ, and F_t is the gradient of its share.


class Side(NamedTuple):
    """Points, weights and the factor of own pairs of one sample; or their gradients, empty if unwanted."""

    points: Array
    weights: Array
    factor: Array


class Way(NamedTuple):
    """Whether the form has its third term, and whether its factors are one."""

    with_y: bool
    biased: bool


def _form(settings: Settings, way: Way, tau: Array, shares: Array | None, x: Side, y: Side) -> Array:
    """The form F, (1,) for several bandwidths."""

    def value(reduction: Reduction, points: tuple[Array, Array], tau: Array, *others: Array) -> Array:
        return _by_x(reduction, tau, *_sides(points, *others), way.with_y, pulls=False)[0]

    return with_reduction(settings, value, (x.points, y.points), tau, *x[1:], *y[1:], shares=shares, pulls=False)


def _form_forward(settings: Settings, way: Way, wanted: Wanted, tau, shares, x, y):
    num = len(wanted) - len(x) - len(y)
    tau_moves, x_moves, y_moves = map(any, (wanted[:num], wanted[num : num + len(x)], wanted[num + len(x) :]))

    def value_and_gradients(reduction: Reduction, points: tuple[Array, Array], tau: Array, *others: Array):
        x, y = _sides(points, *others)
        nothing = jnp.zeros(0, tau.dtype)  # stands for a gradient that is not wanted
        if not (tau_moves or y_moves):
            value, d_x = _by_x(reduction, tau, x, y, way.with_y)
            return value, (nothing, d_x, Side(*[nothing] * 3))
        if not (tau_moves or x_moves):
            value, d_y = _by_x(reduction, tau, y, x, True)
            return value, (nothing, Side(*[nothing] * 3), d_y)
        if all(way):
            value, spread, d_x, d_y = _of_all(reduction, tau, x, y, spread=tau_moves)
            return value, (spread / -2 if tau_moves else nothing, d_x, d_y)
        x_value, _, d_x, x_spread = _row(reduction, tau, x, y, spread=tau_moves)
        y_value, _, d_y, y_spread = _row(reduction, tau, y, x, spread=tau_moves)
        return x_value + y_value, ((x_spread + y_spread) / -2 if tau_moves else nothing, d_x, d_y)

    operands = (x.points, y.points), tau, *x[1:], *y[1:]
    value, (d_tau, d_x, d_y) = with_reduction(
        settings,
        value_and_gradients,
        *operands,
        shares=None if tau_moves else shares,
        weights=(x.weights, y.weights),
        second_order=(tau_moves or x_moves) and (tau_moves or y_moves),
    )
    d_shares = jnp.zeros(0, tau.dtype)
    if tau_moves and shares is not None:
        d_tau, d_shares = shares * d_tau, value
        value, d_x, d_y = jax.tree.map(lambda z: weighted_sum(shares, z)[None], (value, d_x, d_y))
    return value, (d_tau, d_shares, d_x, d_y)


def _form_backward(settings: Settings, way: Way, wanted: Wanted, operands, kept, g) -> list[Array]:
    (*_, x, y), (d_tau, d_shares, d_x, d_y) = operands, kept
    of_bandwidths = (g * d if d.size else None for d in (d_tau, d_shares))
    return chosen(wanted, operands, (*of_bandwidths, _times(d_x, g, x), _times(d_y, g, y)))


form = with_rule(_form, 2, _form_backward, _form_forward)


def _by_x(reduction: Reduction, tau: Array, x: Side, y: Side, with_y: bool, pulls: bool = True):
    """F and its gradient with respect to x."""
    total, cross, gradient, _ = _row(reduction, tau, x, y, pulls=pulls)
    value = total - cross
    if with_y:
        value = value + y.factor[..., 0] * _of_itself(reduction, tau, y)
    return value, gradient


def _of_itself(reduction: Reduction, tau: Array, y: Side) -> Array:
    """bᵀK_yy b. Blocks of rows, each with itself and twice with all later rows, take three quarters of the pairs.

    Blocks are used for near Gaussians only, because other passes take longer to compile.
    """
    b, num, settings = y.weights, y.points.shape[-2], reduction.settings
    in_blocks = reduction.center is not None and settings.mesh is None and not has_cuda()
    if not are_known(num) or num < WORTH_BLOCKS or not in_blocks:
        return _paired(b, reduction(y.points, y.points, b, tau, pulls=False).mass)
    forms, size = [], -(-num // BLOCKS)
    for i in range(0, num, size):
        rows, b_rows = y.points[..., i : i + size, :], b[..., i : i + size, :]
        twice = jnp.concatenate([b_rows, 2 * b[..., i + size :, :]], -2)
        forms.append(_paired(b_rows, reduction(rows, y.points[..., i:, :], twice, tau, pulls=False).mass))
    return functools.reduce(jnp.add, forms)


def _row(reduction: Reduction, tau: Array, x: Side, y: Side, pulls: bool = True, spread: bool = False):
    """aᵀW, aᵀr, the gradient of F with respect to x, and Σ a_i w_z Φ ‖z - x_i‖²; called with (y, x), those of y."""
    a, b = x.weights, y.weights
    weights = jnp.concatenate([x.factor[..., None] * a, -b], -2)
    only_y = jnp.concatenate([jnp.zeros_like(a), b], -2)
    sums = reduction(x.points, _points(x, y), weights, tau, only_y, pulls=pulls, spread=a if spread else None)
    total, cross = _paired(a, sums.mass), _paired(a, sums.sums)
    own_pairs = (total + cross) / jnp.where(x.factor == 0, 1, x.factor)[..., 0]
    return total, cross, Side(2 * tau[..., None, None] * a * sums.pulls, 2 * sums.mass, own_pairs), sums.spread


def _of_all(reduction: Reduction, tau: Array, x: Side, y: Side, spread: bool):
    """F, Σ c_i c_j Φ ‖z_j - z_i‖², and both gradients, of a biased estimate: F = cᵀK c, c = (a, -b), from one pass."""
    z, c, num = _points(x, y), jnp.concatenate([x.weights, -y.weights], -2), x.points.shape[-2]
    sums = reduction(z, z, c, tau, spread=c if spread else None)
    value, pulls = _paired(c, sums.mass), 2 * tau[..., None, None] * c * sums.pulls
    d_x = Side(pulls[..., :num, :], 2 * sums.mass[..., :num, :], jnp.zeros_like(value))
    return value, sums.spread, d_x, Side(pulls[..., num:, :], -2 * sums.mass[..., num:, :], jnp.zeros_like(value))


def _sides(points: tuple[Array, Array], a: Array, f: Array, b: Array, h: Array) -> tuple[Side, Side]:
    return Side(points[0], a, f), Side(points[1], b, h)


def _points(x: Side, y: Side) -> Array:
    return jnp.concatenate([x.points, y.points], -2)


def _paired(a: Array, sums: Array) -> Array:
    return (a * sums).sum((-2, -1))


def _times(gradient: Side, g: Array, side: Side) -> Side | None:
    """The gradient times the cotangent of F, in the shapes of the sample."""
    if gradient.points.size == 0:
        return None
    columns = g[..., None, None]
    scaled = columns * gradient.points, columns * gradient.weights, (g * gradient.factor)[..., None]
    return Side(*(unbroadcast(d, z.shape) for d, z in zip(scaled, side, strict=True)))
