"""What public functions are given: points far from the origin, tables, arrays in another byte order."""

import inspect
import typing
import warnings

import dask.array as da
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgauss
import jaxgauss.dask
import jaxgauss.lineax
from jaxgauss import KeyChunks, explain
from jaxgauss._checks import arguments as given
from jaxgauss._checks.data import checked_data
from jaxgauss._checks.settings import Keys, Points, Queries
from oracle import gauss_sum64, problem, relative_error

KEY = {"rng_key": jax.random.key(0)}
MESH = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
Z = np.random.default_rng(0).normal(size=(24, 2)).round(12)
V = np.cos(np.arange(24.0))
W = np.full(24, 1 / 24)


def chunks(x, *others):
    return [tuple(z[i : i + 10] for z in (x, *others)) if others else x[i : i + 10] for i in (0, 10, 20)]


def blocks(*arrays):
    return [da.from_array(np.asarray(x), chunks=(10, *np.shape(x)[1:])) for x in arrays]


def statistics(test):
    return test.statistic, test.null_statistics


# Each function, of points x and y, other points s such as scores, values v and weights w.
FUNCTIONS = {
    "gauss_sum": lambda f, x, y, s, v, w: f(x, y, v, 2.0),
    "gauss_sum_dense": lambda f, x, y, s, v, w: f(x, y, values=v),
    "gauss_sum_blocked": lambda f, x, y, s, v, w: f(x, keys=y, values=v),
    "kernel_sum": lambda f, x, y, s, v, w: f(x, y, v, kernel="imq"),
    "log_gauss_sum": lambda f, x, y, s, v, w: f(x, y, v),
    "log_kernel_sum": lambda f, x, y, s, v, w: f(x, y, log_weights=v, kernel="matern32"),
    "kernel_mean": lambda f, x, y, s, v, w: f(x, y, v, log_weights=v),
    "explain": lambda f, x, y, s, v, w: f(x, y, v, 1e4).engine.name == "clusters",
    "estimate_error": lambda f, x, y, s, v, w: f(x, y, v, sums=w, **KEY),
    "gauss_sum_sharded": lambda f, x, y, s, v, w: f(x, y, v, mesh=MESH, key_axis="data"),
    "kernel_sum_sharded": lambda f, x, y, s, v, w: f(x, y, v, mesh=MESH, query_axis="data", kernel="cauchy"),
    "gauss_sum_streamed": lambda f, x, y, s, v, w: f(x, KeyChunks(y, v, 10)),
    "kernel_sum_streamed": lambda f, x, y, s, v, w: f(x, [(y, v)], engine="fourier"),
    "fourier_sketch": lambda f, x, y, s, v, w: f(x, v, 2.0)(x),
    "mmd_squared": lambda f, x, y, s, v, w: f(x, y, 1.0, x_weights=w),
    "embedding_norm_squared": lambda f, x, y, s, v, w: f(x, 1.0, weights=v),
    "energy_distance": lambda f, x, y, s, v, w: f(x, y, y_weights=w),
    "mmd_squared_to_normal": lambda f, x, y, s, v, w: f(
        np.asarray(x) - np.asarray(x)[12], 1.0, weights=w
    ),  # about zero
    "uniformity": lambda f, x, y, s, v, w: f(x, 1.0),
    "alignment": lambda f, x, y, s, v, w: f(x, y, power=1.0, weights=w),
    "mmd_squared_matrix": lambda f, x, y, s, v, w: f(x, 1.0, segments=np.arange(np.shape(x)[0]) % 3),
    "mmd_estimate": lambda f, x, y, s, v, w: (f(x, y, 1.0), f(chunks(x), chunks(y), 1.0)),
    "mmd_test": lambda f, x, y, s, v, w: statistics(f(x, y, 1.0, num_permutations=9, **KEY)),
    "mmd_witness": lambda f, x, y, s, v, w: f(y, x, y, 1.0, y_weights=w),
    "mmd_flow_velocity": lambda f, x, y, s, v, w: f(x, y, 1.0),
    "hsic": lambda f, x, y, s, v, w: f(x, s, 1.0, 1.0, weights=w),
    "hsic_test": lambda f, x, y, s, v, w: statistics(f(s, x, 1.0, 1.0, num_permutations=9, **KEY)),
    "svgd_direction": lambda f, x, y, s, v, w: f(x, s, 1.0),
    "ksd_squared": lambda f, x, y, s, v, w: f(x, s, 1.0, weights=w),
    "ksd_test": lambda f, x, y, s, v, w: statistics(f(x, s, 1.0, num_bootstrap=9, **KEY)),
    "kde_logpdf": lambda f, x, y, s, v, w: f(x, y, 1.0, weights=w),
    "kde_score": lambda f, x, y, s, v, w: f(x, y, 1.0),
    "kernel_herding": lambda f, x, y, s, v, w: f(x, 1.0, 3),
    "leave_one_out_tau": lambda f, x, y, s, v, w: (f(x), f(x, np.ones(2), values=v)),
    "mean_shift": lambda f, x, y, s, v, w: f(x, y, 1.0, max_steps=5, weights=w)[1:],
    "median_tau": lambda f, x, y, s, v, w: f(x),
    "drift": lambda f, x, y, s, v, w: f(x, y, 1.0, self_weights=w),
    "dask.gauss_sum": lambda f, x, y, s, v, w: f(x, *blocks(y, v)).compute(scheduler="sync"),
    "dask.fourier_sketch": lambda f, x, y, s, v, w: f(
        *blocks(x, v), lower=np.asarray(x).min(0), upper=np.asarray(x).max(0)
    ).compute(scheduler="sync")(x),
    "lineax.gauss_operator": lambda f, x, y, s, v, w: f(x, noise=w).mv(jnp.asarray(np.float32(v))),
}
UNSEEN = {"explain", "fourier_sketch", "kernel_sum_streamed", "dask.gauss_sum", "dask.fourier_sketch"}  # NaN in points


