"""The benchmarks measure what they say, go on after an interruption, and draw from their files alone."""

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import itertools
import json
import os
import runpy
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import jaxgauss
from jaxgauss._engines import costs

ROOT = Path(__file__).parents[1]
OURS = ("auto",)
pytestmark = pytest.mark.usefixtures("as_it_comes")
SMALL: dict[str, tuple[int, dict]] = {  # of a suite, how many rows it finds with these sizes
    "calls": (7, {"NUMS": (16,), "ROUNDS": 1}),
    "clouds": (2 * 5, {"NUMS": (40,), "DIMS": (3,), "FUNCTIONS": ("gauss_sum", "log_gauss_sum")}),
    "first_calls": (3, {"NUM": 40, "NAMES": ("gauss_sum", "gradients of hsic", "mmd_estimate of chunks")}),
    "few_dimensions": (2 * 4 + 7 + 2 + 6 * 2 + 2, {"SUMS": [(1, 8, 200), (1, 8, 300)], "DIMS": (1,), "HOSTILE": 100}),
    "kernels": (2 * 2 * 2, {"NUM": 100, "DIMS": (3,), "KEOPS": lambda m: some(m.KEOPS, "matern12", "imq")}),
    "million": (2, {"PROCESSES": [("jaxgauss", 90), ("scikit-learn", 90)], "SIDE": 20}),
    "mmd": (2 + 2 * 2 + 2 + 4 + 3 + 2 * 2, {"GROUPS": (3, 20), "SETS": (4, 5, 9), "ROWS": 20}),
    "precision": (124, {"NUM": 300, "DIMS": (3,), "TAUS": (1.0, 1.0, 1.0, 100.0), "OFFSETS": (10.0, 0.0)}),
    "resampling": (3 * 3 + 3, {"DRAWS": 2, "NUM": 24, "RESAMPLINGS": 19, "SIZES": (24,)}),
    "scaling": (5 + 2, {"NUM": 40, "DIMS": (3,), "KEYS": 3000, "QUERIES": 20, "CHUNK": 1000}),
}
SMALL["few_dimensions"][1].update(SMALL=(64,), LENGTHS=(5,), PLANE=80, PERMUTATIONS=19, CHECKED=8)
SMALL["few_dimensions"][1]["METHODS"] = lambda m: some(m.METHODS, "score", "log-density", "MMD flow, a step")
SMALL["few_dimensions"][1]["TAUS"] = lambda m: some(m.TAUS, "three bandwidths")
SMALL["mmd"][1]["SIZES"] = lambda m: {
    m.mmd_step: [(32, 3), (64, 3)],
    **{cell: [(32, 3)] for cell in (m.svgd_step, m.density, m.sinkhorn_step)},
    **{cell: [("gradients", 3)] for cell in (m.grouped_sums, m.grouped_mmd)},
}
SMALL["resampling"][1]["METHODS"] = lambda m: {x: some(tests, next(iter(tests))) for x, tests in m.METHODS.items()}
SMALL["resampling"][1]["ALTERNATIVES"] = lambda m: {x: some(of, next(iter(of))) for x, of in m.ALTERNATIVES.items()}
MODULES = {"mmd": "applications", "first_calls": "calls"}
SLOW = ("few_dimensions", "kernels", "million", "mmd", "resampling", "scaling")


def some(of, *names):
    return {name: of[name] for name in names}


@pytest.fixture
def quickly(monkeypatch):
    """Times and memory mean nothing here."""
    monkeypatch.setattr("benchmarks.study.peak_mebibytes", lambda call: 1.0)
    for name in ("SETTLED", "SHORTEST"):
        monkeypatch.setattr(costs, name, 1e-4)
    monkeypatch.setattr(costs, "WARM_UPS", 1)


@pytest.fixture
def small(monkeypatch, quickly):
    """A suite and its module, with small sizes and without other libraries that compile for long."""

    def small(name):
        from benchmarks.suites import SUITES

        module = importlib.import_module(f"benchmarks.{MODULES.get(name, name)}")
        for key, value in SMALL[name][1].items():
            monkeypatch.setattr(module, key, value(module) if callable(value) else value)
        monkeypatch.setattr(module, "elsewhere", lambda function, *x: function(*x), raising=False)
        find, missing = importlib.util.find_spec, ("pykeops", "hyppo", "kt")
        monkeypatch.setattr(importlib.util, "find_spec", lambda x: None if x in missing else find(x))
        return module, SUITES[name]

    return small


