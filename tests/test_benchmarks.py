"""The benchmarks measure what they say, go on after an interruption, and draw from their files alone."""

import argparse
import json
import os
import runpy
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxgauss._engines import costs

ROOT = Path(__file__).parents[1]
OURS = ("auto",)
PROGRAMS = ("benchmarks", "benchmarks.load", "benchmarks.precision", "benchmarks.scaling")
pytestmark = pytest.mark.usefixtures("as_it_comes")


def cell(name, calls, error=0.0):
    from benchmarks.measure import Cell

    methods = {method: (lambda call=call: call) for method, call in calls.items()}
    about = {"suite": "test", "figure": name, "n": 1, "d": 1}
    return Cell(about, methods, lambda results: results * error, 1e-3, 1.0, "series")


def info():
    return {"device": "cpu", "commit": "abc", "suite": "test"}


def result(suite, d, c, n, what, method, milliseconds, figure=None, **more):
    """A cell of a result file: N² times the milliseconds at N = 16."""
    seconds = [milliseconds * (n / 16) ** 2 / 1e3] * 3
    about = {"suite": suite, "figure": figure or f"N, D = {d}, C = {c}", "n": n, "d": d, "c": c, "batch": 1}
    about |= {"dtype": "float32", "what": what, "method": method}
    return about | {"seconds": seconds, "median": seconds[0], "q1": seconds[0], "q3": seconds[0]} | more


def quick():
    """A result file of the quick suite."""
    cells = [
        result("quick", d, c, n, what, method, time * d * (1 + (what == "gradients")), mib=mib, error=1e-6 / d)
        for d, c in ((3, 1), (32, 32))
        for what in ("forward", "gradients")
        for n in (16, 64, 256)
        for method, time, mib in (("dense JAX", 0.25, n), ("auto", 0.125, 0.0))
    ]
    machine = {"device_name": "this machine", "cores": 2}
    return info() | machine | {"suite": "quick", "complete": True, "cells": cells}


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


def test_an_interrupted_run_goes_on_where_it_was(tmp_path, capsys):
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
    assert "raw data: " in capsys.readouterr().out
    assert measure([counted("first"), counted("second")], info(), OURS, 8, out) == data
    assert "measured before (delete it to measure again): " in capsys.readouterr().out
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
    measured = environment("cpu") | {"rates": {"float32": rates("cpu", "float32", 256, runs=2)}}
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
    assert "| D, C           | 3, 1 " in output and "memory, auto: " in output
    assert "gradients, dense or blocked JAX / auto: " in output and "N = 16, forward, auto: " in output
    assert {p.name for p in tmp_path.glob("*.png")} == {
        "paper_float32_time.png",
        "paper_float32_memory.png",
        "jax.png",
    }
    assert all(p.stat().st_size > 10_000 for p in tmp_path.glob("*.png"))


def test_the_table_shows_the_largest_sizes_beside_auto():
    from benchmarks.plots import headline_table

    data = quick()
    failed = {"method": "PyKeOps", "failed": "RuntimeError: no compiler"}
    data["cells"] += [{k: v for k, v in c.items() if k != "median"} | failed for c in data["cells"][-2:-1]]
    data["cells"] += [result("quick", 3, 1, n, "forward", "torch eager", 0.1) for n in (16, 64)]  # then too slow
    data["cells"] += [result("quick", 32, 32, 256, "forward", "scikit-learn", 10) | {"seconds": [2.56]}]
    assert headline_table(data, "float32").splitlines()[1:] == [
        "Milliseconds, float32, and how many times those of `auto` (*: timed once; –: cannot, or too slow)",
        "",
        "| D, C         | 3, 1       | 32, 32       | 3, 1       | 32, 32      |",
        "|--------------|------------|--------------|------------|-------------|",
        "|              | forward    | forward      | gradients  | gradients   |",
        "| N = M        | 256        | 256          | 256        | 256         |",
        "| auto         | 96         | 1024         | 192        | 2048        |",
        "| dense JAX    | 192 (2.0x) | 2048 (2.0x)  | 384 (2.0x) | 4096 (2.0x) |",
        "| PyKeOps      | –          | –            | –          | failed      |",
        "| scikit-learn | –          | 2560* (2.5x) | –          | –           |",
        "",
    ]
    assert headline_table(data, "float16") == ""


