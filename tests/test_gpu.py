"""The CUDA path: on a machine that has a device `python -m pytest tests/test_gpu.py`, elsewhere under emulation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxgauss
from cuda_programs import operations_in_branches
from emulated_cuda import HAS_CUDA
from jaxgauss import Attention, explain, gauss_sum, kernel_sum, log_gauss_sum, mmd_squared
from jaxgauss._engines import plan
from oracle import (
    assert_close,
    assert_gradients_close,
    gauss_sum64,
    gradients64,
    in_plain_jax,
    problem,
    relative_error,
    with_gradients,
)
from torch_backend import attention, operators

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cuda")]

KERNELS = [("flash", "float16"), ("flash", "bfloat16"), ("cudnn", "float16"), ("cudnn", "bfloat16")] + [
    ("efficient", dtype) for dtype in ("float16", "bfloat16", "float32")
]
TOLERANCE = {"float16": 3e-3, "bfloat16": 3e-2, "float32": 1e-5}


def on_gpu(case) -> list[jax.Array]:
    return [jax.device_put(jnp.asarray(x, jnp.float32), jax.devices("gpu")[0]) for x in case]


def on_cpu(function, *arrays):
    with jax.default_device(jax.devices("cpu")[0]):
        return function(*map(jnp.asarray, arrays))


@functools.cache
def compiled(**options):
    """With gradients: one program for all tests that give operands of one shape."""
    return with_gradients(functools.partial(gauss_sum, **options))


def value_and_gradients(case, **options):
    return compiled(**options)(*on_gpu(case))


def emulated_share(cases, start=0, step=2):
    """All cases on a device; of the emulation every second, or so."""
    return cases if HAS_CUDA else cases[start::step]


SIZES = [(1, 1, 1, 1), (113, 203, 59, 1), (1000, 777, 16, 33), (300, 400, 100, 300)]
METHODS = ["rescale", "prescale", "reweight"]
EVERY = [
    (*kernel, method, size)
    for i, kernel in enumerate(KERNELS)
    for method in emulated_share(METHODS, i % 3, 3)
    for size in emulated_share(SIZES, i % 4, 4)
]


FLASH, EFFICIENT = Attention(kernel="flash", precision="float16"), Attention(kernel="efficient", precision="float32")


@pytest.mark.parametrize("kernel, precision, method, size", EVERY)
def test_every_kernel_sums(rng, kernel, precision, method, size):
    case = problem(rng, *size, tau=1.0)
    result = gauss_sum(*on_gpu(case.operands), engine=Attention(method, kernel=kernel, precision=precision))
    assert relative_error(result, gauss_sum64(*case.operands)) <= TOLERANCE[precision]


@pytest.mark.parametrize(
    "kernel, precision, size",
    [(*x, (300, 400, 16, 33)) for x in KERNELS] + [(*x, (113, 203, 16, 1)) for x in emulated_share(KERNELS[::2], 0, 3)],
)
def test_every_kernel_has_gradients(rng, kernel, precision, size):
    case = problem(rng, *size, tau=1.0)
    sums, ours = value_and_gradients(case, engine=Attention(kernel=kernel, precision=precision))
    assert relative_error(sums, gauss_sum64(*case.operands)) <= TOLERANCE[precision]
    assert_gradients_close(ours, gradients64(*case), case, 2 * TOLERANCE[precision])


@pytest.mark.parametrize("size", [(113, 203, 59, 1), (300, 400, 16, 33), (70, 1000, 128, 1)])
def test_flex_attention_sums_and_has_gradients(rng, size):
    """It is compiled for each of these, for seconds."""
    case = problem(rng, *size, tau=1.0)
    sums, ours = value_and_gradients(case, engine=Attention(kernel="flex"))
    bound = gauss_sum64(*case[:2], np.abs(case.values), case.tau)
    assert np.linalg.norm(np.float64(sums) - gauss_sum64(*case.operands)) <= 2e-6 * np.linalg.norm(bound)
    assert_gradients_close(ours, gradients64(*case), case, 1e-5)


@pytest.mark.parametrize(
    "kernel, precision, tolerance, channels",
    [
        ("flash", "float16x2", 1e-3, 33),
        ("flash", "bfloat16x2", 8e-3, 1),
        ("efficient", "float16x2", 1e-3, 1),
        ("efficient", "bfloat16x2", 8e-3, 33),
    ],
)
def test_split_points(rng, kernel, precision, tolerance, channels):
    case = problem(rng, 700, 800, 16, channels, tau=30.0)
    ours, gradients = value_and_gradients(case, engine=Attention(kernel=kernel, precision=precision))
    bound = gauss_sum64(*case[:2], np.abs(case.values), case.tau)
    error = np.asarray(ours, np.float64) - gauss_sum64(*case.operands)
    assert np.linalg.norm(error) <= tolerance * np.linalg.norm(bound)
    assert_gradients_close(gradients, gradients64(*case), case, 8 * tolerance)


@pytest.mark.parametrize("method, channels", [("rescale", 1), ("rescale", 33), ("reweight", 33), ("prescale", 1)])
def test_what_half_precision_does_not_hold_is_computed_again(rng, method, channels):
    """The branch is taken or not, in a graph too: XLA records what first calls launch, and replays it for new data."""
    step = with_gradients(functools.partial(gauss_sum, engine=method, precision="float16"))
    for tau in [1.0, 1.0, 1.0, 0.5, 3000.0, 2.0, 3000.0, 1.0, 1e12, 1.0] if HAS_CUDA else [1.0, 3000.0, 1e12, 1.0]:
        case = problem(rng, 300, 400, 3, channels, tau=tau)
        operands = on_gpu(case)
        result = step(*operands)
        ours, gradients = jax.tree.map(np.asarray, result)
        del operands, result  # so that the next ones lie where these lay
        assert all(np.isfinite(x).all() for x in (ours, *gradients))
        if tau < 1e12:
            squared = tau * np.square(np.concatenate(case[:2])).sum(-1).max()  # R²; three products in TF32 hold 22 bits
            assert relative_error(ours, gauss_sum64(*case.operands)) <= (3e-3 if tau < 3000 else 2**-23 * squared)
            assert_gradients_close(gradients, gradients64(*case), case, 6e-3)
    torch.cuda.synchronize()
    with pytest.warns(UserWarning, match="lie farther from their center"):  # by a later call
        gauss_sum(*on_gpu(problem(rng).operands), engine="rescale")


CLOUDS = {  # how many queries and keys, and what becomes of standard normal ones, of values and cotangents
    "even": (48, 2**16, lambda q, k, v, g: (q, k, v, g)),
    "more keys than one call takes, and no sign": (3, 2**18, lambda q, k, v, g: (q, k, abs(v), abs(g))),
    "all queries at one key": (2**14, 128, lambda q, k, v, g: (0 * q + k[:1], 2 * k, v, 0 * g + 1)),
    "a small value at a query": (
        48,
        4096,
        lambda q, k, v, g: (q + 3 * _is_last(q), k + 3 * _is_last(k), v * (1 - 0.997 * _is_last(k)), g),
    ),
    "no value at a query": (
        48,
        4096,
        lambda q, k, v, g: (q + 3 * _is_last(q), k + 3 * _is_last(k), np.where(_is_last(k), 0, v), g),
    ),
    "cotangents of all sizes": (  # the largest eight times, for a single row's gradients are few sums that may cancel
        48,
        4096,
        lambda q, k, v, g: (q, k, v, g * 10 ** np.repeat(np.linspace(-20, 20, 6), 8)[:, None]),
    ),
}


def _is_last(points):
    return np.arange(len(points))[:, None] == len(points) - 1


@pytest.mark.parametrize(
    "cloud, channels", [(x, c) for i, x in enumerate(CLOUDS) for c in emulated_share([2, 33], i % 2)]
)
def test_gradients_keep_the_digits_of_half_precision(rng, cloud, channels):
    """Weights of a row sum to one, so that float16 holds few bits of them if they are many; sums must not overflow."""
    num_queries, num_keys, changed = CLOUDS[cloud]
    case = problem(rng, num_queries, num_keys, 8, channels)
    queries, keys, values, cotangent = changed(case.queries, case.keys, case.values, case.cotangent)
    case = case._replace(queries=queries, keys=keys, values=values, cotangent=cotangent)
    _, ours = value_and_gradients(case, engine="rescale", precision="float16")
    assert_gradients_close(ours, gradients64(*case), case, 1e-3)


@pytest.mark.parametrize("size", [(1e-30, 1e-20), (1e33, 1e-20), (1e-30, 1e20), (1e30, 1e20)])
def test_gradients_of_values_need_no_product_of_sizes(rng, size):
    """Of cotangents and values, which float32 may not hold: gradients of points are then zero or infinite."""
    case = problem(rng, 60, 70, 8, 33)
    case = case._replace(cotangent=case.cotangent * size[0], values=case.values * size[1])
    ours = value_and_gradients(case, engine="rescale", precision="float16")[1]
    exact, product = gradients64(*case), size[0] * size[1]
    assert_close([ours[2]], [exact[2]], 1e-3)
    if 1e-38 < product < 1e38:
        assert_close(ours[:2], exact[:2], 1e-3)
    else:
        assert all(np.all(x == 0 if product < 1 else np.isinf(x)) for x in ours[:2])


@pytest.mark.gpu  # the emulation records nothing
def test_a_graph_runs_no_python(rng, monkeypatch):
    calls, original = [], operators.FORWARD["flash"]
    monkeypatch.setitem(operators.FORWARD, "flash", lambda *x: calls.append(1) or original(*x))
    operands = on_gpu(problem(rng, 300, 400, 3, 33).operands)
    step = jax.jit(functools.partial(gauss_sum, engine="rescale", precision="float16"))
    for _ in range(40):
        result = jax.block_until_ready(step(*operands))
    assert len(calls) <= 10 and relative_error(result, gauss_sum64(*operands)) < 3e-3


def test_graphs_share_memory(rng):
    """Results that are held, so that every call has its own, and PyTorch's memory given back, and used, in between."""
    q, k, v, g = on_gpu([rng.normal(size=(1000, n)) / 4 for n in (16, 16, 4, 4)])
    step = jax.jit(lambda *x: jax.vjp(functools.partial(gauss_sum, engine="rescale", precision="float16"), *x)[1](g))
    other = jax.jit(lambda *x: gauss_sum(*x, engine="reweight", precision="float16"))
    exact, of_other = step(q, k, v), other(q, k, v)
    held = []
    for i in range(60 if HAS_CUDA else 3):
        held.append((step(q + 0, k + 0, v + 0), other(q + 0, k, v + 0), jnp.zeros(1000 + 777 * i)))
        if i % 4 == 0:
            del held[: len(held) // 2]
            torch.cuda.empty_cache()
            torch.full((1 << 20,), float("nan"), device="cuda" if HAS_CUDA else "cpu")
    for gradients, sums, _ in held:
        assert_close(gradients, exact, 1e-3)
        assert relative_error(sums, of_other) < 1e-3


@pytest.mark.parametrize("options", emulated_share([{"precision": "float16"}, {}, {"engine": EFFICIENT}], 0, 3))
def test_no_conditional_waits_for_the_host(rng, options):
    """XLA records conditionals with calls of PyTorch in their branches, but none with a loop there."""
    operands = on_gpu(problem(rng, 300, 400, 3, 1).operands)

    def loss(*x):
        return gauss_sum(*x, **options).sum() + log_gauss_sum(x[0], x[1], **options).sum()

    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))
    within = operations_in_branches(step.lower(*operands))
    assert "stablehlo.while" not in within and ("stablehlo.custom_call" in within) == bool(options)


