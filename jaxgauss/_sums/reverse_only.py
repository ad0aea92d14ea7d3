"""Forward mode, refused by name: an identity whose tangent can be transposed, and nothing else.

`jax.custom_vjp` refuses it as well, but only where a rule is met that is one, and in JAX's own words.
"""

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

_WAYS = {
    name: f" `{name}` with forward_mode=True has tangents, and works under jax.hessian."
    for name in ("gauss_sum", "kernel_sum")
}


def reverse_only(function: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """The operands, whose tangents raise TypeError, in the name of the public function, if they are asked for."""
    return tuple(_primal_p.bind(x, function=function) for x in operands)


_primal_p, _tangent_p = Primitive("jaxgauss_reverse_only"), Primitive("jaxgauss_tangent")


def _refuse(tangent, function: str):
    raise TypeError(
        f"`jaxgauss.{function}`: derivatives must be taken in reverse mode; got a tangent {tangent} by jax.jvp,"
        " jax.jacfwd, jax.linearize or jax.hessian. Use jax.jacrev(jax.grad(f)) for a Hessian, jax.grad(lambda x:"
        f" jnp.vdot(jax.grad(f)(x), v)) for its product with v.{_WAYS.get(function, '')}"
    )


def _primal_and_tangent(primals, tangents, *, function: str):
    (x,), (d_x,) = primals, tangents
    primal = _primal_p.bind(x, function=function)
    return primal, d_x if type(d_x) is ad.Zero else _tangent_p.bind(d_x, function=function)


for _primitive in (_primal_p, _tangent_p):
    _primitive.def_abstract_eval(lambda x, *, function: x)


_primal_p.def_impl(lambda x, *, function: x)


_tangent_p.def_impl(lambda x, *, function: _refuse(jax.typeof(x), function))


ad.primitive_jvps[_primal_p] = _primal_and_tangent


ad.deflinear2(_tangent_p, lambda g, _, *, function: [g])


batching.primitive_batchers[_primal_p] = lambda x, axes, *, function: (_primal_p.bind(*x, function=function), *axes)
batching.primitive_batchers[_tangent_p] = lambda x, _, *, function: _refuse(jax.typeof(*x), function)


mlir.register_lowering(_primal_p, lambda _, x, *, function: [x])


mlir.register_lowering(_tangent_p, lambda context, _, *, function: _refuse(context.avals_in[0], function))