def test_the_table_of_the_paper_fits_into_a_terminal():
    from benchmarks.grids import HEADLINE, WHAT
    from benchmarks.plots import headline_table

    methods = {"jax.nn attention": 15e4, "auto": 1.0}
    cells = [
        result("paper", d, c, 16, what, method, time, "headline") | {"seconds": [time / 1e3]}
        for d, c in HEADLINE
        for what in WHAT
        for method, time in methods.items()
    ]
    cells += [result("paper", 3, 1, 64, "forward", method, time) for method, time in methods.items()]  # another figure
    lines = headline_table({"cells": cells}, "float32").splitlines()
    assert sum("150000* (150000x)" in line for line in lines) == 2 and max(map(len, lines)) <= 120
    assert all(f" {d}, {c} " in "".join(lines) for d, c in HEADLINE) and " 64 " not in lines[6]


def test_every_figure_has_its_panels(tmp_path, monkeypatch, capsys):
    """Those of memory and error, too, and each of the two begins a row; no memory is drawn, as one page."""
    from benchmarks import plots

    found = {}
    monkeypatch.setattr(plots, "_write", lambda figure, path, suffix: found.update({suffix: figure}))
    path = tmp_path / "quick.json"
    path.write_text(json.dumps(quick()))
    plots.draw(path)
    assert "| auto      | 96 " in capsys.readouterr().out
    titles = [f"{what}: D = {d}, C = {c}" for d, c in ((3, 1), (32, 32)) for what in ("forward", "gradients")]
    axes = {suffix: [a for a in figure.axes if a.get_visible()] for suffix, figure in found.items()}
    assert axes.keys() == {"_float32_time", "_float32_memory"}
    assert [a.get_title() for a in axes["_float32_time"]] == titles
    assert [a.get_title() for a in axes["_float32_memory"]] == 2 * titles
    assert [a.get_ylabel() for a in axes["_float32_memory"]] == 4 * [plots.UNITS["mib"]] + 4 * [plots.UNITS["error"]]
    (auto,) = [line for line in axes["_float32_memory"][0].lines if line.get_color() == plots.COLORS["auto"]]
    assert list(auto.get_xdata()) == [16, 64, 256] and list(auto.get_ydata()) == [plots.PAGE] * 3


