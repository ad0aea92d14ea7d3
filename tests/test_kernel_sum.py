"""Sums of every radial kernel, against scikit-learn and SciPy in float64, with derivatives of all orders and modes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.gaussian_process import kernels as theirs

import jaxgauss
from formulas import gradients, matrix
from jaxgauss import Kernel, KeyChunks, explain, gauss_sum, gauss_sum_streamed, kernel_sum, rational_quadratic
from jaxgauss._kernels.kernels import KERNELS
from jaxgauss._kernels.mixtures import mixture
from oracle import assert_close, relative_error

LAPLACE = Kernel(lambda u: jnp.exp(-jnp.sqrt(u)), "own laplace")  # of which only the profile is known
STUDENT = Kernel(lambda u: (1 + u / 3) ** -2)
EXACT = {
    "matern12": theirs.Matern(nu=0.5),
    "matern32": theirs.Matern(nu=1.5),
    "matern52": theirs.Matern(nu=2.5),
    "imq": lambda x, y: (1 + cdist(x, y, "sqeuclidean")) ** -0.5,
    "cauchy": lambda x, y: 1 / (1 + cdist(x, y, "sqeuclidean")),
    "energy": lambda x, y: -cdist(x, y),
    rational_quadratic(2.5): theirs.RationalQuadratic(alpha=2.5),
    rational_quadratic(1.0): theirs.RationalQuadratic(alpha=1.0),
    LAPLACE: lambda x, y: np.exp(-cdist(x, y)),
    STUDENT: lambda x, y: (1 + cdist(x, y, "sqeuclidean") / 3) ** -2,
}
NAMED = ["matern12", "matern32", "matern52", "imq", "cauchy", "energy"]
KINKED = ["matern12", "energy", LAPLACE]
EVERY = (0, 1, 2, 3)


def points(rng, num_queries, num_keys, dim, channels):
    """Points of which some are among both: on the diagonal, beside it, and twice."""
    queries = rng.normal(size=(num_queries, dim))
    new = rng.normal(size=(num_keys - num_queries // 2 - 10, dim))
    keys = np.concatenate([queries[: num_queries // 2], queries[3:8], queries[3:8], new])
    return queries, keys, rng.normal(size=(num_keys, channels))


def formula(kernel):
    """The sum in PyTorch; coincident points have no slope."""
    return lambda q, k, v, tau: matrix("matern12" if kernel == LAPLACE else kernel, q, k, tau) @ v


def loss(kernel, **options):
    return lambda *x: jnp.sin(kernel_sum(*x, kernel=kernel, **options)).sum()


SHAPES = [(1, 1), (3, 7), (16, 1), (64, 7), (300, 1)]


@pytest.mark.parametrize("kernel, shape", [(x, SHAPES[i % 5]) for i, x in enumerate(EXACT)], ids=str)
def test_sum_is_scikit_learns(rng, kernel, shape):
    """Also where points coincide; N is large enough for products, where there are any."""
    (dim, channels), tau = shape, 0.9 / shape[0]
    for dtype, limit in (("float64", 1e-13), ("float32", 2e-5 if kernel in KINKED else 3e-6)):
        a, b, w = (x.astype(dtype) for x in points(rng, 130, 170, dim, channels))
        phi = EXACT[kernel](*(np.sqrt(tau) * x.astype("float64") for x in (a, b)))
        error = np.linalg.norm(np.asarray(kernel_sum(a, b, w, tau, kernel=kernel), np.float64) - phi @ w)
        assert error <= limit * np.linalg.norm(np.abs(phi) @ np.abs(w))


def test_slopes_and_logarithms_are_those_of_the_profile():
    """Beside differences of the profile, and of its slope."""
    u, step = jnp.linspace(0.1, 30, 40), 1e-4
    for kernel in map(KERNELS.get, NAMED):
        values = jax.jit(lambda u, k=kernel: (k(u), k.slope(u), k.slope.slope(u), *k.with_slope(u)))
        kappa, psi, chi, *both = values(u)
        (before, psi_before, *_), (after, psi_after, *_) = values(u - step), values(u + step)
        assert_close([psi, chi], [(before - after) / step, (psi_before - psi_after) / step], 1e-5)
        assert_close(both, [kappa, psi], 1e-13)
        if not kernel.conditional:
            assert_close([jnp.exp(kernel.log(u))], [kappa], 1e-12)


GRADIENTS = [("matern32", 20, 1), ("energy", 20, 1), (LAPLACE, 20, 1), ("matern12", 70, 3), ("imq", 70, 3)]
GRADIENTS += [(x, 3, 2) for x in ("matern52", "cauchy", "energy", rational_quadratic(2.5))]


@pytest.mark.parametrize("kernel, dim, channels", GRADIENTS, ids=str)
def test_gradients_are_those_of_the_formula(rng, kernel, dim, channels):
    operands = [jnp.asarray(x) for x in (*points(rng, 70, 90, dim, channels), 0.7 / dim)]
    ours = jax.jit(jax.grad(loss(kernel), EVERY))(*operands)
    assert_close(ours, gradients(formula(kernel), operands), 1e-10)


@pytest.mark.parametrize("kernel", ["imq", LAPLACE], ids=str)
def test_second_derivatives_and_tangents(rng, kernel):
    """Away from kinks; reverse over reverse, forward mode, and forward over reverse."""
    operands = [jnp.asarray(rng.normal(size=s)) for s in ((6, 2), (7, 2), (7, 2))] + [jnp.asarray(0.7)]
    first, twice = (gradients(formula(kernel), operands, which) for which in ((), EVERY))
    directions = tuple(jnp.cos(x) for x in first)  # those in which the derivative of the gradients is `twice`

    @jax.jit
    def derivatives(*x):
        in_both, slope = loss(kernel, forward_mode=True), jax.grad(loss(kernel), EVERY)
        tangent = jax.jvp(in_both, x, directions)[1]
        products = jax.jvp(jax.grad(in_both, EVERY), x, directions)[1]
        return tangent, products, jax.grad(lambda *x: sum(jnp.sin(s).sum() for s in slope(*x)), EVERY)(*x)

    tangent, products, ours = derivatives(*operands)
    assert_close([tangent], [sum(np.vdot(x, d) for x, d in zip(first, directions, strict=True))], 1e-10)
    assert_close(products, twice, 1e-10)
    assert_close(ours, twice, 1e-10)


@pytest.mark.parametrize(
    "kernel, dtype", [("imq", "float32"), ("energy", "float32"), (LAPLACE, "float32"), ("matern12", "float64")], ids=str
)
def test_points_that_coincide_have_finite_derivatives(kernel, dtype):
    """All equal: gradients are zero, those of the values count, and nothing is NaN in any order."""
    x, v = jnp.ones((40, 9), dtype) * 0.3, jnp.ones((40, 1), dtype)

    @jax.jit
    def derivatives(x, v):
        slopes = jax.grad(lambda *y: kernel_sum(*y, 0.5, kernel=kernel).sum(), (0, 1, 2))
        return slopes(x, x, v), jax.grad(lambda q: (slopes(q, x, v)[0] * x).sum())(x)

    (d_queries, d_keys, d_values), second = derivatives(x, v)
    for slopes in (d_queries, d_keys):  # of a kink exactly, for there is nothing else to say
        assert jnp.abs(slopes).max() <= (0 if kernel in KINKED else 1e-10)
    np.testing.assert_allclose(d_values, 40 * KERNELS.get(kernel, kernel).at_zero, rtol=1e-6)
    assert jnp.isfinite(second).all()


@pytest.mark.parametrize("kernel, dim", [("energy", 2), ("imq", 6)])
@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_nan_spoils_its_row_alone(rng, kernel, dim):
    x, v = rng.normal(size=(400, dim)).astype("float32"), np.ones((400, 1), "float32")
    exact, queries = kernel_sum(x, x, v, kernel=kernel), x.copy()
    queries[3] = np.nan
    found = kernel_sum(queries, x, v, kernel=kernel)
    assert jnp.isnan(found[3]).all() and relative_error(np.delete(found, 3, 0), np.delete(exact, 3, 0)) < 1e-6


def test_points_that_lie_anywhere_are_explained(rng):
    """200 length scales from the center; their sums are in test_anywhere."""
    x = (200 * rng.choice([-1, 1], size=(80, 1)) + rng.normal(size=(80, 4))).astype("float32")
    assert explain(x, x, x[:, :1], kernel="imq").name == "clusters"


def test_gauss_is_gauss_sum_to_the_last_bit(rng):
    q, k, v = (rng.normal(size=(50, 3)) for _ in range(3))
    for options in ({}, {"engine": "rescale", "precision": "float16"}, {"forward_mode": True}):
        assert (kernel_sum(q, k, v, 0.7, **options) == gauss_sum(q, k, v, 0.7, **options)).all()
    own = Kernel(lambda u: jnp.exp(-u / 2))
    assert relative_error(kernel_sum(q, k, v, 0.7, kernel=own), gauss_sum(q, k, v, 0.7)) < 1e-13


@pytest.mark.parametrize(
    "method, kernels",
    [("blocked", ["matern12", "imq"]), ("dense", ["imq"]), ("differences", ["imq"]), ("mixture", NAMED)],
)
def test_methods_agree(rng, method, kernels):
    q, k, v = points(rng, 40, 60, 5, 2)
    for kernel in kernels:
        exact = EXACT[kernel](0.5 * q, 0.5 * k)
        found = kernel_sum(q, k, v, 0.25, kernel=kernel, engine=method)
        scale = 1 if kernel != "energy" else 2 * np.abs(0.5 * q).max() * 5**0.5
        limit = 1e-13 if method != "mixture" else 1e-6 * scale * np.abs(v).sum(0).max() / np.abs(exact @ v).max()
        assert np.abs(found - exact @ v).max() <= 2 * limit * np.abs(exact @ v).max()


def test_batches_and_vmap(rng):
    kernel = "matern12"
    q, k, v, tau = (rng.normal(size=s) for s in ((3, 1, 20, 2), (30, 2), (2, 30, 1), (2,)))
    tau = np.abs(tau)
    exact = np.zeros((3, 2, 20, 1))
    for i, j in np.ndindex(3, 2):
        exact[i, j] = EXACT[kernel](tau[j] ** 0.5 * q[i, 0], tau[j] ** 0.5 * k) @ v[j]
    assert relative_error(kernel_sum(q, k, v, tau, kernel=kernel), exact) < 1e-13
    run = functools.partial(kernel_sum, kernel=kernel)

    @jax.jit
    def mapped(q, k, v, tau):
        slopes = jax.vmap(jax.grad(loss(kernel), EVERY), (0, None, None, None))(q, k, v[0], tau[0])
        return jax.vmap(jax.vmap(run, (None, None, 0, 0)), (0, None, None, None))(q, k, v, tau), slopes

    values, slopes = mapped(q[:, 0], k, v, tau)
    assert relative_error(values, exact) < 1e-13
    loop = [gradients(formula(kernel), (x, k, v[0], tau[0])) for x in q[:, 0]]
    assert_close(slopes, [np.stack(x) for x in zip(*loop, strict=True)], 1e-10)


def test_empty_and_single_points():
    none, one = np.zeros((0, 3)), np.ones((1, 3))
    assert kernel_sum(one, none, np.zeros((0, 2)), kernel="imq").tolist() == [[0.0, 0.0]]
    assert kernel_sum(none, one, np.ones(1), kernel="matern12").shape == (0,)
    assert kernel_sum(one, one, np.ones(1), kernel="energy").tolist() == [0.0]


def test_streamed_sums_take_a_kernel(rng, tmp_path):
    q, k, v = points(rng, 40, 90, 4, 2)
    chunks = KeyChunks(k, v, size=25)
    for kernel in ("matern32", "energy"):
        found = gauss_sum_streamed(q, chunks, 1.0, kernel=kernel, saved=tmp_path / f"{kernel}.npz")
        assert relative_error(found, EXACT[kernel](q, k) @ v) < 1e-13
    with pytest.raises(ValueError, match=r"`saved` must be a new file"):
        gauss_sum_streamed(q, chunks, 1.0, saved=tmp_path / "energy.npz")


# The terms that mixtures of these largest errors take.
TERMS = dict(zip(NAMED, [(7, 11, 20), (4, 6, 11), (3, 5, 8), (7, 9, 14), (5, 8, 13), (5, 9, 18)], strict=True))
TOLERANCES = (1e-3, 1e-4, 1e-6)


@pytest.mark.parametrize("kernel", [*NAMED, *(rational_quadratic(a) for a in (0.3, 1.0, 2.0, 7.0))], ids=str)
def test_mixtures_are_as_near_as_they_claim_and_short(kernel):
    """On a grid ten times as fine as that of the fit; in few terms, all positive, so that each is a kernel."""
    r = np.concatenate([[0.0], np.geomspace(1e-3, 1 if kernel == "energy" else 1e2, 20001)])
    exact = KERNELS.get(kernel, kernel)(jnp.asarray(r**2))
    for tolerance, terms in zip(TOLERANCES, TERMS.get(kernel, (np.inf,) * 3), strict=True):
        found = mixture(KERNELS.get(kernel, kernel), tolerance)
        approximate = np.exp(-np.outer(r**2, found.scales) / 2) @ found.weights - found.constant
        assert np.abs(approximate - exact).max() <= found.maximal_error <= tolerance
        assert min(found.weights) > 0 and list(found.scales) == sorted(found.scales) and found.terms <= terms


def test_a_mixture_is_explained_and_its_precision_chooses_its_terms():
    x, v = jax.ShapeDtypeStruct((5000, 3), "float32"), jax.ShapeDtypeStruct((5000,), "float32")
    terms = {p: mixture(KERNELS["imq"], t).terms for p, t in (("bfloat16", 1e-3), ("float16", 1e-4), ("float32", 1e-6))}
    for precision, num in terms.items():
        found = explain(x, x, v, kernel="imq", engine="mixture", precision=precision)
        assert found.name == "mixture" and f"; {num} Gaussians, maximal error" in found.reason
    assert explain(x, x, v, kernel="imq").name == "blocked"
    assert explain(x, x, v, kernel="imq", precision="float16").name == "mixture"


def test_gradients_of_a_mixture_are_its_own(rng):
    """Of κ with an error that is larger than the sum's."""
    operands = [*(jnp.asarray(rng.normal(size=s)) for s in ((60, 2), (60, 2), (60, 1))), jnp.asarray(1.0)]
    ours = jax.jit(jax.grad(loss("matern52", engine="mixture")))(*operands)
    assert relative_error(ours, gradients(formula("matern52"), operands)[0]) < 1e-4


