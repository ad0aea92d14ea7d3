"""A program, not a test: sums and kernel methods over a mesh of eight devices, of one process or of several.

    python sharded.py [ADDRESS NUM_PROCESSES PROCESS_ID]

Prints as JSON what comes out, and which collectives a sum needs. What should come out, the functions tell that are
called without a mesh.
"""

import functools
import gc
import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgauss

COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
SHARES = {"queries and keys": ("rows", "columns"), "keys": (None, ("columns", "rows")), "queries": ("columns", None)}
RNG = np.random.default_rng(0)
QUERIES, KEYS, VALUES, TAU = RNG.normal(size=(16, 3)), RNG.normal(size=(24, 3)), RNG.normal(size=(24, 2)), np.array(0.7)
OPERANDS = QUERIES, KEYS, VALUES, TAU
# Partial sums of these are beyond float16's range, all of them together are not.
HALF = [QUERIES.astype("float16"), KEYS.astype("float16"), np.repeat([6e4, -6e4], 12).astype("float16"), np.array(0.1)]
# Likewise of float32's; the first devices' are small.
LARGE = [x.astype("float32") for x in (QUERIES[:, :2], KEYS[:, :2], np.repeat([1, 3e38, -3e38], 8), np.array(1e-3))]
X, Y, TAUS = RNG.normal(size=(19, 3)), RNG.normal(size=(22, 3)) + 0.3, np.array([0.5, 2.0])  # 19 and 41: not divided
FAR = np.concatenate([[[300.0, 0, 0]], X[1:]])  # out of reach: by differences
WEIGHTS = RNG.uniform(size=22) * (np.arange(22) % 4 > 0)
BATCHES = RNG.normal(size=(4, 5, 3))


def forward(*operands, mesh=None, **shares):
    if mesh is None:
        return jaxgauss.gauss_sum_dense(*operands)
    return jaxgauss.gauss_sum_sharded(*operands, mesh=mesh, engine="rescale", **shares)


def gradients(*operands, **shares):
    return jax.grad(lambda *x: jnp.sin(forward(*x, **shares)).sum(), (0, 1, 2, 3))(*operands)


def mmd(x, y, **shares):
    return jax.value_and_grad(jaxgauss.mmd_squared, (0, 1, 2))(x, y, TAUS, **shares)


def velocity(x, y):
    return jaxgauss.mmd_flow_velocity(x[:18], y, TAUS)


def second_derivative(x, y, **shares):
    return jax.grad(lambda x: jnp.square(jax.grad(jaxgauss.mmd_squared)(x, y, 1.0, **shares)).sum())(x)


def tangents(x, y, **shares):
    """Of a loss and of its gradient, and of a sum where it is the last thing that is differentiated."""
    loss = functools.partial(jaxgauss.mmd_squared, y=y, tau=TAUS, **shares)
    score = functools.partial(jaxgauss.kde_score, samples=y, tau=0.7, **shares)
    return jax.jvp(jax.value_and_grad(loss), (x,), (jnp.sin(x),)), jax.linearize(score, x)[1](jnp.sin(x))


def kernels(x, y, **shares):
    """Of every kind: smooth and with a kink, from products and by differences, evaluated and by a mixture."""
    wide = [jnp.concatenate([z, jnp.sin(z), jnp.cos(z)], -1) for z in (x, y)]
    losses = [
        jax.value_and_grad(jaxgauss.mmd_squared, (0, 1, 2))(*pair, TAUS, kernel=kernel, **shares)
        for pair, kernel in (([x, y], "imq"), (wide, "matern12"))
    ]
    ksd = jaxgauss.ksd_squared(x, -x, TAUS, kernel="imq", **shares)
    flow = jaxgauss.mmd_flow_velocity(x, y, 1.0, kernel="energy", **shares)
    test = jaxgauss.mmd_test(x, y, TAUS, kernel="matern52", rng_key=jax.random.key(0), num_permutations=20, **shares)
    summed = jaxgauss.gauss_sum_sharded if shares else jaxgauss.kernel_sum
    ways = {"imq": "auto", "energy": "auto", "matern32": "mixture"}.items()
    sums = [summed(x[:16], y[:16], Y[:16], 0.5, kernel=name, engine=way, **shares) for name, way in ways]
    return losses, ksd, flow, tuple(test), sums


def svgd(x, y, **shares):
    return jaxgauss.svgd_direction(x, -x, TAUS, **shares)


def others(x, y, **shares):
    test = jaxgauss.mmd_test(x, y, TAUS, rng_key=jax.random.key(0), num_permutations=20, **shares)
    score = jaxgauss.kde_score(x, y, TAUS, weights=WEIGHTS, **shares)
    by_weight = jax.grad(lambda w: jnp.sin(jaxgauss.kde_logpdf(x, y, TAUS, weights=w, **shares)).sum())(WEIGHTS)
    named = jaxgauss.kde_score(x, y, bandwidth="scott", weights=WEIGHTS, **shares)
    return jaxgauss.mmd_flow_velocity(x, y, TAUS, **shares), score, named, by_weight, tuple(test)