def test_panels_of_a_quantity_begin_a_row(monkeypatch):
    from benchmarks import plots

    found = []
    monkeypatch.setattr(plots, "_write", lambda figure, path, suffix: found.append(figure))
    cells = quick()["cells"]
    figures = {f"panel {i}": cells[:6] for i in range(5)}
    plots._pages(ROOT, quick(), "", [("mib", figures), ("error", figures)])
    labels = [a.get_ylabel() if a.get_visible() else None for a in found[0].axes]
    units = plots.UNITS
    assert labels == [units["mib"]] * 5 + [None] + [units["error"]] * 5 + [None]
    assert len({a.get_ylim() for a in found[0].axes if a.get_ylabel() == units["error"]}) == 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_results_go_where_git_ignores_them_unless_kept(program, tmp_path, monkeypatch):
    from benchmarks import __main__, load, precision, rivals, scaling
    from benchmarks import measure as m

    assert (m.OUTPUTS, m.RESULTS) == (ROOT / "outputs" / "benchmarks", ROOT / "benchmarks" / "results")
    monkeypatch.setattr(m, "OUTPUTS", tmp_path / "ignored")
    monkeypatch.setattr(m, "RESULTS", tmp_path / "kept")
    monkeypatch.setattr(rivals, "rates", lambda device, dtype: {})
    monkeypatch.setattr(__main__, "SUITES", {"quick": lambda device: []})
    monkeypatch.setattr(load, "SETTINGS", {})
    for name in ("training_cells", "wide_cells", "forward_mode_cells", "streamed_cells"):
        monkeypatch.setattr(scaling, name, lambda *_: [])
    for name in ("measure", "widths"):
        monkeypatch.setattr(precision, name, lambda *_: [])
    monkeypatch.setattr(precision, "worst", lambda *_: 0.0)
    monkeypatch.setattr(precision, "plot", lambda data, path: path.touch())
    mains = (
        lambda out, keep: __main__.main("cpu", "quick", 8, None, out, keep),
        lambda out, keep: load.main(8, out, keep),
        lambda out, keep: precision.main("cpu", out, keep),
        lambda out, keep: scaling.main("cpu", 8, out, keep),
    )
    main = dict(zip(PROGRAMS, mains, strict=True))[program]
    main(None, False)
    assert [path.name for path in tmp_path.iterdir()] == ["ignored"]
    main(None, True)
    main(tmp_path / "mine" / "a.json", False)
    found = sorted((path.parent.name, path.suffix) for path in tmp_path.rglob("*.*"))
    suffixes = [".json", ".png"] if program == "benchmarks.precision" else [".json"]
    assert found == [(folder, suffix) for folder in ("ignored", "kept", "mine") for suffix in suffixes]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_can_keep_their_results(program, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [program, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_module(program, run_name="__main__")
    assert "[--keep | --out OUT]" in " ".join(capsys.readouterr().out.split())


def test_results_are_kept_or_named_not_both():
    from benchmarks.measure import add_destination

    parser = argparse.ArgumentParser()
    add_destination(parser)
    assert vars(parser.parse_args([])) == {"keep": False, "out": None}
    assert vars(parser.parse_args(["--keep"])) == {"keep": True, "out": None}
    with pytest.raises(SystemExit):
        parser.parse_args(["--keep", "--out", "a.json"])


def test_a_commit_may_be_unknown(monkeypatch):
    from benchmarks.measure import environment

    monkeypatch.setenv("PATH", "")
    assert environment("cpu")["commit"] == "unknown"


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_pykeops_is_silent_unless_asked_to_speak(monkeypatch):
    names = ("PYKEOPS_VERBOSE", "KEOPS_VERBOSE")  # 2.3 reads both
    for name in names:
        monkeypatch.setenv(name, "1")
    runpy.run_module("benchmarks.rivals")
    assert [os.environ[name] for name in names] == ["1", "1"]
    for name in names:
        monkeypatch.delenv(name)
    runpy.run_module("benchmarks.rivals")
    assert [os.environ[name] for name in names] == ["0", "0"]


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
    cells += [f(40, 3, "cpu") for f in (applications.permutation_test, applications.svgd_step, applications.density)]
    device = {"device_name": "this machine", "cores": 2}
    measure(cells, info() | device | {"suite": "mmd"}, applications.OURS, 8, tmp_path / "mmd.json")
    plots.draw(tmp_path / "mmd.json")
    output = capsys.readouterr().out
    assert "MMD step, dense / ours: " in output and "| density | 40 | 3 | kde_logpdf " in output
    assert (tmp_path / "mmd.png").stat().st_size > 10_000


def test_fit_finds_the_costs(tmp_path, monkeypatch):
    from benchmarks import fit_costs
    from jaxgauss._sums.calibrate import fitted

    pairs, columns = np.meshgrid([16.0, 4096.0, 10.0**7], [5.0, 20.0, 260.0])
    rows = [(1, p, p * c, 4e4 + p * (0.3 + 0.006 * c)) for p, c in zip(pairs.flat, columns.flat, strict=True)]
    cost, factor = fitted(rows)
    assert cost == pytest.approx((4e4, 0.3, 0.006)) and factor == pytest.approx(1)
    table = tmp_path / "costs.json"
    table.write_text("{}")
    measured = []
    monkeypatch.setattr(costs, "TABLE", table)
    monkeypatch.setattr(fit_costs, "measured_costs", lambda *x, **_: measured.append(x) or ({"a": cost}, {"a": factor}))
    fit_costs.main("cpu", 8)
    row = json.loads(table.read_text())[costs.vendor()]
    assert row["a"] == cost._asdict() and row["device_name"] and measured == [(8, fit_costs.NUMS, fit_costs.SIZES)]


@pytest.mark.emulated
def test_costs_are_fitted_for_cuda(tmp_path):
    """Every engine there, each by its own columns; with `--out`, the table stays as it is."""
    from benchmarks import fit_costs

    before, out = costs.CUDA_TABLE.read_text(), tmp_path / "row.json"
    fit_costs.main("cuda", 3, out, emulate=True)
    row = json.loads(out.read_text())["emulated"]
    assert costs.CUDA_TABLE.read_text() == before
    assert row.keys() > json.loads(before)["estimate"].keys() - {"source"}
    assert sum(row["flash"].values()) > 0


def test_limits_count_products_and_exponentials():
    from benchmarks.rivals import Problem, limit

    assert limit(Problem(10, 3, 1), "forward", {"matmul": 4.0, "exp": 1e9}) == 100
    assert limit(Problem(10, 3, 1, 2), "gradients", {"matmul": 1e9, "exp": 4.0}) == 100
