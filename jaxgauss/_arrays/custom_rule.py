"""Custom derivative rules that know which gradients are wanted, in reverse and forward mode and of every order.

`jax.custom_vjp` refuses forward mode, and JAX 0.10.2 drops the rule of a `jax.custom_jvp` in a loop that is
differentiated twice. So a function with a rule is a primitive. Its tangents are by another, linear in those of the
operands. To transpose it is the rule for reverse mode; only where it is not transposed is it computed.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import DynamicJaxprTracer
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

    def ruled(*args: Any) -> Any:
        static, (leaves, tree) = args[:num_static], jax.tree.flatten(args[num_static:])
        if is_plain(static) or not any(isinstance(x, Tracer) for x in leaves):
            return function(*args)
        results: list[Any] = []  # their tree, as it was found last

        def flat(of: Any) -> list[Array]:
            found, results[:] = (both := jax.tree.flatten(of))[0], both[1:]
            return found

        def of_leaves(*leaves: Array) -> list[Array]:
            return flat(function(*static, *tree.unflatten(leaves)))

        def rule(leaves: Sequence[Array], given: Sequence[Array | None]) -> tuple[list[Array], list[Array | None]]:
            wanted, operands = tuple(x is not None for x in given), tree.unflatten(leaves)
            found, kept = keep(static, wanted, operands)
            found = flat(found)
            moving = [i for i, x in enumerate(found) if jnp.issubdtype(x.dtype, jnp.inexact)]
            residuals, of = jax.tree.flatten((operands, kept))
            avals = tuple(jax.typeof(found[i]) for i in moving)
            tangents = _Tangents(
                keep, backward, tangent, static, wanted, of, results[0], tuple(moving), avals, _is_64_bit()
            )
            moved = _tangents_p.bind(*residuals, *itertools.compress(given, wanted), rule=tangents, num=len(residuals))
            by_number = dict(zip(moving, moved, strict=True))
            return found, [by_number.get(i) for i in range(len(found))]

        found = _Call(of_leaves, rule, _is_64_bit()).bind(leaves)
        return results[0].unflatten(found)

    def keep(static: tuple[Any, ...], wanted: Wanted, operands: Any) -> tuple[Any, Any]:
        return (ruled(*static, *operands), ()) if forward is None else forward(*static, wanted, *operands)

    return functools.wraps(function)(ruled)


def is_plain(static: tuple[Any, ...]) -> bool:
    """Whether settings among static arguments leave the derivatives to JAX."""
    return any(getattr(x, "plain", False) for x in static)


def with_pullback(function: Callable, num_static: int, pullback: Callable) -> Any:
    """`with_rule` by a pullback: (*static, operands, cotangents) -> a gradient, or None for zero, for each operand."""

    def backward(*args: Any) -> list[Array]:
        *static, wanted, operands, _, cotangents = args
        return chosen(wanted, operands, pullback(*static, operands, cotangents))

    return with_rule(function, num_static, backward)


def with_formula(function: Callable, num_static: int, formula: Callable) -> Any:
    """`with_rule` by a formula, which has the same arguments and derivatives, and to which JAX's own rules apply."""
    backward, tangent = _by_formula(formula)
    return with_rule(function, num_static, backward, tangent=tangent)


def _by_formula(formula: Callable) -> tuple[Callable, Callable]:
    """The rules `backward` and `tangent` of a formula, by JAX's own."""

    def backward(*args: Any) -> Any:
        *static, wanted, operands, _, cotangents = args
        of_moving, moving = of_wanted(functools.partial(formula, *static), wanted, operands)
        return jax.vjp(of_moving, *moving)[1](cotangents)

    def tangent(*args: Any) -> Any:
        *static, wanted, operands, directions = args
        of_moving, moving = of_wanted(functools.partial(formula, *static), wanted, operands)
        return jax.jvp(of_moving, moving, directions)[1]

    return backward, tangent


def transposable(function: Callable, num_static: int, linear: int) -> Any:
    """`function` with JAX's own derivatives, which `jax.linear_transpose` transposes in one operand.

    It is linear in that, but looks at it as well: at units, and at weights of zero, which JAX cannot transpose.
    """

    def ruled(*args: Any) -> Any:
        static, operands = args[:num_static], args[num_static:]
        if is_plain(static) or not isinstance(operands[linear], Tracer):
            return function(*args)
        of = functools.partial(function, *static)

        def rule(leaves: Sequence[Array], given: Sequence[Array | None]) -> tuple[list[Array], list[Array | None]]:
            of_moving, moving = of_wanted(of, tuple(x is not None for x in given), tuple(leaves))
            found, moved = jax.jvp(of_moving, moving, [x for x in given if x is not None])
            return jax.tree.leaves(found), jax.tree.leaves(moved)

        found = _Call(lambda *leaves: jax.tree.leaves(of(*leaves)), rule, _is_64_bit()).bind(operands)
        return tuple(found) if len(found) > 1 else found[0]

    return functools.wraps(function)(ruled)


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