def test_kernels_are_values():
    """They are compared by what they are, so that equal ones are compiled once; and may carry any name."""
    assert rational_quadratic(2) == rational_quadratic(2.0) != rational_quadratic(3.0)
    assert repr(rational_quadratic(2)) == "Kernel(rational_quadratic(2.0))"
    impostor = Kernel(lambda u: 1 / (1 + u), "imq")
    assert impostor != KERNELS["imq"] and mixture(impostor, 1e-3) is None
    assert [KERNELS[name].at_zero for name in NAMED] == [1, 1, 1, 1, 1, 0]
    assert [KERNELS[name].kinked for name in NAMED] == [True, False, False, False, False, True]
    assert jaxgauss.Kernel(jnp.exp).slope.at_zero == -2


def test_export_takes_symbolic_sizes():
    m, n = jax.export.symbolic_shape("m, n")
    specs = [jax.ShapeDtypeStruct(x, "float64") for x in ((m, 6), (n, 6), (n, 1))]
    exported = jax.export.export(jax.jit(functools.partial(kernel_sum, kernel="imq")))(*specs)
    x, y, v = np.ones((3, 6)), np.zeros((4, 6)), np.ones((4, 1))
    assert relative_error(exported.call(x, y, v), EXACT["imq"](x, y) @ v) < 1e-13


