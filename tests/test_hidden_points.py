"""What does not count changes nothing: rows of weight zero, whatever their coordinates; the order of rows; far rows."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgauss as jg

N, FILLS = 9, (np.nan, np.inf, -np.inf, 1e12, 1e20, 9.97e36)
rng = np.random.default_rng(0)
X, Y, P = (rng.normal(size=(n, 2)).astype("float32") + shift for n, shift in ((N, 0), (7, 0.3), (5, 0)))
VALUES, WEIGHTS = rng.normal(size=(N, 2)).astype("float32"), np.float32(rng.dirichlet(np.full(N, 20)))
KEY, TAUS = jax.random.key(0), jnp.asarray([0.3, 1, 3], "float32")


def with_row(a, place, row):
    return jnp.asarray(np.insert(a, place, row, axis=0))


# Each takes points, weights or a mask, and what else has a row for each point.
WEIGHTED = {
    "mmd": lambda x, w, v: jg.mmd_squared(x, Y, 0.7, x_weights=w),
    "mmd_imq": lambda x, w, v: jg.mmd_squared(Y, x, 0.7, kernel="imq", y_weights=w),
    "mmd_unbiased": lambda x, w, v: jg.mmd_squared(x, Y, 0.7, kernel="matern12", x_weights=w, estimator="unbiased"),
    "mmd_energy": lambda x, w, v: jg.mmd_squared(Y, x, 0.7, kernel="energy", y_weights=w),
    "energy_distance": lambda x, w, v: jg.energy_distance(x, Y, x_weights=w),
    "norm": lambda x, w, v: jg.embedding_norm_squared(x, 0.7, weights=w),
    "witness": lambda x, w, v: jg.mmd_witness(P, x, Y, 0.7, x_weights=w),
    "flow": lambda x, w, v: jg.mmd_flow_velocity(Y, x, 0.7, kernel="matern52", y_weights=w),
    "kde": lambda x, w, v: jg.kde_logpdf(P, x, 0.7, weights=w),
    "score": lambda x, w, v: jg.kde_score(P, x, 0.7, weights=w),
    "hsic": lambda x, w, v: jg.hsic(x, v, 0.7, 0.5, weights=w),
    "hsic_unbiased": lambda x, w, v: jg.hsic(v, x, 0.7, 0.5, weights=w, estimator="unbiased"),
    "ksd": lambda x, w, v: jg.ksd_squared(x, v, 0.7, weights=w),
    "ksd_imq": lambda x, w, v: jg.ksd_squared(x, v, 0.7, kernel="imq", weights=w, estimator="unbiased"),
    "scores": lambda x, w, v: jg.leave_one_out_tau(x, TAUS, weights=w).scores,
    "scores_of_values": lambda x, w, v: jg.leave_one_out_tau(x, TAUS, weights=w, values=v).scores,
    "mean_shift": lambda x, w, v: jg.mean_shift(P, x, 0.7, weights=w, tol=1e-5).points,
    "matrix": lambda x, w, v: jg.mmd_squared_matrix(
        jnp.concatenate([x, Y]),
        0.7,
        segments=np.repeat([0, 1], [len(x), 7]),
        weights=jnp.concatenate([w, Y[:, 0] ** 2]),
    ),
    "log_sum": lambda x, w, v: jg.log_gauss_sum(P, x, jnp.log(w), 0.7),
    "log_sum_cauchy": lambda x, w, v: jg.log_kernel_sum(P, x, jnp.log(w), 0.7, kernel="cauchy"),
    "mean": lambda x, w, v: jg.kernel_mean(P, x, v, 0.7, log_weights=jnp.log(w)),
    "sum": lambda x, w, v: jg.gauss_sum(P, x, w, 0.7),
    "sum_blocked": lambda x, w, v: jg.gauss_sum_blocked(P, x, w[:, None] * v, 0.7),
    "sum_rescaled": lambda x, w, v: jg.gauss_sum(P, x, w[:, None] * v, 0.7, engine="rescale"),
    "sum_energy": lambda x, w, v: jg.kernel_sum(P, x, w[:, None] * WEIGHTS[None, :2], 0.7, kernel="energy"),
}
NO_MASK = ("matrix", "log_sum", "log_sum_cauchy", "mean", "sum", "sum_blocked", "sum_rescaled", "sum_energy")


@pytest.mark.parametrize("name", WEIGHTED)
def test_points_of_weight_zero_do_not_count(name):
    """Values and gradients are those without the row, and its own gradient is zero."""

    def found(x, w, v):
        def loss(x):
            result = WEIGHTED[name](x, w, v)
            return jnp.sin(3 * result).sum(), result

        if name in ("mean_shift", "score", "scores_of_values", "hsic_unbiased"):
            return np.float64(loss(x)[1]), np.zeros((len(x), 2))
        gradient, result = jax.grad(loss, has_aux=True)(x)
        return np.float64(result), np.float64(gradient)

    for weights in (WEIGHTS, np.ones(N, bool))[: 1 if name in NO_MASK else 2]:
        exact, gradient = found(jnp.asarray(X), jnp.asarray(weights), jnp.asarray(VALUES))
        for fill, place in itertools.product(FILLS, (0, N)):
            others = fill if name.startswith(("hsic", "ksd", "mean", "scores_of")) and not np.isfinite(fill) else 0.4
            rows = with_row(X, place, fill), with_row(weights, place, 0), with_row(VALUES, place, others)
            result, own = found(*rows)
            np.testing.assert_allclose(result, exact, rtol=2e-5, atol=2e-6 * np.abs(exact).max() + 1e-7)
            scale = np.abs(gradient).max()
            np.testing.assert_allclose(np.delete(own, place, 0), gradient, rtol=1e-4, atol=2e-5 * scale)
            assert (own[place] == 0).all()


@pytest.mark.parametrize("name", ["mmd", "energy_distance", "kde", "score", "hsic", "mean", "sum", "sum_energy"])
def test_traced_weights_of_zero_hide_points(name):
    """As above; their own derivatives, for which a point must stay where it is, are finite."""
    function = jax.jit(WEIGHTED[name])
    gradient = jax.jit(jax.grad(lambda w, x, v: jnp.sin(WEIGHTED[name](x, w, v)).sum()))
    exact = np.float64(function(X, WEIGHTS, VALUES))
    for fill in (np.nan, np.inf, 1e20):
        x, w, v = with_row(X, 3, fill), with_row(WEIGHTS, 3, 0), with_row(VALUES, 3, 0.4)
        np.testing.assert_allclose(function(x, w, v), exact, rtol=2e-5, atol=2e-6 * np.abs(exact).max())
        if name not in ("score", "mean"):  # the logarithm of zero has no derivative
            assert jnp.isfinite(gradient(w, x, v)).all()


@pytest.mark.parametrize(
    "method, channels",
    [("auto", 1), ("auto", 2), ("blocked", 2), ("reweight", 2), ("rescale", 1), ("fourier", 2), ("differences", 1)],
)
def test_keys_without_values_do_not_count_in_any_engine(method, channels):
    """Of so many points that they are examined, sorted or summed by waves; with derivatives of second order."""
    draw = np.random.default_rng(2)
    queries, keys = (draw.normal(size=(n, 2)).astype("float32") for n in (700, 900))
    values, hidden = draw.normal(size=(900, channels)).astype("float32"), np.arange(900) % 100 == 3
    values[hidden] = 0

    def loss(q, k, v):
        return jnp.sin(jg.gauss_sum(q, k, v, 0.7, engine=method)).sum()

    def derivatives(q, k, v):
        slopes = jax.grad(loss, (0, 1))(q, k, v)
        return *slopes, jax.grad(lambda q: jnp.square(jax.grad(loss)(q, k, v)).sum())(q)

    exact = jax.jit(derivatives)(queries, keys[~hidden], values[~hidden])
    for fill in (np.nan, np.inf):
        filled = np.where(hidden[:, None], fill, keys).astype("float32")
        for of in (jg.gauss_sum, jax.jit(jg.gauss_sum, static_argnames="engine")):
            found = of(queries, filled, values, 0.7, engine=method)
            np.testing.assert_allclose(
                found, jg.gauss_sum(queries, keys[~hidden], values[~hidden], 0.7), rtol=0, atol=1e-4
            )
        at_queries, at_keys, twice = jax.jit(derivatives)(queries, filled, values)
        assert (at_keys[hidden] == 0).all()
        for ours, other in zip((at_queries, at_keys[~hidden], twice), exact, strict=True):
            np.testing.assert_allclose(ours, other, rtol=0, atol=1e-4 * np.abs(other).max())


def test_points_stay_shared_where_weights_are_mapped():
    """Under `vmap` rows that all sums hide do not count, and points are not repeated."""
    points, weights = with_row(X, 2, np.nan), with_row(WEIGHTS, 2, 0)
    batch = weights[None] * jnp.asarray([[1], [2], [3]], "float32")
    mapped = jax.vmap(lambda w: jg.kernel_sum(P, points, w, 0.7, kernel="imq"))
    exact = jg.kernel_sum(P, X, WEIGHTS, 0.7, kernel="imq")
    np.testing.assert_allclose(mapped(batch)[1], 2 * exact, rtol=1e-5)
    assert f"f32[3,{N + 1},2]" not in str(jax.make_jaxpr(mapped)(batch))
    masks = jnp.arange(N + 1)[None] != jnp.asarray([[2], [2]])
    found = jax.jit(jax.vmap(lambda w: jg.mmd_squared(Y, points, 0.7, y_weights=w)))(masks)
    np.testing.assert_allclose(found, [jg.mmd_squared(Y, X, 0.7)] * 2, rtol=1e-5)


def test_most_rows_may_be_fill_values(as_it_comes):
    """In NumPy's float64, of which a common center is subtracted, far from the origin."""
    x, y = 1e6 + np.random.default_rng(1).normal(size=(2, 40, 2))
    kept = np.arange(40) % 3 == 0
    masked = np.where(kept[:, None], x, 9.97e36)
    exact = jg.mmd_squared(x[kept], y, 0.7)
    for weights in (kept, kept / kept.sum()):
        np.testing.assert_allclose(jg.mmd_squared(masked, y, 0.7, x_weights=weights), exact, rtol=1e-5)
    np.testing.assert_allclose(
        jg.kde_score(y, masked, 0.7, weights=kept), jg.kde_score(y, x[kept], 0.7), rtol=1e-4, atol=1e-7
    )


