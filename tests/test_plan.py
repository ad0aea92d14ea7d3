"""What "auto" chooses, and that it is what runs."""

import functools
import itertools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_given import FUNCTIONS as CALLS

import jaxgauss
from jaxgauss import Attention, Blocked, Dense, Fourier, explain, gauss_sum
from jaxgauss._arrays import devices as jax_devices
from jaxgauss._arrays.points import aligned_sizes
from jaxgauss._checks.names import as_engine
from jaxgauss._checks.settings import Settings
from jaxgauss._engines import bridge
from jaxgauss._engines import costs as models
from jaxgauss._engines.engines import plan_of
from jaxgauss._inspect import program_cost
from jaxgauss._sums import preparation as checked
from jaxgauss.sklearn import KernelDensity
from torch_backend import devices, kernels

HOPPER = devices.Card("a card", (9, 0), 91900)


def shapes(m, n, d, c, dtype="float32"):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in ((m, d), (n, d), (n, c))]


def by(kernel, precision, method="rescale"):
    return Attention(method, kernel=kernel, precision=precision)


def settings(options, dtype="float32"):
    others = {name: x for name, x in options.items() if name not in ("engine", "precision")}
    engine = as_engine("gauss_sum", options.get("engine", "auto"), options.get("precision"))
    return Settings(engine, **{"dtype": dtype} | others)


@pytest.mark.parametrize(
    "size, intel, options, expected",
    [
        ((64, 64, 3, 1), True, {}, Dense(precision="float32")),
        ((8192, 8192, 3, 1), True, {}, Blocked(precision="float32")),
        ((8192, 8192, 128, 128), True, {}, Blocked(precision="float32")),
        ((8192, 8192, 3, 1), False, {}, Blocked(precision="float32")),
        ((8192, 8192, 3, 1), False, {"engine": Attention("rescale")}, by("cpu", "float32")),
        ((8192, 8192, 3, 1), False, {"engine": Attention(kernel="cpu")}, by("cpu", "float32")),
        ((64, 64, 3, 1), False, {"precision": "float16"}, by("cpu", "float16")),
        ((64, 64, 3, 1), False, {"engine": "reweight", "precision": "bfloat16"}, by("cpu", "bfloat16", "reweight")),
        ((8192, 8192, 3, 1), False, {"engine": "dense"}, Dense(precision="float32")),
    ],
)
def test_auto_on_a_cpu(monkeypatch, size, intel, options, expected):
    monkeypatch.setattr(models, "vendor", lambda: "GenuineIntel" if intel else "HygonGenuine")
    plan = explain(*shapes(*size), **options)
    assert plan.engine == expected
    assert plan.platform == "cpu" and plan.reason


@pytest.mark.parametrize(
    "dtype, dim, options, expected",
    [
        ("float32", 16, {}, by("flash", "float32")),
        ("float32", 16, {"pulls": True}, by("flash", "float16")),
        ("float32", 9, {"pulls": True}, by("flash", "float16x2")),  # two parts are free there
        ("float32", 16, {"engine": Attention("reweight")}, by("flash", "float16", "reweight")),
        ("bfloat16", 16, {}, by("flash", "bfloat16")),
        ("float32", 300, {}, by("efficient", "float32")),
        ("float32", 16, {"precision": "float32"}, by("flash", "float32")),
        ("float32", 16, {"precision": "float32", "pulls": True}, by("efficient", "float32")),
        ("float32", 16, {"engine": Attention("reweight", precision="float32")}, by("efficient", "float32", "reweight")),
        ("float64", 16, {}, Blocked(precision="float64")),
        ("float64", 16, {"precision": "float16"}, by("flash", "float16")),
        ("float32", 16, {"matmul_precision": "high"}, by("flash", "float16x2")),
        ("bfloat16", 16, {"matmul_precision": "high"}, by("flash", "bfloat16x2")),
        ("float32", 100, {"matmul_precision": "high"}, by("efficient", "float32")),
        ("float32", 3, {"matmul_precision": "highest"}, Fourier(precision="float32")),
        ("float32", 3, {"precision": "float16"}, by("flash", "float16")),
        ("float32", 16, {"matmul_precision": "highest", "pulls": True}, by("efficient", "float32")),
        ("float32", 16, {"matmul_precision": "highest", "precision": "float16"}, by("flash", "float16")),
    ],
)
def test_auto_on_cuda(monkeypatch, dtype, dim, options, expected):
    monkeypatch.setattr(bridge, "serves", lambda platform: True)
    plan = plan_of(settings(options, dtype=dtype), "cuda", 10**10, dim, 1)
    assert plan.engine == expected


