"""The steps of the main examples on CUDA, emulated: as `auto` sends them, and with every sum sent to the kernels."""

import jax
import jax.numpy as jnp
import pytest

import emulated_cuda
from jaxgauss._engines import costs, plan
from test_examples import digits_steps

pytestmark = [pytest.mark.usefixtures("cuda", "as_it_comes"), pytest.mark.emulated]


@pytest.fixture(params=["as it comes", "by kernels"])
def way(request, monkeypatch):
    """The kernels' names that ran, as they are found."""
    if request.param == "by kernels":
        dear = costs.Cost(1e18, 0.0, 0.0)
        found = costs.cuda_costs("any")[0] | {"dense": dear, "blocked": dear}
        monkeypatch.setattr(plan, "cuda_costs", lambda name: (found, True))
    emulated_cuda.forget()
    with emulated_cuda.counting() as launched:
        yield request.param, launched
    emulated_cuda.forget()


def check_way(way):
    """Kernels ran if, and only if, they were asked to."""
    name, launched = way
    ran = {operator for names in launched for operator in names if "attention" in operator}
    assert bool(ran) == (name == "by kernels"), ran


def test_mmd_digits_takes_the_step_of_the_dense_loss(way):
    from mmd_digits import initial

    (ours, _, value), (dense, _, expected) = digits_steps()
    assert float(value) == pytest.approx(float(expected), rel=5e-3)
    moved = [jax.tree.map(lambda x, y: x - y, x["params"], initial()) for x in (ours, dense)]
    for x, y in zip(*map(jax.tree.leaves, moved), strict=True):
        assert jnp.linalg.norm(x - y) <= 2e-2 * jnp.linalg.norm(y)
    check_way(way)


def test_the_benchmark_of_its_step_bears_half_precision(way):
    from benchmarks.applications import TOLERANCES, digits_step

    cell = digits_step("cuda")
    assert cell.error(cell.methods["mmd_squared"]()()) < TOLERANCES["cuda"] == cell.tolerance
    assert way[1]  # by kernels, either way: so many pairs are worth it


def test_mmd_flow_moves(way, tmp_path):
    from mmd_flow import main

    flows, _ = main(num=80, targets=90, steps=20, picture=tmp_path / "flow.png")
    for curve in flows.values():
        assert curve[-1][1] < curve[0][1] / 1.5
    check_way(way)


@pytest.mark.parametrize("way", ["by kernels"], indirect=True)
def test_svgd_predicts(way, tmp_path, capsys):
    from svgd_posterior import main

    main(particles=60, steps=30, samples=5, picture=tmp_path / "svgd.png")
    assert float(capsys.readouterr().out.split("\nSVGD")[1].split()[0]) > 0.93
    check_way(way)


@pytest.mark.filterwarnings("ignore:torch_backend. points")  # the narrowest of the bandwidths, in float32
def test_kde_agrees_with_scikit_learn(way, tmp_path):
    from kde import main

    _, ours, theirs, *_ = main(num=200, steps=5, picture=tmp_path / "kde.png")
    assert ours == pytest.approx(theirs, abs=2e-3 if way[0] == "by kernels" else 1e-4)
    check_way(way)
