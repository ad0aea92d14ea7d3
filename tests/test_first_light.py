"""The one program for a GPU's first day: whatever becomes of a step, the others run, and no target is misjudged."""

import functools
import itertools
import json
import os
import sys
import types

import jax
import pytest

from benchmarks import grids, inside, rivals, study
from benchmarks.first_light import loops, probes
from benchmarks.first_light import steps as light
from benchmarks.first_light.__main__ import conduct, ended, main
from benchmarks.first_light.part import Part
from benchmarks.first_light.report import in_one_sentence, report
from benchmarks.first_light.sizes import EMULATED, GPU
from benchmarks.first_light.steps import GROUPS, PAPER, Recorder, headline, paper
from benchmarks.first_light.targets import targets
from benchmarks.grids import HEADLINE, WHAT
from benchmarks.study import Cell, Task
from benchmarks.tools import fit_costs
from jaxgauss._engines.costs import cuda_costs

pytestmark = pytest.mark.usefixtures("as_it_comes")

CELL = {"done": [{"n": 1}], "cells": [{"n": 1}]}


@pytest.mark.slow
@pytest.mark.emulated
def test_the_emulated_walk_takes_every_step_and_no_step_twice(tmp_path, capsys):
    """Nor what a file has of a step: here costs of every engine, but for one size of each."""
    out, about = tmp_path / "first_light.json", ("n", "d", "c", "engine")
    sizes = [(*size, name) for size in EMULATED.costs for name in light.ENGINES if (size[0] == 8) != (name == "waves")]
    done = [{"figure": "costs"} | dict(zip(about, size, strict=True)) for size in sizes]
    out.write_text(json.dumps({"device": "emulated", "steps": {"costs": {"done": done}}}))
    walk = functools.partial(main, ["--emulate", "--minutes", "20", "--out", str(out)])
    walk()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first_light.json", "first_light.md"]
    data = json.loads(out.read_text())
    assert data["device"] == "emulated" and data["steps"].keys() == light.STEPS.keys()
    for name, step in data["steps"].items():
        assert step["complete"] and step["cells"] and not step["crashes"], name
        refused = [c for c in step["cells"] if "failed" in c]
        assert {c["figure"] for c in refused} == ({"widths", "log-sum-exp alone"} if name == "probes" else set()), name
        assert all("median" in c for c in step["cells"] if "method" in c and c not in refused), name
    costs = data["steps"]["costs"]["cells"]
    assert {c["engine"] for c in costs} >= cuda_costs("any")[0].keys() and min(c["row"][-1] for c in costs) > 0
    assert len(costs) == len({c["engine"] for c in costs})
    text = out.with_suffix(".md").read_text()
    assert text.startswith("# First light: emulated: figures mean nothing\n")
    assert all(f"\n| {row.target} " in text for row in targets(data))
    assert all(f"\n## {title}" in text for title in ("Steps", *(x for x in light.STEPS if x not in ("tests", "costs"))))
    before = out.read_text()
    capsys.readouterr()
    walk()
    said = capsys.readouterr().out
    assert said.count(": measured before\n") == len(light.STEPS) == said.count("\n") - 1  # no process began
    assert out.read_text() == before


def test_what_is_worth_most_comes_first():
    """And 25 minutes are what the shares add up to."""
    assert list(light.STEPS)[:6] == ["probes", "paper", "costs", "tests", "loops", "headline"]
    shares = {name: share for name, (share, _) in light.STEPS.items()}
    assert (shares["probes"], shares["paper"], sum(shares.values())) == (8, 5, 25)


def test_probes_ask_all_that_only_a_card_can_tell():
    """Those of a few seconds before those that compile for minutes, but for the one of which most is hoped."""
    cells = list(probes.probes(GPU))
    figures = [name for name, _ in itertools.groupby(cell.about["figure"] for cell in cells)]
    assert figures[0] == figures[-1] == "FlexAttention" and len(figures) == len(set(figures)) + 1 == 7
    flex = [cell for cell in cells if cell.about["figure"] == "FlexAttention"]
    found = {tuple(cell.about[key] for key in ("what", "blocks", "d", "c", "n")) for cell in flex}
    options = {(x, y) for x in ("tf32x3", "tf32") for y in probes.BLOCKS} | {("ieee", "its own")}
    assert found == {(*x, *pair, n) for x in options for pair in HEADLINE for n in GPU.nums}
    widths = {(cell.about["d"], cell.about["c"]) for cell in cells if cell.about["figure"] == "widths"}
    assert widths == {(width, c) for width in (32, 64, 96, 128, 136, 192, 256) for c in (width, 8)}


