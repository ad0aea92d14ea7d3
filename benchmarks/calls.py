"""What calls cost: the first one of every public function, which compiles; and later ones of few points.

A first call has N = 3000 points, D = 3, C = 2, in float32, outside of `jit`, and a process of its own; calls of another
number of points and of other numbers follow. JAX reports each program that XLA compiles. Seconds are those of the wall,
and of all cores.

Later ones are sums of N = M = 16 and 256, D = 8, C = 1: under `jit`, outside of it, of NumPy arrays; and all gradients.
`jax.grad` outside of `jit` traces its function at every call: the last row is what JAX takes for that where the
function is one product, jitted.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxgauss as jg

from .plots import pivot
from .study import Cell, Study, Task, elsewhere, unchecked

NUM, MORE, CHUNK = 3000, 100, 1000
NUMS, DIM, ROUNDS = (16, 256), 8, 3  # points of later calls, and processes
COMPILED = "/jax/core/compile/backend_compile_duration"
LEFT_OUT = ("calibrate", "explain", "rational_quadratic", "tau_from_bandwidth")  # which sum nothing, or all day
TAU, DRAWN, BOX = {"tau": 2.0}, {"rng_key": jax.random.PRNGKey(0)}, {"lower": -9 * np.ones(3), "upper": 9 * np.ones(3)}
# By name: the arrays, queries x, keys y and values v; other arguments; and numbers
FUNCTIONS: dict[str, tuple[str, dict, dict]] = {
    **{x: ("xyv", {}, TAU) for x in ("gauss_sum", "gauss_sum_blocked", "gauss_sum_dense", "kernel_mean")},
    **{x: ("xy", {}, TAU) for x in ("log_gauss_sum", "kde_logpdf", "kde_score", "mmd_squared", "mmd_flow_velocity")},
    **{x: ("xy", {}, TAU) for x in ("ksd_squared", "svgd_direction", "mmd_estimate")},
    **{x: ("x", {}, {}) for x in ("median_tau", "leave_one_out_tau")},
    **{x: ("x", {}, TAU) for x in ("mmd_squared_to_normal", "uniformity")},
    "alignment": ("xy", {}, {}),
    "kernel_sum": ("xyv", {"kernel": "matern32"}, TAU),
    "log_kernel_sum": ("xy", {"kernel": "imq"}, TAU),
    "gauss_sum_sharded": ("xyv", {"mesh": True}, TAU),
    "kernel_sum_sharded": ("xyv", {"mesh": True, "kernel": "imq"}, TAU),
    "gauss_sum_streamed": ("xyv", {"chunks": True}, TAU),
    "kernel_sum_streamed": ("xyv", {"chunks": True, "kernel": "imq"}, TAU),
    "fourier_sketch": ("yv", BOX, TAU),
    "estimate_error": ("xyv", DRAWN, TAU),
    "embedding_norm_squared": ("x", {}, TAU),
    "energy_distance": ("xy", {}, {}),
    "mmd_estimate of chunks": ("xy", {"chunks": True}, TAU),
    "mmd_squared_matrix": ("x", {"segments": True}, TAU),
    "mmd_witness": ("xxy", {}, TAU),
    "mmd_test": ("xy", DRAWN, TAU),
    "hsic": ("xy", {}, {"tau_x": 1.0, "tau_y": 1.0}),
    "hsic_test": ("xy", DRAWN | {"resampling": "wild"}, {"tau_x": 1.0, "tau_y": 1.0}),
    "ksd_test": ("xy", DRAWN, TAU | {"flip_probability": 0.4}),
    "mean_shift": ("xy", {}, TAU | {"tol": 1e-3, "max_steps": 500}),
    "drift": ("xy", {}, TAU),
    "kernel_herding": ("x", {"num": 20}, TAU),
    "svgd": ("x", {}, TAU),
}
SLOPES = ("gauss_sum", "log_gauss_sum", "kernel_sum", "kernel_mean", "mmd_squared", "energy_distance", "hsic")
NAMES = (*FUNCTIONS, *(f"gradients of {x}" for x in (*SLOPES, "ksd_squared")), "Hessian of mmd_squared")


def numbers_of(name: str) -> dict[str, Any]:
    """The numbers that it takes."""
    return FUNCTIONS[name if name in FUNCTIONS else name.partition(" of ")[2]][2]


def called(name: str, arrays: dict[str, Any], numbers: dict[str, Any]) -> Any:
    """The function of the arrays and numbers; or its gradients, for a cotangent that nothing has to compile."""
    what, _, inner = name.partition(" of ")
    if what in ("gradients", "Hessian"):
        inner = inner if what == "gradients" else f"gradients of {inner}"
        two = {key: arrays[key] for key in "xy"}
        found, pull = jax.vjp(lambda two: jax.tree.leaves(called(inner, arrays | two, numbers))[0], two)
        return pull(np.ones(found.shape, found.dtype))
    keys, more, _ = FUNCTIONS[name]
    given, more = [arrays[key] for key in keys], dict(more)
    if name == "svgd":
        sampler = jg.svgd(jnp.negative, optax.sgd(0.1), **numbers)
        return sampler.step(sampler.init(given[0])).particles
    if more.pop("chunks", False):
        pieces = [np.array_split(z, range(CHUNK, len(z), CHUNK)) for z in map(np.asarray, given[-2:])]
        given = pieces if inner else [given[0], [*zip(*pieces, strict=True)]]
    if more.pop("mesh", False):
        more |= {"mesh": jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Auto,)), "query_axis": "a"}
    if "segments" in more:
        more["segments"] = np.arange(len(given[0])) % 40
    found = getattr(jg, what)(*given, **more, **numbers)
    return found(arrays["x"]) if name == "fourier_sketch" else found


def first(device: str) -> Iterator[Task]:
    """How long a first call takes, and which later ones compile again."""
    for name in NAMES:
        yield Task({"method": name}, lambda runs, name=name: elsewhere(programs_of, name))


def programs_of(name: str) -> list[dict]:
    """The first call in this process, and how many programs others compile."""
    programs: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: programs.append(event))
    rng, numbers = np.random.default_rng(0), numbers_of(name)

    def compiled(num: int, **others: float) -> int:
        drawn = [rng.normal(size=(num, size)).astype("float32") for size in (3, 3, 2)]
        arrays = dict(zip("xyv", jax.device_put(drawn), strict=True))
        programs.clear()
        jax.block_until_ready(called(name, arrays, numbers | others))
        return programs.count(COMPILED)

    start = time.perf_counter(), time.process_time()
    row = {"programs": compiled(NUM), "seconds": time.perf_counter() - start[0], "CPU": time.process_time() - start[1]}
    row["other N"] = compiled(NUM + MORE)
    return [row | {key: compiled(NUM, **{key: type(x)(1.1 * x)}) for key, x in numbers.items()}]


def report_of_first(data: dict) -> str:
    """Seconds and programs of first calls, and the programs of others."""
    rows = [c | {"key": key} for c in data["cells"] for key, x in c.items() if isinstance(x, int | float)]
    return pivot("", rows, "{method}", "{key}", lambda c: f"{c[c['key']]:.2g}")


def later(device: str) -> Iterator[Task]:
    """What a call costs outside of `jit`: microseconds."""
    for i in range(ROUNDS):
        yield Task({"round": i, "d": DIM, "c": 1}, lambda runs: elsewhere(later_ones, runs))


def later_ones(runs: int) -> list[dict]:
    """All calls of one size, in turns, in this process."""

    def slopes(function: Callable) -> Callable:
        return jax.grad(lambda *x: function(*x).sum(), (0, 1, 2))

    rows, jitted = [], jax.jit(jg.gauss_sum)
    product = jax.jit(lambda q, k, v: (q.sum() + k.sum()) * v)
    for num in NUMS:
        rng = np.random.default_rng(0)
        arrays = [rng.normal(size=(num, width)).astype("float32") / width**0.5 for width in (DIM, DIM, 1)]
        operands = [jnp.asarray(x) for x in arrays]
        functions: dict[str, tuple[Callable, list]] = {
            "sum, under jit": (jitted, operands),
            "sum": (jg.gauss_sum, operands),
            "sum of NumPy arrays": (jg.gauss_sum, arrays),
            "gradients, under jit": (jax.jit(slopes(jg.gauss_sum)), operands),
            "gradients": (slopes(jg.gauss_sum), operands),
            "gradients of the jitted sum": (slopes(jitted), operands),
            "gradients of a jitted product": (slopes(product), operands),
        }
        calls = {name: lambda f=f, x=x: jax.block_until_ready(f(*x)) for name, (f, x) in functions.items()}
        methods = {name: lambda call=call: unchecked(call) for name, call in calls.items()}
        rows += [{"n": num} | row for row in Cell({"n": num}, methods).found(runs, (), ())[0]]
    return rows


def report_of_later(data: dict) -> str:
    """Medians over all rounds, in one environment or in two."""
    seconds: dict[tuple, list[float]] = {}
    for part in (data, *([data["beside"]] if "beside" in data else [])):
        for c in part["cells"]:
            seconds.setdefault((c["method"], part["versions"]["jax"], c["n"]), []).extend(c["seconds"])
    cells = [{"key": key, "µs": 1e6 * np.median(x)} for key, x in seconds.items()]
    return pivot("µs", cells, "{key[0]}", "jax {key[1]}, N = {key[2]}", "{µs:.0f}")


FIRST, LATER = Study(first, report_of_first), Study(later, report_of_later)
