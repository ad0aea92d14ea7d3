"""calibrate: the costs of this machine, kept and used; and how much a table that is wrong can lose."""

import itertools
import json
import math

import jax
import numpy as np
import pytest

import jaxgauss
from jaxgauss._engines import bridge, costs
from jaxgauss._engines.costs import forget_costs
from jaxgauss._engines.engine import Problem
from jaxgauss._engines.fourier import nufft
from jaxgauss._engines.fourier.cost import Sizes, _of_products, _of_transforms
from jaxgauss._inspect import calibrate as module
from jaxgauss._kernels.kernels import GAUSS
from jaxgauss._sums.preparation import forget_plans

CHEAP, DEAR = costs.Cost(1.0, 1e-3, 1e-4), costs.Cost(1e6, 10.0, 1.0)
WAVES = {f"waves in {dtype}": DEAR for dtype in ("float32", "float64")}
FITS = WAVES | {"xla in float32": DEAR, "kernel in float32": CHEAP, "xla in float64": DEAR, "kernel in float64": CHEAP}


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A cache directory of this test's own, forgotten afterwards."""
    monkeypatch.setattr(costs, "calibrated_path", lambda: tmp_path / "new" / "costs.json")
    monkeypatch.delenv("JAXGAUSS_CPU_VENDOR", raising=False)
    forget_costs()
    forget_plans()
    yield tmp_path / "new" / "costs.json"
    monkeypatch.undo()
    forget_costs()
    forget_plans()


def plan(num=300, dim=3):
    points, column = (jax.ShapeDtypeStruct((num, width), "float32") for width in (dim, 1))
    return jaxgauss.explain(points, points, column)


def test_what_was_measured_is_kept_and_used(here, monkeypatch, capsys):
    monkeypatch.setattr(module, "NUMS", (8,))
    monkeypatch.setattr(module, "SIZES", ((3, 1), (16, 2)))
    for name in ("SETTLED", "SHORTEST"):
        monkeypatch.setattr(costs, name, 1e-4)
    assert "(row " in plan().reason
    found = jaxgauss.calibrate(progress=True)
    assert "calibrate: 100%" in capsys.readouterr().err
    assert found.path == here and set(json.loads(here.read_text())) == {found.machine} and found.off_by >= 1
    names = "xla", "kernel", "waves", *(["nufft"] if nufft.is_installed() else [])
    engines = {f"{engine} in {dtype}" for engine in names for dtype in ("float32", "float64")}
    assert found.costs.keys() == {*engines, "kernel in bfloat16"}
    assert all(max(cost) > 0 <= min(cost) for cost in found.costs.values())
    assert found.costs.items() <= costs.cpu_costs()[0].items() and "(measured here on 2" in plan().reason
    for versions in ("jaxlib", "torch"):
        assert versions in found.machine
    assert costs.cpu_name() in found.machine


@pytest.mark.parametrize("dtype, dim, channels", [("float32", 2, 1), ("float64", 3, 1), ("float32", 16, 4)])
def test_the_work_of_a_trial_is_what_its_engine_is_estimated_by(dtype, dim, channels):
    num, rows = 512, costs.cpu_costs()[0]
    problem, sizes = Problem("cpu", dtype, GAUSS, num**2, dim, channels), Sizes(num, num, dim, channels)
    found = module.trials(dtype, num, dim, channels)
    assert len(found) >= (2 if channels > 1 else 3)
    for row, trial in found.items():
        own = {"waves": _of_products, "nufft": _of_transforms}.get(row.split()[0])
        expected = own(dtype, sizes, [1.0] * dim) if own else 1e6 * trial.engine.cost(problem)
        assert rows[row].call + np.dot(rows[row][1:], trial.work) == pytest.approx(expected, rel=1e-6)


def test_programs_compiled_before_are_dropped_and_rows_of_other_machines_stay(here, monkeypatch, rng):
    """`auto` takes what is cheap by the new costs, though the sum of such arrays was compiled."""
    points = np.asarray(rng.standard_normal((40, 3)), "float32")
    arguments = points, points, points[:, :1]
    before, seen = np.asarray(jaxgauss.gauss_sum(*arguments)), []
    here.parent.mkdir()
    here.write_text(json.dumps({"another": {"date": "2026-01-01", "xla in float32": DEAR._asdict()}}))
    assert "(row " in plan().reason
    monkeypatch.setattr(module, "measured_costs", lambda *_, **__: (FITS, {"xla in float32": 1.5}))
    machine = jaxgauss.calibrate().machine
    assert json.loads(here.read_text()).keys() == {"another", machine}
    attended = jaxgauss._engines.attention.engine.by_attention
    monkeypatch.setattr(
        jaxgauss._engines.attention.engine, "by_attention", lambda *x: (seen.append(1), attended(*x))[1]
    )
    assert plan().name == "attention"
    np.testing.assert_allclose(jaxgauss.gauss_sum(*arguments), before, rtol=1e-5)
    assert seen
    here.unlink()
    forget_costs()
    forget_plans()
    assert plan().name == "dense"