def shows(name, cells, report):
    """What is special about a suite's results, and about what it shows of them."""
    if name == "kernels":
        assert all(c["error"] < 1e-5 for c in cells if c["method"] == "kernel_sum") and report.count("\n| ") == 2
    if name == "resampling":
        assert all(0 <= c["rejected"] <= 2 for c in cells if c["figure"] == "power")
    if name == "scaling":
        assert {c["figure"] for c in cells} == {"forward mode", "streamed"} and "million keys of 16" in report
    if name == "few_dimensions":
        assert all(c["error"] < 1e-5 for c in cells if c["figure"] == "step") and "| test, three bandwidths" in report
        assert {c["method"] for c in cells if c["figure"] == "sums"} == {"auto", "products", "all pairs", "finufft"}
    if name == "precision":
        assert {c["method"] for c in cells if not c["guard"]} == {"reweight", "prescale", "rescale"}
        assert {c["what"] for c in cells} == {"sum", "gradient"}
    if name == "million":
        assert all(0.5 < c["within"] <= 1 and c["gib"] > 0 for c in cells)
    if name == "mmd":
        assert {c["method"] for c in cells if c["figure"] == "iteration"} == {"jaxgauss", "OTT online", "OTT dense"}
        assert "MMD step, dense / ours: " in report and "| kde_logpdf " in report


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in SMALL])
def test_a_suite_is_measured_shown_and_drawn(small, tmp_path, capsys, name):
    """And shown and drawn again from its file alone."""
    from benchmarks.__main__ import main
    from benchmarks.study import read

    _, study = small(name)
    out, picture = tmp_path / f"{name}.json", tmp_path / f"{name}.png"
    study.measure(name, "cpu", 2, out)
    data = read(out)
    assert data["complete"] and data["suite"] == name and len(data["cells"]) == SMALL[name][0]
    assert not [c for c in data["cells"] if "failed" in c and c["method"] != "blackjax"]
    report, printed = study.report(data), capsys.readouterr().out
    assert report in printed
    assert name != "resampling" or "kerneltests is not installed: left out\nhyppo is not" in printed
    shows(name, data["cells"], report)
    if study.draw:
        before = picture.read_bytes()
        picture.unlink()
        main(["--plot", str(out)])
        assert picture.read_bytes() == before and len(before) > 10_000


WRONG = {  # by suite and figure, what is put in the place of a function of ours
    ("kernels", "time"): ("kernel_sum", lambda q, k, v, kernel: jaxgauss.gauss_sum(q, k, v)),
    ("mmd", "MMD step"): ("mmd_squared", lambda x, y, tau: jaxgauss.mmd_squared(x, y, 1.1 * tau)),
    ("mmd", "sums"): ("gauss_sum", lambda *x, **how: jaxgauss.gauss_sum(*x)),
    ("few_dimensions", "methods"): ("METHODS", {"score": lambda x, y, tau: jaxgauss.kde_score(x, y, 1.1 * tau)}),
}


@pytest.mark.parametrize(("name", "figure"), WRONG)
def test_a_wrong_result_is_not_timed(small, monkeypatch, name, figure):
    module, study = small(name)
    monkeypatch.setattr(module, *WRONG[name, figure])
    step = next(step for step in study.steps("cpu") if step.about["figure"] == figure)
    with pytest.raises(AssertionError, match=f"({'|'.join(study.ours)}), .*: error"):
        step.found(1, study.ours, ())


def test_a_test_rejects_what_differs():
    from benchmarks import resampling

    for problem, strength in (("two-sample", 8.0), ("independence", 0.999), ("goodness of fit", 8.0)):
        draw = resampling.sample(resampling.TIMED[problem][0], 24, strength, 0)
        assert next(iter(resampling.METHODS[problem].values())).test(*draw, 0, 19)


def test_a_wavy_density_has_its_waves(rng):
    from benchmarks.resampling import wavy

    draws = wavy(rng, lambda n: rng.uniform(size=(n, 1)), lambda x: np.sin(2 * np.pi * x[:, 0]), 4000)
    assert draws.shape == (4000, 1)
    assert (draws < 0.5).mean() == pytest.approx(0.5 + 1 / np.pi, abs=0.05)


