"""gauss_sum against float64: values, dtypes, leading axes, and what it does with nothing and with NaN."""

import functools
import itertools
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgauss import gauss_sum, gauss_sum_blocked, gauss_sum_dense, log_gauss_sum
from jaxgauss._checks.settings import Settings
from jaxgauss._engines import dispatch, tiles
from jaxgauss._sums import gauss_sum as module
from jaxgauss._sums import in_parts
from oracle import SIZES, assert_close, gauss_sum64, problem, relative_error

METHODS = ("auto", "reweight", "prescale", "rescale", "blocked", "dense")
NATIVE = [gauss_sum_dense, gauss_sum_blocked]


def in_full(methods, cases, others):
    """Some methods with every case, the other ones with the last."""
    return [*itertools.product(methods, cases), *((x, cases[-1]) for x in others)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "size, dtype, tolerance", [*((x, "float64", 1e-13) for x in SIZES), (SIZES[2], "float32", 2e-6)]
)
def test_sum_matches_float64(rng, method, size, dtype, tolerance):
    case = problem(rng, *size, tau=1.0, dtype=dtype)
    result = gauss_sum(*case.operands, method=method)
    assert isinstance(result, jax.Array) and result.dtype == dtype
    assert relative_error(result, gauss_sum64(*case.operands)) <= tolerance


@pytest.mark.parametrize("function", NATIVE)
@pytest.mark.parametrize("size", SIZES)
def test_native_sums_match_float64(rng, function, size):
    case = problem(rng, *size)
    assert relative_error(function(*case.operands), gauss_sum64(*case.operands)) <= 1e-13


@pytest.mark.parametrize("method", ["rescale", "blocked"])
@pytest.mark.parametrize("dim, channels", [(1, 7), (3, 1), (3, 64), (16, 1), (64, 7), (300, 64)])
def test_float32_holds_its_figure(rng, method, dim, channels):
    case = problem(rng, 700, 900, dim, channels, tau=1.0, dtype="float32")
    for offset, tolerance in ((0, 2e-6), (100, 1e-5)):
        moved = case._replace(queries=case.queries + np.float32(offset), keys=case.keys + np.float32(offset))
        result = gauss_sum(*moved.operands, method=method)
        assert relative_error(result, gauss_sum64(*moved.operands)) <= tolerance


@pytest.mark.parametrize("dim", [3, 16, 64])
@pytest.mark.parametrize("tau", [1.0, 10.0])
@pytest.mark.parametrize("positive, tolerance", [(True, 5e-4), (False, 1.5e-3)])
def test_float16_holds_its_figure(rng, dim, tau, positive, tolerance):
    case = problem(rng, 700, 2000, dim, 1, tau=tau, dtype="float32", positive=positive)
    result = gauss_sum(*case.operands, precision="float16")
    assert relative_error(result, gauss_sum64(*case.operands)) <= tolerance


@pytest.mark.parametrize(
    "method, half", in_full(["rescale", "blocked"], [("bfloat16", 8e-3), ("float16", 1e-3)], METHODS[:3])
)
def test_half_precision_arguments_are_summed_in_float32(rng, method, half):
    dtype, tolerance = half
    case = problem(rng, 40, 50, 5, 3)
    operands = [jnp.asarray(x).astype(dtype) for x in case[:3]]
    result = gauss_sum(*operands, 0.7, method=method)
    assert result.dtype == dtype
    assert relative_error(result.astype(float), gauss_sum64(*(x.astype(float) for x in operands), 0.7)) <= tolerance


@pytest.mark.parametrize(
    "method, precision",
    in_full(["auto", "rescale"], ["bfloat16", "float32", "float64", "float16"], ["reweight", "prescale"]),
)
def test_precision_is_what_was_asked_for(rng, method, precision):
    case = problem(rng, 40, 50, 5, 3, tau=1.0)
    error = relative_error(gauss_sum(*case.operands, method=method, precision=precision), gauss_sum64(*case.operands))
    low, high = {"float16": (3e-5, 3e-3), "bfloat16": (3e-4, 3e-2), "float32": (1e-9, 3e-6), "float64": (0, 1e-13)}[
        precision
    ]
    assert low <= error <= high


LEADING = [
    ((4,), (), (), ()),
    ((), (4,), (), ()),
    ((), (), (4,), ()),
    ((), (), (), (4,)),
    ((3, 1), (4,), (3, 4), (4,)),
    ((2, 1, 1), (3, 1), (4,), (2, 3, 1)),
]