@pytest.mark.parametrize(
    "num, dim, options, card, expected",
    [
        (100, 64, {}, HOPPER, Dense(precision="float32")),
        (100, 64, {"dtype": "bfloat16"}, HOPPER, Dense(precision="float32")),
        (100, 64, {"precision": "float16"}, HOPPER, by("cudnn", "float16")),
        (100, 16, {"precision": "bfloat16x2"}, HOPPER, by("cudnn", "bfloat16x2")),
        (100, 64, {"engine": Attention("rescale")}, HOPPER, by("flash", "float32")),
        (100_000, 64, {"pulls": True}, HOPPER, by("cudnn", "float16")),
        (100_000, 16, {}, HOPPER, by("cudnn", "float32")),
        (12_000, 3, {"pulls": True}, HOPPER, Blocked(precision="float32")),  # half precision is not four times as fast
        (12_000, 3, {"dtype": "float16", "pulls": True}, HOPPER, by("cudnn", "float16")),  # few digits as it is
        (100_000, 200, {"pulls": True}, HOPPER, by("efficient", "float32")),
        (100_000, 64, {"pulls": True}, HOPPER._replace(cudnn=91500), by("flash", "float16")),
        (100_000, 64, {"pulls": True}, HOPPER._replace(capability=(8, 0)), by("flash", "float16")),
        (100_000, 64, {}, HOPPER._replace(capability=(7, 5)), by("efficient", "float32")),
        *((100_000, dim, {"matmul_precision": "highest"}, HOPPER, Fourier(precision="float32")) for dim in (1, 2, 3)),
        (10_000, 3, {"matmul_precision": "highest"}, HOPPER, by("cudnn", "float32")),
        (8000, 2, {}, HOPPER, Blocked(precision="float32")),  # waves are not so much faster that they are tried
        (100_000, 3, {"pulls": True}, HOPPER, Fourier(precision="float32")),
        (100_000, 16, {"matmul_precision": "highest", "pulls": True}, HOPPER, by("efficient", "float32")),
        (100_000, 64, {"dtype": "float64"}, HOPPER, Blocked(precision="float64")),
    ],
)
def test_auto_on_cuda_by_size_and_card(monkeypatch, num, dim, options, card, expected):
    monkeypatch.setattr(bridge, "serves", lambda platform: True)
    monkeypatch.setattr(devices, "card", lambda: card)
    kernels.select_kernel.cache_clear()
    plan = plan_of(settings(options), "cuda", num**2, dim, 1)
    kernels.select_kernel.cache_clear()
    assert plan.engine == expected
    assert plan.stands_in == ("float64" in options.values())
    if options in ({}, {"matmul_precision": "highest"}):
        assert f"(measured on an NVIDIA H200, not here: {card})" in plan.reason
    assert plan.reach == (-1 if plan.engine.in_xla else 1) * float("inf")  # nothing looks at the points


@pytest.mark.parametrize("num, dim, channels", [(2048, 64, 1), (2048, 64, 64)])
def test_sums_with_gradients_on_cuda_are_estimated_by_themselves(monkeypatch, num, dim, channels):
    """Pulls from differences of coordinates take longer in XLA than the sum, more so than by attention."""
    monkeypatch.setattr(bridge, "serves", lambda platform: True)
    monkeypatch.setattr(devices, "card", lambda: HOPPER)
    found = [plan_of(Settings(pulls=pulls), "cuda", num**2, dim, channels).name for pulls in (False, True)]
    assert found[0] != "attention" == found[1]
    kernel = kernels.select_kernel("flash", "float16", "cuda", "float32", dim)
    for engine in ("dense", "blocked", kernel):
        assert models.time_on_cuda(engine, num**2, dim, channels, True) > models.time_on_cuda(
            engine, num**2, dim, channels
        )