@pytest.mark.parametrize("text", ["not JSON", "[]", '{"a": {}}', '{"a": {"xla in float32": {}}}'])
def test_a_file_that_cannot_be_read_is_left_out(here, text):
    here.parent.mkdir()
    here.write_text(text)
    with pytest.warns(UserWarning, match="costs.json cannot be read, and is left out"):
        assert "(row " in plan().reason
    assert plan(301).name == "dense"


def test_a_named_vendor_counts_more(here, monkeypatch):
    monkeypatch.setattr(module, "measured_costs", lambda *_, **__: (FITS, {"xla in float32": 1.5}))
    jaxgauss.calibrate()
    monkeypatch.setenv("JAXGAUSS_CPU_VENDOR", "GenuineIntel")
    costs.vendor.cache_clear()
    forget_costs()
    forget_plans()
    assert "(row GenuineIntel with jaxlib 0.1" in plan().reason
    monkeypatch.undo()
    costs.vendor.cache_clear()


@pytest.mark.parametrize(
    ("vendor", "version", "source"),
    [
        ("B", "0.10.7", "row B with jaxlib 0.10.2"),
        ("B", "0.12.0.1", "row B with jaxlib 0.12.0"),
        ("B", "0.11.3", "row B with jaxlib 0.10.2, for there is none of B with 0.11.3"),
        ("B", "0.9.1", "row B with jaxlib 0.10.2, for there is none of B with 0.9.1"),
        ("B", "1.0", "row B with jaxlib 0.12.0, for there is none of B with 1.0"),
        ("C", "0.12.1.dev20261127", "row A with jaxlib 0.12.1, for there is none of C with 0.12.1.dev20261127"),
    ],
)
def test_the_source_says_whose_row_it_is(here, tmp_path, monkeypatch, vendor, version, source):
    """Of the same vendor, and of the newest jaxlib that is not newer than the one installed, where there is one."""
    row, table = {"xla in float32": CHEAP._asdict()}, tmp_path / "table.json"
    table.write_text(json.dumps({"A": {"0.12.1": row}, "B": {"0.12.0": row, "0.10.2": row}}))
    monkeypatch.setattr(costs, "TABLE", table)
    monkeypatch.setattr(costs, "DEFAULT", "A")
    monkeypatch.setattr(costs.importlib.metadata, "version", {"jaxlib": version, "torch": "2.13"}.__getitem__)
    found, whose = costs._cpu_costs.__wrapped__(vendor)
    assert found == {"xla in float32": CHEAP}
    assert whose == source + (": calibrate() measures yours in two minutes" if "for" in source else "")


def test_costs_of_a_device_are_those_measured_there(here, monkeypatch):
    key = costs.machine("a card")
    here.parent.mkdir()
    here.write_text(json.dumps({key: {"date": "2026-01-01", "flash": CHEAP._asdict()}}))
    table, are_measured = costs.cuda_costs("a card")
    assert are_measured and table["flash"] == CHEAP and table["cudnn"] == costs.cuda_costs("another")[0]["cudnn"]
    assert not costs.cuda_costs("another")[1]


def test_on_cuda_the_device_is_measured(cuda, here, monkeypatch):
    monkeypatch.setattr(module, "measured_costs", lambda *_, **__: ({"flash": CHEAP}, {"flash": 1.5}))
    name = bridge.torch_backend().devices.card().name
    assert jaxgauss.calibrate().machine.startswith(f"{name}, jaxlib ")
    table, are_measured = costs.cuda_costs(name)
    assert are_measured and table["flash"] == CHEAP


def test_a_wrong_result_is_an_error(here, monkeypatch):
    monkeypatch.setattr(module, "_exact", lambda q, k, v: np.ones((len(q), v.shape[1])))
    monkeypatch.setattr(module, "NUMS", (8,))
    with pytest.raises(RuntimeError, match=r"`jaxgauss.calibrate`: xla in float32 is wrong on this machine: error"):
        jaxgauss.calibrate()
    assert not here.exists()


@pytest.mark.parametrize("vendor", ["AuthenticAMD", "GenuineIntel"])
def test_a_table_that_is_wrong_by_half_loses_less_than_a_fifth(vendor):
    """In float32, where the rows were measured: whichever engine they favor, and whether both agree or not."""
    true = costs._costs(json.loads(costs.TABLE.read_text())[vendor]["0.10.2"])
    losses = []
    for num, dim, channels, wrong in itertools.product(
        (16, 64, 256, 1024, 8192, 65536), (1, 3, 16, 64, 128, 256), (1, 3, 16, 64, 128, 256), (1 / 1.5, 1, 1.5)
    ):
        in_xla, by_kernel = (
            true[x].nanoseconds(num**2, costs.columns(x, dim, channels))
            for x in ("xla in float32", "kernel in float32")
        )
        chosen = in_xla if in_xla <= costs.WORTH * by_kernel * wrong else by_kernel
        losses.append(chosen / min(in_xla, by_kernel))
    assert math.isfinite(sum(losses)) and max(losses) < 1.2