def test_a_function_runs_in_a_process_of_its_own():
    from benchmarks.study import elsewhere

    assert elsewhere(os.getppid) == os.getpid() and elsewhere(os.path.join, "a", "b") == os.path.join("a", "b")


def test_figures_stay_where_git_ignores_them_unless_kept(tmp_path, monkeypatch, capsys):
    from benchmarks import __main__, suites
    from benchmarks import study as m

    assert (m.OUTPUTS, m.RESULTS) == (ROOT / "outputs" / "benchmarks", ROOT / "benchmarks" / "results")
    monkeypatch.setattr(m, "OUTPUTS", tmp_path / "ignored")
    monkeypatch.setattr(m, "RESULTS", tmp_path / "kept")

    def nothing(device):
        """Nothing."""
        return []

    monkeypatch.setitem(suites.SUITES, "quick", m.Study(nothing, lambda data: ""))
    __main__.main(["--suite", "quick"])
    assert [path.name for path in tmp_path.iterdir()] == ["ignored"]
    __main__.main(["--suite", "quick", "--keep"])
    __main__.main(["--suite", "quick", "--out", str(tmp_path / "mine" / "a.json")])
    found = sorted((path.parent.name, path.suffix) for path in tmp_path.rglob("*.*"))
    assert found == [(folder, ".json") for folder in ("ignored", "kept", "mine")]
    for wrong in (["--keep", "--out", "a.json"], ["--suite", "calls", "--device", "cuda"]):
        with pytest.raises(SystemExit):
            __main__.main(wrong)
    with pytest.raises(SystemExit):
        __main__.main(["--help"])
    assert "Whether `auto` is ever slower" in capsys.readouterr().out


def cell(name, calls, error=0.0):
    from benchmarks.study import Cell

    methods = {method: (lambda call=call: call) for method, call in calls.items()}
    about = {"figure": name, "n": 1, "d": 1}
    return Cell(about, methods, lambda results: results * error, 1e-3, "series")


def info():
    return {"device": "cpu", "commit": "abc", "suite": "test", "runs": 8}


def result(d, c, n, what, method, milliseconds, **more):
    """A cell of a result file: N² times the milliseconds at N = 16."""
    seconds = milliseconds * (n / 16) ** 2 / 1e3
    about = {"figure": f"N, D = {d}, C = {c}", "n": n, "d": d, "c": c, "batch": 1, "dtype": "float32", "what": what}
    return about | {"method": method, "seconds": 3 * [seconds]} | dict.fromkeys(("q1", "median", "q3"), seconds) | more


def quick():
    """A result file of the quick suite."""
    cells = [
        result(d, c, n, what, method, time * d * (1 + (what == "gradients")), mib=mib, error=1e-6 / d)
        for d, c in ((3, 1), (32, 32))
        for what in ("forward", "gradients")
        for n in (16, 64, 256)
        for method, time, mib in (("dense JAX", 0.25, n), ("auto", 0.125, 0.0))
    ]
    return info() | {"device_name": "this machine", "cores": 2, "suite": "quick", "cells": cells}


def test_every_method_is_a_gauss_sum_with_its_gradients():
    from benchmarks.rivals import JAX_NATIVE, OTHERS, OURS, Problem, calls

    batch, single = Problem(40, 3, 2, batch=2), Problem(40, 3, 1)
    for problem, what, names in (
        (batch, "gradients", (*OURS, *JAX_NATIVE, "torch eager")),
        (single, "forward", ("float32", "waves", "scikit-learn", "OTT online", "PyKeOps")),
    ):
        for name, prepare in calls(names, problem, what).items():
            call = prepare()
            assert not isinstance(call, str)
            assert problem.error(what, call()) < (5e-3 if name == "float16x2" else 1e-5), name
    assert calls(["dense JAX"], Problem(10**6, 3, 1), "forward")["dense JAX"]() == "matrix too large"
    assert OTHERS.keys() >= {"PyKeOps", "torch.compile", "OTT online"}


