"""Custom derivative rules that know which gradients are wanted, in reverse and forward mode and of every order.

`jax.custom_vjp` refuses forward mode, and `jax.custom_jvp` has no rule for reverse mode. So a function's `custom_jvp`
gives its tangents by a primitive of their own, linear in those of the operands. To transpose it is the rule for reverse
mode; only where it is not transposed is it computed.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from .devices import vary_like

Wanted = tuple[bool, ...]


def with_rule(
    function: Callable,
    num_static: int,
    backward: Callable,
    forward: Callable | None = None,
    tangent: Callable | None = None,
) -> Any:
    """`function` of static arguments and trees of arrays, with a rule that forms only the gradients that are wanted.

    Args:
        function: of `num_static` static arguments and the operands.
        backward: (*static, wanted, operands, kept, cotangents) -> the gradients of the wanted leaves of the operands.
            `wanted` has a boolean for each leaf. XLA would leave out the others, but not from a program apart.
        forward: (*static, wanted, *operands) -> (results, kept). None: the function, which keeps nothing.
        tangent: (*static, wanted, operands, tangents of the wanted leaves) -> tangents of the results. None, or if it
            returns None: the transpose of `backward`, which is linear in cotangents.
    """
    ruled: Any = jax.custom_jvp(function, nondiff_argnums=tuple(range(num_static)))

    def keep(static: tuple[Any, ...], wanted: Wanted, operands: Any) -> tuple[Any, Any]:
        return (ruled(*static, *operands), ()) if forward is None else forward(*static, wanted, *operands)

    def rule(*args: Any) -> tuple[Any, Any]:
        *static, operands, given = args
        given = jax.tree.leaves(given, is_leaf=_is_zero)
        wanted = tuple(not _is_zero(x) for x in given)
        results, kept = keep(tuple(static), wanted, operands)
        leaves, tree = jax.tree.flatten(results)
        out = [np.zeros(x.shape, jax.dtypes.float0) for x in leaves]
        moving = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.inexact)]
        residuals, of = jax.tree.flatten((operands, kept))
        avals = tuple(jax.typeof(leaves[i]) for i in moving)
        mode = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        tangents = _Tangents(keep, backward, tangent, tuple(static), wanted, of, tree, tuple(moving), avals, mode)
        moved = _tangents_p.bind(*residuals, *itertools.compress(given, wanted), rule=tangents, num=len(residuals))
        for i, x in zip(moving, moved, strict=True):
            out[i] = x
        return results, tree.unflatten(out)

    ruled.defjvp(rule, symbolic_zeros=True)
    return ruled


def with_pullback(function: Callable, num_static: int, pullback: Callable) -> Any:
    """`with_rule` by a pullback: (*static, operands, cotangents) -> a gradient, or None for zero, for each operand."""

    def backward(*args: Any) -> list[Array]:
        *static, wanted, operands, _, cotangents = args
        return chosen(wanted, operands, pullback(*static, operands, cotangents))

    return with_rule(function, num_static, backward)


def with_formula(function: Callable, num_static: int, formula: Callable) -> Any:
    """`with_rule` by a formula, which has the same arguments and derivatives, and to which JAX's own rules apply."""

    def backward(*args: Any) -> Any:
        *static, wanted, operands, _, cotangents = args
        of_moving, moving = of_wanted(functools.partial(formula, *static), wanted, operands)
        return jax.vjp(of_moving, *moving)[1](cotangents)

    def tangent(*args: Any) -> Any:
        *static, wanted, operands, directions = args
        of_moving, moving = of_wanted(functools.partial(formula, *static), wanted, operands)
        return jax.jvp(of_moving, moving, directions)[1]

    return with_rule(function, num_static, backward, tangent=tangent)


def of_wanted(function: Callable, wanted: Wanted, operands: Any) -> tuple[Callable, list[Array]]:
    """A function as one of the wanted leaves of its operands, and these."""
    leaves, tree = jax.tree.flatten(operands)

    def of_moving(*moving: Array) -> Any:
        given = iter(moving)
        whole = [next(given) if is_wanted else x for x, is_wanted in zip(leaves, wanted, strict=True)]
        return function(*tree.unflatten(whole))

    return of_moving, [*itertools.compress(leaves, wanted)]


def chosen(wanted: Wanted, operands: Any, gradients: Any) -> list[Array]:
    """The gradients of the wanted leaves of the operands; None stands for zero."""

    def instantiated(gradient: Any, operand: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, operand) if gradient is None else gradient

    found = jax.tree.map(instantiated, tuple(gradients), tuple(operands), is_leaf=lambda x: x is None)
    return [*itertools.compress(jax.tree.leaves(found), wanted)]


def _is_zero(x: Any) -> bool:
    return isinstance(x, jax.custom_derivatives.SymbolicZero)