@pytest.mark.emulated
@pytest.mark.filterwarnings("ignore:flex_attention called without")  # as it is on a CPU
def test_probes_find_sums_to_the_digits_of_their_points(cuda):
    """Of two float16 numbers, in one head and in several; of one they would have 1e-4."""
    problem = probes.Positive(96, 3, 1)
    for name, heads in itertools.product(probes.NAMES, (1, 3)):
        found = probes.by_logarithm(problem, name, heads=heads)()
        assert problem.error("forward", found) < 3e-6
        assert problem.error_of_terms("forward", found) == pytest.approx(problem.error("forward", found))
    signed = rivals.Problem(96, 3, 1)
    found = probes.by_flex(signed, "tf32x3", {})()
    assert signed.error_of_terms("forward", found) < signed.error("forward", found) < 1e-5


@pytest.mark.parametrize("by_torch", [False, True])
def test_a_conditional_is_timed_until_it_returns_and_until_it_is_done(by_torch):
    returned, done = probes.conditional(8, by_torch).find(3)
    assert (returned["method"], done["method"]) == ("returned", "done")
    assert len(done["seconds"]) == 3 and 0 < returned["median"] < done["median"] and done["error"] < 1e-5


def test_first_calls_are_those_of_processes_of_their_own(monkeypatch):
    seen = []

    def elsewhere(function, *arguments, flags):
        seen.append((function, arguments, flags))
        return [{"first_call": 1.0}]

    monkeypatch.setattr(probes, "elsewhere", elsewhere)
    rows = [row for task in probes.first_calls(GPU) for row in task.find(5)]
    assert [row["method"] for row in rows] == ["mmd_squared", "without the fusion autotuner"]
    assert seen == [(probes.first_call, (1024, 64, 5), x) for x in ("", probes.NO_AUTOTUNER)]
    (row,) = probes.first_call(12, 3, 2)
    assert row["error"] < 1e-5 and row["first_call"] > row["median"] > 0
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
    both = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
    assert study.elsewhere(os.getenv, "XLA_FLAGS", flags="--xla_backend_optimization_level=0") == both


def test_a_loop_goes_on_from_its_last_step():
    """And tells how far the first one went, which is compared with float64."""
    (cell,) = loops.loops(types.SimpleNamespace(loops=((24,), 3), device="cpu"))
    dense = [f"dense JAX in {x}" for x in ("TF32", "float32")]
    assert list(cell.methods) == [x + y for x in ("mmd_squared", *dense) for y in ("", ", donated")]
    for prepare in cell.methods.values():
        call = prepare()
        first = call()
        assert cell.error(first) < 1e-4 and cell.error(2 * first) > 0.9 and call() is first
    (row, *_), _ = cell.found(2, (), list(cell.methods)[1:])
    assert row["median"] == pytest.approx(sum(row["seconds"]) / 2 / loops.STEPS)


@pytest.mark.parametrize("name", ["probes", "paper", "loops"])
def test_what_a_file_has_of_a_step_is_not_asked_again(part, name):
    """Cells differ, and their names are those that JSON gives back."""
    abouts = [cell.about for cell in light.STEPS[name][1](EMULATED)]
    again = part(done=abouts)
    assert len({json.dumps(about) for about in abouts}) == len(abouts)
    for about in abouts:
        again.take(Task(about, lambda runs: pytest.fail("it was done")), 2)