def function(name):
    module, _, name = name.rpartition(".")
    return getattr(getattr(jaxgauss, module) if module else jaxgauss, name)


def public():
    """Public functions, with the names and annotations of their parameters."""
    for prefix, module in (("", jaxgauss), ("dask.", jaxgauss.dask), ("lineax.", jaxgauss.lineax)):
        for name, value in vars(module).items():
            if name[0] != "_" and inspect.isfunction(value) and (not prefix or value.__module__ == module.__name__):
                yield prefix + name, inspect.signature(inspect.unwrap(value)).parameters


def test_every_function_of_points_is_here():
    of_points = {name for name, parameters in public() if set(given.POINTS) & set(parameters)}
    assert (
        of_points | {"explain"} == set(FUNCTIONS) and len(of_points) > 30
    )  # `explain` takes a function's arguments, too


def test_every_argument_of_points_has_a_name_that_is_known():
    kinds = {Points, Queries, Keys}
    for name, parameters in public():
        for argument, parameter in parameters.items():
            if kinds & {parameter.annotation, *typing.get_args(parameter.annotation)}:
                assert argument in given.POINTS or argument == "scores", f"{name}: {argument}"


class Table:
    """An array with names for its columns, as in pandas; slices are tables."""

    def __init__(self, array):
        self.array, self.shape = np.asarray(array), np.shape(array)

    def __array__(self, dtype=None, copy=None):
        return self.array if dtype is None else self.array.astype(dtype)

    def __getitem__(self, index):
        return Table(self.array[index])


def swapped(array):
    return array.astype(array.dtype.newbyteorder())


def found(name, x, y, *others):
    with jax.enable_x64(False):
        return [np.asarray(z) for z in jax.tree.leaves(FUNCTIONS[name](function(name), x, y, *others))]


def far_points_tables_and_swapped_bytes(name):
    """Points far from the origin keep their digits, also those of tables, and in another byte order."""
    for offset in np.array([[1e3, 0], [1e6, -2e6], [1e9, 1e9]]):
        x, y = Z + offset, np.sin(2 * Z) + offset
        exact, far = found(name, x - offset, y - offset, Z, V, W), found(name, x, y, Z, V, W)
        for given_, expected in zip(far, exact, strict=True):
            np.testing.assert_allclose(given_, expected, rtol=2e-4, atol=1e-5 * np.abs(expected).max())
    for kind in (Table, swapped):
        for given_, expected in zip(found(name, *map(kind, (x, y, Z, V, W))), far, strict=True):
            np.testing.assert_array_equal(given_, expected)


SCALES = {"near": (1.0, 0.0), "far": (1e4, 1e6), "tiny": (1e-300, 0.0), "huge": (1e300, 0.0)}