def test_batches_of_several_tiles(rng):
    """Of which the last lacks some elements: sums without pulls have arrays without columns."""
    x, weights = rng.normal(size=(3, 1000, 12)).astype("float32") / 4, np.ones((3, 1000, 1), "float32")
    found = jax.jit(lambda x: kernel_sum(x, x, weights, kernel="imq"))(x)
    for own, points in zip(found, x.astype("float64"), strict=True):
        assert relative_error(own, EXACT["imq"](points, points).sum(1, keepdims=True)) < 1e-6


@pytest.mark.parametrize("setting", [jax.debug_nans, jax.debug_infs, jax.transfer_guard])
def test_what_is_looked_for_in_a_kernel_is_no_error_of_the_callers(rng, setting):
    """Infinite and missing slopes at zero, and overflow far away, which are looked for at the first call."""
    x, y, tau = jax.device_put((*rng.normal(size=(2, 9, 2)), np.ones(())))
    profiles = [
        lambda u: jnp.exp(-jnp.sqrt(u)),
        lambda u: jnp.where(u > 0, jnp.sin(jnp.sqrt(u)) / jnp.sqrt(u), 1.0),
        lambda u: jnp.exp(u) * jnp.exp(-2 * u),
    ]
    with setting("disallow" if setting is jax.transfer_guard else True):
        for profile in profiles:
            own = Kernel(profile)
            assert np.asarray(jaxgauss.mmd_squared(x, y, tau, kernel=own)) > 0
            slope = jax.jit(jax.grad(lambda x, k=own: kernel_sum(x, y, y, tau, kernel=k).sum()))
            assert np.isfinite(np.asarray(slope(x))).all()
        with pytest.raises(ValueError, match="be finite at u = 0; got nan"):
            Kernel(lambda u: jnp.sin(u) / u)