def test_all_figures_of_the_paper_are_in_its_suite_and_asked_early(monkeypatch):
    """Float32 at C = 32, too; its two reductions are curves of their own."""
    monkeypatch.setattr(rivals, "is_installed", lambda name: True)

    def of(cells):
        keys = ("figure", "batch", "c", "dtype", "what")
        return {(*(cell.about[key] for key in keys), name) for cell in cells for name in cell.methods}

    names = {name for group, _ in PAPER.values() for name in group}
    every, cells = of(grids.paper("cuda")), list(paper(GPU))
    assert of(cells) == {x for x in every if x[0] not in ("headline", "memory") and x[-1] in names}
    assert len(of(cells)) == 2 * (4 + 2) * len(names) and names >= {"prescale", "reweight", "rescale", "auto"}
    sizes = {(cell.about["batch"], cell.about["n"]) for cell in cells}
    assert sizes == {(4, 2**i) for i in (10, 12, 14, 16)} | {(64, 16384)}
    assert {cell.about["d"] for cell in cells if cell.about["figure"] == "D"} == {3, 8, 16, 32, 64, 128}
    assert {cell.runs for cell in cells if "PyKeOps" in cell.methods} == {3}
    order = [(cell.about["group"] == "torch.compile", cell.about["what"] == "gradients") for cell in cells]
    assert order == sorted(order)
    assert {"prescale", "reweight"} <= {x[-1] for x in of(grids.paper("cpu")) if x[0] == "D"}


START = """
import json, os, pathlib, sys, time
path, name = pathlib.Path(sys.argv[1]), sys.argv[2]
data = json.loads(path.read_text())
step = data['steps'].setdefault(name, {})
write = lambda **more: step.update(more) or path.write_text(json.dumps(data))
"""


def conducted(out, codes, minutes=1.0):
    """Programs in the place of steps, which find in `step` what the file has of them, and `write` it."""

    def command(name):
        return lambda seconds: [sys.executable, "-u", "-c", START + codes[name], str(out), name]

    conduct(out, "cuda", {(name,): command(name) for name in codes}, minutes)
    return json.loads(out.read_text())["steps"]


def test_steps_that_hang_or_crash_do_not_take_the_others_along(tmp_path, capsys):
    out = tmp_path / "a.json"
    finish, begin = (f"write(**{CELL | x!r});" for x in ({"complete": 1}, {"begun": {"n": 2}}))
    codes = {
        "few": begin + "time.sleep(600)",
        "mmd": "print('oh'); os.abort()",
        "memory": f"exec({finish!r} if step else {begin + 'os.abort()'!r})",
        "costs": finish,
    }
    steps = conducted(out, codes, minutes=0.5)  # of which the first one has 2 s
    assert steps["few"]["state"].startswith("was ended after") and steps["few"]["cells"] == [{"n": 1}]
    assert steps["few"]["begun"] is None  # it is tried again
    assert steps["mmd"]["state"] == "crashed" and steps["mmd"]["crashes"] == [["exit code -6", "oh"]]
    assert steps["memory"]["state"] == "complete" and steps["memory"]["crashes"] == [["exit code -6"]]
    assert steps["costs"]["state"] == "complete"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.md"]
    text = out.with_suffix(".md").read_text()
    assert "| mmd       | crashed " in text and "| tests     | did not begin " in text
    assert "- mmd crashed:\n      exit code -6\n      oh\n" in text and "  oh\n" in capsys.readouterr().out
    steps = conducted(out, {"mmd": finish, "costs": "os.abort()"})
    assert steps["mmd"]["complete"] and steps["costs"]["state"] == "complete"
    steps["memory"].pop("state")
    assert "| memory    | was interrupted " in report({"device": "cuda", "steps": steps})
    out.write_text(json.dumps({"device": "emulated", "steps": {}}))
    with pytest.raises(SystemExit, match="of another device, emulated"):
        conducted(out, {})


@pytest.fixture
def part(tmp_path):
    """A step's file, with what a process left there."""

    def part(**left):
        (tmp_path / "part.json").write_text(json.dumps({"steps": {"mmd": left}}))
        return Part(tmp_path / "part.json", "mmd", "cpu", 100)

    return part


def written(part):
    return json.loads(part.path.read_text())["steps"]["mmd"]


