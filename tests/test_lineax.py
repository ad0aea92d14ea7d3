"""Kernel matrices as lineax's operators: solutions, their preconditioner, log-determinants, and gradients."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import jaxgauss
from jaxgauss.lineax import gauss_operator, log_determinant, log_marginal_likelihood, nystrom_preconditioner
from oracle import assert_close, relative_error

pytestmark = pytest.mark.slow

CG = lx.CG(rtol=1e-10, atol=1e-10, stabilise_every=None)


def matrix(points, tau, noise):
    kernel = jnp.exp(-tau / 2 * jnp.square(points[:, None] - points[None]).sum(-1))
    return kernel + jnp.diag(jnp.broadcast_to(noise, len(points)))


def problem(num=300, dtype="float64"):
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (num, 3))
    values = np.sin(3 * points[:, 0]) + points[:, 2] + 0.1 * rng.standard_normal(num)
    return jnp.asarray(points, dtype), jnp.asarray(values, dtype)


def solve(operator, values, rank=0, solver=CG):
    options = {"preconditioner": nystrom_preconditioner(operator, rank, rng_key=jax.random.key(0))} if rank else {}
    return lx.linear_solve(operator, values, solver, options=options)


@pytest.mark.parametrize("noise", [0.3, "for each point"])
def test_an_operator_is_its_matrix(noise):
    points, values = problem(30)
    noise = jnp.linspace(0.1, 1, 30) if noise == "for each point" else noise
    operator, dense = gauss_operator(points, 2.0, noise=noise), matrix(points, 2.0, noise)
    for found in (operator.as_matrix(), operator.T.as_matrix(), lx.materialise(operator).as_matrix()):
        assert relative_error(found, dense) < 1e-12
    assert relative_error(lx.diagonal(operator), jnp.diag(dense)) < 1e-12
    assert relative_error(operator.mv(values), dense @ values) < 1e-12
    assert relative_error((2.0 * operator).mv(values), 2 * dense @ values) < 1e-12
    assert lx.is_symmetric(operator) and lx.is_positive_semidefinite(operator) and not lx.is_diagonal(operator)
    assert operator.in_structure() == operator.out_structure() == jax.eval_shape(lambda: values)
    inverse = nystrom_preconditioner(operator, 30, rng_key=jax.random.key(0))
    assert relative_error(inverse.as_matrix() @ dense, jnp.eye(30)) < 1e-6
    assert relative_error(lx.diagonal(inverse), jnp.diag(inverse.as_matrix())) < 1e-12
    assert relative_error(inverse.log_determinant(), jnp.linalg.slogdet(dense)[1]) < 1e-9


def test_other_kernels():
    points, values = problem(40)
    operator = gauss_operator(points, 2.0, noise=0.1, kernel="imq")
    dense = jaxgauss.kernel_sum(points, points, jnp.eye(40), 2.0, kernel="imq") + 0.1 * jnp.eye(40)
    assert relative_error(solve(operator, values, 20).value, jnp.linalg.solve(dense, values)) < 1e-8


def test_a_preconditioner_makes_steps_few():
    points, values = problem(300, "float32")
    operator = gauss_operator(points, 5.0, noise=1e-2)
    solver = lx.CG(rtol=1e-5, atol=1e-5, stabilise_every=None)
    plain, preconditioned = (eqx.filter_jit(solve)(operator, values, r, solver) for r in (0, 100))
    exact = np.linalg.solve(np.asarray(matrix(points.astype("float64"), 5.0, 1e-2)), np.asarray(values, "float64"))
    assert plain.stats["num_steps"] > 200 > 5 * preconditioned.stats["num_steps"]
    wide = gauss_operator(points.astype("float64"), 5.0, noise=1e-2)
    rest = values.astype("float64") - wide.mv(preconditioned.value.astype("float64"))
    assert 1e-6 < np.linalg.norm(rest) / np.linalg.norm(values) < 1e-4  # what float32 leaves
    options = {"preconditioner": nystrom_preconditioner(operator, 100, rng_key=jax.random.key(0))}
    size = np.abs(rest).max()
    correction = lx.linear_solve(operator, (rest / size).astype("float32"), solver, options=options).value
    refined = preconditioned.value.astype("float64") + size * correction.astype("float64")
    assert np.linalg.norm(values.astype("float64") - wide.mv(refined)) / np.linalg.norm(values) < 1e-7
    assert relative_error(refined, exact) < 1e-4


def test_gradients_of_a_solution(rng):
    points, values = problem(60)
    cotangent = jnp.asarray(rng.standard_normal(60))

    def by_operator(rank, points, tau, noise, values):
        return cotangent @ solve(gauss_operator(points, tau, noise=noise), values, rank).value

    def by_matrix(points, tau, noise, values):
        return cotangent @ jnp.linalg.solve(matrix(points, tau, noise), values)

    operands = points, jnp.asarray(2.0), jnp.asarray(0.1), values
    exact = jax.grad(by_matrix, (0, 1, 2, 3))(*operands)
    for rank in (0, 30):
        found = jax.jit(jax.grad(functools.partial(by_operator, rank), (0, 1, 2, 3)))(*operands)
        assert_close(found, exact, 1e-7)


def test_columns_share_their_sums(rng):
    points, _ = problem(50)
    many = jnp.asarray(rng.standard_normal((7, 50)))
    operator = gauss_operator(points, 2.0, noise=0.1)
    assert relative_error(jax.vmap(operator.mv)(many), many @ matrix(points, 2.0, 0.1)) < 1e-12
    program = str(jax.make_jaxpr(jax.vmap(operator.mv))(many))
    assert "f64[50,7] = gauss_sum" in program
    together = jax.vmap(lambda values: lx.linear_solve(operator, values, CG).value)(many)
    assert relative_error(together.T, jnp.linalg.solve(matrix(points, 2.0, 0.1), many.T)) < 1e-8


@pytest.mark.parametrize(("rank", "steps"), [(0, 60), (100, 10)])
def test_log_determinants_are_within_their_standard_errors(rank, steps):
    points, _ = problem(200)
    exact = jnp.linalg.slogdet(matrix(points, 2.0, 0.1))[1]
    operator = gauss_operator(points, 2.0, noise=0.1)
    inverse = nystrom_preconditioner(operator, rank, rng_key=jax.random.key(0)) if rank else None
    estimate = jax.jit(
        lambda key: log_determinant(operator, rng_key=key, preconditioner=inverse, num_samples=8, num_matvecs=steps)
    )
    found = [estimate(key) for key in jax.random.split(jax.random.key(1), 20)]
    deviations = np.array([(x.value - exact) / x.standard_error for x in found])
    assert abs(deviations.mean()) < 5 / np.sqrt(20)
    assert 0.5 < deviations.std() < 2
    assert max(x.standard_error for x in found) < {0: 20, 100: 0.1}[rank]


def test_gradients_of_a_log_determinant():
    points, _ = problem(100)

    def estimate(tau, noise, key):
        operator = gauss_operator(points, tau, noise=noise)
        inverse = nystrom_preconditioner(operator, 40, rng_key=jax.random.key(0))
        return log_determinant(operator, rng_key=key, preconditioner=inverse, num_samples=16, num_matvecs=15).value

    exact = jax.grad(lambda tau, noise: jnp.linalg.slogdet(matrix(points, tau, noise))[1], (0, 1))(2.0, 0.1)
    gradient = jax.jit(jax.grad(estimate, (0, 1)))
    found = np.array([gradient(2.0, 0.1, key) for key in jax.random.split(jax.random.key(1), 20)])
    for mean, deviation, b in zip(found.mean(0), found.std(0), exact, strict=True):
        assert abs(mean - b) < 5 * deviation / np.sqrt(20) and deviation < 0.2 * abs(b)


def dense_likelihood(points, tau, noise, values):
    """Of values (N, C), by Cholesky's factor."""
    factor = jnp.linalg.cholesky(matrix(points, tau, noise))
    quadratic = (values * jax.scipy.linalg.cho_solve((factor, True), values)).sum()
    log_det = 2 * jnp.log(jnp.diag(factor)).sum()
    return -(quadratic + values.shape[1] * log_det + values.size * jnp.log(2 * jnp.pi)) / 2


