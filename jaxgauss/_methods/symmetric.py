"""The methods that lineax requires of every operator, for those that are symmetric and positive semidefinite."""

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float


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