def test_an_interrupted_run_goes_on_where_it_was(tmp_path, capsys, monkeypatch, quickly):
    from benchmarks import study as m

    made, out = [], tmp_path / "result.json"
    monkeypatch.setattr(m, "environment", lambda device: info() | {"device": device})

    def measured(*names, fails=()):
        def call(name):
            made.append(name)
            if name in fails:
                raise KeyboardInterrupt
            return 1.0

        steps = [cell(name, {"auto": functools.partial(call, name)}) for name in names]
        m.Study(lambda device: steps, lambda data: "a report", ours=OURS).measure("test", "cpu", 8, out)
        return json.loads(out.read_text())

    with pytest.raises(KeyboardInterrupt):
        measured("first", "second", fails=["second"])
    assert not json.loads(out.read_text())["complete"]
    firsts = made.count("first")
    data = measured("first", "second")
    assert made.count("first") == firsts and made.count("second") > 8 and data["complete"]
    for c in data["cells"]:
        assert len(c["seconds"]) == 8 and c["q1"] <= c["median"] <= c["q3"] and c["error"] == 0
    assert "a report\nraw data: " in capsys.readouterr().out
    assert measured("first", "second") == data
    assert "measured before (delete it to measure again): " in capsys.readouterr().out
    monkeypatch.setattr(m, "environment", lambda device: info() | {"commit": "other"})
    with pytest.raises(SystemExit, match="of another device, commit, suite or number of runs"):
        measured("first")


IN_TURN = """#!{python}
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from pathlib import Path
from benchmarks import study
from test_benchmarks import cell, info, logged
assert sys.argv[1:10] == "-m benchmarks --suite test --device cpu --runs 2 --out".split()
assert sys.argv[11:] == ["--in-turn"]
study.environment = lambda device: info() | {{"commit": "other", "runs": 2, "versions": {{"jax": "0.1"}}}}
steps = [cell(name, {{"auto": logged({log!r}, "there " + name)}}) for name in {names!r}]
study.Study(lambda device: steps, str).measure("test", "cpu", 2, Path(sys.argv[10]), in_turn=True)
"""


def logged(log, line):
    """A call that writes the line."""

    def call():
        with open(log, "a") as file:
            print(line, file=file)
        return 1.0

    return call


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for Python is a script with a shebang")
@pytest.mark.parametrize("ends", [False, True])
def test_two_environments_take_turns(tmp_path, monkeypatch, capsys, quickly, ends):
    """Each step is measured here, then there, and both stand in one file; if the other one ends, so does the run."""
    from benchmarks import study as m

    monkeypatch.setattr(m, "environment", lambda device: info() | {"runs": 2, "versions": {"jax": "0.2"}})
    python, log, out = (tmp_path / name for name in ("python", "log", "result.json"))
    names, folders = ["a", "b"], {"root": str(ROOT), "tests": str(ROOT / "tests")}
    text = IN_TURN.format(python=sys.executable, log=str(log), names=names, **folders)
    python.write_text(f"#!{sys.executable}\nprint('ready', flush=True)\ninput()" if ends else text)
    python.chmod(0o755)
    steps = [cell(x, {"auto": logged(log, "here " + x)}) for x in names]
    study = m.Study(lambda device: steps, lambda data: data["commit"], ours=OURS)
    if ends:
        with pytest.raises(SystemExit, match=r"It ended: .*--in-turn"):
            study.measure("test", "cpu", 2, out, other=python)
        return
    study.measure("test", "cpu", 2, out, other=python)
    order = [line for line, _ in itertools.groupby(log.read_text().splitlines())]
    assert order == [f"{where} {name}" for name in names for where in ("here", "there")]
    assert "abc\nThat was jax 0.2; beside it, jax 0.1:\n\nother\n" in capsys.readouterr().out
    data = json.loads(out.read_text())
    assert data["complete"] and data["beside"]["complete"] and data["beside"]["commit"] == "other"
    for found in (data, data["beside"]):
        assert [c["figure"] for c in found["cells"]] == names and len(found["cells"][0]["seconds"]) == 2
    assert sorted(x.name for x in tmp_path.iterdir()) == ["log", "python", "result.json"]


