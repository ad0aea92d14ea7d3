"""What every public function compiles: at its first call, for another number of points, and for other numbers.

A call has N = 3000 points, D = 3, C = 2, in float32, outside of `jit`, and a process of its own. JAX reports each
program that XLA compiles. Seconds are those of the wall, and of all cores.
"""

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxgauss as jg

from .plots import pivot
from .study import Study, Task, elsewhere

NUM, MORE, CHUNK = 3000, 100, 1000
COMPILED = "/jax/core/compile/backend_compile_duration"
LEFT_OUT = ("calibrate", "explain", "rational_quadratic", "tau_from_bandwidth")  # which sum nothing, or all day
TAU, DRAWN, BOX = {"tau": 2.0}, {"rng_key": jax.random.PRNGKey(0)}, {"lower": -9 * np.ones(3), "upper": 9 * np.ones(3)}
# By name: the arrays, queries x, keys y and values v; other arguments; and numbers
FUNCTIONS: dict[str, tuple[str, dict, dict]] = {
    **{x: ("xyv", {}, TAU) for x in ("gauss_sum", "gauss_sum_blocked", "gauss_sum_dense", "kernel_mean")},
    **{x: ("xy", {}, TAU) for x in ("log_gauss_sum", "kde_logpdf", "kde_score", "mmd_squared", "mmd_flow_velocity")},
    **{x: ("xy", {}, TAU) for x in ("ksd_squared", "svgd_direction", "mmd_estimate")},
    **{x: ("x", {}, {}) for x in ("median_heuristic", "leave_one_out_tau")},
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
    "kernel_herding": ("x", {"num": 20}, TAU),
    "svgd": ("x", {}, TAU),
}
SLOPES = ("gauss_sum", "log_gauss_sum", "kernel_sum", "kernel_mean", "mmd_squared", "energy_distance", "hsic")
NAMES = (*FUNCTIONS, *(f"gradients of {x}" for x in (*SLOPES, "ksd_squared")), "Hessian of mmd_squared")


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


def steps(device: str) -> Iterator[Task]:
    """How long a first call takes, and which later ones compile again."""
    for name in NAMES:
        yield Task({"method": name}, lambda runs, name=name: elsewhere(here, name))


def here(name: str) -> list[dict]:
    """The first call in this process, and how many programs others compile."""
    programs: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: programs.append(event))
    rng, own = np.random.default_rng(0), name if name in FUNCTIONS else name.partition(" of ")[2]
    numbers = FUNCTIONS[own][2]

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


def report(data: dict) -> str:
    """Seconds and programs of first calls, and the programs of others."""
    rows = [c | {"key": key} for c in data["cells"] for key, x in c.items() if isinstance(x, int | float)]
    return pivot("", rows, lambda c: c["method"], lambda c: c["key"], lambda c: f"{c[c['key']]:.2g}")


STUDY = Study(steps, report)