def test_waves_where_they_hold_the_points(rng, free_waves):
    """One program for clouds that need few waves, more, or differences, in turn, and as often as graphs take."""
    num = 32_768 if HAS_CUDA else 700
    values, g = (rng.normal(size=num).astype("float32") for _ in range(2))
    some, ours = slice(0, num, num // 50), jax.jit(lambda x: jax.vjp(lambda x: gauss_sum(x, x[::-1], values, 1.0), x))
    pulled = jax.jit(lambda x: ours(x)[1](g)[0])
    for scale in (1.0, 7.0, 300.0, 0.001) * 3:
        x = np.float32(rng.normal(size=(num, 2)) * scale)
        apart = np.float64(x[::-1])[None] - np.float64(x[some])[:, None]
        phi = np.exp(np.square(apart).sum(-1) / -2)
        sums, gradients = ours(*on_gpu([x]))[0], pulled(*on_gpu([x]))
        size = np.linalg.norm(phi @ np.abs(values))
        assert np.linalg.norm(np.float64(sums)[some] - phi @ values) < 4e-6 * size
        weights = phi * (np.multiply.outer(g[some], values) + np.multiply.outer(values[::-1][some], g[::-1]))
        exact, size = (np.einsum("mn,mnd->md", *f) for f in ((weights, apart), (np.abs(weights), np.abs(apart))))
        assert np.linalg.norm(np.float64(gradients)[some] - exact) < 1e-5 * np.linalg.norm(size)


def test_few_points_are_summed_by_xla_at_any_distance(rng):
    """With their gradients, and without a look at how far they lie: 11000 bandwidths; exponents err by 2⁻²⁴ R r."""
    case = problem(rng, 300, 400, 16, 3, tau=30.0)
    case.queries[::2], case.keys[::2] = case.queries[::2] + 1e3, case.keys[::2] + 1e3
    *operands, g = on_gpu(case)
    assert (explain(*operands).name, explain(*operands).precision) == ("dense", "float32")
    case = type(case)(*(np.asarray(x, np.float64) for x in (*operands, g)))
    ours, vjp = jax.vjp(gauss_sum, *operands)
    assert relative_error(ours, gauss_sum64(*case.operands)) < 2e-3
    assert_close(vjp(g)[:3], gradients64(*case)[:3], 4e-3)
    logs = log_gauss_sum(*operands[:2], tau=operands[3])
    exact = np.log(gauss_sum64(*case[:2], np.ones((400, 1)), case.tau)[:, 0])
    assert np.abs(np.asarray(logs) - exact).max() < 2**-24 * 11_000 * 8  # exponents of up to r²/2 = 32


@pytest.mark.parametrize("dim, channels", emulated_share([(3, 1), (3, 33), (64, 1), (64, 33)], 0, 3))
def test_digits_of_points_far_apart(rng, dim, channels):
    """Clusters, an outlier, and points all over: the second kernel has differences of 3×TF32 columns that are exact.

    Errors grow with the distance R, in bandwidths: 2⁻²³ R allows for twice those of a difference of coordinates.
    """
    step = compiled(engine="rescale", precision="float16")
    x, v, g = (rng.normal(size=(n, m)) for n, m in ((600, dim), (300, channels), (300, channels)))
    x /= dim**0.5
    for far in (100.0, 1e4, 3e4):
        clusters = x + far * rng.integers(-1, 2, (600, 1)) / dim**0.5
        outlier = x + far * (np.arange(600)[:, None] % 300 == 7) / dim**0.5
        all_over = far * np.tile(x[:300], (2, 1)) / 2 + x
        for z in (clusters, outlier, all_over):
            q, k, w, c = on_gpu([z[:300], z[300:], v, g])
            sums, found = step(q, k, w, jnp.float32(1), c)
            q, k, w, c = (np.asarray(y, np.float64) for y in (q, k, w, c))
            apart = k[None] - q[:, None]
            phi, lengths = np.exp(np.square(apart).sum(-1) / -2), np.linalg.norm(apart, axis=-1)
            of_pairs, reach = phi * (c @ w.T), 2.0**-23 * np.linalg.norm(z, axis=1).max() + 1e-6
            for ours, exact, size in (
                (sums, phi @ w, phi @ np.abs(w)),
                (found[0], (of_pairs[..., None] * apart).sum(1), (np.abs(of_pairs) * lengths).sum(1)),
                (found[1], -(of_pairs[..., None] * apart).sum(0), (np.abs(of_pairs) * lengths).sum(0)),
                (found[2], phi.T @ c, phi.T @ np.abs(c)),
            ):
                assert np.linalg.norm(np.asarray(ours, np.float64) - exact) < reach * np.linalg.norm(size)


def test_log_gauss_sum_and_estimate_error(rng):
    case = problem(rng, 300, 400, 8, 1, positive=True)
    q, k, v, tau = on_gpu(case.operands)
    logs = log_gauss_sum(q, k, jnp.log(v[:, 0]), tau)
    assert np.abs(np.asarray(logs) - np.log(gauss_sum64(*case.operands)[:, 0])).max() < 1e-4
    slopes = jax.grad(lambda *x: log_gauss_sum(*x).sum(), (0, 1, 2, 3))(q, k, jnp.log(v[:, 0]), tau)
    assert all(jnp.isfinite(x).all() for x in slopes)
    sums = gauss_sum(q, k, v, tau)
    estimate = jaxgauss.estimate_error(q, k, v, tau, rng_key=jax.random.key(0), sums=sums, num_queries=300)
    assert abs(float(estimate.relative_error) - relative_error(sums, gauss_sum64(*case.operands))) < 1e-5


@pytest.mark.gpu  # looks at addresses
def test_inputs_are_not_copied(rng, monkeypatch):
    """What XLA has packed reaches the operator where it lies: on the device, at addresses of its own memory."""
    seen, original = [], operators.FORWARD["flash"]
    monkeypatch.setitem(operators.FORWARD, "flash", lambda *x: seen.append(x) or original(*x))
    operands = on_gpu(problem(rng, 300, 200, 16, 8).operands)
    before = torch.cuda.memory_stats().get("allocation.all.allocated", 0)
    jax.block_until_ready(gauss_sum(*operands, engine=Attention(kernel="flash")))
    assert all(x.is_cuda for x in seen[0])
    assert torch.cuda.memory_stats().get("allocation.all.allocated", 0) - before < 40  # the kernels' own


def test_results_are_right_under_load_without_synchronizing(rng):
    """A long chain of sums and products, on one stream: nothing is read before it is written, or reused too soon."""
    num, steps = (4096, 50) if HAS_CUDA else (256, 2)
    q, k, v, _ = on_gpu(problem(rng, num, num, 16, 16).operands)

    @jax.jit
    def chain(q):
        for _ in range(steps):
            q = jnp.tanh(gauss_sum(q, k, v, precision="float32") @ jnp.eye(16, dtype=jnp.float32) + q)
        return q

    results = [chain(q) for _ in range(5)]
    torch.cuda.synchronize()
    assert all(np.array_equal(results[0], x) or relative_error(x, results[0]) < 1e-5 for x in results)
    step = jax.jit(lambda q: jnp.tanh(in_plain_jax(q, k, v) + q))
    exact = q
    for _ in range(steps):
        exact = jax.block_until_ready(step(exact))
    assert relative_error(results[-1], exact) < 1e-3


@pytest.mark.parametrize("method", ["auto", "rescale"])
def test_transformations(rng, method):
    operands = on_gpu(problem(rng, 60, 70, 8, 5).operands)
    stacked = [jnp.stack([x, x * 0.9]) for x in operands]

    def transformed(function):
        def loss(*x):
            sums = function(*x)
            return jnp.sin(sums).sum(), sums

        return jax.vmap(jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)))(*stacked)

    ours, exact = map(transformed, (functools.partial(gauss_sum, engine=method), in_plain_jax))
    assert_close(jax.tree.leaves(ours), jax.tree.leaves(exact), 1e-2)