@pytest.mark.parametrize("scale", [1.0, 1e5])
@pytest.mark.parametrize(
    "rate",
    [
        lambda: np.sqrt(0.5),
        lambda: jnp.array(0.5),
        lambda: jnp.linspace(0, 1, 3)[1],
        lambda: jax.jit(lambda: jnp.full((), 0.25))(),
    ],
)
def test_numbers_in_a_profile_have_the_dtype_of_u(rng, as_it_comes, rate, scale):
    """Without JAX's 64-bit mode, in which its rules are traced: near and far, with gradients."""
    x, ones = np.float32(rng.normal(size=(40, 3)) * scale), np.ones(40, "float32")

    def both(kernel, tau):
        return jax.value_and_grad(lambda x: jaxgauss.kernel_sum(x, x, ones, tau, kernel=kernel).sum())(x)

    ours = both(jaxgauss.Kernel(lambda u: jnp.exp(-rate() * u)), 1.0)
    for found, expected in zip(ours, both("gauss", 2 * float(rate())), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_numbers_in_a_profile_have_the_dtype_of_u_in_programs_apart(rng, as_it_comes):
    """Gradients of velocities, of many points: JAX's 64-bit mode is on wherever these are traced."""
    x = np.float32(rng.normal(size=(600, 3)) * 0.5)

    def gradient(kernel, tau):
        return jax.grad(lambda x: jaxgauss.mmd_flow_velocity(x, x[::-1] + 0.5, tau, kernel=kernel)[:9].sum())(x)

    ours = gradient(jaxgauss.Kernel(lambda u: jnp.exp(-np.sqrt(0.5) * u)), 1.0)
    exact = gradient("gauss", 2 * np.sqrt(0.5))  # u/2 of this τ; the velocity is not scaled by τ
    np.testing.assert_allclose(ours, exact, rtol=1e-3, atol=1e-4 * np.abs(exact).max())


def test_a_kernel_of_a_traced_number_is_an_error():
    """Under each transformation: it would be a constant."""

    def of(rate):
        return jaxgauss.Kernel(lambda u: jnp.exp(-rate * u))(jnp.ones(2)).sum()

    for transformed in (jax.jit(of), jax.grad(of), lambda x: jax.vmap(of)(x[None]), jax.jit(jax.grad(of))):
        with pytest.raises(TypeError, match=r"numbers; got a traced float32.* in it\. Make the kernel outside of jit"):
            transformed(jnp.ones((), "float32"))