def cell(calls, error=0.0):
    methods = {name: (lambda call=call: call) for name, call in calls.items()}
    return Cell({"figure": "a", "what": "forward"}, methods, lambda found: found * error, 1e-3, "series")


def raises(message):
    raise RuntimeError(message)


def test_a_process_goes_on_behind_the_cell_that_ended_the_one_before_it(part):
    new = part(begun={"n": 2}, **CELL)
    new.take(Task({"n": 2}, lambda runs: pytest.fail("it was done")), 2)
    new.take(Task({"n": 3}, lambda runs: [{"peak": 1}]), 2)
    assert written(new)["done"] == [{"n": 1}, {"n": 2}, {"n": 3}]
    *_, ended, after = written(new)["cells"]
    assert ended == {"n": 2, "failed": "the process ended in it"} and after["n"] == 3 and after["peak"] > 1


def test_a_method_that_ends_the_process_is_left_out(part):
    """Of the cell, which is taken again, and of later ones."""
    new = part(begun={"figure": "a", "what": "forward"}, trying="deadly")
    new.take(cell({"deadly": lambda: pytest.fail("it was left out"), "auto": lambda: 1.0}), 2)
    assert [(c["method"], "median" in c) for c in new.data["cells"]] == [("deadly", False), ("auto", True)]
    assert new.data["done"] == [{"figure": "a", "what": "forward"}] and new.data["trying"] is None


def test_ours_may_fail_or_be_wrong(part, capsys):
    new = part()
    new.take(cell({"auto": lambda: raises("oh"), "rescale": lambda: 1.0}, error=1.0), 2)
    auto, rescale = new.data["cells"]
    assert auto["failed"] == "RuntimeError: oh" and auto["peak"] > 1
    assert rescale["error"] == 1.0 and "median" not in rescale
    assert capsys.readouterr().out == "a, forward: auto RuntimeError: oh; rescale wrong\n"


def test_a_process_whose_device_is_lost_ends(part, monkeypatch, capsys):
    """Before the next method is prepared: the culprit's name is in the file."""

    def culprit():
        monkeypatch.setattr(jax, "block_until_ready", lambda x: raises("an illegal memory access"))
        raises("oh")

    def leave(code):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "_exit", leave)
    new = part()
    with pytest.raises(KeyboardInterrupt):
        new.take(cell({"culprit": culprit, "auto": lambda: 1.0}), 2)
    assert written(new)["trying"] == "culprit"
    assert "the device is lost: an illegal memory access" in capsys.readouterr().out


def test_a_cell_that_hangs_ends_the_process(part):
    code = "import time, sys; from pathlib import Path; from benchmarks.first_light import part as f; f.PATIENCE = 0.1;"
    code += "f.Part(Path(sys.argv[1]), 'mmd', 'cpu', 9).take(f.Task({'n': 1}, lambda runs: time.sleep(600)), 2)"
    new = part()
    exit_code, last = ended([sys.executable, "-c", code, str(new.path)], 300)
    assert exit_code == 1 and any("in <lambda>" in line for line in last)
    assert written(new)["begun"] == {"n": 1}