def test_float64_falls_back_to_blocks(rng):
    operands = [jax.device_put(jnp.asarray(x), jax.devices("gpu")[0]) for x in problem(rng).operands]
    assert explain(*operands).name == "dense"
    plan.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="no fused attention in float64"):
        assert relative_error(gauss_sum(*operands), gauss_sum64(*operands)) < 1e-12


def test_wrong_devices_are_refused(rng):
    operands = on_gpu(problem(rng).operands)
    with pytest.raises(ValueError, match=r"must be one for cuda, .* \(here 'cpu'"):
        gauss_sum(*operands, engine=Attention(kernel="cpu"))
    with jax.default_device(jax.devices("cpu")[0]), pytest.raises(ValueError, match="'flash' is one for CUDA"):
        gauss_sum(*(jnp.asarray(x) for x in problem(rng).operands), engine=Attention(kernel="flash"))


@pytest.mark.gpu  # both platforms in one program
def test_arrays_on_the_cpu_of_a_gpu_machine_stay_there(rng):
    case = problem(rng)
    operands = [jax.device_put(jnp.asarray(x), jax.devices("cpu")[0]) for x in case.operands]
    plan.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="no fused attention in float64 on CUDA"):  # under jit they might be there
        sums = jax.jit(gauss_sum)(*operands)
    assert sums.devices() == {jax.devices("cpu")[0]}
    assert relative_error(sums, gauss_sum64(*case.operands)) < 1e-12


