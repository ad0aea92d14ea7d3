"""Mean shift: points climb to the modes of a kernel density estimate, one attention call per step."""

import functools
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float, Int

from .._arrays.custom_rule import Wanted, chosen, with_rule
from .._arrays.devices import replicated, vary_alike
from .._arrays.points import common_center, dot
from .._calls import readable
from .._checks.arguments import centered, public
from .._checks.samples import check_number, check_positive, check_samples, check_signs
from .._checks.settings import MeshOptions, Points, Settings, Weights, working_dtype
from .._sums.display import progress_bar, refuse_progress_in_a_trace, short_repr
from .._sums.kernel_mean import as_logs, means_over_mesh
from .._sums.preparation import check_plan, examined
from .kde import log_or_zero
from .weights import normalized

MERGED = 0.5  # in bandwidths: final points nearer than this are at one mode


@readable
class MeanShift(NamedTuple):
    """The result of `mean_shift`.

    Attributes:
        points: the final points, (P, D), each within a few times the tolerance of a mode.
        labels: the number of each point's mode, (P,). Modes are numbered from 0 in the order of their first points.
        num_steps: the number of steps taken.
    """

    points: Float[Array, "p d"]
    labels: Int[Array, " p"]
    num_steps: Int[Array, ""]
    __repr__ = short_repr


@public("none")
def mean_shift(
    points: Points,
    data: Points,
    tau: Float[Array | np.ndarray, ""] | float,
    *,
    tol: float = 1e-3,
    max_steps: int = 500,
    weights: Weights | None = None,
    progress: bool = False,
    **options: Unpack[MeshOptions],
) -> MeanShift:
    """Find the modes of a density estimate: each point moves to the mean of the data around it until it rests.

    The step x ← Σ_n w_n Φ(x, k_n) k_n / Σ_n w_n Φ(x, k_n) never overshoots: the density (`kde_logpdf`) grows.
    One attention call per step: O(P N D) operations and O((P + N) D) memory. Labels take O(P D) per mode.

    Args:
        points: the starting points x, (P, D): to cluster data, the data themselves or some of them.
        data: k, (N, D), N ≥ 1.
        tau: τ = 1/σ², one positive number. A larger τ gives more modes.
        tol: the iteration ends when no point moves by more than this number of bandwidths σ.
        max_steps: the largest number of steps.
        weights: w of the data, (N,), not negative. None: all are equal.
        progress: show a bar (needs tqdm); not under `jit`.
        **options: `engine` and `precision`, as for `log_gauss_sum`; and `mesh`, `query_axis` and `key_axis`,
            as for `mmd_squared`.

    Returns:
        A `MeanShift`. Points that rest within half a bandwidth of the first point at a mode get its label. Where the
        density is flat, steps are short: if there are more labels than modes, take a smaller `tol`.

    Raises:
        ValueError: shapes do not fit, there are no data, tau, tol or max_steps is not positive, tau is not one number,
            weights are negative, an option has an unknown value, or `progress` under `jit`.
        TypeError: points, data or weights are not a floating array.
        ImportError: `progress` without tqdm.

    Derivatives:
        First order, both modes, of the final points with respect to data, tau and weights, by the implicit function
        theorem. With respect to the starting points it is zero. Gradients are meaningless for points that have not come
        to rest at a maximum.

    Precision:
        As for `kernel_mean`. In float32, steps below about 1e-7 of the coordinates are lost in rounding: of those about
        the mean of the data if it is nearer to all of them than the origin.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> data = jnp.array([[0.0], [1.0], [8.0], [9.0]])
        >>> modes = jaxgauss.mean_shift(data, data, 1.0, tol=1e-5)
        >>> modes.labels.tolist(), round(float(modes.points[0, 0]), 2)
        ([0, 0, 1, 1], 0.5)

    References:
        Comaniciu & Meer, "Mean Shift: A Robust Approach Toward Feature Space Analysis", 2002.
        Carreira-Perpiñán, "Gaussian Mean-Shift Is an EM Algorithm", 2007.
    """
    function, given = "mean_shift", {"weights": weights}
    names = "points", "data"
    origin, (points, data) = centered(points, data, function=function, tau=tau, names=names)
    samples = {"data": data, "points": points}
    settings = check_samples(function, samples, tau, options, weights=given, may_be_empty="points", logs=True)
    settings = as_logs(settings)
    if np.ndim(tau):
        raise ValueError(
            f"`jaxgauss.{function}`: `tau` must be one number; got tau {np.shape(tau)}. Try each by itself."
        )
    check_signs(function, weights)
    check_number(function, "max_steps", max_steps)
    check_positive(function, "tol", tol, fix="It is a part of a bandwidth, such as 1e-3.")
    tau = check_plan(settings, tau, points.shape[0] * data.shape[0], data.shape[1], data.shape[1], points, data)
    settings = examined(settings, tau, points, data, weights, logs=True)  # moving points come no farther from the data
    limits = np.asarray(tol, working_dtype(settings.dtype)), np.asarray(min(max_steps, np.iinfo("int32").max), "int32")
    if not progress:
        return _about(origin, _mean_shift(settings, points, data, tau, weights, *limits))
    refuse_progress_in_a_trace(function, points, data, tau, weights)
    state = _begun(settings, points, data, tau, weights, *limits)
    with progress_bar(function, max_steps, "step") as bar:
        while _goes_on(state):
            state = jax.block_until_ready(_step_at_once(settings, state))
            bar.update()
            bar.set_postfix(shift=f"{float(state.shift):.1e}")
    return _about(origin, _result(settings, state))