def waves(x, y, **shares):
    """Their coefficients are added up; where they do not hold the points, sums of tiles."""
    summed = jaxgauss.gauss_sum_sharded if shares else jaxgauss.gauss_sum

    def loss(x, y):
        return jnp.sin(summed(x[:16, :2], y[:16, :2], VALUES[:16], TAU, engine="fourier", **shares)).sum()

    return jax.value_and_grad(loss, (0, 1))(x, y)


def dependence(x, y, **shares):
    """HSIC and its gradient, regression, herding; the tests of independence and of fit."""
    loss = functools.partial(jaxgauss.hsic, tau_x=0.7, tau_y=0.5, **shares)
    regression = jaxgauss.kernel_mean(x, y, y[:, :2], 0.7, **shares)
    herding = jaxgauss.kernel_herding(y, 0.7, 5, weights=WEIGHTS, **shares)
    options = {"rng_key": jax.random.key(0), **shares}
    tests = (
        jaxgauss.hsic_test(x, jnp.sin(x), TAUS, 0.7, num_permutations=10, resampling="wild", **options),
        jaxgauss.ksd_test(y, -y, 0.7, num_bootstrap=10, **options),
    )
    return jax.value_and_grad(loss)(x, jnp.cos(x)), regression, tuple(herding), tests


def plain(_x, _y, queries=QUERIES, keys=KEYS, values=VALUES, weights=VALUES[:, 0] ** 2 / 25, batches=BATCHES):
    """Every public function that knows nothing of meshes, and gradients by all four rules."""
    rng_key, both, many = jax.random.key(0), (queries, keys, 0.7), (queries, keys, TAUS)
    gauss_sum, options = jaxgauss.gauss_sum, {"y_weights": weights}
    sampler = jaxgauss.svgd(lambda x: -x, optax.sgd(0.1))
    return (
        [gauss_sum(*both[:2], values, 0.7, engine=m) for m in ("rescale", "blocked")],
        gauss_sum(*both[:2], weights, 0.7, forward_mode=True),
        [f(*both[:2], weights, TAUS) for f in (jaxgauss.gauss_sum_dense, jaxgauss.gauss_sum_blocked)],
        jaxgauss.log_gauss_sum(*both[:2], jnp.log(weights), 0.7),
        jaxgauss.mmd_squared(*many, estimator="unbiased", **options),
        jaxgauss.embedding_norm_squared(keys, TAUS, weights=weights),
        jaxgauss.mmd_witness(queries, *many, **options),
        jaxgauss.mmd_flow_velocity(*many, **options),
        jaxgauss.svgd_direction(queries, -queries, TAUS),
        sampler.step(jaxgauss.SVGDState(queries, {"tau": 0.7}, optax.sgd(0.1).init(0))).particles,
        jaxgauss.ksd_squared(keys, -keys, TAUS, weights=weights),
        [f(*many, weights=weights) for f in (jaxgauss.kde_logpdf, jaxgauss.kde_score)],
        jaxgauss.kde_logpdf(*both[:2], bandwidth="scott", weights=weights),
        jaxgauss.leave_one_out_tau(keys, weights=weights),
        [jaxgauss.median_tau(queries, max_points=n, rng_key=rng_key) for n in (5, 50)],
        jaxgauss.mmd_test(*many, rng_key=rng_key, num_permutations=20),
        jaxgauss.hsic(keys, values, 0.7, 0.5, weights=weights),
        jaxgauss.hsic_test(keys, values, 0.7, 0.5, rng_key=rng_key, num_permutations=20),
        jaxgauss.mean_shift(*both, weights=weights, max_steps=20),
        jaxgauss.estimate_error(*both[:2], weights, 0.7, rng_key=rng_key, num_queries=5, precision="float16"),
        jax.grad(lambda *x: jnp.sin(gauss_sum(*x)).sum(), (0, 1, 2))(*both[:2], values),
        jax.vmap(lambda x: gauss_sum(x, keys, values))(batches),
        jax.vmap(jax.grad(lambda x: jaxgauss.mmd_squared(x, keys, 0.7)))(batches),
        jax.grad(lambda x: jaxgauss.log_gauss_sum(queries, x).sum())(keys),
    )  # fmt: skip


def eager(_x, _y, queries=QUERIES, keys=KEYS, values=VALUES, weights=VALUES[:, 0] ** 2 / 25, _batches=None):
    """Without jit."""
    assert jaxgauss.explain(queries, keys, values).name == "dense"
    return (
        jaxgauss.gauss_sum(queries, keys, weights, 1.0),
        jaxgauss.mmd_squared(queries, keys, 1.0),
        jaxgauss.kde_logpdf(queries, keys, 1.0),
        jaxgauss.gauss_sum_streamed(queries, [(KEYS, VALUES)], 1.0),
    )


