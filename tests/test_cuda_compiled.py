"""CUDA's programs as XLA compiles them for five cards, and what they compute, without a GPU: `.ci/cuda-programs`."""

import functools
import importlib.util
import json
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import emulated_cuda
from cuda_programs import PROGRAMS, WAVES

if importlib.util.find_spec("jax_cuda12_plugin") is None:
    pytest.skip("JAX's CUDA plugin, which compiles for a card, is not installed", allow_module_level=True)

from cuda_compiled import DEVICES, FACTS, compile_for, examined, loops, not_recorded, replayed, without_callbacks

pytestmark = [pytest.mark.usefixtures("cuda"), pytest.mark.emulated]

EVERY = PROGRAMS | WAVES
OF_BOTH = "mmd_squared", "mmd_flow_velocity", "energy_distance"  # which sum over the points of both samples
ROWS = json.loads(FACTS.read_text())["rows"]


@pytest.fixture
def callbacks():
    """The callbacks of the program that was compiled last."""
    kept = []
    with without_callbacks(kept):
        yield kept


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['program']} {row['sizes']}")
def test_nothing_waits_and_little_is_written(callbacks, row):
    """No more kernels, callbacks and temporary arrays than stand in the table of docs/gpu.md."""
    num = row["sizes"][0] * (2 if row["program"] in OF_BOTH else 1)
    found = examined(compile_for(row["program"], *row["sizes"]))
    assert found.waits == 0 and found.layouts == [] and "f64" not in found.dtypes
    assert found.largest <= 1.05 * min(num**2, 2**24)  # one tile, perhaps padded; no differences
    assert found.kernels <= row["kernels"] and found.callbacks == row["callbacks"]
    assert found.temporary <= 1.05 * 2**20 * row["mebibytes"]


def test_gradients_of_both_sides_take_distances_once(callbacks):
    """Of few points; with those in the sum itself."""
    text = compile_for("kernel_sum of imq", 500, 64).as_text()
    assert len(re.findall(r"= f32\[500,500\]\S* reduce\(", text)) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_hold_all_conditionals_and_callbacks(callbacks, name):
    """What the thunks of a program say after all of XLA's passes: only loops are outside, each step a graph of its own.

    One call of `kernel_herding` stands alone, which XLA thinks too few for a graph.
    """
    alone = ["kCustomCall"] * (name == "kernel_herding")
    assert [x for x in not_recorded(name, 16384, 16) if x != "kWhile"] == alone


@pytest.mark.parametrize("dim", [3, 8, 16])
def test_a_step_of_a_sum_is_one_kernel(callbacks, dim):
    """Besides the block of keys, the running sum and the counter; it holds no pair in memory."""
    (loop,) = loops(compile_for("differences", 65536, dim))
    assert loop.steps == 16 and len(loop.kernels) == 4 and sum("reduce" in x for x in loop.kernels) == 1
    assert loop.largest <= 65536 * dim


@pytest.mark.parametrize("dim", [1, 16])
def test_pulls_hold_one_tile(callbacks, dim):
    """With all queries in a step: the tile and its sums are two kernels."""
    for loop in loops(compile_for("blocked", 16384, dim)):
        assert loop.steps == 16 and len(loop.kernels) <= 9 and loop.largest <= 2**24


@pytest.mark.parametrize("name", ["gauss_sum", "log_gauss_sum", "mmd_squared", "kernel_sum of imq", "hsic"])
def test_first_calls_of_few_points(callbacks, name):
    """Triton's compiler, which XLA tries on a card, took minutes for sums over 64 coordinates at once."""
    start = time.perf_counter()
    compile_for(name, 1000, 64, xla_gpu_experimental_enable_fusion_block_level_rewriter=True)
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("device", [x for x in DEVICES if x != "H100"])
@pytest.mark.parametrize("name, sizes", [("gauss_sum", (16384, 64)), ("mmd_squared of imq", (1000, 16))])
def test_other_cards(callbacks, device, name, sizes):
    with emulated_cuda.on(capability=DEVICES[device].capability):
        found = examined(compile_for(name, *sizes, device=device))
    assert found.waits == 0 and found.layouts == [] and "f64" not in found.dtypes


@pytest.mark.parametrize("name", ["gauss_sum", "log_gauss_sum", "mmd_squared", "kernel_sum of imq", "hsic"])
@pytest.mark.parametrize("num", [500, 20_000])
def test_nothing_waits_where_the_cpu_is_a_platform_too(callbacks, monkeypatch, name, num):
    """Then a program has a branch for each, and what XLA decides for CUDA it knows when it compiles."""
    for module in ("_arrays.devices", "_engines.run", "_engines.branches", "_engines.near", "_engines.rules"):
        monkeypatch.setattr(f"jaxgauss.{module}.platforms", lambda: ["cpu", "cuda"])
    jax.clear_caches()
    assert examined(compile_for(name, num, 3)).waits == 0 and "kConditional" not in not_recorded(name, num, 3)
    jax.clear_caches()


def test_the_host_waits_twice_at_most_for_waves(callbacks):
    """For each sum: for how many hold the points, and for how many queries are in doubt."""
    assert not_recorded("gauss_sum", 65536, 2) == ["kConditional"] * 4
    assert examined(compile_for("gauss_sum", 65536, 2)).waits == 0