def errors_of_numpy_that_the_caller_raises(name):
    """Under- and overflow of our own arithmetic are nobody's errors; refusals stay."""
    for scale, offset in SCALES.values():
        x, y = Z * scale + offset, np.sin(2 * Z) * scale + offset
        with np.errstate(all="raise"), warnings.catch_warnings(action="ignore"):
            try:
                found(name, x, y, Z, V, W)
            except (ValueError, TypeError) as error:
                assert str(error).startswith("`jaxgauss.")
            assert set(np.geterr().values()) == {"raise"}


def several_bandwidths_in_any_form(name):
    """Of so many points that their distances are looked at."""
    x = np.float32(np.random.default_rng(1).normal(size=(300, 24)))
    arrays, call = (x, x[::-1] + 0.5, np.sin(x), np.cos(x[:, 0]), np.full(300, 1 / 300, "float32")), function(name)
    signature = inspect.signature(inspect.unwrap(call))
    taus = [p for p in signature.parameters if p in ("tau", "tau_x", "tau_y")]

    def results(form):
        def of_several(*args, **options):
            given_ = signature.bind_partial(*args, **options)
            given_.arguments.update({p: form([0.02, 0.05]) for p in taus})
            return call(*given_.args, **given_.kwargs)

        return [np.asarray(z) for z in jax.tree.leaves(FUNCTIONS[name](of_several, *arrays))]

    expected = results(np.float32)
    for form in (list, tuple):
        for found_, right in zip(results(form), expected, strict=True):
            np.testing.assert_allclose(found_, right, rtol=1e-5, atol=1e-6)


def warns_if_asked(name, said, *arrays):
    with pytest.warns(UserWarning, match=said) as seen, checked_data():
        found(name, *arrays)
    assert {x.filename for x in seen} == {__file__}
    found(name, *arrays)


def nan(name):
    x = np.where(np.arange(24)[:, None] == 5, np.nan, Z)
    said = rf"`jaxgauss.{name}`: `\w+` should hold .*; got NaN among them, \(\d+, 2\)"
    warns_if_asked(name, said, x, Z, Z, V, W)


def tau_by_which_no_two_points_meet(name):
    distances = r"squared distances of about [0-9.]+e\+0[67]\."
    said = rf"`jaxgauss.{name}`: `tau(_[xy])?` should be 1/σ².*; got tau(_[xy])? 1, {distances}"
    x = 1e3 * Z
    warns_if_asked(name, said, x, x + 1e3, x, V, W)


# Whose results mean nothing if the kernel is zero between points.
OF_PAIRS = {"mmd_squared", "mmd_flow_velocity", "mmd_witness", "mmd_test", "mmd_estimate", "hsic", "ksd_squared"}
ONE_OR_FEW = {"mean_shift", "lineax.gauss_operator", "kernel_sum_streamed", "fourier_sketch", "dask.fourier_sketch"}
ONE_OR_FEW |= {"estimate_error"}  # of one bandwidth, or in few dimensions
OF_PAIRS |= {"svgd_direction", "mean_shift", "kernel_herding"}
CHECKS = {far_points_tables_and_swapped_bytes: FUNCTIONS.keys(), nan: FUNCTIONS.keys() - UNSEEN}
CHECKS[errors_of_numpy_that_the_caller_raises] = {name for name in FUNCTIONS if not name.startswith("dask.")}
CHECKS[several_bandwidths_in_any_form] = {
    name for name, parameters in public() if {"tau", "tau_x"} & set(parameters) and name not in ONE_OR_FEW
}
CHECKS[tau_by_which_no_two_points_meet] = OF_PAIRS


@pytest.mark.parametrize(
    "name, check",  # one function after the other, so that its programs are used again
    [pytest.param(x, f, id=f"{x}-{f.__name__}") for x in FUNCTIONS for f, names in CHECKS.items() if x in names],
)
def test_what_a_function_is_given(name, check):
    check(name)