def test_energy_distances_beside_a_far_point():
    x = jnp.asarray([[0.0], [1]], "float32")
    for far in (1e3, 1e12, 1e20, 1e25):
        y = jnp.asarray([[3], [far]], "float32")
        assert jg.energy_distance(x, y, y_weights=jnp.asarray([True, False])) == 4.5
        np.testing.assert_allclose(jg.energy_distance(x, y, y_weights=jnp.asarray([1, 0], "float32")), 4.5, rtol=1e-6)
        np.testing.assert_allclose(jax.grad(jg.energy_distance)(x, y)[:, 0], [-0.5, -1.5], rtol=1e-5)


# Each takes points, values and weights, and gives rows for the points, or others (False).
OF_ROWS = {
    "sum": (False, lambda x, v, w: jg.gauss_sum(P, x, v, 0.7)),
    "log_sum": (False, lambda x, v, w: jg.log_gauss_sum(P, x, jnp.log(w), 0.7)),
    "mean": (False, lambda x, v, w: jg.kernel_mean(P, x, v, 0.7)),
    "kde": (False, lambda x, v, w: jg.kde_logpdf(P, x, 0.7, weights=w)),
    "score": (False, lambda x, v, w: jg.kde_score(P, x, 0.7, weights=w)),
    "mean_shift": (False, lambda x, v, w: jg.mean_shift(P, x, 0.7, weights=w, tol=1e-5).points),
    "svgd": (True, lambda x, v, w: jg.svgd_direction(x, v, 0.7)),
    "ksd": (False, lambda x, v, w: jg.ksd_squared(x, v, 0.7)),
    "mmd": (False, lambda x, v, w: jg.mmd_squared(x, Y, 0.7, x_weights=w)),
    "flow": (True, lambda x, v, w: jg.mmd_flow_velocity(x, Y, 0.7)),
    "hsic": (False, lambda x, v, w: jg.hsic(x, v, 0.7, 0.5)),
    "mmd_test": (False, lambda x, v, w: jg.mmd_test(x, Y, 0.7, rng_key=KEY, num_permutations=9).statistic),
    "hsic_test": (False, lambda x, v, w: jg.hsic_test(x, v, 0.7, 0.5, rng_key=KEY, num_permutations=9).statistic),
    "ksd_test": (False, lambda x, v, w: jg.ksd_test(x, v, 0.7, rng_key=KEY, num_bootstrap=9).statistic),
    "median": (False, lambda x, v, w: jg.median_tau(x)),
    "herding": (False, lambda x, v, w: x[jg.kernel_herding(x, 0.7, 3, weights=w).indices][:, 0]),
    "energy": (True, lambda x, v, w: jax.grad(jg.energy_distance)(x, Y)),
    "scores": (True, lambda x, v, w: jax.grad(lambda x: jnp.sin(jg.kde_logpdf(x, x, 0.7)).sum())(x)),
}
FAR_ROW_DOES_NOT_COUNT = ("sum", "log_sum", "mean", "score", "mean_shift")