def test_wrong_slow_and_broken_methods(tmp_path, monkeypatch, quickly):
    """A wrong result of ours stops the run, another's is not timed; what is slow is timed once, and not again."""
    from benchmarks import study as m

    def broken():
        raise RuntimeError("no such thing")

    def take(calls, *names, error=0.0, series="series"):
        results = m.Results(tmp_path / f"{names[0]}.json", info())
        for name in names:
            results.take(dataclasses.replace(cell(name, calls, error), series=series), 8, OURS)
        return results.data["cells"]

    monkeypatch.setattr(m, "TOO_SLOW", 0.01)
    calls = {"auto": lambda: 1.0, "slow": lambda: time.sleep(0.02) or 1.0, "broken": broken}
    found = {(c["figure"], c["method"]): c for c in take(calls, "a", "b")}
    assert len(found["a", "slow"]["seconds"]) == 1 and ("b", "slow") not in found
    assert found["a", "broken"]["failed"] == "RuntimeError: no such thing"
    assert len(take({"slow": calls["slow"]}, "f", "g", series="")) == 2
    (wrong,) = take({"other": lambda: 1.0}, "c", error=1.0)
    assert "seconds" not in wrong and wrong["error"] == 1
    with pytest.raises(AssertionError, match="auto"):
        take({"auto": lambda: 1.0}, "d", error=1.0)
    with pytest.raises(RuntimeError, match="no such thing"):
        take({"auto": broken}, "e")


def test_measured_memory_is_that_of_the_call():
    from benchmarks.study import peak_mebibytes

    found = peak_mebibytes(lambda: np.ones(2**24).sum())
    assert found is None or 120 < found < 200


@pytest.mark.slow
def test_gauss_sums_are_measured_and_drawn(tmp_path, capsys, monkeypatch, quickly):
    from benchmarks import grids, suites
    from benchmarks import study as m
    from benchmarks.rivals import Problem, rates

    monkeypatch.setattr(m, "peak_mebibytes", lambda call: None)  # as where the system does not tell
    names, few, many = ["auto", "rescale", "dense JAX", "bare attention"], Problem(32, 3, 1), Problem(64, 3, 1)
    speed = {"rates": {"float32": rates("cpu", "float32", 256, runs=2)}}
    figures = [("N, D = 3, C = 1", few), ("N, D = 3, C = 1", many), ("headline", few), ("memory", many)]
    steps = [grids.cell(figure, p, "forward", names, d=3) for figure, p in figures]
    study = dataclasses.replace(suites.SUITES["paper"], steps=lambda device: steps, info=lambda device: speed)
    study.measure("paper", "cpu", 2, tmp_path / "paper.json")
    suites.SUITES["jax"].draw(m.read(next(m.RESULTS.glob("*_jax.json"))), tmp_path / "jax.json")
    output = capsys.readouterr().out
    assert "| forward: D, C  | 3, 1 " in output and "PyTorch's bare attention call" in output
    assert "| auto           | memory unknown |" in output
    pictures = {"paper_float32_time.png", "paper_float32_memory.png", "jax.png"}
    assert {p.name for p in tmp_path.glob("*.png")} == pictures
    assert all(p.stat().st_size > 10_000 for p in tmp_path.glob("*.png"))


def test_the_table_shows_the_largest_sizes_beside_auto():
    from benchmarks.grids import times

    cells = quick()["cells"]
    failed = {"method": "PyKeOps", "failed": "RuntimeError: no compiler"}
    cells += [{k: v for k, v in c.items() if k != "median"} | failed for c in cells[-2:-1]]
    cells += [result(3, 1, n, "forward", "torch eager", 0.1) for n in (16, 64)]  # then too slow
    cells += [result(32, 32, 256, "forward", "scikit-learn", 10) | {"seconds": [2.56]}]
    assert times(cells, beside=True).splitlines() == [
        "| forward: D, C | 3, 1       | 32, 32       |",
        "|---------------|------------|--------------|",
        "| auto          | 96         | 1024         |",
        "| dense JAX     | 192 (2.0x) | 2048 (2.0x)  |",
        "| scikit-learn  | –          | 2560* (2.5x) |",
        "",
        "| gradients: D, C | 3, 1       | 32, 32      |",
        "|-----------------|------------|-------------|",
        "| auto            | 192        | 2048        |",
        "| dense JAX       | 384 (2.0x) | 4096 (2.0x) |",
        "| PyKeOps         | –          | failed      |",
        "",
    ]
    assert times(cells, "float16") == ""