@pytest.mark.parametrize(
    "method, shapes", in_full(["rescale", "blocked"], LEADING, ["auto", "reweight", "prescale", "dense"])
)
def test_leading_axes_broadcast_as_in_matmul(rng, method, shapes):
    q, k, v = (rng.normal(size=(*x, *y)) for x, y in zip(shapes, ((5, 2), (7, 2), (7, 3)), strict=False))
    tau = rng.uniform(0.5, 2, size=shapes[3])
    exact = gauss_sum64(q, k, v, tau)
    for function in (functools.partial(gauss_sum, method=method), *NATIVE):
        assert relative_error(function(q, k, v, tau), exact) <= 1e-13


@pytest.mark.parametrize("function", [gauss_sum, *NATIVE])
def test_one_dimensional_values_are_weights(rng, function):
    case = problem(rng, c=1)
    weights = case.values[:, 0]
    assert relative_error(function(case.queries, case.keys, weights), gauss_sum64(*case[:3], 1.0)[:, 0]) <= 1e-13
    batched = function(np.stack([case.queries] * 2), case.keys, weights)
    assert batched.shape == (2, 13)


def test_mixed_dtypes_promote(rng):
    case = problem(rng)
    with jax.numpy_dtype_promotion("standard"):
        result = gauss_sum(case.queries.astype("float32"), case.keys, jnp.asarray(case.values, jnp.bfloat16))
    assert result.dtype == jnp.float64
    with jax.enable_x64(False):
        assert gauss_sum(*case.operands).dtype == jnp.float32


@pytest.mark.parametrize(
    "method, shape",
    in_full(["rescale", "blocked", "fourier"], [(0, 5, 2, 3), (4, 5, 2, 0), (0, 0, 1, 1), (4, 0, 2, 3)], METHODS[:3]),
)
def test_empty_sums_are_zeros_with_zero_gradients(method, shape):
    m, n, d, c = shape
    operands = jnp.ones((m, d)), jnp.ones((n, d)), jnp.ones((n, c)), jnp.asarray(1.0)

    def total(*operands):
        return gauss_sum(*operands, method=method).sum()

    result = gauss_sum(*operands, method=method)
    assert result.shape == (m, c) and not result.any()
    gradients = jax.grad(total, argnums=(0, 1, 2, 3))(*operands)
    assert [x.shape for x in gradients] == [x.shape for x in operands]
    assert not any(x.any() for x in gradients)
    assert gauss_sum(jnp.ones((0, 4, d)), jnp.ones((n, d)), jnp.ones((n, c)), method=method).shape == (0, 4, c)
    assert jax.vmap(lambda q: gauss_sum(q, *operands[1:], method=method))(jnp.ones((2, m, d))).shape == (2, m, c)