@pytest.mark.parametrize("shape", [(9, 2), (3, 3, 2)])
def test_sums_of_far_points_are_those_of_float64(rng, shape):
    values = rng.normal(size=(7, 3))
    with jax.enable_x64(False):
        for offset in (0.0, 1e3, 1e6, 1e9):
            queries, keys = rng.normal(size=shape) + offset, rng.normal(size=(7, 2)) + offset
            exact = gauss_sum64(queries, keys, values, 0.5)
            assert relative_error(jaxgauss.gauss_sum(queries, keys, values, 0.5), exact) < 2e-6
            mixed = jax.jit(lambda k: jaxgauss.gauss_sum(queries, k, values, 0.5))(keys.astype("float32"))  # noqa: B023
            exact = gauss_sum64(queries, keys.astype("float32"), values, 0.5)
            assert np.abs(mixed - exact).max() < 1e-5  # JAX's keys have been rounded, but are not rounded again


def test_what_cannot_be_centered_is_left_as_it_is(rng):
    """Points about the origin, JAX's own, and without a number among them."""
    near, far = rng.normal(size=(5, 2)), np.full((5, 2), 1e9)
    both = np.where(np.arange(20)[:, None] < 9, 1e-5 * rng.normal(size=(20, 2)), 1e3)  # digits of those near zero count
    with jax.enable_x64(False):
        alone = [(x,) for x in (both, -both, far * np.nan, far[:0])]
        for points in (*alone, (near, near), (far.astype("float32"), jnp.ones((5, 2))), (far, [far])):
            center, same = given.centered(*points)
            assert center is None and all(x is y for x, y in zip(same, points, strict=True))
    assert given.centered(far)[0] is None  # float64 stays


@pytest.mark.parametrize(
    "name, argument, call",
    [
        ("gauss_sum", "keys", lambda x, near: jaxgauss.gauss_sum(near, x, V, 900.0)),
        ("gauss_sum", "queries", lambda x, near: jaxgauss.gauss_sum(1e6 * x, near, V)),
        ("log_gauss_sum", "queries", lambda x, near: jaxgauss.log_gauss_sum(x, x, tau=900)),
        ("explain", "queries", lambda x, near: jaxgauss.explain(Table(x), near, V, tau=900)),
        ("hsic", "y", lambda x, near: jaxgauss.hsic(near, x, 1.0, tau_y=np.float64(900))),
        ("mean_shift", "points", lambda x, near: jaxgauss.mean_shift(x, near, 900.0, max_steps=1)),
        ("lineax.gauss_operator", "points", lambda x, near: jaxgauss.lineax.gauss_operator(x, 900.0)),
    ],
)
def test_points_without_a_common_center_warn_that_they_are_rounded(name, argument, call):
    x = Z / 30 + np.where(np.arange(24)[:, None] < 12, 1e6, -1e6)
    said = rf"^`jaxgauss.{name}`: `{argument}` should .*; got coordinates of 1e\+(06|12), moved .*jax_enable_x64"
    with jax.enable_x64(False), pytest.warns(UserWarning, match=said) as seen:
        call(x, Z)
    assert [x.filename for x in seen] == [__file__]
    call(x, Z)  # float64 stays


def test_what_rounding_does_not_move_does_not_warn(rng):
    x = rng.normal(size=(100, 2))
    clusters = x + np.where(np.arange(100)[:, None] < 50, 1e6, -1e6)
    outlier, lost, endless = x.copy(), x.copy(), x.copy()
    outlier[0], lost[0], endless[:50] = 1e9 / 7, np.nan, np.inf
    with jax.enable_x64(False):
        rounded = clusters.astype("float32")
        for points in (x, outlier, lost, rounded, rounded.astype(float), jnp.asarray(rounded), [clusters]):
            given.centered(points, tau=1e4, names=("queries",))
        for tau in (1e-8, np.ones(1), jnp.ones(()), None, -1.0, 10**400):
            given.centered(clusters, tau=tau, names=("queries",))
        for points in (endless, clusters[:0]):
            given.centered(points, tau=1.0, names=("queries",))
        for far in (clusters, 1e300 * clusters):
            with pytest.warns(UserWarning, match="should lie near a common center"):
                given.centered(x, far, far, tau=1e4, names=("queries", "keys", "values"))