def test_every_figure_has_its_panels(tmp_path, monkeypatch):
    """Those of memory and error, too, each of which begins a row, of five as well; no memory is drawn as one page."""
    from benchmarks import grids, plots

    found = {}
    monkeypatch.setattr(plots, "finish", lambda figure, data, path, suffix, note: found.update({suffix: figure}))
    grids.draw(quick(), tmp_path)
    titles = [f"{what}: D = {d}, C = {c}" for d, c in ((3, 1), (32, 32)) for what in ("forward", "gradients")]
    axes = {suffix: [a for a in figure.axes if a.get_visible()] for suffix, figure in found.items()}
    assert axes.keys() == {"_float32_time", "_float32_memory"}
    assert [a.get_title() for a in axes["_float32_time"]] == titles
    assert [a.get_title() for a in axes["_float32_memory"]] == 2 * titles
    assert [a.get_ylabel() for a in axes["_float32_memory"]] == 4 * [plots.UNITS["mib"]] + 4 * [plots.UNITS["error"]]
    (auto,) = [line for line in axes["_float32_memory"][0].lines if line.get_color() == plots.COLORS["auto"]]
    assert list(auto.get_xdata()) == [16, 64, 256] and list(auto.get_ydata()) == [plots.PAGE] * 3
    five = {f"panel {i}": quick()["cells"][:6] for i in range(5)}
    plots.panels(quick(), tmp_path, "five", [("mib", five), ("error", five)])
    labels = [a.get_ylabel() if a.get_visible() else None for a in found["five"].axes]
    units = plots.UNITS
    assert labels == [units["mib"]] * 5 + [None] + [units["error"]] * 5 + [None]
    assert len({a.get_ylim() for a in found["five"].axes if a.get_ylabel() == units["error"]}) == 1


def test_a_commit_may_be_unknown(monkeypatch):
    from benchmarks.study import environment

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


def test_first_calls_are_those_of_every_function():
    from benchmarks import calls, clouds

    public = {name for name, x in vars(jaxgauss).items() if inspect.isfunction(x) and not name.startswith("_")}
    assert {x.partition(" of ")[0] for x in (*calls.FUNCTIONS, *calls.LEFT_OUT)} == public
    assert {x.rpartition(" of ")[2] for x in (*calls.NAMES, *clouds.FUNCTIONS)} <= {"chunks", *calls.FUNCTIONS}


def test_suites_name_cells_that_differ():
    from benchmarks.suites import SUITES

    for name in ("quick", "paper", "jax", "precision", "kernels", "calls", "first_calls"):
        for device in SUITES[name].devices:
            abouts = [json.dumps(step.about) for step in SUITES[name].steps(device)]
            assert len(set(abouts)) == len(abouts) > 0


def test_fit_finds_the_costs(tmp_path, monkeypatch):
    from benchmarks import inside
    from benchmarks.tools import fit_costs

    pairs, columns = np.meshgrid([16.0, 4096.0, 10.0**7], [5.0, 20.0, 260.0])
    rows = [(1, p, p * c, 4e4 + p * (0.3 + 0.006 * c)) for p, c in zip(pairs.flat, columns.flat, strict=True)]
    cost, factor = inside.calibrate.fitted(rows)
    assert cost == pytest.approx((4e4, 0.3, 0.006)) and factor == pytest.approx(1)
    table, measured = tmp_path / "costs.json", []
    others = {"A": {"0.1": {}}, costs.vendor(): {"0.2": {}}}
    table.write_text(json.dumps(others))
    monkeypatch.setattr(costs, "TABLE", table)
    found = {"a": cost}, {"a": factor}
    monkeypatch.setattr(inside.calibrate, "measured_costs", lambda *x, **_: measured.append(x) or found)
    fit_costs.main("cpu", 8)
    version = importlib.metadata.version("jaxlib")
    row = json.loads(table.read_text())[costs.vendor()].pop(version)
    assert row["a"] == cost._asdict() and row["device_name"] and measured == [(8, fit_costs.NUMS, fit_costs.SIZES)]
    fit_costs.main("cpu", 8, tmp_path / "row.json")  # which leaves the table as it is
    assert json.loads((tmp_path / "row.json").read_text()).keys() == {costs.vendor()} and len(measured) == 2


def test_limits_count_products_and_exponentials():
    from benchmarks.rivals import Problem, limit

    assert limit(Problem(10, 3, 1), "forward", {"matmul": 4.0, "exp": 1e9}) == 100
    assert limit(Problem(10, 3, 1, 2), "gradients", {"matmul": 1e9, "exp": 4.0}) == 100