@pytest.mark.parametrize(
    "method, precision, batch",  # of keys, which share the queries that points are then centered on
    [
        *((x, "auto", ()) for x in METHODS),
        ("auto", "float16", ()),
        *(("rescale", x, (2,)) for x in ("auto", "float16")),
    ],
)
@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_nan_spoils_only_the_rows_it_touches(rng, method, precision, batch):
    queries, keys, values = (rng.normal(size=x) for x in ((60, 3), (*batch, 40, 3), (40, 2)))
    queries, keys, others = queries + 1000, keys + 1000, np.arange(60) != 7
    queries[7, 1] = np.nan
    total = functools.partial(gauss_sum, method=method, precision=precision)
    result, exact = np.asarray(total(queries, keys, values)), gauss_sum64(queries[others], keys, values, 1.0)
    assert np.isnan(result[..., 7, :]).all()
    assert relative_error(result[..., others, :], exact) <= (2e-3 if precision == "float16" else 1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_nan_in_a_value_spoils_its_channel_alone(rng, method):
    case = problem(rng, 60, 40, 3, 2)
    case.values[5, 0] = np.nan
    result = np.asarray(gauss_sum(*case.operands, method=method))
    assert np.isnan(result[:, 0]).all() and np.isfinite(result[:, 1]).all()


@pytest.mark.parametrize(
    "precision, channels, tolerance",
    [("float16", 1, 3e-3), ("float16", 24, 3e-3), ("bfloat16", 24, 3e-2), ("float32", 1, 1e-5)],
)
@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_nan_in_a_query_spoils_only_its_row_of_the_gradient(rng, precision, channels, tolerance):
    case = problem(rng, 30, 40, 3, channels)
    queries = jnp.asarray(case.queries).at[7, 1].set(jnp.nan)
    slope = jax.grad(lambda q: gauss_sum(q, *case.operands[1:], method="rescale", precision=precision).sum())
    spoiled, clean = np.asarray(slope(queries)), np.asarray(slope(jnp.asarray(case.queries)))
    others = np.arange(30) != 7
    assert np.isnan(spoiled[7]).all() and relative_error(spoiled[others], clean[others]) <= tolerance


@pytest.mark.parametrize("method", ["rescale", "reweight", "blocked"])
@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_a_query_far_from_everything_sums_to_zero(method, precision):
    result = gauss_sum(
        jnp.array([[1e4], [0.0]]), jnp.array([[0.0], [1.0]]), jnp.ones((2, 1)), method=method, precision=precision
    )
    assert result[0, 0] == 0 and abs(float(result[1, 0]) - 1 - np.exp(-0.5)) < 1e-6


@pytest.mark.parametrize(
    "method, size",
    in_full(["auto", "rescale"], [(1e4, 1.0), (1.0, 2.0**32), (1e9, 1.0), (25.0, 1.0)], ["reweight", "blocked"]),
)
def test_points_out_of_reach_are_summed_in_float64(rng, method, size):
    """Formed as a·b - ½|a|² - ½|b|², exponents would have no right digits here."""
    spread, tau = size
    case = problem(rng, 60, 60, 3, 2, tau=tau, dtype="float32")
    points = jnp.asarray(case.queries * np.float32(spread))
    operands = points, points, jnp.asarray(case.values), jnp.asarray(case.tau)
    result = gauss_sum(*operands, method=method)
    assert relative_error(result, gauss_sum64(*operands)) < 1e-6
    gradients = jax.grad(lambda *x: gauss_sum(*x, method=method).sum(), (0, 1, 2, 3))(*operands)
    assert all(np.isfinite(x).all() for x in gradients)


def test_results_do_not_depend_on_the_size_of_the_blocks(rng, monkeypatch):
    case = problem(rng, 300, 1000, 4, 3)
    exact = gauss_sum64(*case.operands)
    tile = tiles.Tile(4096, 7, 7, 4096)  # many blocks of rows and of columns, the last ones padded
    monkeypatch.setattr(tiles, "TILE", tile)
    jax.clear_caches()

    def pullback(*operands):
        return jax.vjp(lambda *x: gauss_sum(*x, method="blocked"), *operands)[1](jnp.asarray(case.cotangent))

    assert all("scan[" in str(jax.make_jaxpr(f)(*case.operands)) for f in (gauss_sum_blocked, pullback))  # of blocks
    assert relative_error(gauss_sum_blocked(*case.operands), exact) <= 1e-13
    batched = gauss_sum_blocked(np.stack([case.queries] * 3), *case.operands[1:])
    assert relative_error(batched, np.stack([exact] * 3)) <= 1e-13
    ours = pullback(*case.operands)
    monkeypatch.undo()
    dense = jax.vjp(gauss_sum_dense, *map(jnp.asarray, case.operands))[1](jnp.asarray(case.cotangent))
    for x, y in zip(ours, dense, strict=True):
        assert relative_error(x, y) <= 1e-12
    jax.clear_caches()


@pytest.mark.parametrize(
    "batches, entries", [(((7,), (7,), (7,)), 100), (((7,), (), (7,)), 16), (((2, 1), (7,), (7,)), 100)]
)
def test_batches_go_by_groups_that_fill_a_tile(rng, monkeypatch, batches, entries):
    """Three elements of 30 entries fit, and the seventh is left over; or not even one does."""
    shapes = ((*batches[0], 6, 3), (*batches[1], 5, 3), (*batches[2], 5, 2))
    operands = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]
    dense, pullback = jax.vjp(gauss_sum_dense, *operands)
    g = jnp.asarray(rng.normal(size=dense.shape))
    monkeypatch.setattr(tiles, "TILE", tiles.Tile(entries, 4, 4, entries))
    jax.clear_caches()
    ours, our_pullback = jax.vjp(lambda *x: gauss_sum(*x, method="blocked"), *operands)
    logs = log_gauss_sum(*operands[:2], jnp.log(jnp.abs(operands[2][..., 0])), method="blocked")
    jax.clear_caches()
    assert_close([ours, *our_pullback(g)], [dense, *pullback(g)], 1e-12)
    assert_close([jnp.exp(logs)], [gauss_sum_dense(*operands[:2], jnp.abs(operands[2][..., :1]))[..., 0]], 1e-12)


@pytest.mark.parametrize(
    ("batch", "num_queries", "num_keys", "dim", "channels"),
    [
        ((), 4200, 600, 3, 1),  # several tiles in both directions
        ((), 4200, 300, 3, 5),
        ((), 2100, 1100, 16, 17),  # channels whose product is transposed
        ((), 4200, 140, 3, 70),
        ((5,), 200, 150, 3, 12),  # elements of a batch side by side
        ((5,), 200, 150, 3, 1),
        ((), 500, 400, 3, 300),
        ((), 500, 400, 300, 3),
    ],
)
def test_tiles_have_all_digits(rng, batch, num_queries, num_keys, dim, channels):
    shapes = ((*batch, num_queries, dim), (*batch, num_keys, dim), (*batch, num_keys, channels))
    operands = [rng.normal(size=shape) for shape in shapes]
    tau = jnp.full((1,) * len(batch), 3 / dim, jnp.float32)
    found = dispatch.near_sum(Settings("blocked"), *(jnp.asarray(x, jnp.float32) for x in operands), tau)
    assert relative_error(found, gauss_sum64(*operands, 3 / dim)) < 5e-7


