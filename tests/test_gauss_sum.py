"""gauss_sum against float64: values, dtypes, leading axes, and what it does with nothing and with NaN."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_programs import programs  # noqa: F401

import jaxgauss
from jaxgauss import gauss_sum, gauss_sum_blocked, gauss_sum_dense, log_gauss_sum
from jaxgauss._checks.settings import Settings
from jaxgauss._engines import run as dispatch
from jaxgauss._engines import tiles
from jaxgauss._sums import gauss_sum as module
from jaxgauss._sums import progress as in_parts
from oracle import SIZES, assert_close, gauss_sum64, gradients64, problem, relative_error

METHODS = ("auto", "reweight", "prescale", "rescale", "blocked", "dense")
NATIVE = [gauss_sum_dense, gauss_sum_blocked]
WAYS = {x: functools.partial(gauss_sum, engine=x) for x in METHODS} | {x.__name__: x for x in NATIVE}
OTHERS = [x for x in WAYS if x not in ("rescale", "blocked")]


def in_full(ways, cases, others):
    """Some ways with every case, the other ones with the last."""
    return [*itertools.product(ways, cases), *((x, cases[-1]) for x in others)]


CASES = [(SIZES[0], "float64", 1e-13), (SIZES[3], "float64", 1e-13), (SIZES[2], "float32", 2e-6)]


@pytest.mark.parametrize("way", WAYS)
def test_sum_matches_float64(rng, way):
    for size, dtype, tolerance in CASES:
        case = problem(rng, *size, tau=1.0, dtype=dtype)
        result = WAYS[way](*case.operands)
        assert isinstance(result, jax.Array) and result.dtype == dtype
        assert relative_error(result, gauss_sum64(*case.operands)) <= tolerance


@pytest.mark.parametrize("method", ["rescale", "blocked"])
@pytest.mark.parametrize("dim, channels", [(1, 7), (16, 1), (300, 64)])
def test_float32_holds_its_figure(rng, method, dim, channels):
    case = problem(rng, 700, 900, dim, channels, tau=1.0, dtype="float32")
    for offset, tolerance in ((0, 2e-6), (100, 1e-5)):
        moved = case._replace(queries=case.queries + np.float32(offset), keys=case.keys + np.float32(offset))
        result = gauss_sum(*moved.operands, engine=method)
        assert relative_error(result, gauss_sum64(*moved.operands)) <= tolerance


HALF = {"auto": "float16", "reweight": "float16", "blocked": "float16", "rescale": "bfloat16", "prescale": "bfloat16"}


@pytest.mark.parametrize("method, dtype", HALF.items())
def test_half_precision_arguments_are_summed_in_float32(rng, method, dtype):
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3}[dtype]
    case = problem(rng, 40, 50, 5, 3)
    operands = [jnp.asarray(x).astype(dtype) for x in case[:3]]
    result = gauss_sum(*operands, 0.7, engine=method)
    assert result.dtype == dtype
    assert relative_error(result.astype(float), gauss_sum64(*(x.astype(float) for x in operands), 0.7)) <= tolerance


# The error of a sum in this precision: less would be another one.
BETWEEN = {"bfloat16": (3e-4, 3e-2), "float32": (1e-9, 3e-6), "float64": (0, 1e-13), "float16": (3e-5, 3e-3)}


@pytest.mark.parametrize("method, precision", in_full(["rescale"], [*BETWEEN], ["auto", "reweight", "prescale"]))
def test_precision_is_what_was_asked_for(rng, method, precision):
    case = problem(rng, 40, 50, 5, 3, tau=1.0)
    error = relative_error(gauss_sum(*case.operands, engine=method, precision=precision), gauss_sum64(*case.operands))
    low, high = BETWEEN[precision]
    assert low <= error <= high


ALONE = [((4,), (), (), ()), ((), (), (4,), ()), ((), (), (), (4,))]  # leading axes of queries, keys, values and τ
LEADING = [*ALONE, ((2, 1, 1), (3, 1), (4,), (2, 3, 1))]


@pytest.mark.parametrize("way, shapes", in_full(["rescale", "blocked"], LEADING, OTHERS))
def test_leading_axes_broadcast_as_in_matmul(rng, way, shapes):
    q, k, v = (rng.normal(size=(*x, *y)) for x, y in zip(shapes, ((5, 2), (7, 2), (7, 3)), strict=False))
    tau = rng.uniform(0.5, 2, size=shapes[3])
    assert relative_error(WAYS[way](q, k, v, tau), gauss_sum64(q, k, v, tau)) <= 1e-13


@pytest.mark.parametrize("function", [gauss_sum, *NATIVE])
def test_one_dimensional_values_are_weights(rng, function):
    case = problem(rng, c=1)
    weights = case.values[:, 0]
    assert relative_error(function(case.queries, case.keys, weights), gauss_sum64(*case[:3], 1.0)[:, 0]) <= 1e-13
    assert function(np.stack([case.queries] * 2), case.keys, weights).shape == (2, 13)


def test_mixed_dtypes_promote(rng):
    case = problem(rng)
    with jax.numpy_dtype_promotion("standard"):
        result = gauss_sum(case.queries.astype("float32"), case.keys, jnp.asarray(case.values, jnp.bfloat16))
    assert result.dtype == jnp.float64
    with jax.enable_x64(False):
        assert gauss_sum(*case.operands).dtype == jnp.float32


EMPTY = [(0, 5, 2, 3), (4, 5, 2, 0), (4, 0, 2, 3)]  # M, N, D, C


@pytest.mark.parametrize(
    "method, size", in_full(["rescale", "blocked"], EMPTY, ["fourier", "auto", "reweight", "prescale"])
)
def test_empty_sums_are_zeros_with_zero_gradients(method, size):
    m, n, d, c = size
    operands = jnp.ones((m, d)), jnp.ones((n, d)), jnp.ones((n, c)), jnp.asarray(1.0)
    result, pullback = jax.vjp(functools.partial(gauss_sum, engine=method), *operands)
    gradients = pullback(jnp.ones_like(result))
    assert result.shape == (m, c) and [x.shape for x in gradients] == [x.shape for x in operands]
    assert not any(x.any() for x in (result, *gradients))


@pytest.mark.parametrize("method", ["rescale", "blocked", "fourier"])
def test_empty_batches(method):
    total = functools.partial(gauss_sum, keys=jnp.ones((5, 2)), values=jnp.ones((5, 3)), engine=method)
    assert total(jnp.ones((0, 4, 2))).shape == (0, 4, 3)
    assert jax.vmap(total)(jnp.ones((2, 0, 2))).shape == (2, 0, 3)


# And batches of keys, which share the queries that points are then centered on.
WITH_NAN = [*((x, None, ()) for x in METHODS[1:]), ("rescale", None, (2,)), ("rescale", "float16", (2,))]


@pytest.mark.parametrize("method, precision, batch", WITH_NAN)
@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_nan_spoils_only_the_rows_that_it_touches(rng, method, precision, batch):
    queries, keys, values = (rng.normal(size=x) for x in ((60, 3), (*batch, 40, 3), (40, 2)))
    queries, keys, others = queries + 1000, keys + 1000, np.arange(60) != 7
    total = functools.partial(gauss_sum, engine=method, precision=precision)
    queries[7, 1] = np.nan
    result, exact = np.asarray(total(queries, keys, values)), gauss_sum64(queries[others], keys, values, 1.0)
    assert np.isnan(result[..., 7, :]).all()
    assert relative_error(result[..., others, :], exact) <= (2e-3 if precision == "float16" else 1e-9)
    if precision is None:
        values[5, 0] = np.nan
        result = np.asarray(total(queries, keys, values))[..., others, :]
        assert np.isnan(result[..., 0]).all() and np.isfinite(result[..., 1]).all()


@pytest.mark.parametrize(
    "precision, channels, tolerance", [("float16", 1, 3e-3), ("bfloat16", 24, 3e-2), ("float32", 1, 1e-5)]
)
@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_nan_in_a_query_spoils_only_its_row_of_the_gradient(rng, precision, channels, tolerance):
    case = problem(rng, 30, 40, 3, channels)
    queries = jnp.asarray(case.queries).at[7, 1].set(jnp.nan)
    slope = jax.grad(lambda q: gauss_sum(q, *case.operands[1:], engine="rescale", precision=precision).sum())
    spoiled, clean = np.asarray(slope(queries)), np.asarray(slope(jnp.asarray(case.queries)))
    others = np.arange(30) != 7
    assert np.isnan(spoiled[7]).all() and relative_error(spoiled[others], clean[others]) <= tolerance


def test_results_do_not_depend_on_the_size_of_the_blocks(rng, monkeypatch):
    case = problem(rng, 300, 1000, 4, 3)
    exact = [gauss_sum64(*case.operands), *gradients64(*case)]
    monkeypatch.setattr(tiles, "TILE", tiles.Tile(4096, 7, 7, 4096))  # many blocks, the last ones padded
    jax.clear_caches()

    by_blocks = functools.partial(gauss_sum, engine="blocked")

    def with_pullback(*operands):
        result, pullback = jax.vjp(by_blocks, *operands)
        return result, *pullback(jnp.asarray(case.cotangent))

    assert all("scan[" in str(jax.make_jaxpr(f)(*case.operands)) for f in (by_blocks, with_pullback))
    assert_close(jax.jit(with_pullback)(*case.operands), exact, 1e-12)
    batched = by_blocks(np.stack([case.queries] * 3), *case.operands[1:])
    assert relative_error(batched, np.stack([exact[0]] * 3)) <= 1e-13
    jax.clear_caches()


@pytest.mark.parametrize("batches, entries", [(((7,), (7,), (7,)), 100), (((2, 1), (), (7,)), 16)])
def test_batches_go_by_groups_that_fill_a_tile(rng, monkeypatch, batches, entries):
    """Three elements of 30 entries fit, and the seventh is left over; or not even one does."""
    shapes = ((*batches[0], 6, 3), (*batches[1], 5, 3), (*batches[2], 5, 2))
    operands = [rng.normal(size=shape) for shape in shapes]
    exact = gauss_sum64(*operands, 1.0)
    g, weights = rng.normal(size=exact.shape), np.abs(operands[2])
    monkeypatch.setattr(tiles, "TILE", tiles.Tile(entries, 4, 4, entries))
    jax.clear_caches()

    @jax.jit
    def found(*operands):
        result, pullback = jax.vjp(lambda *x: gauss_sum(*x, engine="blocked"), *operands)
        logs = log_gauss_sum(*operands[:2], jnp.log(weights[..., 0]), engine="blocked")
        return result, *pullback(jnp.asarray(g)), jnp.exp(logs)

    *ours, of_logs = found(*operands)
    jax.clear_caches()
    assert_close(ours, [exact, *gradients64(*operands, np.ones(()), g)[:3]], 1e-12)
    assert_close([of_logs], [gauss_sum64(*operands[:2], weights, 1.0)[..., 0]], 1e-12)


@pytest.mark.parametrize(
    ("batch", "num_queries", "num_keys", "dim", "channels"),
    [
        ((), 4200, 600, 3, 1),  # several tiles in both directions
        ((), 2100, 1100, 16, 17),  # channels whose product is transposed
        ((), 4200, 140, 3, 70),
        ((5,), 200, 150, 3, 12),  # elements of a batch side by side
        ((), 500, 400, 300, 3),
    ],
)
def test_tiles_have_all_digits(rng, batch, num_queries, num_keys, dim, channels):
    shapes = ((*batch, num_queries, dim), (*batch, num_keys, dim), (*batch, num_keys, channels))
    operands = [rng.normal(size=shape) for shape in shapes]
    tau = jnp.full((1,) * len(batch), 3 / dim, jnp.float32)
    total = jax.jit(functools.partial(dispatch.near_sum, Settings(jaxgauss.Blocked())))
    found = total(*(jnp.asarray(x, jnp.float32) for x in operands), tau)
    assert relative_error(found, gauss_sum64(*operands, 3 / dim)) < 5e-7


@pytest.mark.parametrize(("dim", "channels"), [(1024, 1), (3, 4096)])
def test_wide_points_and_values_with_gradients(rng, dim, channels):
    case = problem(rng, 40, 30, dim, channels, dtype="float32")
    *operands, g = map(jnp.asarray, case)
    assert_close(jax.vjp(gauss_sum, *operands)[1](g), gradients64(*case), 5e-6)


@pytest.mark.parametrize(("num", "dim", "channels"), [(64, 64, 64), (256, 128, 1)])
def test_few_points_take_few_steps(rng, num, dim, channels):
    """XLA runs a program of up to eight steps on one thread; with more of them, few points wait for other threads."""
    operands = [jnp.asarray(rng.normal(size=(num, width)), jnp.float32) for width in (dim, dim, channels)]
    program = jax.jit(gauss_sum).lower(*operands).compile().as_text()
    entry = program[program.index("ENTRY") :].splitlines()[1:]
    nothing = re.compile(r" (parameter|constant|tuple|get-tuple-element|bitcast)\(")
    assert 4 <= sum(" = " in line and not nothing.search(line) for line in entry) <= 8


@pytest.mark.parametrize("function", [gauss_sum, *NATIVE])
def test_an_eager_call_is_one_program(rng, programs, function):  # noqa: F811
    """Each operation by itself would be dispatched by itself, and take its time. No other test has as many points."""
    operands = [jnp.asarray(x) for x in problem(rng, 37, 41, 5, 3).operands]
    programs.clear()
    jax.block_until_ready(function(*operands))
    assert len(programs) == 1


def test_eager_calls_of_known_shapes_compile_nothing(rng):
    """Calls outside of jit, and gradients, of NumPy's arrays and JAX's: all is compiled by the first of each shape."""
    compiled = []
    listener = lambda event, *_, **__: compiled.append(event) if event.endswith("compile_duration") else None  # noqa: E731
    cases = [problem(rng, 31 + i, 47 + i, 2, 1, dtype="float32").operands[:3] for i in range(2)]
    cases[1] = tuple(map(jnp.asarray, cases[1]))
    slope = jax.grad(lambda *x: gauss_sum(*x, 0.3).sum())

    def call(num: int, function) -> None:
        for i in range(num):
            function(*cases[i % 2])

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        call(2, functools.partial(gauss_sum, tau=0.7))
        call(2, slope)
        before = len(compiled)
        call(200, functools.partial(gauss_sum, tau=0.8))
        call(20, slope)
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert 0 < before == len(compiled)


def test_parts_with_a_bar_give_the_same(rng, monkeypatch, capsys):
    """Of all queries of a batch, also if the last part is smaller; all parts are one program."""
    seen, checked = [], module.checked_gauss_sum

    def seeing(settings, plan, rows, *others):
        seen.append(rows.shape)
        return checked(settings, plan, rows, *others)

    monkeypatch.setattr(module, "checked_gauss_sum", seeing)
    monkeypatch.setattr(in_parts, "PAIRS", 17 * 40)
    keys, taus = rng.normal(size=(40, 3)), np.array([0.2, 0.7])
    for shape, values, tau in (
        ((2, 50, 3), (40, 4), 0.7),
        ((50, 3), (40,), taus),
        ((0, 3), (40,), 0.7),
        ((1, 3), (40, 1), 0.7),
    ):
        operands = rng.normal(size=shape), keys, rng.normal(size=values)
        exact = gauss_sum64(operands[0], keys, operands[2].reshape(40, -1), tau)
        assert_close([gauss_sum(*operands, tau, progress=True)], [exact if len(values) > 1 else exact[..., 0]], 1e-13)
    shown = capsys.readouterr().err
    assert seen[:3] == [(2, 17, 3)] * 3 and "gauss_sum: 100%" in shown and "50/50" in shown
    monkeypatch.setattr(in_parts, "LEAST", 8)  # a Fourier series sums all keys for each part
    q, k = rng.normal(size=(50, 2)), rng.normal(size=(40, 2))
    found = gauss_sum(q, k, k[:, 0], 0.7, engine="fourier", progress=True)
    assert_close([found], [gauss_sum64(q, k, k[:, :1], 0.7)[:, 0]], 1e-13)
    assert seen[-2:] == [(40, 2)] * 2