def test_what_becomes_of_tests_is_written_at_once(part, monkeypatch):
    """By one worker, and by several whose tests overlap and one of which crashes; those that are done are left out."""
    new = part(begun={"test": "crashed"}, done=[{"test": "before"}])

    def report(recorder, name, *outcomes):
        for outcome in outcomes:
            found = {"skipped": outcome == "skipped", "failed": outcome == "failed", "longreprtext": "a\nb"}
            recorder.pytest_runtest_logreport(types.SimpleNamespace(nodeid=name, **found))
        if name != "x":
            recorder.pytest_runtest_logfinish(name)

    recorder = Recorder(new, alone=True)
    for name, outcomes in {"p": ["passed"] * 3, "f": ["passed", "failed", "passed"], "s": ["skipped"]}.items():
        recorder.pytest_runtest_logstart(name)
        assert written(new)["begun"] == {"test": name}
        report(recorder, name, *outcomes)
    recorder.pytest_collectreport(types.SimpleNamespace(nodeid="file", failed=True, longreprtext="a\nb"))
    several = Recorder(new, alone=False)
    for name in ("v", "w", "x", "interrupted"):
        several.pytest_runtest_logstart(name)
    for name, outcome in (("w", "failed"), ("v", "passed"), ("x", "failed")):
        report(several, name, outcome)
    several.pytest_sessionfinish()
    found = {c["test"]: c.get("outcome", c.get("failed")) for c in written(new)["cells"]}
    failed = dict.fromkeys(("f", "file", "w", "x"), "a\nb")
    passed = {"crashed": "the process ended in it", "p": "passed", "s": "skipped", "v": "passed"}
    assert found == failed | passed
    seen = []
    monkeypatch.setattr(pytest, "main", lambda arguments, plugins: seen.append(arguments) or 0)
    light.tests(part(done=[{"test": "before"}]), EMULATED)
    assert seen[0][seen[0].index("--deselect") + 1] == "before"


def test_the_headline_begins_with_what_is_worth_most(monkeypatch):
    monkeypatch.setattr(rivals, "is_installed", lambda name: True)
    cells = list(headline(GPU))
    abouts = [tuple(cell.about[name] for name in ("group", "n", "d", "dtype", "what")) for cell in cells]
    assert len(set(abouts)) == len(abouts)
    assert {(x[0], *x[3:]) for x in abouts[:5]} == {("auto", "float32", "forward")}
    assert {x[1] for x in abouts[:10]} == {16384} and {x[0] for x in abouts[:10]} <= {"auto", "PyKeOps"}
    first = [x for x in abouts if x[0] in ("auto", "PyKeOps")]
    assert abouts[: len(first)] == first and first == sorted(first, key=lambda x: (x[3] == "float16", x[1]))
    assert abouts[len(first)][0] == "cuDNN" and abouts[-1][0] == "torch.compile"
    by_group = {cell.about["group"]: set(cell.methods) for cell in cells}
    assert all(by_group[group] == set(names) for group, names in GROUPS.items())


def test_the_costs_of_a_card_are_fitted_to_the_rows_of_a_file(tmp_path, monkeypatch, capsys):
    """Of engines that enough were measured of; into the table, beside others, or into a file."""

    sizes = [(1e6, 64.0), (16e6, 128.0), (16e6, 64.0), (256e6, 192.0)]
    rows = [{"engine": "flash", "row": [1, p, p * c, 2e5 + p * (4e-4 + 5e-6 * c)]} for p, c in sizes]
    data = results(costs=[*rows, {"engine": "cudnn", "row": [1, 1e6, 64e6, 2e5]}, {"engine": "dense", "failed": "oh"}])
    light, none, table = (tmp_path / f"{name}.json" for name in ("light", "none", "table"))
    light.write_text(json.dumps(data))
    none.write_text(json.dumps(results(costs=rows[:3])))
    table.write_text('{"another": {}}')
    monkeypatch.setattr(inside.costs, "CUDA_TABLE", table)
    fit_costs.main("cpu", 10, rows=light)
    found = json.loads(table.read_text())
    assert found.keys() == {"another", "a card"} and found["a card"].keys() == {*fit_costs.ABOUT, "flash"}
    assert found["a card"]["flash"] == pytest.approx({"call": 2e5, "pair": 4e-4, "column": 5e-6}, rel=0.02)
    assert "a card, flash: " in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"none.json has no engine with 4 times: run benchmarks.first_light"):
        fit_costs.main("cpu", 10, rows=none)
    assert json.loads(table.read_text()) == found