def test_costs_of_a_cuda_device_replace_the_estimates(monkeypatch, tmp_path):
    """Where they say that XLA is cheaper it is what runs; widths cost as those that are compiled."""
    monkeypatch.setattr(bridge, "serves", lambda platform: True)
    monkeypatch.setattr(devices, "card", lambda: HOPPER)
    table = json.loads(models.CUDA_TABLE.read_text())
    table[HOPPER.name] = {"blocked": {"call": 1.0, "pair": 0.0, "column": 0.0}, "commit": "abc"}
    monkeypatch.setattr(models, "CUDA_TABLE", tmp_path / "costs.json")
    models.CUDA_TABLE.write_text(json.dumps(table))
    models.cuda_costs.cache_clear()
    plan = plan_of(Settings(), "cuda", 10**10, 16, 1)
    models.cuda_costs.cache_clear()
    assert plan.name == "blocked" and f"(measured: {HOPPER})" in plan.reason and plan.reach < float("inf")
    flash, cudnn = (replace(kernels.KERNELS[name], dtype="float16") for name in ("flash", "cudnn"))
    assert [models.kernel_columns(flash, dim, 1) for dim in (3, 30, 31, 62, 63, 200)] == [64, 64, 128, 128, 192, 448]
    assert [models.kernel_columns(flash, 3, channels) for channels in (64, 256, 300)] == [128, 512, 1024]
    assert [models.kernel_columns(cudnn, dim, 1) for dim in (3, 62, 64)] == [128, 128, 256]


GRADES = {None: "default", "bfloat16": "default", "high": "high", "tensorfloat32": "high", "BF16_BF16_F32_X3": "high"}
GRADES |= {"highest": "highest", "float32": "highest"}


def test_auto_precision_reads_the_default_of_matrix_products(monkeypatch):
    seen = []
    monkeypatch.setattr(checked, "plan_of", lambda settings, *_: seen.append(settings.matmul_precision))
    for asked in GRADES:
        with jax.default_matmul_precision(asked):
            explain(*shapes(5, 6, 2, 1))
    assert seen == [*GRADES.values()]


def test_the_platform_is_that_of_the_arrays():
    assert jax_devices.expected_platform(jnp.ones(1)) == "cpu"
    assert jax_devices.expected_platform() == jax.default_backend()
    with jax.default_device(jax.devices("cpu")[0]):
        assert jax_devices.expected_platform() == "cpu"
    assert jax_devices.platforms() == ["cpu"]


def test_batches_count_as_work():
    plan = explain(jax.ShapeDtypeStruct((1000, 64, 3), "float32"), *shapes(1, 64, 3, 1)[1:])
    assert plan.name != "dense"
    x = jax.ShapeDtypeStruct((1, 64, 3), "float32")
    for tau in ((9,), (9, 3)):  # one for each coordinate
        assert aligned_sizes(x, x, x, jax.ShapeDtypeStruct(tau, "float32"))[0] == 9 * 64**2


