"""Checks of the labels that divide points into groups."""

from typing import Any

import jax
import jax.core
import numpy as np

from .arguments import as_array


def check_segments(function: str, segments: Any, num_queries: int, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """The labels of the queries and of the keys; TypeError or ValueError unless there is one for each."""
    if not isinstance(segments, tuple | list) or len(segments) != 2:
        given = f"{len(segments)} of them" if isinstance(segments, tuple | list) else type(segments).__name__
        raise ValueError(
            f"`jaxgauss.{function}`: `segments` must be a pair, the labels of the queries and those of the keys; got"
            f" {given}. If both are the same points: (labels, labels)."
        )
    counts = {"queries": num_queries, "keys": num_keys}
    found = [check_labels(function, x, *about) for x, about in zip(segments, counts.items(), strict=True)]
    return found[0], found[1]


def check_labels(function: str, labels: Any, points: str, number: int) -> np.ndarray:
    """The labels in int64; TypeError or ValueError unless they are known integers, one for each point."""
    where, labels = f"`jaxgauss.{function}`: `segments` must", as_array(labels, function, "segments")
    if isinstance(labels, jax.core.Tracer):
        raise TypeError(
            f"{where} be known outside of transformations; got a tracer, {jax.typeof(labels)}. Close over the labels"
            " instead of passing them to the transformed function, or compute them with NumPy."
        )
    if not isinstance(labels, jax.Array | np.ndarray):
        raise TypeError(
            f"{where} hold JAX or NumPy arrays; got {type(labels).__name__}. Convert the labels with np.asarray."
        )
    fits = labels.dtype.kind in "iu"
    if labels.dtype == np.uint64 and labels.size:
        fits = np.asarray(labels).max() <= np.iinfo("int64").max
    if not fits:
        raise TypeError(
            f"{where} hold integers that fit into int64; got {labels.dtype}. Number the groups:"
            " np.unique(labels, return_inverse=True)[1]."
        )
    if labels.shape != (number,):
        raise ValueError(
            f"{where} hold one label for each of the {points}, ({number},); got {labels.shape}. All elements of a batch"
            " share the labels."
        )
    return np.asarray(labels, "int64")
