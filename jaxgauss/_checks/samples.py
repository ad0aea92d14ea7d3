"""Checks of the arguments of kernel methods: samples, weights, scores, estimators, random keys."""

import functools
import math
import numbers
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from .._arrays.devices import visible
from .._calls import check_choice, warn
from .._kernels.definite import indefinite
from .._kernels.kernels import GAUSS, Kernel
from .arguments import floating_dtype
from .names import as_kernel, with_engine
from .operands import check_mesh, check_tau
from .settings import MeshOptions, Settings, Weights, matmul_precision, working_dtype

OF_DEFINITE = frozenset(  # results that mean what they say of a positive definite kernel alone
    {
        *("mmd_squared", "embedding_norm_squared", "mmd_squared_matrix", "mmd_estimate", "mmd_test"),
        *("mmd_flow_velocity", "ksd_squared", "ksd_test", "svgd_direction", "kernel_herding"),
    }
)


def check_samples(
    function: str,
    samples: dict[str, Any],
    tau: Any,
    options: MeshOptions,
    *,
    weights: dict[str, Any] | None = None,
    min_points: int = 1,
    allowed: type = MeshOptions,
    may_be_empty: str = "",
    kernel: Kernel = GAUSS,
    logs: bool = False,
    paired: bool = False,
    batches: bool = False,
) -> Settings:
    """Raise unless the samples are points (number, D) of one dimension, with one weight per point; return the settings.

    Args:
        function: the public function, for messages.
        samples: by name.
        tau: one τ, or several by name.
        options: as the caller gave them.
        weights: by name, in the order of the samples, or None.
        min_points: the smallest number of points in a sample.
        allowed: the type of the options.
        may_be_empty: the name of a sample that need not have points.
        kernel: of the sums.
        logs: whether logarithms or means are computed.
        paired: whether samples must have the same number of points, in any dimension.
        batches: whether samples, weights and τ may have leading axes, which broadcast.
    """
    where = f"`jaxgauss.{function}`"
    check_options(function, options, allowed)
    asked = with_engine(function, options)
    given = {**samples, **{name: x for name, x in (weights or {}).items() if x is not None}}
    masks = [name for name, x in (weights or {}).items() if is_mask(x)]
    dtypes = {floating_dtype(where, name, x) for name, x in given.items() if name not in masks}
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in given.items())
    for name, x in samples.items():
        if len(x.shape) < 2 or (len(x.shape) > 2 and not batches) or x.shape[-1] == 0:
            what, how = (
                ("(…, number, dimension)", "") if batches else ("(number, dimension)", "; batches go by jax.vmap")
            )
            raise ValueError(
                f"{where}: `{name}` must be points {what}; got {shapes}. One-dimensional points are"
                f" {name}[:, None]{how}."
            )
    alike = "number" if paired else "dimension"
    if len({x.shape[-2 if paired else -1] for x in samples.values()}) > 1:
        fix = "Row i of each is one pair." if paired else "A point is a row: transpose columns."
        raise ValueError(f"{where}: {listed(*samples)} must be points of the same {alike}; got {shapes}. {fix}")
    for name, x in samples.items():
        if name != may_be_empty and x.shape[-2] < min_points:
            number = f"{min_points} point{'s' * (min_points > 1)}"
            raise ValueError(f"{where}: `{name}` must hold at least {number}; got {shapes}. Pass more points.")
    for (name, x), points in zip((weights or {}).items(), samples, strict=False):
        num = samples[points].shape[-2]
        if x is not None and (x.shape[-1:] != (num,) or (len(x.shape) > 1 and not batches)):
            fix = f"Its shape must be ({'…, ' * batches}{num}{',' * (not batches)})."
            raise ValueError(
                f"{where}: `{name}` must hold one weight for each point of `{points}`; got {shapes}. {fix}"
            )
    if (normalize := options.get("normalize", False)) is not False:
        _check_sums(where, normalize, weights or {})
    for name in masks:
        if (seen := visible(given[name])) is not None and not seen.any(-1).all():
            which = f"all {seen.shape[-1]}" + " points of an element of the batch" * (seen.ndim > 1)
            raise ValueError(f"{where}: `{name}` must keep a point; got False for {which}. Change the mask.")
    dtype = dtypes.pop() if len(dtypes) == 1 else jnp.result_type(*dtypes)
    taus = tau if isinstance(tau, dict) else {"tau": tau}
    of_taus = {name: check_tau(where, x, working_dtype(dtype), name) for name, x in taus.items()}
    for name, shape in of_taus.items():
        if (len(shape) > 1 and not batches) or shape[-1:] == (0,):
            raise ValueError(
                f"{where}: `{name}` must be a number or one-dimensional; got {name} {shape}. Pass one number, or"
                " several as (T,)."
            )
    if function in OF_DEFINITE:
        warn_if_indefinite(function, kernel, next(iter(samples.values())).shape[-1])
    if batches:
        leading = {name: tuple(x.shape[: -2 if name in samples else -1]) for name, x in given.items()}
        _check_leading_axes(where, shapes, leading, of_taus)
    what = {"kernel": kernel, "logs": logs, "matmul_precision": matmul_precision()}
    return Settings(dtype=dtype.name, function=function, **what, **asked)