def operands_of(rng, name, num, dim, far=0.0):
    """Points, values, …, in float32; `far`: how far apart two halves of the points lie."""
    made = {"v": lambda: rng.normal(size=(num, 1)), "w": lambda: rng.normal(size=num), "t": lambda: np.array(0.7)}
    made["T"] = lambda: np.array([0.3, 0.7, 2.0])

    def points():
        return rng.normal(size=(num, dim)) * (2 / dim**0.5) + far * (np.arange(num) % 2)[:, None]

    return [np.float32(made.get(x, points)()) for x in EVERY[name].operands]


# Of a value and of its gradients, relative to their size: in float32, as a difference of sums, in half precision, where
# that of the value is relative to its terms.
EXACT, CANCELS, HALF, COARSE = (1e-5, 3e-5), (1e-4, 1e-4), (5e-4, 7e-3), (1e-3, 3e-2)
REPLAYED = [
    *((name, 300, 3, EXACT) for name in ("gauss_sum", "log_gauss_sum", "kernel_mean", "kde_score", "mmd_squared")),
    *((name, 200, 40, EXACT) for name in ("gauss_sum", "log_gauss_sum", "kernel_sum of matern32", "ksd_squared")),
    *((name, 300, 3, EXACT) for name in ("energy_distance", "kernel_sum of imq", "second derivatives")),
    ("hsic", 300, 3, CANCELS),
    *((name, 300, 3, HALF) for name in ("float16x2", "reweight")),
    ("bfloat16", 300, 3, COARSE),
    *((name, 4100, 3, HALF) for name in ("gauss_sum", "mmd_squared", "mmd_flow_velocity")),
    *((name, 4100, 3, EXACT) for name in ("log_gauss_sum", "float32")),
    *((name, 300, 2, EXACT) for name in ("gauss_sum by waves", "mmd_squared of three τ by waves")),
]


def limits(name, most):
    """Of the value, and of as many gradients as there are."""
    return [most[0]] + [most[1]] * (len(EVERY[name].operands) if EVERY[name].gradients else 0)


def size_of_terms(name, x, y, *rest):
    """Of a value that is made of Gauss sums."""
    tau = rest[-1]

    def phi(x, y, power=0):
        apart = np.linalg.norm(x[:, None] - y[None], axis=-1)
        return apart**power * np.exp(-tau / 2 * apart**2)

    if name == "mmd_flow_velocity":
        return tau * np.linalg.norm(phi(x, x, 1).mean(1) + phi(x, y, 1).mean(1))
    if name == "mmd_squared":
        return phi(x, x).mean() + 2 * phi(x, y).mean() + phi(y, y).mean()
    return (phi(x, y) @ np.abs(rest[0])).sum()


def compared(rng, callbacks, name, num, dim, change=str, far=0.0, of_terms=False):
    """Errors of a replayed value and of its gradients, relative to their norms."""
    operands = operands_of(rng, name, num, dim, far)
    executable = compile_for(name, num, dim)
    with jax.enable_x64(False):
        found = replayed(executable, list(callbacks), operands, change)
    options = {"engine": "differences"} if name in (*WAVES, "bfloat16", "float16x2", "reweight", "float32") else {}
    function = PROGRAMS["gauss_sum"].function if options and name not in WAVES else EVERY[name].function
    exact_run = EVERY[name]._replace(function=functools.partial(function, **options)).run
    with jax.default_device(jax.devices("cpu")[0]):  # not CUDA's engines
        exact = list(map(np.asarray, jax.tree.leaves(jax.jit(exact_run)(*map(jnp.float64, operands)))))
    sizes = list(map(np.linalg.norm, exact))
    sizes[0] = size_of_terms(name, *map(np.float64, operands)) if of_terms else sizes[0]
    return [float(np.linalg.norm(x - y) / size) for x, y, size in zip(found, exact, sizes, strict=True)]


@pytest.mark.parametrize("name, num, dim, most", REPLAYED, ids=str)
def test_the_numbers_of_what_was_compiled(rng, callbacks, name, num, dim, most):
    found = compared(rng, callbacks, name, num, dim, of_terms=most in (HALF, COARSE))
    assert np.less(found, limits(name, most)).all()


@pytest.mark.parametrize("far", [0.0, 300.0])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_waves_by_auto(rng, callbacks, free_waves, dim, far):
    """And differences where waves do not hold the points: branches of what was compiled."""
    found = compared(rng, callbacks, "gauss_sum", 200, dim, far=far, of_terms=True)
    assert np.less(found, limits("gauss_sum", EXACT)).all()


@pytest.mark.parametrize("name, dim", [("float16x2", 3), ("float32", 40)])
def test_digits_of_points_far_apart(rng, callbacks, name, dim):
    """By the second kernel, and from differences: XLA rounds to the grids of `exact` as they are written."""
    assert np.less(compared(rng, callbacks, name, 300, dim, far=3000.0)[:4], [1e-4, 3e-3, 3e-3, 1e-4]).all()


WRONG = {  # what is done to the module's text
    "a constant": lambda text: re.sub(r"dense<-5\.000000e-01>", "dense<-5.010000e-01>", text),
    "a sign": lambda text: text.replace("stablehlo.subtract", "stablehlo.add"),
}


@pytest.mark.parametrize("change", WRONG)
def test_a_program_that_is_wrong_is_noticed(rng, callbacks, change):
    with pytest.raises(AssertionError):
        assert np.less(compared(rng, callbacks, "gauss_sum", 300, 3, WRONG[change]), limits("gauss_sum", EXACT)).all()