def likelihood(rank, points, tau, noise, values, key, **options):
    operator = gauss_operator(points, tau, noise=noise)
    inverse = nystrom_preconditioner(operator, rank, rng_key=jax.random.key(0))
    return log_marginal_likelihood(operator, values, rng_key=key, preconditioner=inverse, **options)


@pytest.mark.parametrize("noise", [0.1, "for each point"])
def test_a_likelihood_and_its_derivatives_are_those_of_the_matrix(noise):
    """With all eigenvectors nothing is random; with few, conjugate gradients and Lanczos' matrix do the work."""
    points, values = problem(80)
    values, one = jnp.stack([values, values**2], 1), noise == 0.1
    noise = jnp.asarray(0.1 if one else jnp.linspace(0.1, 1, 80))
    operands, key = (points, jnp.asarray(2.0), noise, values), jax.random.key(1)
    exact = jax.jit(jax.value_and_grad(dense_likelihood, (0, 1, 2, 3)))(*operands)
    rank, options, tolerance = (40, {"num_samples": 400, "max_steps": 40}, 0.04) if one else (80, {}, 1e-6)

    def scaled(scale, *operands):
        return scale * likelihood(rank, *operands, key, **options).value

    found = jax.jit(jax.value_and_grad(scaled, (1, 2, 3, 4)))
    for scale in (1.0, 1e-9):
        value, gradients = found(scale, *operands)
        assert_close([value, *gradients], [scale * x for x in (exact[0], *exact[1])], tolerance)
    if one:
        tangents = jax.tree.map(jnp.ones_like, operands)
        _, forward = jax.jit(lambda *x: jax.jvp(lambda *x: likelihood(80, *x, key).value, x, tangents))(*operands)
        assert relative_error(forward, sum(x.sum() for x in exact[1])) < 1e-6


