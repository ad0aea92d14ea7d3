"""The drifting field: generated points are drawn to data, and keep away from one another."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._arrays.devices import has_cuda, vary_alike, vary_like
from .._arrays.points import center, common_center, dot, least_log, with_rank
from .._arrays.tracing import jitted
from .._checks.arguments import public
from .._checks.operands import as_operand, check_tau
from .._checks.samples import check_kernel, check_samples, check_signs
from .._checks.settings import Keys, Queries, Settings, Taus, Weights, working_dtype
from .._engines.pair_distances import squared_distances
from .._engines.scopes import scope
from .._kernels.kernels import GAUSS, Kernel

PAIRS, LEAST_ROWS = {"cpu": 2**19, "cuda": 2**24}, 8  # pairs that are held at a time, in at least so many rows
FARTHEST = 1e30  # the largest u; farther points are as far
LARGEST = 60.0  # the largest exponent of a point of weight zero, relative to those of others


@public()
def drift(
    x: Queries,
    positives: Keys,
    tau: Taus,
    *,
    kernel: str | Kernel = "laplace",
    negatives: Keys | None = None,
    self_weights: Weights | None = None,
    positive_weights: Weights | None = None,
    negative_weights: Weights | None = None,
    unit_rms: bool = False,
) -> Float[Array, "*result g d"]:
    """Drifting field V(x_i): positives, which are data, attract; negatives, the other generated points, repel.

    With κ_ij of x_i and target y_j, R_i = Σ_j κ_ij over all targets, C_j = Σ_i κ_ij, both without pairs of a point and
    itself, and A_ij = w_j κ_ij / √(R_i C_j), the geometric mean of the softmax over targets and that over x,

        V_i = (Σ_neg A_ij) Σ_pos A_ij y_j - (Σ_pos A_ij) Σ_neg A_ij y_j.

    For the kernel "gauss" V_i = τ (m⁺_i - m⁻_i), with the means m = Σ w κ y / Σ w κ: the difference of two `kde_score`.
    Some rows of the matrix at a time: O(G N D) operations and O((G + N) D) memory for N targets.

    Args:
        x: generated points, (…, G, D).
        positives: (…, P, D).
        tau: τ = 1/σ², positive; or several, (T,), whose fields are added. For a radius R of e^(-d/R) it is R⁻².
        kernel: "laplace", which is e^(-√τ ‖x - y‖); "gauss"; or any other of `kernel_mean`.
        negatives: (…, N, D), in place of x. None: x, each for the others.
        self_weights: of x, (…, G), which are then negatives beside others, too. A mask of booleans is ones and zeros.
        positive_weights, negative_weights: w, (…, P) and (…, N), none negative; None: ones. R and C have none.
        unit_rms: divide the field of each τ by the root of its mean square over points and coordinates before adding.

    Returns:
        (…, G, D), in the promoted dtype. The training target is `jax.lax.stop_gradient(x + V)`.

    Raises:
        ValueError: shapes do not fit, a group is empty, tau or weights are not positive, or the kernel is "energy".
        TypeError: an argument is not a floating array.

    Derivatives:
        Of every order, in reverse and forward mode, with respect to points, weights and tau. At points that coincide,
        where "laplace" has a kink, they are zero.

    Precision:
        Within 1e-5 of the largest |V| in float32, 1e-12 in float64, plus four roundings of the coordinates: 2.4e-7 and
        4.4e-16. Exponents above 50, as of radii below 1/50 of the distances, lose digits in proportion. Nothing
        underflows before V does.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> x, data = jnp.array([[0.0], [1.0]]), jnp.array([[2.0]])
        >>> jaxgauss.drift(x, data, 1.0, kernel="gauss").tolist()
        [[1.0], [2.0]]

    References:
        Deng, Li, Li, Du & He, "Generative Modeling via Drifting", 2026, arXiv:2602.04770.
    """
    function, kernel = "drift", check_kernel("drift", kernel, positive=True)
    points = {"x": x, "positives": positives} | ({} if negatives is None else {"negatives": negatives})
    weights = {"self_weights": self_weights, "positive_weights": positive_weights, "negative_weights": negative_weights}
    settings = _check(function, points, weights, tau, kernel)
    own = negatives is None or self_weights is not None
    return _drift(
        settings, own, bool(unit_rms), x, positives, negatives, tuple(weights.values()), as_operand(tau, settings.dtype)
    )


def _check(function: str, points: dict[str, Any], weights: dict[str, Any], tau: Any, kernel: Kernel) -> Settings:
    """Raise unless points (…, number, D), their weights (…, number) and τ fit together; return the settings."""
    where, alone = f"`jaxgauss.{function}`", "negatives" not in points
    if alone and (w := weights["negative_weights"]) is not None:
        raise ValueError(
            f"{where}: `negative_weights` must be left out without `negatives`; got negative_weights {w.shape}. Those"
            " of x are `self_weights`."
        )
    own = dict(itertools.islice(weights.items(), len(points)))
    settings = check_samples(function, points, {}, {}, weights=own, kernel=kernel, batches=True)
    if points["x"].shape[-2] < 2 and (alone or weights["self_weights"] is not None):
        raise ValueError(
            f"{where}: `x` must hold at least 2 points; got x {points['x'].shape}. Each is a negative for the others."
        )
    for name, w in weights.items():
        check_signs(function, w, name)
    if len(shape := check_tau(where, tau, working_dtype(settings.dtype))) > 1 or shape == (0,):
        raise ValueError(
            f"{where}: `tau` must be a number or one-dimensional; got tau {shape}. Pass one number, or several as (T,)."
        )
    return settings


@functools.partial(jitted, num_static=3)
def _drift(settings: Settings, own: bool, unit_rms: bool, x, positives, negatives, weights, tau) -> Array:
    dtype, own_weights, taus = working_dtype(settings.dtype), weights[0], jnp.atleast_1d(tau)
    groups = (x if own else None, own_weights), (negatives, weights[2]), (positives, weights[1])
    given = [(y, jnp.ones(y.shape[-2], dtype) if w is None else w) for y, w in groups if y is not None]
    batch = jnp.broadcast_shapes(x.shape[:-2], *(s for y, w in given for s in (y.shape[:-2], w.shape[:-1])))
    x, *points = (jnp.broadcast_to(y, (*batch, *y.shape[-2:])).astype(dtype) for y in (x, *(y for y, _ in given)))
    w = jnp.concatenate([jnp.broadcast_to(w, (*batch, w.shape[-1])).astype(dtype) for _, w in given], -1)[..., None]
    matrix = _Matrix(settings.kernel, own, *vary_alike(x, jnp.concatenate(points, -2), w, taus.astype(dtype)))
    with scope("sum", "drift", math.prod(batch), x.shape[-2], *matrix.targets.shape[-2:], len(taus)):
        fields = _fields(matrix, positives.shape[-2])
    return functools.reduce(jnp.add, [_scaled(*z, unit_rms) for z in fields]).astype(settings.dtype)


def _fields(matrix: "_Matrix", num_positives: int) -> list[tuple[Array, Array]]:
    """For each τ the field (…, G, D) over a factor, and the logarithm of that, (…, G, 1)."""
    targets, w, is_gauss = matrix.targets, matrix.weights, matrix.kernel == GAUSS
    values = w * jnp.concatenate([targets - common_center(targets, matrix.center), jnp.ones_like(w)], -1)
    first = matrix.num_targets - num_positives
    rows, columns = ([0] * len(matrix.taus),) * 2 if is_gauss else matrix.logs_of_sums()

    def sums(a: Array, group: slice) -> tuple[Array, Array, Array]:
        """Σ w e^a y (…, rows, D) and Σ w e^a (…, rows, 1) over a factor, and the logarithm of that."""
        a, own = a[..., group], w[..., group, :]
        largest = lax.stop_gradient(jnp.where(own.mT > 0, a, matrix.least).max(-1, keepdims=True))
        found = dot(jnp.exp(jnp.minimum(a - largest, LARGEST)), values[..., group, :])
        return found[..., :-1], found[..., -1:], largest

    def of_rows(exponents: list[Array]) -> list[tuple[Array, Array]]:
        found = []
        for t, a, c in zip(matrix.taus, exponents, columns, strict=True):
            (repelled, of_negatives, b), (attracted, of_positives, d) = (
                sums(a - c / 2, group) for group in (slice(first), slice(first, None))
            )
            if is_gauss:
                of_negatives, of_positives = (jnp.where(z > 0, z, 1) for z in (of_negatives, of_positives))
                found.append((t * (attracted / of_positives - repelled / of_negatives), jnp.zeros_like(b)))
            else:
                found.append((of_negatives * attracted - of_positives * repelled, b + d))
        return found

    return [(field, log - row) for (field, log), row in zip(matrix.over_rows(of_rows), rows, strict=True)]


def _scaled(field: Array, log_factor: Array, unit_rms: bool) -> Array:
    """The field times its factor; with `unit_rms` over the root of its mean square, where it may underflow itself."""
    if not unit_rms:
        return field * jnp.exp(log_factor)
    field = field * jnp.exp(log_factor - lax.stop_gradient(log_factor.max(-2, keepdims=True)))
    size = lax.stop_gradient(jnp.abs(field).max((-2, -1), keepdims=True))
    field = field / jnp.where(size > 0, size, 1)
    square = jnp.square(field).mean((-2, -1), keepdims=True)
    return field / jnp.sqrt(jnp.where(square > 0, square, 1))


class _Matrix:
    """Exponents of a kernel of points x (…, G, D) and targets (…, N, D), for each τ, some rows at a time.

    Attributes:
        kernel: κ.
        own: whether the first targets are x, of which the pairs of equal index are left out.
        x, targets, weights, taus: (…, G, D), (…, N, D), (…, N, 1) and (T,).
    """

    def __init__(self, kernel: Kernel, own: bool, x: Array, targets: Array, weights: Array, taus: Array) -> None:
        self.kernel, self.own, self.x, self.targets, self.weights, self.taus = kernel, own, x, targets, weights, taus
        self.num, self.num_targets, self.least = x.shape[-2], targets.shape[-2], least_log(x.dtype)
        self.center = center(targets)
        pairs = PAIRS["cuda" if has_cuda() else "cpu"]
        rows = max(LEAST_ROWS, pairs // max(1, math.prod(x.shape[:-2]) * self.num_targets))
        self.steps = -(-self.num // rows)

    def exponents(self, indices: Array) -> list[Array]:
        """log κ (…, rows, N) of the rows of these indices, for each τ."""
        left_out = (indices[:, None] == jnp.arange(self.num_targets, dtype="int32")[None]) & self.own
        x = jnp.take(self.x, indices, -2)
        u = squared_distances(self.kernel, x, self.targets, self.center, self.taus.max(), left_out)
        logs = [self.kernel.log(jnp.minimum(t * u, FARTHEST)) for t in self.taus]
        return [jnp.where(left_out, self.least, x) for x in logs]

    @functools.cached_property
    def whole(self) -> list[Array]:
        """All exponents, if they are held together."""
        return self.exponents(jnp.arange(self.num, dtype="int32"))

    def over_rows(self, function: Callable[[list[Array]], Any]) -> Any:
        """Results (…, G, ·) of a function of the exponents of some rows, whose results have a row for each."""
        if self.steps == 1:
            return function(self.whole)
        found = lax.map(jax.checkpoint(lambda block: function(self.exponents(block[0]))), self._blocks())
        return jax.tree.map(self._joined, found)

    def logs_of_sums(self) -> tuple[list[Array], list[Array]]:
        """The logarithms of sums over targets (…, G, 1) and over x (…, 1, N), for each τ."""

        def of_some(exponents: list[Array], mask: Any = 0) -> Any:
            of_columns = [jax.nn.logsumexp(a + mask, -2, keepdims=True) for a in exponents]
            return of_columns, [jax.nn.logsumexp(a, -1, keepdims=True) for a in exponents]

        if self.steps == 1:
            return of_some(self.whole)[::-1]

        @jax.checkpoint
        def add(columns: list[Array], block: tuple[Array, Array]) -> Any:
            found, rows = of_some(self.exponents(block[0]), with_rank(block[1], self.x))
            return [*map(jnp.logaddexp, columns, found)], rows

        nothing = jnp.full((*self.x.shape[:-2], 1, self.num_targets), self.least, self.x.dtype)
        nothing = vary_like(nothing, [self.x, self.targets])
        columns, rows = lax.scan(add, [nothing] * len(self.taus), self._blocks())
        return jax.tree.map(self._joined, rows), columns

    def _blocks(self) -> tuple[Array, Array]:
        """Indices (steps, rows) of rows, the last one more than once; and what hides those in sums (steps, rows, 1)."""
        indices = jnp.arange(self.steps * -(-self.num // self.steps), dtype="int32").reshape(self.steps, -1)
        mask = self.least * (indices >= self.num).astype(self.x.dtype)
        return jnp.minimum(indices, self.num - 1), mask[..., None]

    def _joined(self, x: Array) -> Array:
        """(steps, …, rows, ·) -> (…, G, ·)."""
        x = jnp.moveaxis(x, 0, -3)
        return x.reshape(*x.shape[:-3], -1, x.shape[-1])[..., : self.num, :]