@pytest.mark.gpu  # looks at the device's memory
def test_memory_is_linear(rng):
    q, k, v, _ = on_gpu(problem(rng, 131072, 131072, 16, 1).operands)
    torch.cuda.reset_peak_memory_stats()
    before = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    step = jax.jit(jax.value_and_grad(lambda *x: gauss_sum(*x).sum(), (0, 1, 2)))
    jax.block_until_ready(step(q, k, v))
    after = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    assert after - before + torch.cuda.max_memory_allocated() < 500 * 2**20  # the kernel matrix has 64 GiB


METHODS = {
    "mmd": lambda x, y, **o: jax.value_and_grad(mmd_squared)(x, y, 0.5, **o),
    "unbiased": lambda x, y, **o: mmd_squared(x, y, np.array([0.3, 1.0]), estimator="unbiased", **o),
    "flow": lambda x, y, **o: jaxgauss.mmd_flow_velocity(x, y, 0.5, **o),
    "svgd": lambda x, y, **o: jaxgauss.svgd_direction(x, -x, 0.5, **o),
    "ksd": lambda x, y, **o: jaxgauss.ksd_squared(x, -x - 0.5, 0.5, **o),
    "kde": lambda x, y, **o: (jaxgauss.kde_logpdf(x, y, 4.0, **o), jaxgauss.kde_score(x, y, 4.0, **o)),
    "hsic": lambda x, y, **o: jax.value_and_grad(jaxgauss.hsic)(x, x + jnp.sin(3 * x[:, ::-1]), 0.5, 0.5, **o),
    "mean": lambda x, y, **o: jaxgauss.kernel_mean(x, y, y, 2.0, **o),
    "test": lambda x, y, **o: jaxgauss.mmd_test(x, y, 0.5, rng_key=jax.random.key(0), num_permutations=300, **o)[1:],
}