def _is_64_bit() -> bool:
    return jax.config.jax_enable_x64  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class _Call:
    """A function of leaves, and its rule: (leaves, tangents) -> (results, tangents of these), None for no tangent."""

    function: Callable
    rule: Callable
    x64: bool  # JAX's mode where it was called

    def bind(self, leaves: Sequence[Array]) -> list[Array]:
        """Its results, by the primitive. Where a program is traced, JAX sees what it does, and so its mesh."""
        is_program = all(isinstance(x, DynamicJaxprTracer) for x in leaves if isinstance(x, Tracer))
        traced = self.traced(map(jax.typeof, leaves)) if is_program else None
        return _function_p.bind(*leaves, call=self, traced=traced)

    def traced(self, avals: Iterable[Any]) -> ClosedJaxpr:
        """What the function does."""
        with jax.enable_x64(self.x64):
            return jax.make_jaxpr(self.function)(*avals)

    def mapped(self, axes: tuple[int | None, ...], size: int) -> "_Call":
        """It over axes of the leaves."""

        def rule(leaves: Sequence[Array], given: Sequence[Array | None]) -> tuple[list[Array], list[Array | None]]:
            of_given = [None if x is None else axis for x, axis in zip(given, axes, strict=True)]
            return jax.vmap(self.rule, ([*axes], of_given), axis_size=size)([*leaves], [*given])

        return _Call(jax.vmap(self.function, axes, axis_size=size), rule, self.x64)


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


_function_p = Primitive("jaxgauss_function")
_function_p.multiple_results = True


def _results(*leaves: Array, call: _Call, traced: ClosedJaxpr | None) -> list[Array]:
    with jax.enable_x64(call.x64):
        return call.function(*leaves) if traced is None else jaxpr_as_fun(traced)(*leaves)


def _results_avals(*avals: Any, call: _Call, traced: ClosedJaxpr | None) -> list[Any]:
    return (traced or call.traced(avals)).out_avals


def _first_tangents(leaves: Sequence[Any], tangents: Sequence[Any], *, call: _Call, traced: Any) -> tuple[Any, Any]:
    found, moved = call.rule([*leaves], [None if type(x) is ad.Zero else x for x in tangents])
    zeros = (ad.Zero(jax.typeof(x).to_tangent_aval()) for x in found)
    return found, [zero if x is None else x for x, zero in zip(moved, zeros, strict=True)]


def _function_batched(leaves: Sequence[Array], axes: Sequence[Any], *, call: _Call, traced: Any) -> tuple[Any, Any]:
    found = call.mapped(tuple(axes), _size(leaves, axes)).bind(leaves)
    return found, [0] * len(found)


def _function_transposed(cotangents: Sequence[Any], *leaves: Any, call: _Call, traced: Any) -> list[Any]:
    """A function that is linear in some leaves is its own tangent: its rule at zero transposes it."""
    linear = [ad.is_undefined_primal(x) for x in leaves]

    def of_linear(*moving: Array) -> list[Array]:
        given = iter(moving)
        return call.bind([next(given) if is_linear else x for x, is_linear in zip(leaves, linear, strict=True)])

    zeros = [jnp.zeros(x.aval.shape, x.aval.dtype) for x in itertools.compress(leaves, linear)]
    found = iter(jax.vjp(of_linear, *zeros)[1]([*map(ad.instantiate_zeros, cotangents)]))
    return [next(found) if is_linear else None for is_linear in linear]


def _size(operands: Sequence[Array], axes: Sequence[Any]) -> int:
    return next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)


_function_p.def_impl(_results)
_function_p.def_abstract_eval(_results_avals)
ad.primitive_jvps[_function_p] = _first_tangents
ad.primitive_transposes[_function_p] = _function_transposed
batching.primitive_batchers[_function_p] = _function_batched
mlir.register_lowering(_function_p, mlir.lower_fun(_results, multiple_results=True))


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
    """Bound as tangents of their own: so no function with a rule is applied to tangents, which JAX may transpose."""
    found = _tangents_p.bind(*operands, rule=rule, num=num)
    moves = tuple(type(x) is not ad.Zero for x in tangents)
    if not any(moves[:num]):
        directions = [x if does else ad.instantiate_zeros(x) for x, does in zip(tangents, moves, strict=True)][num:]
        return found, _tangents_p.bind(*operands[:num], *directions, rule=rule, num=num)
    second = _of_formula(lambda *x: rule.of_operands(x[:num], x[num:]), moves, rule.avals)
    return found, _tangents_p.bind(*operands, *itertools.compress(tangents, moves), rule=second, num=len(operands))


def _of_formula(formula: Callable, wanted: Wanted, avals: tuple[Any, ...]) -> _Tangents:
    """The tangents of a formula from arrays to a list of them."""
    backward, tangent = _by_formula(formula)
    of, tree = jax.tree.structure(((0,) * len(wanted), ())), jax.tree.structure([*avals])
    moving = tuple(range(len(avals)))
    return _Tangents(lambda *_: (None, ()), backward, tangent, (), wanted, of, tree, moving, avals, _is_64_bit())


def _batched(operands: Sequence[Array], axes: Sequence[Any], *, rule: Any, num: int) -> tuple[Any, Any]:
    mapped = _Mapped(rule, tuple(axes[:num]), tuple(axes[num:]), _size(operands, axes))
    found = _tangents_p.bind(*operands, rule=mapped, num=num)
    return found, [0] * len(found)


_tangents_p.def_impl(_computed)


_tangents_p.def_abstract_eval(lambda *_, rule, num: [x.update(weak_type=False) for x in rule.avals])


ad.primitive_jvps[_tangents_p] = _second_tangents
ad.primitive_transposes[_tangents_p] = _transposed
batching.primitive_batchers[_tangents_p] = _batched


mlir.register_lowering(_tangents_p, mlir.lower_fun(_computed, multiple_results=True))