def test_explain_checks_the_data(rng):
    """A τ by which no two points meet; not of few points, of sums, or of kernels with long tails."""
    x = 1e3 * rng.normal(size=(30, 3))
    twice = np.concatenate([x, x[:3]])
    with pytest.warns(UserWarning, match=r"`jaxgauss.mmd_squared`: `tau` should be 1/σ²"):
        explain(jaxgauss.mmd_squared, x, 1e4 + x, 20.0)
    with pytest.warns(UserWarning, match=r"`jaxgauss.hsic`: `tau_y` should be 1/σ²"):
        explain(lambda: jaxgauss.hsic(x / 1e3, x, 1.0, 20.0))
    explain(jaxgauss.mmd_squared, x[:7], x[7:14], 20.0)
    explain(jaxgauss.mmd_squared, x, 1e4 + x, 20.0, kernel="imq")
    explain(jaxgauss.mmd_squared, twice, 1e4 + x, 20.0)
    explain(jaxgauss.kde_logpdf, x, x, 20.0)
    explain(jax.jit(jaxgauss.mmd_squared), x, x + 1, 20.0)
    explain(x, x, x, 20.0)
    jaxgauss.mmd_squared(x, 1e4 + x, 20.0)  # which does not look


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if not name.startswith("dask.")])
def test_integers_and_lists_are_numbers(name):
    """They give what floating arrays give."""
    x = np.stack(np.divmod(np.arange(24.0), 5), -1)
    arrays = x, x[::-1] // 2, (3 * Z).round(), V.round(), np.eye(24)[5]
    exact = found(name, *arrays)
    for kind in (lambda x: x.astype(int), lambda x: jnp.asarray(x, "int16"), np.ndarray.tolist):
        for given_, expected in zip(found(name, *map(kind, arrays)), exact, strict=True):
            np.testing.assert_array_equal(given_, expected)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("kind", ["bool", "uint8", "int16", "int32", "int64"])
def test_integers_promote_as_in_jax(kind, x64):
    """As in `jnp.mean`; with floating arrays as in `jnp.matmul`, or not at all in the strict mode."""
    x, half = np.eye(3).astype(kind), jnp.eye(3, dtype="float16")
    with jax.enable_x64(x64):
        assert jaxgauss.gauss_sum(x, x, x).dtype == jnp.mean(x).dtype
        assert jaxgauss.gauss_sum([[0.5]], [[0.0]], [1.0]).dtype == jnp.mean(1.0).dtype
        with pytest.raises(TypeError, match=f"got queries {kind}. Convert with"):
            jaxgauss.gauss_sum(x, half, half)
        with jax.numpy_dtype_promotion("standard"):
            for f in (jaxgauss.gauss_sum, jax.jit(jaxgauss.gauss_sum)):
                assert f(x, half, x).dtype == jnp.float16
            loss = lambda values: jaxgauss.gauss_sum(x, half, values, np.int64(2)).sum()  # noqa: E731
            assert jax.grad(loss)(half).dtype == jnp.float16


def test_integers_far_from_zero_keep_their_digits():
    x = np.arange(6).reshape(3, 2)
    with jax.enable_x64(False):
        np.testing.assert_array_equal(*(jaxgauss.gauss_sum(y, y, x) for y in (x, x + 10**9)))


def test_masks_are_no_numbers():
    mask = (np.arange(24) < 9).tolist()
    masked = jaxgauss.mmd_squared(Z, Z + 1, 1.0, y_weights=mask)
    np.testing.assert_allclose(masked, jaxgauss.mmd_squared(Z, Z[:9] + 1, 1.0), rtol=1e-12)


def test_mean_shift_comes_back(rng):
    x = np.concatenate([rng.normal(size=(20, 2)), rng.normal(size=(20, 2)) + 20])
    with jax.enable_x64(False):
        near, far = (jaxgauss.mean_shift(x + offset, x + offset, 1.0) for offset in (0, 1e6))
    np.testing.assert_array_equal(near.labels, far.labels)
    np.testing.assert_allclose(far.points - np.float32(1e6), near.points, atol=0.07)  # 1e6 has steps of 0.06


def test_gradients_of_far_points_are_those_of_differences(rng):
    p = problem(rng, 5, 7, 2, 1)
    x, y = p.queries + 1e6, p.keys + 1e6
    near = x - 1e6, y - 1e6
    with jax.enable_x64(False):
        rounded = jnp.asarray(x, "float32")  # by JAX: it is differentiated

        def loss(queries, keys):
            return jaxgauss.gauss_sum(queries, keys, p.values).sum()

        found = jax.grad(loss)(rounded, y)
        expected = jax.grad(loss)(rounded - np.float32(1e6), near[1])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