def listed(*names: str) -> str:
    """Names of arguments, for messages."""
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)


def _check_leading_axes(where: str, shapes: str, leading: dict[str, Any], taus: dict[str, Any]) -> None:
    """Raise ValueError unless leading axes broadcast, and those of each τ against them, before its axis of bandwidths.

    A τ whose last axis might be meant as that of the batch is refused.
    """
    of_taus = "".join(f", {name} {shape}" for name, shape in taus.items() if shape)
    try:
        batch = jnp.broadcast_shapes(*leading.values())
        jnp.broadcast_shapes(batch, *(shape[:-1] for shape in taus.values()))
    except ValueError:
        fix = "Add axes of length 1." + " The last axis of τ is that of bandwidths, which are averaged." * bool(of_taus)
        raise ValueError(
            f"{where}: {listed(*leading, *taus)} must have leading axes that broadcast as in jnp.matmul; got"
            f" {shapes}{of_taus}. {fix}"
        ) from None
    for name, shape in taus.items():
        if 0 < len(shape) <= len(batch) and shape[-1] == batch[-1] != 1:
            axes = "None, " * (len(batch) + 1 - len(shape))
            raise ValueError(
                f"{where}: `{name}` must have one axis more than the batch if it is as long; got {shapes}, {name}"
                f" {shape}. Pass {name}[..., None] for one in each element, {name}[{axes}:] for bandwidths that are"
                " averaged."
            )


def _check_sums(where: str, normalize: Any, weights: dict[str, Any]) -> None:
    """Raise unless known weights can be divided by their sum."""
    if normalize is not True:
        given = f"{type(normalize).__name__} {normalize!r}"
        raise TypeError(f"{where}: `normalize` must be True or False; got {given}. Pass normalize=True.")
    for name, x in weights.items():
        seen = None if x is None else visible(x)
        if seen is not None and not (np.abs(sums := seen.sum(-1)) > 1e-6 * np.abs(seen).sum(-1)).all():
            least = sums.flat[np.abs(sums).argmin()]
            raise ValueError(
                f"{where}: `{name}` must not add up to zero to be normalized; got weights of the sum {least:.3g}."
                " Leave `normalize` out."
            )


def check_options(function: str, options: MeshOptions, allowed: type = MeshOptions) -> None:
    """Raise TypeError for an option that the function does not take; check the axes of the mesh."""
    names = allowed.__annotations__
    unknown = sorted(set(options) - set(names))
    if unknown:
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown[0]!r}")
    check_mesh(function, options.get("mesh"), options.get("query_axis"), options.get("key_axis"))


def check_kernel(function: str, kernel: Any, *, positive: bool = False, smooth: bool = False) -> Kernel:
    """The kernel; ValueError unless it is positive definite or has second derivatives where it must."""
    where, found = f"`jaxgauss.{function}`: `kernel` must", as_kernel(function, kernel)
    if positive and found.conditional:
        raise ValueError(
            f"{where} be positive definite; got {found!r}, which is so only for weights that add up to zero. Use"
            " kernel='matern12', or 'imq'."
        )
    if smooth and found.kinked:
        raise ValueError(
            f"{where} have second derivatives; got {found!r}, which has a kink where points coincide. Use"
            " kernel='imq', or 'matern52'."
        )
    return found


def warn_if_indefinite(function: str, kernel: Kernel, dim: int) -> None:
    """Warn of a kernel of one's own that is known not to be positive definite, or not conditionally so if it should."""
    if (found := indefinite(kernel, dim)) is not None:
        be, fix = "positive definite", "`kernel_sum` takes any kernel."
        if kernel.conditional:
            be += " for weights that add up to zero"
        elif found.is_conditional:
            fix = "It may be so for weights that add up to zero: pass conditional=True to its `Kernel`."
        warn(
            f"`jaxgauss.{function}`: `kernel` should be {be}, or squared norms may be negative; got {kernel!r}, of"
            f" which a matrix of points in {dim} dimensions has the eigenvalue {found.eigenvalue:.1g} times its norm."
            f" {fix}"
        )


def is_mask(weights: Any) -> bool:
    """Whether weights are a mask of booleans: the points that it keeps have equal weights."""
    return getattr(weights, "dtype", None) == np.bool_