def make_mesh(*axis_types: AxisType):
    return jax.make_mesh((2, 4), ("rows", "columns"), axis_types=axis_types)


def place(mesh, operands, query_axis, key_axis):
    """Where `gauss_sum_sharded` needs them."""
    specs = P(query_axis), P(key_axis), P(key_axis), P()
    return [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(operands, specs, strict=True)]


def collectives(compiled) -> dict[str, int]:
    text = compiled.as_text()
    found = {name: len(re.findall(rf"= [^=\n]*\b{name}(?:-start)?\(", text)) for name in COLLECTIVES}
    return {name: count for name, count in found.items() if count}


def numbers(mesh, tree) -> list:
    """What every process may look at."""
    leaves = jax.tree.leaves(jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))(tree))
    return [np.asarray(x, np.float64).tolist() for x in leaves]


def results(num_processes: int) -> dict:
    found, auto, explicit = {}, AxisType.Auto, AxisType.Explicit
    cases = [*((auto, case) for case in SHARES.items()), (explicit, ("queries and keys", SHARES["queries and keys"]))]
    for axis_type, (name, (query_axis, key_axis)) in cases if num_processes == 1 else cases[:1]:
        mesh = make_mesh(axis_type, axis_type)
        shares = {"mesh": mesh, "query_axis": query_axis, "key_axis": key_axis}
        placed = place(mesh, OPERANDS, query_axis, key_axis)
        compiled = jax.jit(functools.partial(forward, **shares)).lower(*placed).compile()
        found[f"collectives, {name}, {axis_type.name}"] = collectives(compiled)
        found[f"forward, {name}, {axis_type.name}"] = numbers(mesh, compiled(*placed))
        if name == "queries and keys":
            pulled_back = jax.jit(functools.partial(gradients, **shares))(*placed)
            found[f"gradients, {name}, {axis_type.name}"] = numbers(mesh, pulled_back)
    mesh = make_mesh(auto, auto)
    for function in (mmd, svgd, waves, second_derivative, tangents, others, kernels, dependence)[
        : 8 if num_processes == 1 else 1
    ]:
        case = "keys" if function in (mmd, waves) else "queries and keys"
        shares = {"mesh": mesh} | dict(zip(("query_axis", "key_axis"), SHARES[case], strict=True))
        run = jax.jit(functools.partial(function, **shares))
        for name, points in {"near": X, "far": FAR}.items() if case == "keys" else [("near", X)]:
            found[f"{function.__name__}, {name}"] = numbers(mesh, run(points, Y))
    if num_processes > 1:
        return found
    arrays = QUERIES, KEYS, VALUES, VALUES[:, 0] ** 2 / 25, BATCHES
    axes = "columns", "rows", "rows", "rows", "columns"
    for kinds in ((auto, auto), (auto, explicit), (explicit, explicit)):
        mesh, name = make_mesh(*kinds), ", ".join(kind.name for kind in kinds)
        placed = [jax.device_put(x, NamedSharding(mesh, P(y))) for x, y in zip(arrays, axes, strict=True)]
        if kinds == (auto, explicit):
            found[f"eager, {name}"] = numbers(mesh, eager(X, Y, *placed))
        with jax.set_mesh(mesh):
            if kinds == (auto, auto):
                found[f"plain, {name}"] = numbers(mesh, jax.jit(plain)(X, Y, *placed))
                continue
            if kinds == (explicit, explicit):  # types are checked by tracing; it takes long to compile
                jax.eval_shape(jax.jit(plain), X, Y, *placed)
            x, y = (jax.device_put(z, NamedSharding(mesh, P("rows"))) for z in (X[:18], Y))
            moved = jaxgauss.mmd_flow_velocity(x, y, TAUS, mesh=mesh, query_axis="columns", key_axis="rows")
            found[f"velocity, {name}"] = numbers(mesh, moved)
    placed = place(mesh := make_mesh(auto, auto), OPERANDS, "rows", None)
    for method in ("rescale", "blocked"):
        total = jax.jit(functools.partial(jaxgauss.gauss_sum, engine=method))(*placed)
        found[f"forward, by gauss_sum, {method}"] = numbers(mesh, total)
    found["half"] = numbers(mesh, forward(*HALF, mesh=mesh, key_axis=("columns", "rows")))
    for name, operands, method in (("half", HALF, "fourier"), ("large", LARGE, "auto"), ("large", LARGE, "fourier")):
        sums = jaxgauss.gauss_sum_sharded(*operands, mesh=mesh, key_axis=("columns", "rows"), engine=method)
        found[f"{name}, {method}"] = numbers(mesh, sums)
    return found


if __name__ == "__main__":
    gc.disable()  # looking through what JAX keeps takes time
    jax.config.update("jax_enable_x64", True)
    if len(sys.argv) > 1:
        jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), heartbeat_timeout_seconds=10)
    assert jax.device_count() == 8
    print(json.dumps(results(jax.process_count())))
