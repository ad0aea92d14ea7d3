"""Symmetric positive semidefinite operators with the methods that lineax requires; one of them the preconditioner."""

import jax
import jax.numpy as jnp
import lineax as lx
from jax import lax
from jaxtyping import Array, Float

from .._arrays.points import dot


class Symmetric(lx.AbstractLinearOperator):
    """Base class of such operators, which have `mv`, `diagonal` and `in_structure`."""

    def as_matrix(self) -> Float[Array, "n n"]:
        """The matrix, (N, N): for few points only."""
        vector = self.in_structure()
        return jax.vmap(self.mv)(jnp.eye(*vector.shape, dtype=vector.dtype))

    def transpose(self) -> "Symmetric":
        """The operator itself."""
        return self

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """The same as `in_structure`."""
        return self.in_structure()


for _yes in (lx.is_symmetric, lx.is_positive_semidefinite):
    _yes.register(Symmetric, lambda _: True)
for _no in (
    lx.is_diagonal,
    lx.is_tridiagonal,
    lx.is_lower_triangular,
    lx.is_upper_triangular,
    lx.is_negative_semidefinite,
    lx.has_unit_diagonal,
):
    _no.register(Symmetric, lambda _: False)
for _same in (lx.linearise, lx.conj):
    _same.register(Symmetric, lambda operator: operator)
lx.diagonal.register(Symmetric, lambda operator: operator.diagonal())
lx.materialise.register(
    Symmetric,
    lambda operator: lx.MatrixLinearOperator(operator.as_matrix(), (lx.symmetric_tag, lx.positive_semidefinite_tag)),
)


class NystromPreconditioner(Symmetric):
    """An approximate inverse P⁻¹ of an operator, made by `nystrom_preconditioner`: P = S⁻¹(U Λ Uᵀ + I)S⁻¹.

    Attributes:
        vectors: U, (N, R), orthonormal.
        eigenvalues: Λ, (R,), decreasing. If the last one is below 1, a larger rank does not help.
        scale: S = noise^(-½), () or (N,).
    """

    vectors: Array
    eigenvalues: Array
    scale: Array

    def mv(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        """P⁻¹ times a vector, (N,)."""
        return self.root(self.root(vector, transposed=True))

    def root(self, vector: Float[Array, " n"], *, transposed: bool = False) -> Float[Array, " n"]:
        """R v, or Rᵀ v if transposed, where P⁻¹ = R Rᵀ and R = S(U Λ Uᵀ + I)^(-½)."""
        vector = self.scale * vector if transposed else vector
        damping = 1 - lax.rsqrt(1 + self.eigenvalues)
        vector = vector - dot(self.vectors, damping * dot(self.vectors.T, vector))
        return vector if transposed else self.scale * vector

    def log_determinant(self) -> Float[Array, ""]:
        """log det P (not of its inverse)."""
        of_scale = jnp.broadcast_to(jnp.log(self.scale), self.vectors.shape[:1]).sum()
        return jnp.log1p(self.eigenvalues).sum() - 2 * of_scale

    def diagonal(self) -> Float[Array, " n"]:
        """The diagonal of P⁻¹, (N,)."""
        return jnp.square(self.scale) * (1 - dot(jnp.square(self.vectors), self.eigenvalues / (1 + self.eigenvalues)))

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of a vector, (N,)."""
        return jax.ShapeDtypeStruct(self.vectors.shape[:1], self.vectors.dtype)