def test_likelihoods_and_gradients_are_within_their_random_errors():
    points, values = problem(200)
    exact = dense_likelihood(points, 2.0, 0.1, values[:, None])
    slopes = jax.grad(dense_likelihood, (1, 2))(points, 2.0, 0.1, values[:, None])

    def logarithm(tau, noise, key):
        found = likelihood(40, points, tau, noise, values, key, num_samples=8)
        return found.value, found

    estimate = jax.jit(jax.grad(logarithm, (0, 1), has_aux=True))
    gradients, found = zip(*[estimate(2.0, 0.1, key) for key in jax.random.split(jax.random.key(1), 20)], strict=True)
    deviations = np.array([(x.value - exact) / x.standard_error for x in found])
    assert abs(deviations.mean()) < 5 / np.sqrt(20) and 0.5 < deviations.std() < 2
    assert max(x.standard_error for x in found) < 3 and max(x.residual for x in found) < 1e-3
    for ours, b in zip(np.array(gradients).T, slopes, strict=True):
        assert abs(ours.mean() - b) < 5 * ours.std() / np.sqrt(20) and ours.std() < 0.15 * abs(b)


def test_likelihoods_in_float32_and_their_residual():
    points, values = problem(300)
    exact = jax.value_and_grad(dense_likelihood, (1, 2))(points, 2.0, 0.01, values[:, None])

    def logarithm(tau, noise):
        found = likelihood(200, points.astype("float32"), tau, noise, values.astype("float32"), jax.random.key(1))
        return found.value, found

    (value, found), gradient = jax.jit(jax.value_and_grad(logarithm, (0, 1), has_aux=True))(2.0, 0.01)
    assert abs(float(value) - exact[0]) < 0.3 and found.residual < 1e-3
    for a, b in zip(gradient, exact[1], strict=True):
        assert abs(float(a) - b) < 0.01 * abs(b)
    stopped = jax.jit(lambda values: likelihood(1, points, 2.0, 0.01, values, jax.random.key(1), max_steps=2))
    assert stopped(values).residual > 0.1 and np.isfinite(stopped(values).value)
    assert stopped(0 * values).residual == 0 and np.isfinite(stopped(0 * values).value)