@functools.cache
def points_and_results(name):
    """In float64, on the CPU."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(500, 8)) / 2, rng.normal(size=(600, 8)) / 2 + 0.3
    return points, jax.tree.leaves(on_cpu(METHODS[name], *points))


HALF, SINGLE = ({"precision": "float16"}, 5e-3), ({"engine": EFFICIENT}, 1e-4)


@pytest.mark.parametrize(
    "name, options, tolerance",
    [(name, *how) for i, name in enumerate(METHODS) for how in emulated_share([({}, 1e-4), HALF, SINGLE], i % 3, 3)],
)
def test_kernel_methods(name, options, tolerance):
    points, exact = points_and_results(name)
    results = jax.jit(functools.partial(METHODS[name], **options))(*on_gpu(points))
    assert_close(jax.tree.leaves(results), exact, tolerance)


def test_tests_of_independence_and_of_fit(rng):
    """In XLA's tiles, in float64, as on a CPU."""
    points = rng.normal(size=(600, 3)), rng.normal(size=(600, 2))

    def tests(x, y):
        options = {"rng_key": jax.random.key(0)}
        independence = jaxgauss.hsic_test(x, y, 1.0, 1.0, num_permutations=20, resampling="wild", **options)
        return independence, jaxgauss.ksd_test(x, -x, 1.0, num_bootstrap=20, **options)

    results, exact = tests(*on_gpu(points)), on_cpu(tests, *map(np.float32, points))
    assert_close([x.null_statistics for x in results], [x.null_statistics for x in exact], 1e-4)


