"""explain: what `gauss_sum` does with given arguments, and why."""

import functools
from collections.abc import Callable
from typing import Any, Unpack, overload

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.lax import Precision

from .._arrays.devices import replicated
from .._arrays.points import align
from .._calls import also_called
from .._checks.arguments import public
from .._checks.data import checked_data
from .._checks.names import as_engine, as_kernel
from .._checks.settings import Keys, Options, Queries, Settings, Tau, Values, working_dtype
from .._engines.engine import Engine
from .._engines.engines import exact_plan_of
from .._engines.fourier.engine import seen_by_waves
from .._engines.near import examined
from .._engines.plan import Plan
from .._kernels.kernels import GAUSS, Kernel
from .._sums.preparation import checked
from .explanation import Explanation, explained


@overload
def explain(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Explanation: ...


@overload
def explain(
    queries: Queries | jax.ShapeDtypeStruct,
    keys: Keys | jax.ShapeDtypeStruct,
    values: Values | jax.ShapeDtypeStruct,
    tau: Tau = 1.0,
    *,
    kernel: str | Kernel = "gauss",
    **options: Unpack[Options],
) -> Plan: ...


def explain(*arguments: Any, **options: Any) -> Plan | Explanation:
    """Tell what a function takes, and whether it is worth it; or what `gauss_sum` or `kernel_sum` does, and why.

    `explain(function, *arguments, **options)` takes any function that JAX can trace, such as `mmd_flow_velocity` or
    `jax.grad(loss)`, and does not run it. It estimates time, memory and compiling, also of plain JAX with the full
    matrix, and lists all sums with their engines and times. A loop whose length depends on results counts as one step;
    points of which only shapes are known count as near.

    `explain(queries, keys, values, tau)` gives the engine of one sum, with all that it has chosen, and the reason.
    Shapes are enough (`jax.ShapeDtypeStruct`). The reason holds the time estimates by which "auto" chose, and where
    they come from (see `calibrate`). For other kernels it also tells whether a mixture of Gaussians stands for the
    kernel, how many there are, and their error. If the arrays have values, the points are examined, too:

    - Points of up to three dimensions: whether a Fourier series sums them, with how many waves, what error and what
      estimated time, and the share of 1024 sampled queries that are summed again.
    - Other points: whether they lie near one another, and if not, how they are summed.
    - Half precision: whether the sums at 256 sampled queries are so small that rounding changes them. On CUDA a second
      kernel then runs; its cost is in the reason.

    Likely mistakes in the data are warnings: NaN among points, and a τ by which the kernel is zero between all of them.

    Args:
        *arguments, **options: a function and its arguments; or queries, keys, values, tau, kernel, engine and
            precision, as for `kernel_sum`.

    Returns:
        For a function an `Explanation`, with `milliseconds`, `parts`, `worth_it` and more; print it. For a sum the
        `Plan` on the platform of the arrays, or of JAX's default device if the arrays have none.

    Raises:
        ValueError, TypeError: as `gauss_sum` or the function does; or the function cannot be traced.

    Example:
        >>> import jax, jaxgauss
        >>> points = jax.ShapeDtypeStruct((8192, 16), "float32")
        >>> weights = jax.ShapeDtypeStruct((8192,), "float32")
        >>> jaxgauss.explain(points, points, weights, engine="attention").engine
        Attention(kernel='cpu', precision='float32')
        >>> jaxgauss.explain(jaxgauss.mmd_squared, points, points, 1.0).worth_it
        True
    """
    if arguments and callable(arguments[0]):
        return explained(*arguments, **options)
    with checked_data():
        return _plan_of(*arguments, **options)


@public()
@functools.partial(also_called, "explain")
def _plan_of(
    queries: Any,
    keys: Any,
    values: Any,
    tau: Any = 1.0,
    *,
    kernel: str | Kernel = "gauss",
    engine: str | Engine = "auto",
    precision: str | Precision | None = None,
) -> Plan:
    kernel = as_kernel("explain", kernel)
    asked = Settings(as_engine("explain", engine, precision), function="explain", kernel=kernel)
    settings, plan = checked(asked, queries, keys, values, tau)
    if any(isinstance(x, (jax.ShapeDtypeStruct, jax.core.Tracer)) for x in (queries, keys, tau)):
        return plan
    work = working_dtype(settings.dtype)
    given = isinstance(values, jax.Array | np.ndarray) and not isinstance(values, jax.core.Tracer)
    v = jnp.asarray(values, work) if given else jnp.ones(keys.shape[-2], work)
    q, k, v, t = align(
        *replicated(*(jnp.asarray(x, work) for x in (queries, keys, v[:, None] if v.ndim == 1 else v, tau)))
    )
    if 0 in (*q.shape, *k.shape, *v.shape):
        return plan
    if kernel == GAUSS and (plan.platform != "cuda" or plan.name == "fourier"):
        if plan.platform == "cuda":  # where the points are examined for the number of waves alone
            settings = examined(settings, tau, queries, keys)
        exact = exact_plan_of(settings, plan.platform, (q, k, v, t))
        if (by_waves := seen_by_waves(exact, q, k, v, t)) is not None:
            return by_waves
    return plan.engine.seen(plan, kernel, q, k, v, t)