@pytest.mark.parametrize("name", OF_ROWS)
def test_rows_come_in_any_order_beside_a_far_one(name):
    is_aligned, function = OF_ROWS[name]
    operands = X, VALUES, WEIGHTS
    near = function(*map(jnp.asarray, operands))
    for far in (1e8, 1e20):
        rows = [np.insert(x, 0, row, axis=0) for x, row in zip(operands, (far, 0.4, WEIGHTS.mean()), strict=True)]
        found = []
        for place in (0, 3, N):
            order = np.insert(np.arange(1, N + 1), place, 0)
            result = np.float64(function(*(jnp.asarray(x[order]) for x in rows)))
            found.append(result[np.argsort(order)][1:] if is_aligned else result)
        for other in found[:-1]:
            np.testing.assert_allclose(other, found[-1], rtol=1e-5, atol=1e-6 * np.abs(other).max())
        if name in FAR_ROW_DOES_NOT_COUNT:
            np.testing.assert_allclose(found[0], near, rtol=1e-5, atol=1e-6)


def test_masked_arrays_of_numpy_are_refused_also_after_others():
    for masked in (np.ma.array(X, mask=X > 1), np.ma.array(X, mask=True)):
        jg.gauss_sum(P, X, WEIGHTS, 0.7)
        with pytest.raises(TypeError, match=r"`keys` must have no masked elements; got \d+ of 18"):
            jg.gauss_sum(P, masked, WEIGHTS, 0.7)
        with pytest.raises(TypeError, match=r"`x` must have no masked elements"):
            jg.mmd_squared(masked, Y, 0.7)
    assert jg.gauss_sum(P, np.ma.array(X), WEIGHTS, 0.7).shape == (5,)


def test_no_points_have_no_weights():
    """Under `jit`, where no weight is known to be zero."""
    x, nobody, nothing = jnp.ones((3, 2)), jnp.ones((0, 2)), jnp.ones(0)
    for function in (jg.log_gauss_sum, jg.log_kernel_sum):
        assert jax.jit(function)(x, nobody, nothing).tolist() == [-np.inf] * 3
        assert jax.jit(function)(nobody, nobody, nothing).shape == (0,)
    assert jax.jit(lambda z, a: jg.kde_logpdf(z, x, 1.0, weights=a))(nobody, jnp.ones(3)).shape == (0,)
    for function in (jg.embedding_norm_squared, jg.mmd_squared_to_normal, jg.uniformity):
        with pytest.raises(ValueError, match=rf"^`jaxgauss.{function.__name__}`: .*at least"):
            jax.jit(lambda z, a, f=function: f(z, 1.0, weights=a))(nobody, nothing)
