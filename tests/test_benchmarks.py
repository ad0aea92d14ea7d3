"""The benchmarks measure what they say, go on after an interruption, and draw from their files alone."""

import json
import time

import numpy as np
import pytest

from jaxgauss import _costs

OURS = ("auto",)
pytestmark = pytest.mark.usefixtures("as_it_comes")


def cell(name, calls, error=0.0):
    from benchmarks.measure import Cell

    methods = {method: (lambda call=call: call) for method, call in calls.items()}
    about = {"suite": "test", "figure": name, "n": 1, "d": 1}
    return Cell(about, methods, lambda results: results * error, 1e-3, 1.0, "series")


def info():
    return {"device": "cpu", "commit": "abc", "suite": "test"}


def test_every_method_is_a_gauss_sum_with_its_gradients():
    from benchmarks.rivals import JAX_NATIVE, OTHERS, OURS, Problem, calls

    problem = Problem(40, 3, 2, batch=2)
    for what, others in (("forward", ("jax.nn attention",)), ("gradients", (*OURS, *JAX_NATIVE, "torch eager"))):
        for name, prepare in calls(others, problem, what).items():
            call = prepare()
            assert not isinstance(call, str)
            assert problem.error(what, call()) < (5e-3 if name == "float16x2" else 1e-5), name
    single = Problem(40, 3, 1)
    for name, prepare in calls(("scikit-learn", "OTT online", "PyKeOps"), single, "forward").items():
        call = prepare()
        assert not isinstance(call, str)
        assert single.error("forward", call()) < 1e-5, name
    assert calls(["dense JAX"], Problem(10**6, 3, 1), "forward")["dense JAX"]() == "matrix too large"
    assert OTHERS.keys() >= {"PyKeOps", "torch.compile", "OTT online"}


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    from benchmarks.measure import measure

    made, out = [], tmp_path / "result.json"

    def counted(name, fails=False):
        def call():
            made.append(name)
            if fails:
                raise KeyboardInterrupt
            return 1.0

        return cell(name, {"auto": call})

    with pytest.raises(KeyboardInterrupt):
        measure([counted("first"), counted("second", fails=True)], info(), OURS, 8, out)
    assert not json.loads(out.read_text())["complete"]
    firsts = made.count("first")
    data = measure([counted("first"), counted("second")], info(), OURS, 8, out)
    assert made.count("first") == firsts and made.count("second") > 8
    assert data == json.loads(out.read_text()) and data["complete"]
    for c in data["cells"]:
        assert len(c["seconds"]) == 8 and c["q1"] <= c["median"] <= c["q3"] and c["error"] == 0
    with pytest.raises(SystemExit, match="of another device, commit, suite or number of runs"):
        measure([counted("first")], info() | {"commit": "other"}, OURS, 8, out)


def test_wrong_slow_and_broken_methods(tmp_path, monkeypatch):
    """A wrong result of ours stops the run, another's is not timed; what is slow is timed once, and not again."""
    from benchmarks import measure as m

    def broken():
        raise RuntimeError("no such thing")

    monkeypatch.setattr(m, "TOO_SLOW", 0.01)
    slow = {"auto": lambda: 1.0, "slow": lambda: time.sleep(0.02) or 1.0, "broken": broken}
    data = m.measure([cell("a", slow), cell("b", slow)], info(), OURS, 8, tmp_path / "a.json")
    found = {(c["figure"], c["method"]): c for c in data["cells"]}
    assert len(found["a", "slow"]["seconds"]) == 1 and ("b", "slow") not in found
    assert found["a", "broken"]["failed"] == "RuntimeError: no such thing"
    data = m.measure([cell("c", {"other": lambda: 1.0}, error=1.0)], info(), OURS, 8, tmp_path / "b.json")
    assert "seconds" not in data["cells"][0] and data["cells"][0]["error"] == 1
    with pytest.raises(AssertionError, match="auto"):
        m.measure([cell("d", {"auto": lambda: 1.0}, error=1.0)], info(), OURS, 8, tmp_path / "c.json")


def test_measured_memory_is_that_of_the_call():
    from benchmarks.measure import peak_mebibytes

    found = peak_mebibytes(lambda: np.ones(2**24).sum())
    assert found is None or 120 < found < 200