def check_balance(settings: Settings, **weights: Any) -> None:
    """Raise ValueError if the kernel is conditionally positive definite and known weights have unequal sums.

    For any kernel, warn if weights that are nowhere negative have a sum above two. Normalized weights pass.
    """
    if settings.normalize:
        return
    kernel, where = settings.kernel, f"`jaxgauss.{settings.function}`"
    seen = [np.ones(1) if a is None or is_mask(a) else visible(a) for a in weights.values()]
    sums, sizes = ([f(a) for a in seen if a is not None] for f in (lambda a: a.sum(-1), lambda a: np.abs(a).sum(-1)))
    unequal = (
        np.ptp(np.broadcast_arrays(*sums), 0) > 1e-3 * functools.reduce(np.maximum, sizes) if sums else np.zeros(())
    )
    if kernel.conditional and unequal.any():
        sums = [np.broadcast_to(x, unequal.shape).flat[unequal.argmax()] for x in sums]
        names, given = (" and ".join(x) for x in ((f"`{name}`" for name in weights), (f"{x:.6g}" for x in sums)))
        raise ValueError(
            f"{where}: {names} must have one sum for {kernel!r}, which is only conditionally positive"
            f" definite; got sums {given}. Pass normalize=True."
        )
    for name, a in zip(weights, seen, strict=True):
        if a is not None and a.size and (largest := a.sum(-1).max()) > 2 and a.min() >= 0:
            warn(
                f"{where}: `{name}` should have the sum 1, because they are not normalized; got {largest:.6g}. Pass"
                " normalize=True, or a mask of booleans."
            )


def check_signs(function: str, weights: Weights | None, name: str = "weights") -> None:
    """Raise ValueError if known weights are negative or all zero."""
    seen = None if weights is None else visible(weights)
    if seen is not None and seen.size and not (seen.min() >= 0 and (seen.sum(-1) > 0).all()):
        largest = seen.max(-1).min() if seen.min() >= 0 else seen.max()
        raise ValueError(
            f"`jaxgauss.{function}`: `{name}` must not be negative, nor all zero; got {name} from {seen.min()}"
            f" to {largest}. Pass positive ones."
        )


def warn_of_ties(function: str, num: int, different: int, best: Any, tau: Any) -> None:
    """Warn that equal points made the best score, and which τ was chosen instead."""
    warn(
        f"`jaxgauss.{function}`: `points` should differ, because equal ones make a narrow kernel look good, however"
        f" narrow it is; got {different} different ones of {num}, and the largest score at tau {float(best):.3g}."
        f" `tau` is {float(tau):.3g}, the best one if equal points are left out together."
    )


def check_distinct_pairs(
    function: str, estimator: str, weights: dict[str, Any], fix: str = "Use estimator='biased'."
) -> None:
    """Raise ValueError if the unbiased estimate of known weights would be 0/0."""
    for name, a in weights.items():
        seen = None if a is None or estimator == "biased" else visible(a)
        if seen is not None and (np.square(seen.sum(-1)) == np.square(seen).sum(-1)).any():
            raise ValueError(
                f"`jaxgauss.{function}`: `{name}` must weigh pairs of distinct points, because i = i is left out; got"
                f" {np.count_nonzero(seen, -1).min()} of {seen.shape[-1]} points with weight. {fix}"
            )


def check_rng_key(function: str, rng_key: Any) -> None:
    """Raise TypeError unless it is one random key, typed or as integers."""
    if isinstance(rng_key, jax.Array | np.ndarray):
        if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key):
            if rng_key.shape == ():
                return
        elif rng_key.dtype == np.uint32 and rng_key.ndim == 1:
            return
    given = f"{rng_key.dtype} {rng_key.shape}" if hasattr(rng_key, "dtype") else repr(rng_key)
    raise TypeError(
        f"`jaxgauss.{function}`: `rng_key` must be one random key; got {given}. Make one with jax.random.key(0),"
        " several with jax.random.split."
    )


def check_scores(function: str, name: str, points: Any, scores: Any) -> None:
    """Raise ValueError unless there is one score per point."""
    if scores.shape[-2:] != points.shape[-2:]:
        raise ValueError(
            f"`jaxgauss.{function}`: `scores` must be of the shape of `{name}`; got {name} {points.shape}, scores"
            f" {scores.shape}. One for each: jax.vmap(jax.grad(log_density))({name})."
        )


def check_estimator(function: str, estimator: str) -> None:
    """Raise ValueError unless the estimator is "biased" or "unbiased"."""
    check_choice(function, "estimator", estimator, ("biased", "unbiased"))


def check_positive(function: str, name: str, value: Any, below: float = math.inf, fix: str = "") -> None:
    """Raise ValueError unless it is a positive finite number, less than a bound."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < below:
        what = "a positive finite number" if below == math.inf else f"a number between 0 and {below:g}"
        raise ValueError(
            f"`jaxgauss.{function}`: `{name}` must be {what}; got {name} {value!r}. {fix or f'Pass {name}=1.0.'}"
        )


def check_number(function: str, name: str, number: Any, least: int = 1) -> None:
    """Raise ValueError unless it is an integer that is large enough, or TypeError if it is traced."""
    where = f"`jaxgauss.{function}`: `{name}` must be"
    if isinstance(number, jax.core.Tracer):
        raise TypeError(
            f"{where} known before a transformation; got a tracer, {jax.typeof(number)}. Mark it as static:"
            f" jax.jit(…, static_argnames={name!r})."
        )
    if isinstance(number, bool) or not isinstance(number, numbers.Integral) or number < least:
        what = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{where} {what}; got {name} {number!r}. Pass {name}={max(least, 10)}, for example.")