PAIRS = {  # of 31 points x and 19 points y
    **dict.fromkeys(["gauss_sum", "kernel_sum", "log_gauss_sum", "kernel_mean", "kde_logpdf", "mean_shift"], 31 * 19),
    **dict.fromkeys(["embedding_norm_squared", "hsic", "svgd_direction", "ksd_squared", "kernel_herding"], 31 * 31),
    **dict.fromkeys(["mmd_squared", "energy_distance", "mmd_flow_velocity"], 31 * (31 + 19)),
    "mmd_witness": 19 * (31 + 19),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_plan_is_that_of_the_pairs_that_are_summed(rng, monkeypatch, name):
    def plan_of(settings, platform, pairs, *_):
        raise LookupError(pairs)

    monkeypatch.setattr(checked, "plan_of", plan_of)
    x, y = rng.normal(size=(31, 2)), rng.normal(size=(19, 2))
    of_each = y if PAIRS[name] == 31 * 19 else x  # values, or weights
    with pytest.raises(LookupError, match=f"^{PAIRS[name]}$"):
        CALLS[name](getattr(jaxgauss, name), x, y, np.sin(x), of_each[:, 0], None)


def test_auto_takes_what_the_table_says_is_cheaper(monkeypatch):
    """And says so, with both estimates; a call's own cost decides for few pairs, columns for many."""
    kernel, xla = {"call": 10.0, "pair": 1.0, "column": 0.0}, {"call": 0.0, "pair": 1.0, "column": 1.0}
    costs = {"xla in float32": models.Cost(**xla), "kernel in float32": models.Cost(**kernel)}
    monkeypatch.setattr(models, "cpu_costs", lambda: (costs, "row A"))
    assert explain(*shapes(1, 1, 3, 1)).name == "dense"
    many = explain(*shapes(100, 100, 3, 1))
    assert many.name == "attention"
    assert many.reason == "an estimated 0.01 ms by attention in float32, 0.07 ms by dense in float32 (row A)"


def test_costs_grow_with_everything():
    """The table's rows are whole; half the width of the numbers does not cost more."""
    rows = [models._costs(row) for rows in json.loads(models.TABLE.read_text()).values() for row in rows.values()]
    for row, engine in itertools.product(rows, ("xla", "kernel")):
        single, double = (row[f"{engine} in {dtype}"] for dtype in ("float32", "float64"))
        assert min(*single, *double) > 0 and single.pair <= double.pair and single.column <= double.column
        assert single.nanoseconds(10**6, 10) < single.nanoseconds(10**6, 20) < single.nanoseconds(10**7, 20)


def test_a_vendor_can_be_named(monkeypatch):
    monkeypatch.setenv("JAXGAUSS_CPU_VENDOR", "GenuineIntel")
    assert models.vendor.__wrapped__() == "GenuineIntel"
    monkeypatch.delenv("JAXGAUSS_CPU_VENDOR")
    assert models.vendor.__wrapped__()


def some_points(rng, num, dim):
    return jnp.asarray(rng.normal(size=(num, dim)), "float32")


def listed(found):
    return [(x.number, x.kind, x.queries, x.keys, x.dim, x.channels, x.engine) for x in found.parts]


def test_explain_lists_the_sums_of_a_function(rng):
    """Also if it has run before, and without running it; from shapes as from arrays."""
    x, y = some_points(rng, 900, 5), some_points(rng, 700, 5)
    blocked, own, alike = "blocked in float32", (900, 1600, 5, 6), (900, 1600, 5, 7)
    jaxgauss.mmd_flow_velocity(x, y, 0.1)
    for points in ((x, y), shapes(900, 700, 5, 1)[:2]):
        found = explain(jaxgauss.mmd_flow_velocity, *points, 0.1)
        assert listed(found) == [(1, "sum", *own, "dense in float32")] and found.function == "mmd_flow_velocity"
    found = explain(jax.grad(jaxgauss.mmd_squared), x, y, tau=0.1)
    assert listed(found) == [(1, "sum", *alike, "dense in float32")]
    x, y = (jnp.tile(z, (4, 1)) for z in (x, y))
    found = explain(jax.value_and_grad(lambda x: gauss_sum(x, y, y[:, 0], 0.1).sum()), x)
    assert listed(found) == [(1, "sum", 3600, 2800, 5, 6, blocked)]
    found = explain(lambda x: gauss_sum(x, y, y, 0.1, engine="rescale"), x)
    assert listed(found) == [(1, "sum", 3600, 2800, 5, 5, "attention in float32")]


def test_explain_counts_points_as_near_where_they_are_not_seen(rng, monkeypatch):
    """Also if by the table far ones cost less; few points, too, which take differences if they are far."""
    rows = models.cpu_costs()[0]
    dear = {"kernel in float32": rows["kernel in float32"]._replace(pair=100.0)}
    monkeypatch.setattr(program_cost, "cpu_costs", lambda: (rows | dear, "row A"))
    for num, engine, name in ((3000, "rescale", "attention in float32"), (200, "auto", "dense in float32")):
        x = some_points(rng, num, 5)
        (part,) = explain(lambda x, engine=engine: gauss_sum(x, x, x, 0.1, engine=engine), x).parts
        assert part.engine == name


def test_explain_knows_where_the_points_lie(rng):
    """By the values of the arrays: tiles that are skipped take no time, and few waves little."""
    x = some_points(rng, 20000, 2)
    far, waves = (explain(jaxgauss.mmd_flow_velocity, x, x + 1, tau) for tau in (1e6, 1.0))
    assert [z.parts[0].engine for z in (far, waves)] == ["clusters", "fourier"]
    nothing = explain(jaxgauss.mmd_flow_velocity, *shapes(20000, 20000, 2, 1)[:2], 1.0)
    assert waves.milliseconds < nothing.milliseconds / 4
    assert far.milliseconds < explain(jaxgauss.mmd_flow_velocity, x, x + 1, 1e3).milliseconds


def test_a_sum_takes_as_long_by_its_operations_as_by_its_plan(rng):
    """The estimates by which "auto" chooses, and those of the program that it makes."""
    for num, dim, channels in ((3000, 3, 1), (2000, 60, 1), (2000, 20, 40)):
        x = some_points(rng, num, dim)
        of_sum = float(explain(x, x, x[:, :1].repeat(channels, 1)).reason.split()[2])
        found = explain(gauss_sum, x / 100, x, x[:, :1].repeat(channels, 1), tau=1e-3)
        assert 0.7 < found.milliseconds / of_sum < 1.4


def test_explain_counts_differences_of_all_pairs_in_few_dimensions(rng):
    """For kernels with a kink, of which products have not the digits; they take longer than products of near points."""
    x = rng.normal(size=(10000, 4)).astype("float32")
    kinked, smooth = (explain(jaxgauss.kernel_sum, x, x, x[:, 0], 0.1, kernel=name) for name in ("laplace", "gauss"))
    assert kinked.milliseconds > 2 * smooth.milliseconds


def test_explain_counts_what_repeats(rng):
    """Sums in a loop; one of unknown length is one step, and what is not used costs nothing."""
    x = some_points(rng, 1500, 4)

    def three(x):
        return jax.lax.scan(lambda x, _: (x + gauss_sum(x, x, x, 0.1), None), x, None, length=3)[0]

    found, one = explain(three, x), explain(gauss_sum, *[jax.ShapeDtypeStruct(x.shape, x.dtype)] * 3, 0.1)
    assert [z.number for z in found.parts] == [3] and 2.5 < found.milliseconds / one.milliseconds < 3.5
    assert [z.number for z in explain(jaxgauss.mean_shift, x, x, 0.1).parts] == [1]
    assert explain(lambda x: (gauss_sum(x, x, x, 0.1), 1)[1], x).parts == ()
    assert str(found).startswith("three: an estimated ") and "3 × sum of 1500 × 1500 pairs" in str(found)


NAMES = ["mmd_squared", "mmd_test", "hsic", "hsic_test", "ksd_squared", "ksd_test", "kde_logpdf"]
NAMES += ["kde_score", "kernel_mean", "log_gauss_sum", "kernel_sum", "mean_shift", "leave_one_out_tau"]
NAMES += ["kernel_herding", "svgd_direction", "energy_distance", "mmd_witness", "mmd_squared_matrix"]
FUNCTIONS = {name: functools.partial(CALLS[name], getattr(jaxgauss, name)) for name in NAMES}
FUNCTIONS["mmd_estimate"] = lambda x, y, *_: jaxgauss.mmd_estimate(x, y, 0.1)
FUNCTIONS["segments"] = lambda x, y, *_: gauss_sum(x, y, y, 0.1, segments=(np.arange(len(x)) // 99,) * 2)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_explain_takes_every_function(rng, name):
    x, y = some_points(rng, 5000, 2), some_points(rng, 5000, 2)
    found = explain(FUNCTIONS[name], x, y, jnp.sin(x), x[:, 0], jnp.full(5000, 2e-4, "float32"))
    assert 0.1 < found.milliseconds < 1e5 and (found.parts or name.endswith("test"))


def test_explain_says_what_it_cannot_trace(rng):
    x = some_points(rng, 9, 2)
    with pytest.raises(
        TypeError, match=r"`jaxgauss.explain`: the function must be .* JAX can trace; got <lambda>, which needs"
    ):
        explain(lambda x: float(x.sum()), x)
    streams = [(jaxgauss.gauss_sum_streamed, x, [(x, x)]), (jaxgauss.mmd_estimate, [x], [x], 1.0)]
    for function, *arguments in [*streams, (KernelDensity(1.0).fit, x)]:
        with pytest.raises(TypeError, match=r"`jaxgauss.explain`: .* Explain what it calls: of a stream the"):
            explain(function, *arguments)