TESTS, FEW, MMD, MEMORY, DENSITIES = "GPU tests", "few points", "MMD step", "memory linear", "SD-KDE"  # targets' lines
PLANE, FIRST, NARROW = "a million points", "no first call", "float16, N = 16384, D ≤ 16"
OF = {TESTS: "tests", FEW: "few", MMD: "mmd", MEMORY: "memory", DENSITIES: "densities", PLANE: "waves", FIRST: "probes"}
DIGITS = {d: f"float32 by `auto`, N = 65536, D = {d}, C = {c}: " for d, c in HEADLINE}  # of the headline, as all others
BARE, KEOPS, JAX = "float16, D = C = 32, N = 16384", "float16, D ≥ 16, forward", "`auto` never slower"
KEOPS_GRADIENTS = "float16, D ≥ 16, gradients"
INFO = {"date": "2026-12-01", "commit": "abc", "device_name": "a card", "cores": 2, "versions": {"jax": "0.11"}}
PASSED, FAILED = {"test": "a", "outcome": "passed"}, {"test": "b", "failed": "assert"}
HALF = {"figure": "headline", "n": 16384, "d": 32, "c": 32, "batch": 1, "dtype": "float16", "what": "forward"}
BROKEN = HALF | {"method": "auto", "failed": "oh"}
NAMES = {"bare": "bare attention", "dense": "dense JAX", "keops": "PyKeOps", "digits": "auto in float32"}


def timed(seconds, **about):
    return about | {"seconds": [seconds] * 3, "median": seconds, "q1": seconds, "q3": seconds}


def sums(n, d, c, what="forward", dtype="float16", **milliseconds):
    """Cells of a step. The errors of `auto` are a tenth of all others'."""
    about = HALF | {"n": n, "d": d, "c": c, "dtype": dtype, "what": what}
    found = {NAMES.get(name, name): ms / 1e3 for name, ms in milliseconds.items()}
    return [timed(s, **about, method=m, error=1e-4 if m == "auto" else 1e-3) for m, s in found.items()]


def all_sums(nums=(16384, 65536), dtypes=("float16", "float32"), **milliseconds):
    sizes = itertools.product(nums, HEADLINE, WHAT, dtypes)
    return [x for n, (d, c), what, dtype in sizes for x in sums(n, d, c, what, dtype, **milliseconds)]


few_sums = functools.partial(all_sums, (256, 1024, 4096), ("float32",), auto=1)


def mmd_steps(ratio, nums=(256, 1024, 4096, 16384), error=1e-3, precise=9.0):
    """Dense JAX in TF32 takes the ratio of our time, and in float32 more."""
    about = [{"figure": "MMD step", "n": n, "d": d, "mib": 1.0} for n in nums for d in (16, 64)]
    methods = {"mmd_squared": (1.0, error), "dense JAX in TF32": (ratio, 1e-4), "dense JAX in float32": (precise, 1e-6)}
    return [timed(s, **x, method=m, error=e) for x in about for m, (s, e) in methods.items()]


def plane(milliseconds):
    return [
        timed(milliseconds / 1e3, figure="plane", n=2**20, d=2, c=1, dtype="float32", what="forward", method="auto")
    ]


def first(seconds, method):
    return [{"figure": "first call", "n": 1024, "d": 64, "what": "gradients", "method": method, "first_call": seconds}]


def with_digits(d, keops, error=1e-3):
    cells = sums(65536, d, dict(HEADLINE)[d], "forward", "float32", digits=1, keops=keops)
    return [c | {"error": error} if c["method"] == NAMES["digits"] else c for c in cells]


def peaks(exponent):
    about = {"figure": "memory", "method": "auto", "d": 16, "mib": 1.0}
    return [timed(1.0, **about, n=2**i, peak=2 ** (exponent * i)) for i in range(14, 19)]


def sd_kde(seconds):
    return [timed(s, figure="SD-KDE", method=m, error=1e-3) for m, s in (("float16", seconds), ("auto", 9.0))]


def results(complete=True, **cells):
    """A result file, by step."""
    about = {"info": INFO, "complete": complete, "state": "complete", "crashes": [], "seconds": 1.0}
    return {"device": "cuda", "steps": {name: about | {"cells": x, "done": x} for name, x in cells.items()}}


def verdicts(data):
    return {row.target: row.verdict for row in targets(data)}