def _about(origin: np.ndarray | None, found: MeanShift) -> MeanShift:
    """The result, with the origin added back to its points."""
    return found if origin is None else found._replace(points=found.points + origin[None])


class _State(NamedTuple):
    """Points and data about a center, the length in bandwidths of the longest last step, and when to stop.

    Centering keeps the means accurate: their rounding error grows with the size of the values.
    """

    points: Array
    shift: Array
    num_steps: Array
    data: Array
    tau: Array
    log_weights: Array
    center: Array
    tol: Array
    max_steps: Array


@functools.partial(jax.jit, static_argnums=0)
def _begun(settings: Settings, points, data, tau, weights, tol, max_steps) -> _State:
    operands = (jnp.asarray(x, working_dtype(settings.dtype)) for x in (points, data, tau))
    points, data, tau = replicated(*operands)
    points, data, tau, w = vary_alike(points, data, tau, normalized(settings, weights, data))
    log_weights, shift = log_or_zero(w), jnp.full_like(tau, jnp.inf)
    c = common_center(data, dot(w[None], data))
    return _State(points - c, shift, jnp.zeros_like(tau, "int32"), data - c, tau, log_weights, c, tol, max_steps)


def _moved(settings: Settings, points: Array, data: Array, tau: Array, log_weights: Array) -> Array:
    return means_over_mesh(settings, points, data, data, log_weights, tau)[0]


def _step(settings: Settings, state: _State) -> _State:
    moved = _moved(settings, state.points, state.data, state.tau, state.log_weights)
    shift = jnp.sqrt(state.tau * jnp.square(moved - state.points).sum(-1).max(initial=0))
    return state._replace(points=moved, shift=shift, num_steps=state.num_steps + 1)


_step_at_once = jax.jit(_step, static_argnums=0)


# At rest x = m(x, θ), θ the data, τ and the weights, so dx = (I - J)⁻¹ ∂m/∂θ dθ with J = ∂m/∂x = τ Cov_P(k), which is
# symmetric and, at a maximum of the density, smaller than the identity: conjugate gradients solve for the cotangent, of
# all points at once.


def _moved_to_rest(settings: Settings, state: _State) -> _State:
    return lax.while_loop(_goes_on, functools.partial(_step, settings), state)


def _goes_on(state: _State) -> Array:
    return (state.num_steps < state.max_steps) & (state.shift > state.tol)


def _at_rest_forward(settings: Settings, _: Wanted, state: _State) -> tuple[_State, _State]:
    state = _at_rest(settings, state)
    return state, state


def _at_rest_backward(settings: Settings, wanted: Wanted, begun: Any, state: _State, cotangent: _State) -> list[Array]:
    operands = state.points, state.data, state.tau, state.log_weights
    settings = settings if settings.near is False else replace(settings, near=None)  # gradients need nearer points
    pullback = jax.vjp(functools.partial(_moved, settings), *operands)[1]
    solved, _ = cg(lambda g: g - pullback(g)[0], cotangent.points, tol=float(jnp.finfo(state.points.dtype).eps))
    _, *gradients = pullback(solved)
    nothing = _State(*[None] * len(state))  # type: ignore[arg-type]
    found = nothing._replace(data=gradients[0], tau=gradients[1], log_weights=gradients[2])
    return chosen(wanted, begun, (found,))


_at_rest = with_rule(_moved_to_rest, 1, _at_rest_backward, _at_rest_forward)


@functools.partial(jax.jit, static_argnums=0)
def _mean_shift(settings: Settings, points, data, tau, weights, tol, max_steps) -> MeanShift:
    state = _begun(settings, points, data, tau, weights, tol, max_steps)
    return _result(settings, _at_rest(settings, state))


@functools.partial(jax.jit, static_argnums=0)
def _result(settings: Settings, state: _State) -> MeanShift:
    labels = _labels(lax.stop_gradient(state.points), lax.stop_gradient(state.tau))
    return MeanShift((state.points + state.center).astype(settings.dtype), labels, state.num_steps)


def _labels(points: Array, tau: Array) -> Array:
    """Label modes: the first point without a label starts a mode, which all points near it join; until none is left."""

    def goes_on(state: tuple[Array, Array]) -> Array:
        return (state[0] < 0).any()

    def label(state: tuple[Array, Array]) -> tuple[Array, Array]:
        labels, number = state
        first = jnp.argmax(labels < 0)
        near = tau * jnp.square(points - points[first][None]).sum(-1) <= MERGED**2
        near |= jnp.arange(len(points)) == first  # also if the point is NaN
        return jnp.where((labels < 0) & near, number, labels), number + 1

    if len(points) == 0:
        return jnp.zeros(0, "int32")
    none = jnp.zeros_like(points[:, 0], "int32") - 1
    return lax.while_loop(goes_on, label, (none, jnp.zeros_like(tau, "int32")))[0]
