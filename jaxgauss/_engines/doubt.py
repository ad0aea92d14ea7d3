"""Sums by waves, and what becomes of the queries that they leave in doubt: few from differences, many by tiles."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from .._arrays.places import vary_like

SHARE = 32  # one in so many of the queries may be few
CHUNK = 64  # of them at a time

Doubt = Bool[Array, " m"]


def settled(
    pays: Array | bool,
    by_waves: Callable[[], tuple[Sequence[Any], Sequence[Doubt]]],
    of_rows: Sequence[Callable[[Array], Any]],
    by_tiles: Callable[[], Sequence[Any]],
    zeros: Sequence[Any],
    operands: Sequence[Array],
) -> list[Any]:
    """Results by waves where they pay, those in doubt settled; else by tiles.

    Several may be asked for, each with its own queries, a function `of_rows` of the numbers of some of these, and
    zeros for its results.
    """

    def varying(results: Any) -> Any:
        return jax.tree.map(lambda x: vary_like(x, operands), results)

    def by_none() -> Any:
        return varying((zeros, [jnp.ones(len(jax.tree.leaves(x)[0]), bool) for x in zeros]))

    def where_they_pay() -> Any:
        return varying(by_waves())

    found, doubt = where_they_pay() if pays is True else lax.cond(pays, where_they_pay, by_none)

    def corrected() -> Sequence[Any]:
        return [_corrected(*x) for x in zip(doubt, found, of_rows, strict=True)]

    are_many = functools.reduce(jnp.logical_or, [x.sum() > len(x) // SHARE for x in doubt])
    are_none = ~functools.reduce(jnp.logical_or, [x.any() for x in doubt])
    way = jnp.where(are_none, 0, jnp.where(are_many, 2, 1))
    return lax.switch(way, (lambda: found, corrected, lambda: varying(by_tiles())))


def _corrected(doubt: Doubt, found: Any, of_rows: Callable[[Array], Any]) -> Any:
    """The results, those in doubt put in their places."""
    places = jnp.nonzero(doubt, size=len(doubt) // SHARE + CHUNK, fill_value=len(doubt))[0].astype("int32")
    number = doubt.sum(dtype="int32")

    def add(state: tuple[Array, Any]) -> tuple[Array, Any]:
        start, total = state
        place = lax.dynamic_slice(places, (start,), (CHUNK,))
        return start + CHUNK, jax.tree.map(lambda x, y: x.at[place].set(y, mode="drop"), total, of_rows(place))

    start = vary_like(jnp.zeros((), "int32"), [doubt])
    return lax.while_loop(lambda state: state[0] < number, add, (start, found))[1]


def rows_of(x: Array, place: Array) -> Array:
    """Of these numbers; zeros of those from the last on."""
    return x.at[place].get(mode="fill", fill_value=0)