CASES = [
    (TESTS, [PASSED], "met"),
    (TESTS, [PASSED, FAILED], "missed"),
    *(
        (f"float16, D = C = {d}, N = {n}", sums(n, d, d, auto=9, rescale=1, bare=x + more), verdict)
        for n, x in ((16384, 0.85), (65536, 0.95))
        for d in (32, 64)
        for more, verdict in ((1e-3, "met"), (-1e-3, "missed"))
    ),
    (BARE, sums(16384, 32, 32, rescale=1), "not measured"),
    (BARE, [*sums(16384, 32, 32, bare=1), BROKEN], "missed"),
    (BARE, [*sums(16384, 32, 32, bare=1), HALF | {"method": "auto", "error": 0.5}], "missed"),
    (KEOPS, all_sums(auto=1, keops=2.01), "met"),
    (KEOPS, sums(16384, 16, 1, auto=1, keops=2.01), "met so far"),
    (KEOPS, sums(16384, 16, 1, auto=1, keops=1.99), "missed"),
    (KEOPS, sums(16384, 16, 1, rescale=1, keops=99), "missed"),  # as wrong as that is
    (KEOPS, sums(16384, 3, 1, auto=1, keops=1), "not measured"),
    *(
        (DIGITS[d], with_digits(d, x + more), verdict)
        for d, x in ((3, 1.0), (16, 1.6), (32, 4.0), (64, 6.0), (128, 6.0))
        for more, verdict in ((1e-3, "met"), (-1e-3, "missed"))
    ),
    (DIGITS[3], with_digits(3, 9, error=1.9e-3), "met"),
    (DIGITS[3], with_digits(3, 9, error=2.1e-3), "missed"),
    (DIGITS[3], sums(65536, 3, 1, "forward", "float32", auto=1, keops=9), "not measured"),
    (NARROW, all_sums(auto=0.35), "met"),
    (NARROW, all_sums(auto=0.36), "missed"),
    (NARROW, sums(16384, 3, 1, auto=0.35), "met so far"),
    (NARROW, [*sums(16384, 3, 1, rescale=0.1), BROKEN | {"d": 3, "c": 1}], "missed"),
    (KEOPS_GRADIENTS, all_sums(auto=1, keops=3.01), "met"),
    (KEOPS_GRADIENTS, all_sums(auto=1, keops=2.99), "missed"),
    ("float32, D ≥ 16, gradients", all_sums(rescale=1, keops=3.01), "met"),
    ("float32, D ≥ 16, gradients", all_sums(rescale=1, keops=2.99), "missed"),
    (JAX, all_sums(auto=1, dense=1.01), "met"),
    (JAX, sums(16384, 3, 1, auto=1, dense=1.01), "met so far"),
    (JAX, sums(16384, 3, 1, auto=1, dense=0.99), "missed"),
    (JAX, [*sums(16384, 32, 32, dense=1), BROKEN], "missed"),
    (FEW, few_sums(dense=1.01), "met"),
    (FEW, few_sums(dense=0.99), "missed"),
    (FEW, few_sums(dense=1.01)[:4], "met so far"),
    (FEW, few_sums(dense=1.01)[:1], "not measured"),
    (FEW, [*few_sums(dense=1.01)[2:], *sums(16384, 32, 32, dense=1), BROKEN], "missed"),
    (MMD, mmd_steps(1.61) + mmd_steps(0.1, (65536,)), "met"),
    (MMD, mmd_steps(1.59) + mmd_steps(9, (65536,)), "missed"),
    (MMD, mmd_steps(0.91, (256,)) + mmd_steps(2.1, (1024, 4096, 16384)), "met"),
    (MMD, mmd_steps(0.89, (256,)) + mmd_steps(9, (1024, 4096, 16384)), "missed"),
    (MMD, mmd_steps(0.1, error=1e-7, precise=1.61), "met"),  # where only dense JAX in float32 is as precise
    (MMD, mmd_steps(0.1, error=1e-7, precise=1.59), "missed"),
    (MMD, mmd_steps(1.61, (1024,)), "met so far"),
    (MMD, mmd_steps(1.61, (65536,)), "not measured"),
    (PLANE, plane(10.0), "met"),
    (PLANE, plane(10.1), "missed"),
    (FIRST, first(8.0, "mmd_squared"), "met so far"),
    (FIRST, first(8.1, "mmd_squared"), "missed"),
    (FIRST, first(27.0, "dense JAX"), "not measured"),
    (MEMORY, peaks(1.09), "met"),
    (MEMORY, peaks(1.11), "missed"),
    (MEMORY, [*peaks(1.0), {"figure": "memory", "n": 2**19, "method": "auto", "failed": "oh"}], "missed"),
    (DENSITIES, sd_kde(2.29), "met"),
    (DENSITIES, sd_kde(2.31), "missed"),
]