def test_memory_is_reported_as_far_as_it_is_known():
    from benchmarks.plots import memory_report

    found = {"linear": [1.0, 2.0, 4.0], "hardly any": [0.0, 0.0, 1.0], "unknown": [None] * 3}
    cells = [{"figure": "memory", "method": m, "n": 2**i, "mib": x} for m in found for i, x in enumerate(found[m])]
    assert memory_report({"cells": cells}).splitlines() == [
        "memory, linear: 1 MiB, 2 MiB, 4 MiB, N^1.00",
        "memory, hardly any: 0 MiB, 0 MiB, 1 MiB",
        "memory, unknown: memory unknown, memory unknown, memory unknown",
    ]


def test_gauss_sums_are_measured_and_drawn(tmp_path, capsys, monkeypatch):
    from benchmarks import grids, plots
    from benchmarks import measure as m
    from benchmarks.measure import environment, measure
    from benchmarks.rivals import Problem, rates

    monkeypatch.setattr(m, "peak_mebibytes", lambda call: None)  # as where the system does not tell
    measured = environment("cpu") | {"rates": {"float32": rates("cpu", "float32", 256)}}
    names = ["auto", "dense JAX", "bare attention"]
    problems = [Problem(n, 3, 1) for n in (32, 64)]
    figures = {
        "paper": [("N, D = 3, C = 1", p) for p in problems] + [("headline", problems[0]), ("memory", problems[1])],
        "jax": [("grid", p) for p in problems] + [("fixed cost", problems[0])],
    }
    for suite, cells in figures.items():
        whats = ("forward", "gradients") if suite == "jax" else ("forward",)
        todo = [grids.cell(suite, figure, p, what, names, d=3) for figure, p in cells for what in whats]
        measure(todo, measured | {"suite": suite}, OURS, 8, tmp_path / f"{suite}.json")
        plots.draw(tmp_path / f"{suite}.json")
    output = capsys.readouterr().out
    assert "| 3, 1 | forward |" in output and "memory, auto: " in output
    assert "gradients, dense or blocked JAX / auto: " in output and "N = 16, forward, auto: " in output
    assert {p.name for p in tmp_path.glob("*.png")} == {
        "paper_float32_time.png",
        "paper_float32_memory.png",
        "jax.png",
    }
    assert all(p.stat().st_size > 10_000 for p in tmp_path.glob("*.png"))


def test_suites_name_cells_that_differ():
    from benchmarks.__main__ import SUITES

    for suite, cells in SUITES.items():
        for device in ("cpu", "cuda"):
            abouts = [json.dumps(c.about) for c in cells(device)] if suite != "mmd" else []
            assert len(set(abouts)) == len(abouts)


def test_applications_are_measured_and_drawn(tmp_path, capsys):
    from benchmarks import applications, plots
    from benchmarks.measure import measure

    cells = [applications.mmd_step(n, 3, "cpu") for n in (32, 64)]
    cells += [applications.permutation_test(50, 3), applications.svgd_step(40, 3), applications.density(60, 3, "cpu")]
    device = {"device_name": "this machine", "cores": 2}
    measure(cells, info() | device | {"suite": "mmd"}, applications.OURS, 8, tmp_path / "mmd.json")
    plots.draw(tmp_path / "mmd.json")
    output = capsys.readouterr().out
    assert "MMD step, dense / ours: " in output and "| density | 60 | 3 | kde_logpdf " in output
    assert (tmp_path / "mmd.png").stat().st_size > 10_000


def test_fit_finds_the_costs(tmp_path, monkeypatch):
    from benchmarks import fit_costs

    pairs, columns = np.meshgrid([16.0, 4096.0, 10.0**7], [5.0, 20.0, 260.0])
    rows = [(1, p, p * c, 4e4 + p * (0.3 + 0.006 * c)) for p, c in zip(pairs.flat, columns.flat, strict=True)]
    cost, factor = fit_costs.fitted(rows)
    assert cost == pytest.approx((4e4, 0.3, 0.006)) and factor == pytest.approx(1)
    table = tmp_path / "costs.json"
    table.write_text("{}")
    monkeypatch.setattr(_costs, "TABLE", table)
    monkeypatch.setattr(fit_costs, "NUMS", (8, 64))
    monkeypatch.setattr(fit_costs, "SIZES", ((3, 1), (16, 16)))
    fit_costs.main(8)
    row = json.loads(table.read_text())[_costs.vendor()]
    assert row["float32"].keys() == row["float64"].keys() == {"xla", "kernel"} and row["device_name"]


def test_limits_count_products_and_exponentials():
    from benchmarks.rivals import Problem, limit

    assert limit(Problem(10, 3, 1), "forward", {"matmul": 4.0, "exp": 1e9}) == 100
    assert limit(Problem(10, 3, 1, 2), "gradients", {"matmul": 1e9, "exp": 4.0}) == 100