@pytest.mark.parametrize(("dim", "channels"), [(1024, 1), (300, 700), (3, 4096)])
def test_wide_points_and_values_with_gradients(rng, dim, channels):
    case = problem(rng, 40, 30, dim, channels, dtype="float32")
    wide = [x.astype("float64") for x in case]
    results = [[*jax.vjp(f, *x[:4])[1](x[4])] for f, x in ((gauss_sum, case), (gauss_sum_dense, wide))]
    assert_close(*results, 5e-6)


@pytest.mark.parametrize(("num", "dim", "channels"), [(64, 3, 1), (64, 64, 64), (256, 128, 1)])
def test_few_points_take_few_steps(rng, num, dim, channels):
    """XLA runs a program of up to eight steps on one thread; with more of them, few points wait for other threads."""
    operands = [jnp.asarray(rng.normal(size=(num, width)), jnp.float32) for width in (dim, dim, channels)]
    program = jax.jit(gauss_sum).lower(*operands).compile().as_text()
    entry = program[program.index("ENTRY") :].splitlines()[1:]
    nothing = re.compile(r" (parameter|constant|tuple|get-tuple-element|bitcast)\(")
    assert 4 <= sum(" = " in line and not nothing.search(line) for line in entry) <= 8


@pytest.mark.parametrize("function", [gauss_sum, *NATIVE])
def test_an_eager_call_is_one_program(rng, function):
    """Each operation by itself would be dispatched by itself, and take its time."""
    operands = problem(rng).operands
    (call,) = jax.make_jaxpr(function)(*operands).eqns
    assert call.primitive.name in ("jit", "pjit")


def test_eager_calls_of_known_shapes_compile_nothing(rng):
    """A thousand calls outside of jit, and a hundred gradients, of five shapes: all is compiled by the first five."""
    compiled = []
    listener = lambda event, *_, **__: compiled.append(event) if event.endswith("compile_duration") else None  # noqa: E731
    cases = [problem(rng, 31 + i, 47 + i, 2, 1, dtype="float32").operands[:3] for i in range(5)]
    cases = [tuple(map(jnp.asarray, case)) if i % 2 else case for i, case in enumerate(cases)]
    slope = jax.grad(lambda *x: gauss_sum(*x, 0.3).sum())

    def call(num: int, function) -> None:
        for i in range(num):
            function(*cases[i % 5])

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        call(5, functools.partial(gauss_sum, tau=0.7))
        call(5, slope)
        before = len(compiled)
        call(1000, functools.partial(gauss_sum, tau=0.8))
        call(100, slope)
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert 0 < before == len(compiled)


def test_parts_with_a_bar_give_the_same(rng, monkeypatch, capsys):
    """Of all queries of a batch, also if the last part is smaller; all parts are one program."""
    expected, seen = in_parts.in_parts, []

    def in_three_seconds(found, compute, queries, axis=-1):
        def seeing(rows):
            seen.append(rows.shape)
            return compute(rows)

        return expected(replace(found, milliseconds=3000.0), seeing, queries, axis)

    monkeypatch.setattr(module, "in_parts", in_three_seconds)
    for shape, values in (((2, 50, 3), (40, 4)), ((50, 3), (40,)), ((0, 3), (40,)), ((1, 3), (40, 1))):
        operands = rng.normal(size=shape), rng.normal(size=(40, 3)), rng.normal(size=values)
        for tau in (0.7, np.array([0.2, 0.7])) if len(shape) == 2 else (0.7,):
            assert_close(gauss_sum(*operands, tau, progress=True), gauss_sum(*operands, tau), 1e-13)
    shown = capsys.readouterr().err
    assert seen[:3] == [(2, 17, 3)] * 3 and "gauss_sum: 100%" in shown and "50/50" in shown


@pytest.mark.parametrize("transformed", [jax.jit, jax.grad, jax.vmap])
def test_progress_is_refused_where_there_is_none(transformed):
    def total(x):
        return gauss_sum(x, x, x[:, 0], progress=True).sum()

    with pytest.raises(ValueError, match=r"`jaxgauss.gauss_sum`: `progress` must be False under a transf.*; got True"):
        transformed(total)(jnp.ones((2, 3, 1)) if transformed is jax.vmap else jnp.ones((3, 1)))
    with pytest.raises(ValueError, match=r"`jaxgauss.gauss_sum`: `progress` must be False with segments; got True"):
        gauss_sum(*[np.ones((3, 1))] * 3, segments=(np.zeros(3, int),) * 2, progress=True)