@pytest.mark.parametrize(("target", "cells", "verdict"), CASES)
def test_targets_are_met_from_their_threshold_on(target, cells, verdict):
    step = OF.get(target, "headline")
    found = verdicts(results(**{step: cells}))
    (mine,) = (x for x in found if x.startswith(target))
    assert found.pop(mine) == verdict and len(found) == 20
    others = {x for x in found if step != "headline" or x.startswith(tuple(OF))}
    assert len(others) >= 4 and {found[x] for x in others} == {"not measured"}


def test_what_is_not_at_its_end_is_met_so_far():
    found = verdicts(results(complete=False, tests=[PASSED], memory=peaks(1.0)))
    assert [x for x, verdict in found.items() if verdict == "met so far"] == [
        x for x in found if x.startswith((TESTS, MEMORY))
    ]


def test_the_report_is_made_from_the_file_alone(tmp_path, capsys):
    path = tmp_path / "a.json"
    data = results(
        tests=[PASSED, FAILED],
        headline=all_sums(auto=1, float32=3, cudnn=0.5, bare=0.7, dense=4, keops=8),
        few=few_sums(dense=1.5),
        mmd=mmd_steps(3.0),
        memory=peaks(1.0),
        densities=sd_kde(1.0),
        probes=[timed(0.01, **c | {"figure": "FlexAttention"}) for c in first(9.0, "its own")],
        paper=[
            c | {"figure": figure, "mib": 7.0, "error of terms": 1e-6}
            for figure, d in (("N", 32), ("D", 64))
            for c in sums(1024, d, 1, reweight=2)
        ],
    )
    path.write_text(json.dumps(data))
    main(["--report", str(path)])
    text = path.with_suffix(".md").read_text()
    assert text.startswith("# First light: a card\n\n2026-12-01, commit abc; jax 0.11\n")
    assert "1.40x at worst, by cudnn 0.5 ms at 16384, 32, 32, float16, forward; 1 of 1 cells" in text
    assert "3.00x in the mean, 3.00x at worst, by mmd_squared 1000 ms at 256, 16; 8 of 8 cells" in text
    assert "| 16384, 3, 1, float16, forward     | 1 (1e-04) | 3 (1e-03) | 0.5 (1e-03) | 0.7 (1e-03) " in text
    assert "| milliseconds        | its own          |" in text and "gradients | 10 (first 9.0 s) |" in text
    assert "\n| D: milliseconds " in text and "forward | 2 (1e-03, 1e-06) |" in text
    assert "\n| D: MiB " in text and "forward | 7        |" in text
    assert "- tests, b:\n      assert" in text and "| 16384, 16    | 1000 (16384 MiB)" in text
    assert "| missed " in capsys.readouterr().out
    for size, of in ((16384, "gradients"), (65536, "forward")):
        sums_of = [c for c in data["steps"]["headline"]["cells"] if (c["n"], c["what"]) == (size, of)]
        assert all(c.pop("median") for c in sums_of if c["method"] == "dense JAX")
    before = results(headline=all_sums(auto=2, float32=3, dense=7, keops=9))
    assert "16384 points in 1 ms (KeOps in 8, dense JAX in 4), 16384" in in_one_sentence(data, before)
    assert "gradients in 1 ms (KeOps in 8, dense JAX in 7)" in in_one_sentence(data, before).replace("\n", " ")
    path.write_text(json.dumps(results()))
    main(["--report", str(path)])
    assert set(verdicts(results()).values()) == {"not measured"}
    assert path.with_suffix(".md").read_text().count("| did not begin |") == len(light.STEPS)