@dataclass(frozen=True, eq=False)
class _Tangents:
    """The tangents of one call, as functions of its residuals, the leaves of operands and of what is kept."""

    keep: Callable
    backward: Callable
    tangent: Callable | None
    static: tuple[Any, ...]
    wanted: Wanted
    of: Any  # the tree of the residuals
    tree: Any  # of the results
    moving: tuple[int, ...]  # the numbers of their leaves that have tangents
    avals: tuple[Any, ...]  # of those
    x64: bool  # JAX's mode where the rule was traced

    def pulled_back(self, residuals: Sequence[Array], cotangents: Sequence[Array]) -> list[Array]:
        """The gradients of the operands that are wanted."""
        operands, kept = self.of.unflatten(residuals)
        given = dict(zip(self.moving, cotangents, strict=True))
        whole = self.tree.unflatten(map(given.get, range(self.tree.num_leaves)))
        return [*self.backward(*self.static, self.wanted, operands, kept, whole)]

    def pushed_forward(self, residuals: Sequence[Array], directions: Sequence[Array]) -> list[Array]:
        """The tangents of the results."""
        with jax.enable_x64(self.x64):
            found = self._of_rule(residuals, directions)
            return self._transposed(residuals, directions) if found is None else found

    def of_operands(self, residuals: Sequence[Array], directions: Sequence[Array]) -> list[Array]:
        """The tangents, in which what is kept is a function of the operands."""
        with jax.enable_x64(self.x64):
            if (found := self._of_rule(residuals, directions)) is not None:
                return found
            operands, _ = self.of.unflatten(residuals)
            kept = self.keep(self.static, self.wanted, operands)[1]
            return self._transposed(jax.tree.leaves((operands, kept)), directions)

    def _of_rule(self, residuals: Sequence[Array], directions: Sequence[Array]) -> list[Array] | None:
        if self.tangent is None:
            return None
        operands, _ = self.of.unflatten(residuals)
        found = self.tangent(*self.static, self.wanted, operands, [*directions])
        return None if found is None else [jax.tree.leaves(found)[i] for i in self.moving]

    def _transposed(self, residuals: Sequence[Array], directions: Sequence[Array]) -> list[Array]:
        zeros = [vary_like(jnp.zeros(x.shape, x.dtype), residuals) for x in self.avals]
        return [*jax.vjp(lambda *g: self.pulled_back(residuals, g), *zeros)[1]([*directions])]


@dataclass(frozen=True, eq=False)
class _Mapped:
    """Tangents that are mapped over axes of residuals and directions, None for those that all share."""

    rule: Any
    axes: tuple[int | None, ...]
    of_directions: tuple[int | None, ...]
    size: int

    @property
    def avals(self) -> tuple[Any, ...]:
        """Of the results, whose first axis is the mapped one."""
        return tuple(x.update(shape=(self.size, *x.shape)) for x in self.rule.avals)

    def _over(self, function: Callable, axes: tuple[int | None, ...], first: Any, second: Any) -> list[Array]:
        num = len(first)
        mapped = jax.vmap(lambda *x: function(x[:num], x[num:]), (*self.axes, *axes), axis_size=self.size)
        return mapped(*first, *second)

    def pulled_back(self, residuals: Sequence[Array], cotangents: Sequence[Array]) -> list[Array]:
        """The gradients, added up where the operand is shared."""
        found = self._over(self.rule.pulled_back, (0,) * len(cotangents), residuals, cotangents)
        pairs = zip(found, self.of_directions, strict=True)
        return [x.sum(0) if axis is None else jnp.moveaxis(x, 0, axis) for x, axis in pairs]

    def pushed_forward(self, residuals: Sequence[Array], directions: Sequence[Array]) -> list[Array]:
        """The tangents of the results."""
        return self._over(self.rule.pushed_forward, self.of_directions, residuals, directions)

    def of_operands(self, residuals: Sequence[Array], directions: Sequence[Array]) -> list[Array]:
        """The tangents, in which what is kept is a function of the operands."""
        return self._over(self.rule.of_operands, self.of_directions, residuals, directions)


_tangents_p = Primitive("jaxgauss_tangents")
_tangents_p.multiple_results = True


def _computed(*operands: Array, rule: Any, num: int) -> list[Array]:
    return rule.pushed_forward(operands[:num], operands[num:])


def _transposed(cotangents: Sequence[Any], *operands: Any, rule: Any, num: int) -> list[Any]:
    residuals, directions = operands[:num], operands[num:]
    nothing = [None] * num
    if all(type(g) is ad.Zero for g in cotangents):
        return [*nothing, *(ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in directions)]
    cotangents = [
        vary_like(jnp.zeros(x.shape, x.dtype), residuals) if type(g) is ad.Zero else g
        for g, x in zip(cotangents, rule.avals, strict=True)
    ]
    found = rule.pulled_back(residuals, cotangents)
    return [*nothing, *(g if ad.is_undefined_primal(x) else None for g, x in zip(found, directions, strict=True))]


def _second_tangents(operands: Sequence[Any], tangents: Sequence[Any], *, rule: Any, num: int) -> tuple[Any, Any]:
    found = _tangents_p.bind(*operands, rule=rule, num=num)
    moves = [type(x) is not ad.Zero for x in tangents]
    if not any(moves[:num]):
        directions = [x if does else ad.instantiate_zeros(x) for x, does in zip(tangents, moves, strict=True)][num:]
        return found, _tangents_p.bind(*operands[:num], *directions, rule=rule, num=num)

    def of_moving(*moving: Array) -> list[Array]:
        given = iter(moving)
        whole = [next(given) if does else x for x, does in zip(operands, moves, strict=True)]
        return rule.of_operands(whole[:num], whole[num:])

    primals, directions = ([x for x, does in zip(of, moves, strict=True) if does] for of in (operands, tangents))
    return found, jax.jvp(of_moving, primals, directions)[1]


def _batched(operands: Sequence[Array], axes: Sequence[Any], *, rule: Any, num: int) -> tuple[Any, Any]:
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    mapped = _Mapped(rule, tuple(axes[:num]), tuple(axes[num:]), size)
    found = _tangents_p.bind(*operands, rule=mapped, num=num)
    return found, [0] * len(found)


_tangents_p.def_impl(_computed)


_tangents_p.def_abstract_eval(lambda *_, rule, num: [x.update(weak_type=False) for x in rule.avals])


ad.primitive_jvps[_tangents_p] = _second_tangents
ad.primitive_transposes[_tangents_p] = _transposed
batching.primitive_batchers[_tangents_p] = _batched


mlir.register_lowering(_tangents_p, mlir.lower_fun(_computed, multiple_results=True))
