"""OTT-JAX's solvers on our geometry find what they find on their own, dense and in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ott.geometry import epsilon_scheduler, pointcloud
from ott.problems.linear import linear_problem
from ott.solvers.linear import acceleration, sinkhorn
from ott.tools import sinkhorn_divergence

import jaxgauss.ott
from oracle import assert_close, relative_error

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_it_comes")]


OURS, THEIRS = jaxgauss.ott.PointCloud, pointcloud.PointCloud


def clouds(num=100, other=80, dim=3):
    rng = np.random.default_rng(0)
    return rng.standard_normal((num, dim)), 0.8 * rng.standard_normal((other, dim)) + 0.3


def check(function, *arrays, tolerance):
    """That a function of a geometry and arrays has, by ours in float32, the leaves that it has by theirs in float64."""
    ours = jax.jit(functools.partial(function, OURS))(*(jnp.asarray(x, jnp.float32) for x in arrays))
    with jax.enable_x64(True):
        theirs = jax.jit(functools.partial(function, THEIRS))(*(jnp.asarray(x) for x in arrays))
        assert_close(jax.tree.leaves(ours), jax.tree.leaves(theirs), tolerance)


def solved(geometry, x, y, epsilon=0.3, problem=None, **options):
    problem = {name: z if isinstance(z, float) else jnp.asarray(z, x.dtype) for name, z in (problem or {}).items()}
    solver = sinkhorn.Sinkhorn(**{"min_iterations": 60, "max_iterations": 60, **options})
    return solver(linear_problem.LinearProblem(geometry(x, y, epsilon=epsilon), **problem))


def test_potentials_and_costs_are_those_of_the_dense_geometry():
    def found(geometry, x, y):
        out = solved(geometry, x, y)
        return out.f, out.g, out.reg_ot_cost, out.primal_cost

    check(found, *clouds(1100, 1050), tolerance=1e-5)


SOLVERS = {
    "scalings": {"lse_mode": False},
    "momentum": {"momentum": acceleration.Momentum(value=1.3)},
    "unbalanced": {"problem": {"tau_a": 0.9, "tau_b": 0.95}},
    "masses, some of them zero": {"problem": {"a": np.r_[np.zeros(10), np.full(90, 1 / 90)]}},
    "a schedule": {"epsilon": epsilon_scheduler.Epsilon(target=0.3, init=10.0, decay=0.8)},
}


@pytest.mark.parametrize("options", SOLVERS.values(), ids=SOLVERS.keys())
def test_variants_of_the_solver(options):
    def found(geometry, x, y):
        out = solved(geometry, x, y, **options)
        return out.reg_ot_cost, out.marginal(0), out.marginal(1), jnp.where(jnp.isfinite(out.f), out.f, 0), out.g

    check(found, *clouds(), tolerance=1e-5)


def test_gradients_of_the_divergence():
    def divergence(geometry, x, y):
        options = {"min_iterations": 20, "max_iterations": 20}
        return sinkhorn_divergence.sinkhorn_divergence(geometry, x, y, epsilon=0.5, solve_kwargs=options)[0]

    check(lambda geometry, *x: jax.value_and_grad(divergence, (1, 2))(geometry, *x), *clouds(150, 120), tolerance=1e-4)


@pytest.mark.filterwarnings("ignore:`NormalCG:DeprecationWarning")  # of OTT's
@pytest.mark.parametrize("implicit", [True, False])
def test_gradients_of_the_potentials(implicit):
    def loss(geometry, x, y):
        options = {} if implicit else {"implicit_diff": None}
        f = solved(geometry, x, y, epsilon=1.0, **options).f
        return (f * jnp.cos(jnp.arange(f.size))).sum()

    check(lambda geometry, *x: jax.grad(loss, (1, 2))(geometry, *x), *clouds(50, 40), tolerance=1e-4)


COSTS = ({}, {"scale_cost": "max_cost"}, {"scale_cost": "mean"}, {"relative_epsilon": "std", "epsilon": 0.1})


@pytest.mark.parametrize("options", COSTS, ids=str)
def test_what_a_geometry_can_be_asked(options):
    def found(geometry, x, y, u, v):
        g = geometry(x, y, **options)
        products = [g.apply_square_cost(v, axis=1), g.apply_cost(u), g.apply_kernel(v, axis=1), g.apply_kernel(u, 0.7)]
        logs = *g.apply_lse_kernel(u, v, 0.7, vec=u, axis=0), g.apply_lse_kernel(u, v, 0.7, axis=1)[0]
        transports = [g.apply_transport_from_potentials(u / 9, v / 9, *z) for z in ((jnp.stack([u, u + 1]), 0), (v, 1))]
        return g.epsilon, g.inv_scale_cost, g.std_cost_matrix, products, logs, transports, g.subset(jnp.arange(3)).x

    check(found, *clouds(), np.sin(np.arange(100)), np.cos(np.arange(80)), tolerance=1e-5)


def test_options_survive_transformations():
    x, y = (jnp.asarray(z, jnp.float32) for z in clouds())
    geometry = jax.jit(lambda x: OURS(x, y, epsilon=0.3, engine="blocked", precision="float64"))(x)
    assert geometry._engine == jaxgauss.Blocked(precision="float64")
    assert geometry.set_scale_cost(2.0)._engine == geometry._engine


def test_no_matrix_is_formed():
    x = jax.ShapeDtypeStruct((50_000, 64), jnp.float32)
    program = str(jax.make_jaxpr(jax.grad(lambda x, y: solved(OURS, x, y).reg_ot_cost))(x, x))
    assert "50000,64" in program and "50000,50000" not in program


def test_costs_have_their_digits_away_from_the_origin():
    """Primal cost, matrix, marginals, costs applied and summarized, at an offset of a thousand."""

    def found(geometry, x, y):
        out, geom = solved(geometry, x, y, min_iterations=200, max_iterations=200), geometry(x, y, epsilon=0.3)
        applied = [geom.apply_cost(jnp.ones((n, 1), x.dtype), axis=i) for i, n in enumerate(geom.shape)]
        scaled = geometry(x, y, epsilon=0.3, scale_cost="mean").inv_scale_cost
        low_rank = geom.to_LRCGeometry().cost_matrix
        return out.primal_cost, out.matrix, out.marginal(0), geom.cost_matrix, *applied, scaled, low_rank

    x, y = (1000 + z.astype(np.float32).astype(np.float64) for z in clouds(60, 60))
    x, y = x.astype(np.float32), y.astype(np.float32)
    check(found, x.astype(np.float64), y.astype(np.float64), tolerance=3e-5)
    diagonal = OURS(jnp.asarray(x), jnp.asarray(y)).diag_cost
    assert relative_error(diagonal, np.square(np.float64(x) - y).sum(1)) < 1e-5
