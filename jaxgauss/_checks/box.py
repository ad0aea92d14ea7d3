"""Check of the box of a sketch."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import numpy as np
from jaxtyping import Array, Float

Bound = float | Sequence[float] | Float[np.ndarray | Array, " d"] | None


def corners(where: str, box: tuple[Bound, Bound], keys: Any, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper corner in float64, moved outwards by rounding to `dtype`; None stands for the keys'."""
    found = _corner(where, "lower", box[0], np.min, keys), _corner(where, "upper", box[1], np.max, keys)
    with np.errstate(over="ignore"):
        lower, upper = (extreme(x, x.astype(dtype)) for extreme, x in zip((np.minimum, np.maximum), found, strict=True))
    if not (lower <= upper).all():
        raise ValueError(
            f"{where}: `lower` must be at most `upper`; got {lower.tolist()} and {upper.tolist()}. Swap them."
        )
    return lower, upper


def _corner(where: str, name: str, given: Bound, extreme: Any, keys: Any) -> np.ndarray:
    """A corner of the box: the one that was given, or that of the keys."""
    if given is None:
        if isinstance(keys, jax.core.Tracer):
            raise TypeError(
                f"{where}: `{name}` must be given under a transformation such as jit; got None. Pass a number."
            )
        if not len(keys):
            raise ValueError(f"{where}: `{name}` must be given where there are no keys; got None. Pass a number.")
        given = extreme(np.asarray(keys, np.float64), 0)
    try:
        found = np.broadcast_to(np.asarray(given, np.float64), keys.shape[1:])
    except (TypeError, ValueError, jax.errors.JAXTypeError):
        found = np.asarray(math.nan)
    if not np.isfinite(found).all():
        raise ValueError(
            f"{where}: `{name}` must be finite, a number or ({keys.shape[1]},); got {name} {given}. Leave it out for"
            " that of the keys."
        )
    return found
