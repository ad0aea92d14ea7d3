"""A geometry for OTT-JAX's solvers, in linear memory."""

from dataclasses import replace
from typing import Any, TypedDict, Unpack

import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jax.lax import Precision
from jaxtyping import Array, Float

from ._arrays.points import dot, squared_differences
from ._calls import readable
from ._checks.names import as_engine
from ._checks.optional import needed
from ._engines.engine import Engine
from ._sums.gauss_sum import gauss_sum
from ._sums.kernel_mean import means_and_logs
from ._sums.log_gauss_sum import log_gauss_sum

with needed("jaxgauss.ott", "ott-jax"):
    from ott.geometry import costs, pointcloud

NAME = "ott.PointCloud"  # in errors


class _Options(TypedDict, total=False):
    """Options of OTT's `PointCloud`."""

    epsilon: Any
    relative_epsilon: Any
    scale_cost: Any


@readable
@jtu.register_pytree_node_class
class PointCloud(pointcloud.PointCloud):
    """OTT-JAX's `PointCloud` for the squared Euclidean cost, whose kernel is applied by `log_gauss_sum` with τ = 2/ε.

    All of OTT's solvers take it, and find the same solution: Sinkhorn with logarithms or scalings, balanced or not,
    with momentum or a schedule of ε; `sinkhorn_divergence(PointCloud, x, y, …)`; gradients by implicit differentiation
    or by unrolling. One iteration is two log-sum-exps: O(nmd) operations and O((n + m) d) memory. No n×m matrix is
    formed unless you ask for `matrix`, `cost_matrix` or `kernel_matrix`.

    Args:
        x: points (n, d).
        y: points (m, d); None: x.
        engine, precision: as for `log_gauss_sum`.
        batch_size: rows of the cost matrix at a time, where it is traversed, as for `scale_cost="max_cost"`.
        **kwargs: `epsilon`, `relative_epsilon`, `scale_cost` (not "median") and `cost_fn` (only `SqEuclidean()`), as
            for OTT's `PointCloud`. The default `epsilon` is 0.05 standard deviations of the cost, found in linear time.

    Raises:
        ImportError: OTT-JAX is not installed.
        ValueError: another cost function, or an option that does not exist.

    Derivatives:
        Any order, both modes, with respect to x, y, ε and the potentials.

    Precision:
        As for `log_gauss_sum`, at any ε: on a CPU exponents are float64 if points lie many bandwidths √(ε/2) from their
        center. In OTT's own cost matrix, exponents err by 6e-8 ‖x‖²/ε.

    Example:
        >>> import jax, jaxgauss
        >>> from ott.solvers import linear
        >>> x, y = jax.random.normal(jax.random.key(0), (2, 50, 2))
        >>> solved = linear.solve(jaxgauss.ott.PointCloud(x, y, epsilon=0.5))
        >>> bool(solved.converged)
        True

    References:
        Cuturi, "Sinkhorn Distances: Lightspeed Computation of Optimal Transport", 2013, arXiv:1306.0895.
        Cuturi, Meng-Papaxanthos, Tian, Bunne, Davis & Teboul, "Optimal Transport Tools (OTT)", 2022, arXiv:2201.12324.
    """

    def __init__(
        self,
        x: Float[Array, "n d"],
        y: Float[Array, "m d"] | None = None,
        cost_fn: costs.CostFn | None = None,
        batch_size: int = 1024,
        *,
        engine: str | Engine = "auto",
        precision: str | Precision | None = None,
        **kwargs: Unpack[_Options],
    ):
        asked = as_engine(NAME, engine, precision)
        if cost_fn is not None and type(cost_fn) is not costs.SqEuclidean:
            raise ValueError(
                f"`jaxgauss.{NAME}`: `cost_fn` must be the squared Euclidean distance, whose kernel is Gaussian; got"
                f" {cost_fn!r}. Leave it out, or use OTT's own PointCloud with a batch_size."
            )
        super().__init__(x, y, cost_fn, batch_size, **kwargs)
        self._engine = asked

    def apply_lse_kernel(  # noqa: D102
        self, f: Array, g: Array, eps: float | Array, vec: Array | None = None, axis: int = 0
    ) -> tuple[Array, Array]:
        if vec is None:
            to, points, log_weights = self._sides(f, g, eps, axis)
            return eps * log_gauss_sum(to, points, log_weights, self._tau(eps), engine=self._engine), jnp.ones(
                1, to.dtype
            )
        means, logs = self._means_and_logs(f, g, eps, vec, axis)
        return eps * (logs + jnp.log(jnp.abs(means))), jnp.sign(means)

    def apply_transport_from_potentials(  # noqa: D102
        self, f: Array, g: Array, vec: Array, axis: int = 0
    ) -> Array:
        epsilon = self.epsilon
        means, logs = self._means_and_logs(f, g, epsilon, vec.T, axis)
        scales = jnp.exp((f if axis == 1 else g) / epsilon + logs)
        return (lax.expand_dims(scales, range(1, means.ndim)) * means).T

    def apply_kernel(self, vec: Array, eps: float | Array | None = None, axis: int = 0) -> Array:  # noqa: D102
        to, points = (self.x, self.y) if axis == 1 else (self.y, self.x)
        engine = self._engine
        if engine.precision is None and self.dtype in (jnp.float32, jnp.float64):
            engine = replace(engine, precision=str(self.dtype))
        return gauss_sum(to, points, vec, self._tau(self.epsilon if eps is None else eps), engine=engine)

    def _apply_cost_to_vec(
        self, vec: Array, axis: int = 0, fn: Any = None, is_linear: bool = False, scale_cost: float | None = None
    ) -> Array:
        if fn is None or is_linear:
            return super()._apply_cost_to_vec(vec, axis, fn, is_linear, scale_cost)
        to, points = (self.x, self.y) if axis == 1 else (self.y, self.x)
        scale = self.inv_scale_cost if scale_cost is None else scale_cost
        return lax.map(lambda z: dot(fn(scale * self._costs(z, points)), vec), to, batch_size=self.batch_size)

    def _apply_sqeucl_cost(self, vec: Array, scale_cost: Any, axis: int = 0, fn: Any = None) -> Array:
        return super(PointCloud, self._centered())._apply_sqeucl_cost(vec, scale_cost, axis, fn)

    def _sqeucl_to_lr(self, scale: float = 1.0) -> Any:
        return super(PointCloud, self._centered())._sqeucl_to_lr(scale)

    def _centered(self) -> "PointCloud":
        """The same costs, for points about their center: OTT forms costs from ‖x‖² and ‖y‖² without centering."""
        (x, y, *others), static = self.tree_flatten()
        center = lax.stop_gradient(self.x.mean(0, keepdims=True))
        return self.tree_unflatten(static, (x - center, y if y is None else y - center, *others))

    @property
    def _unscaled_cost_matrix(self) -> Array:
        return squared_differences(self.x, self.y)

    @property
    def diag_cost(self) -> Array:
        """Diagonal of the cost matrix."""
        return jnp.square(self.x - self.y).sum(-1)

    def _costs(self, point: Array, points: Array) -> Array:
        return jnp.square(points - point[None]).sum(-1)

    @property
    def inv_scale_cost(self) -> Array:
        """The factor of all costs."""
        if self._scale_cost == "max_cost":
            largest = lax.map(lambda z: self._costs(z, self.y).max(), self.x, batch_size=self.batch_size)
            return 1 / largest.max()
        return super().inv_scale_cost

    @property
    def std_cost_matrix(self) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Standard deviation of all costs, from moments of the points, in linear time."""
        # C = r + s - 2⟨x, y⟩ with r = ‖x‖² and s = ‖y‖² of independent x and y, about any center
        center = lax.stop_gradient(self.x.mean(0, keepdims=True))
        variance, means, covariances, with_squares = 0.0, [], [], []
        for z in (self.x - center, self.y - center):
            mean, square = z.mean(0, keepdims=True), jnp.square(z).sum(1)
            variance += jnp.var(square)
            means.append(mean[0])
            covariances.append(dot((z - mean).T, z - mean) / len(z))
            with_squares.append(dot(square, z - mean) / len(z))
        variance += 4 * (covariances[0] * covariances[1]).sum()
        for one, other in ((0, 1), (1, 0)):
            variance += 4 * dot(means[other], dot(covariances[one], means[other]) - with_squares[one])
        return self.inv_scale_cost * jnp.sqrt(jnp.maximum(variance, 0))

    def _sides(self, f: Array, g: Array, eps: Any, axis: int) -> tuple[Array, Array, Array]:
        """Queries, keys and log-weights of the sum along an axis."""
        return (self.x, self.y, g / eps) if axis == 1 else (self.y, self.x, f / eps)

    def _means_and_logs(self, f: Array, g: Array, eps: Any, vec: Array, axis: int) -> tuple[Array, Array]:
        """Means of values by the kernel with weights exp(g/ε) or exp(f/ε), and the logarithms of the total weights."""
        to, points, log_weights = self._sides(f, g, eps, axis)
        return means_and_logs(NAME, to, points, vec, log_weights, self._tau(eps), "gauss", {"engine": self._engine})

    def _tau(self, eps: Any) -> Array:
        return jnp.asarray(2 * self.inv_scale_cost / eps, self.dtype)

    def tree_flatten(self):  # noqa: D102
        children, static = super().tree_flatten()
        return children, {**static, "engine": self._engine}
