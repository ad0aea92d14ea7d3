"""explain: what `gauss_sum` does with given arguments, and why."""

import math
from dataclasses import replace

import jax
import jax.core
import jax.numpy as jnp

from .._arrays.places import whole
from .._arrays.points import align, scaled_points, squared_reach, with_norms
from .._checks.operands import takes_tau
from .._checks.settings import Bandwidth, Keys, Queries, Settings, Values, working_dtype
from .._engines import bridge
from .._engines.plan import NATIVE, Plan
from .checked import checked


@takes_tau
def explain(
    queries: Queries | jax.ShapeDtypeStruct,
    keys: Keys | jax.ShapeDtypeStruct,
    values: Values | jax.ShapeDtypeStruct,
    tau: Bandwidth = 1.0,
    *,
    method: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
) -> Plan:
    """What `gauss_sum` does with these arguments: method, precision, kernel, and the reason.

    Sums nothing; `jax.ShapeDtypeStruct` will do for the arrays. Of arrays with values it also says what becomes of
    points that lie too far from their center, in bandwidths, for the precision. (One thing is known only when the sum
    is there: half precision is also left where all sums are so small that rounding has moved them.) The kernel methods
    do the same with all of their points together, and reach less far, for the sake of their slopes: R = 11 bandwidths
    in float32, `log_gauss_sum` and densities 22 (or 2 √D). Float64 takes three to eight times as long.

    Args:
        queries, keys, values, tau, method, precision, backend: as for `gauss_sum`.

    Returns:
        The `Plan` on the platform of the arrays (of JAX's default device if they do not tell).

    Raises:
        ValueError, TypeError: as `gauss_sum` does.

    Example:
        >>> import jax, jaxgauss
        >>> points = jax.ShapeDtypeStruct((8192, 16), "float32")
        >>> weights = jax.ShapeDtypeStruct((8192,), "float32")
        >>> jaxgauss.explain(points, points, weights, method="rescale").backend
        'cpu'
    """
    settings, chosen = checked(Settings(method, precision, backend, function="explain"), queries, keys, values, tau)
    if any(isinstance(x, (jax.ShapeDtypeStruct, jax.core.Tracer)) for x in (queries, keys, tau)):
        return chosen
    work = working_dtype(settings.dtype)
    q, k, _, t = align(*whole(*(jnp.asarray(x, work) for x in (queries, keys, keys, tau))))
    reach = float(squared_reach(*with_norms(*scaled_points(q, k, t))))
    return _of_points(chosen, reach, by_name=method in NATIVE)


def _of_points(chosen: Plan, reach: float, by_name: bool) -> Plan:
    """The plan for points whose farthest lies √reach bandwidths from their center; XLA's may be asked for by name."""
    far = f"points lie {math.sqrt(reach):.0f} bandwidths from their center, farther than {chosen.precision} reaches"
    if reach > chosen.reach:
        way, backend = ("differences", "xla") if by_name else ("blocked", "torch")
        return replace(chosen, method=way, precision="float64", backend=backend, reason=far)
    if not chosen.native and reach > bridge.backend().REACH[chosen.method][chosen.precision]:
        again = {"cuda": ("efficient", "float32")}.get(chosen.platform, ("cpu", "float32 or float64"))
        return replace(chosen, method="rescale", backend=again[0], precision=again[1], reason=far)
    return chosen