OTHERS = [
    ("matern52", "mixture", 8, 5e-3),
    ("imq", "mixture", 2, 5e-3),
    ("imq", "blocked", 8, 1e-5),
    ("energy", "blocked", 2, 1e-5),
]


@pytest.mark.parametrize("kernel, method, dim, tolerance", emulated_share(OTHERS))
def test_other_kernels(rng, kernel, method, dim, tolerance):
    """A sum, and MMD² with its gradient: by mixtures in half precision, and evaluated in XLA."""
    q, k = rng.normal(size=(500, dim)) / 2, rng.normal(size=(600, dim)) / 2 + 0.3

    def both(q, k, engine):
        loss = functools.partial(mmd_squared, tau=1.0, kernel=kernel, engine=engine)
        return kernel_sum(q, k, k[:, :1], kernel=kernel, engine=engine), *jax.value_and_grad(loss)(q, k)

    precision = {"precision": "float16"} if method == "mixture" else {}
    results = jax.jit(functools.partial(both, engine=method))(*on_gpu((q, k)))
    if precision:
        half = kernel_sum(*on_gpu((q, k)), on_gpu((k[:, :1],))[0], kernel=kernel, engine=method, **precision)
        assert relative_error(half, results[0]) < 1e-2
    assert_close(results, on_cpu(functools.partial(both, engine="differences"), q, k), tolerance)


@pytest.mark.parametrize("dim, channels", emulated_share([(257, 1), (1024, 257), (16, 700), (3, 4096)]))
def test_wide_points_and_values(rng, dim, channels):
    case = problem(rng, 300, 200, dim, channels)
    ours, gradients = value_and_gradients(case, precision="float32")
    assert relative_error(ours, gauss_sum64(*case.operands)) < 1e-5
    assert_gradients_close(gradients, gradients64(*case), case, 2e-5)


def test_more_points_and_batches_than_one_launch_holds(rng, monkeypatch):
    num = 70_000
    if not HAS_CUDA:  # smaller launches
        num = 700
        for limit in ("MAX_GRID", "MAX_POINTS"):
            monkeypatch.setattr(attention, limit, 600)
    many = problem(rng, num, num, 2, 1, positive=True)
    queries, keys, values, tau = on_gpu(many.operands)
    result = gauss_sum(queries, keys, values, tau, engine=FLASH)[:: num // 10]
    assert relative_error(result, gauss_sum64(many.queries[:: num // 10], *many.operands[1:])) < 3e-3
    batch = gauss_sum(queries[:, None], keys[:, None], values[:, None], tau, engine=FLASH)
    exact = np.exp(-many.tau / 2 * np.square(many.queries - many.keys).sum(-1)) * many.values[:, 0]
    assert relative_error(batch[:, 0, 0], exact) < 3e-3


def test_forward_mode(rng):
    case = problem(rng, 300, 200, 5, 1, positive=True)
    operands = on_gpu(case.operands)

    def tangent(function, *operands):
        return jax.jvp(function, operands, tuple(jnp.cos(x) for x in operands))

    ours = tangent(functools.partial(gauss_sum, precision="float32", forward_mode=True), *operands)
    assert_close(ours, on_cpu(functools.partial(tangent, in_plain_jax), *case.operands), 2e-5)


def test_sharded_and_streamed(rng):
    case = problem(rng, 256, 512, 5, 1, positive=True)
    operands, exact = on_gpu(case.operands), gauss_sum64(*case.operands)
    devices = jax.devices("gpu")
    mesh = jax.make_mesh((len(devices),), ("data",), devices=devices, axis_types=(jax.sharding.AxisType.Auto,))
    for share in ({"query_axis": "data"}, {"key_axis": "data"}):
        assert relative_error(jaxgauss.gauss_sum_sharded(*operands, mesh=mesh, **share), exact) < 3e-3
    chunks = jaxgauss.KeyChunks(case.keys.astype("float32"), case.values.astype("float32"), 100)
    with jax.default_device(devices[0]):
        assert relative_error(jaxgauss.gauss_sum_streamed(operands[0], chunks, case.tau), exact) < 3e-3


def test_solvers_of_other_libraries(rng):
    lineax = pytest.importorskip("lineax")
    from jaxgauss.lineax import gauss_operator, nystrom_preconditioner

    points, values = on_gpu([rng.normal(size=(300, 3)), rng.normal(size=300)])
    operator = gauss_operator(points, 2.0, noise=0.1)
    assert operator.engine.precision == "float32"
    options = {"preconditioner": nystrom_preconditioner(operator, 100, rng_key=jax.random.key(0))}
    solver = lineax.CG(1e-5, 1e-5, stabilise_every=None, max_steps=300)
    solved = jax.jit(lambda y: lineax.linear_solve(operator, y, solver, options=options).value)(values)
    x, y = (np.asarray(z, np.float64) for z in (points, values))
    exact = np.linalg.solve(np.exp(-np.square(x[:, None] - x).sum(-1)) + 0.1 * np.eye(300), y)
    assert relative_error(solved, exact) < 1e-4
