"""The one program for the day when there is a GPU: whatever becomes of a step, the others run, and nothing is lost."""

import json
import os
import sys
import types

import jax
import pytest
import torch

pytestmark = pytest.mark.usefixtures("as_it_comes")

CELL = {"done": [{"n": 1}], "cells": [{"n": 1}]}


@pytest.mark.emulated
def test_the_emulated_walk_takes_every_step_and_no_step_twice(tmp_path, capsys):
    from benchmarks.first_light import STEPS, main
    from benchmarks.first_light_targets import targets

    def walk():
        main(20, list(STEPS), None, emulate=True, again=False, report=None, out=tmp_path, keep=False)

    walk()
    out = tmp_path / "first_light.json"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"first_light.{x}" for x in ("json", "md", "png")]
    data = json.loads(out.read_text())
    assert data["device"] == "emulated" and data["steps"].keys() == STEPS.keys()
    for name, step in data["steps"].items():
        assert step["complete"] and step["cells"] and not step["crashes"], name
        assert not [c for c in step["cells"] if "failed" in c], name
        assert all("median" in c or "launches" in c for c in step["cells"] if "method" in c), name
    text = out.with_suffix(".md").read_text()
    assert text.startswith("# First light: emulated: figures mean nothing\n")
    assert all(f"\n| {row.target} " in text for row in targets(data))
    assert all(f"\n## {title}" in text for title in ("Steps", "Headline", "Launches", "Memory", "Densities", "Costs"))
    assert out.with_suffix(".png").stat().st_size > 10_000
    before = out.read_text()
    capsys.readouterr()
    walk()
    assert capsys.readouterr().out.count(": measured before\n") == len(STEPS)
    assert out.read_text() == before


def conducted(out, codes, **options):
    """Programs in the place of steps, each with its file as `path` and what is in it as `data`."""
    from benchmarks.first_light import conduct, part_of

    start = (
        "import json, os, pathlib, sys, time; path = pathlib.Path(sys.argv[1]); data = json.loads(path.read_text());"
    )

    def command(name):
        return lambda seconds: [sys.executable, "-u", "-c", start + codes[name], str(part_of(out, name))]

    conduct(out, "cuda", {(name,): command(name) for name in codes}, **options)
    return json.loads(out.read_text())["steps"]


def test_steps_that_hang_or_crash_do_not_take_the_others_along(tmp_path, capsys):
    out = tmp_path / "a.json"
    finish, begin = (f"path.write_text(json.dumps({CELL | x!r}));" for x in ({"complete": 1}, {"begun": {"n": 2}}))
    codes = {
        "limit": begin + "time.sleep(600)",
        "launches": "print('oh'); os.abort()",
        "memory": f"exec({finish!r} if data else {begin + 'os.abort()'!r})",
        "costs": finish,
    }
    steps = conducted(out, codes, minutes=0.5)  # of which the first one has 2 s
    assert steps["limit"]["state"].startswith("was ended after") and steps["limit"]["cells"] == [{"n": 1}]
    assert steps["limit"]["begun"] is None  # it is tried again
    assert steps["launches"]["state"] == "crashed" and steps["launches"]["crashes"] == [["exit code -6", "oh"]]
    assert steps["memory"]["state"] == "complete" and steps["memory"]["crashes"] == [["exit code -6"]]
    assert steps["costs"]["state"] == "complete"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.md", "a.png"]
    text = out.with_suffix(".md").read_text()
    assert "| launches  | crashed " in text and "| tests     | did not begin " in text
    assert "- launches crashed:\n      exit code -6\n      oh\n" in text and "  oh\n" in capsys.readouterr().out
    steps = conducted(out, {"launches": finish, "costs": "os.abort()"}, minutes=1)
    assert steps["launches"]["complete"] and steps["costs"]["state"] == "complete"
    assert conducted(out, {"costs": "os.abort()"}, minutes=1, again=True)["costs"]["state"] == "crashed"
    out.write_text(json.dumps({"device": "emulated", "steps": {}}))
    with pytest.raises(SystemExit, match="of another device, emulated"):
        conducted(out, {}, minutes=1)


def test_what_an_ended_run_left_is_taken_in(tmp_path):
    from benchmarks.first_light import opened, part_of

    out = tmp_path / "a.json"
    out.write_text(json.dumps({"device": "cuda", "steps": {"tests": {"state": "complete"}}}))
    for name, more in {"mmd": {}, "limit": {"complete": True}}.items():
        part_of(out, name).write_text(json.dumps(CELL | more))
    steps = opened(out)["steps"]
    assert [steps[name]["state"] for name in ("tests", "mmd", "limit")] == ["complete", "was interrupted", "complete"]
    assert list(tmp_path.iterdir()) == [out] and json.loads(out.read_text())["steps"] == steps


@pytest.fixture
def part(tmp_path):
    """A step's file, with what a process left there."""
    from benchmarks.first_light import Part

    def part(**left):
        (tmp_path / "part.json").write_text(json.dumps(left))
        return Part(tmp_path / "part.json", "cpu", 100)

    return part


def cell(calls, error=0.0):
    from benchmarks.measure import Cell

    methods = {name: (lambda call=call: call) for name, call in calls.items()}
    return Cell({"figure": "a", "what": "forward"}, methods, lambda found: found * error, 1e-3, 1.0, "series")


def raises(message):
    raise RuntimeError(message)


def test_a_process_goes_on_behind_the_cell_that_ended_the_one_before_it(part):
    new = part(begun={"n": 2}, **CELL)
    new.do({"n": 2}, lambda: pytest.fail("it was done"))
    new.do({"n": 3}, lambda: [{"x": 1}])
    written = json.loads(new.path.read_text())
    assert written["done"] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert written["cells"][1:] == [{"n": 2, "failed": "the process ended in it"}, {"n": 3, "x": 1}]


def test_a_method_that_ends_the_process_is_left_out(part):
    """Of the cell, which is taken again, and of later ones."""
    new = part(begun={"figure": "a", "what": "forward"}, trying="deadly")
    new.measure([cell({"deadly": lambda: pytest.fail("it was left out"), "auto": lambda: 1.0})], 2)
    assert [(c["method"], "median" in c) for c in new.data["cells"]] == [("deadly", False), ("auto", True)]
    assert new.data["done"] == [{"figure": "a", "what": "forward"}] and new.data["trying"] is None


def test_ours_may_fail_or_be_wrong(part, capsys):
    new = part()
    new.measure([cell({"auto": lambda: raises("oh"), "rescale": lambda: 1.0}, error=1.0)], 2, lambda: {"peak": 1})
    auto, rescale = new.data["cells"]
    assert auto["failed"] == "RuntimeError: oh" and auto["peak"] == 1
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
        new.measure([cell({"culprit": culprit, "auto": lambda: 1.0})], 2)
    assert json.loads(new.path.read_text())["trying"] == "culprit"
    assert "the device is lost: an illegal memory access" in capsys.readouterr().out


def test_a_cell_that_hangs_ends_the_process(tmp_path):
    from benchmarks.first_light import ended

    path = tmp_path / "part.json"
    code = "import time, sys; from pathlib import Path; from benchmarks import first_light as f; f.PATIENCE = 0.1;"
    code += "f.Part(Path(sys.argv[1]), 'cpu', 9).do({'n': 1}, lambda: time.sleep(600))"
    exit_code, last = ended([sys.executable, "-c", code, str(path)], 300)
    assert exit_code == 1 and any("in <lambda>" in line for line in last)
    assert json.loads(path.read_text())["begun"] == {"n": 1}


def test_what_becomes_of_tests_is_written_at_once(part):
    from benchmarks.first_light_steps import Recorder

    new = part(begun={"test": "crashed"}, done=[{"test": "before"}])
    recorder = Recorder(new)
    passed, skipped, failed = (
        types.SimpleNamespace(skipped=x == 1, failed=x == 2, longreprtext="a\nb", nodeid="file") for x in range(3)
    )
    for name, reports in {"p": [passed] * 3, "f": [passed, failed, passed], "s": [skipped]}.items():
        recorder.pytest_runtest_logstart(name)
        for report in reports:
            recorder.pytest_runtest_logreport(report)
        recorder.pytest_runtest_logfinish()
    recorder.pytest_collectreport(failed)
    found = [c.get("outcome", c.get("failed")) for c in json.loads(new.path.read_text())["cells"]]
    assert found == ["the process ended in it", "passed", "a\nb", "skipped", "a\nb"]
    items = [types.SimpleNamespace(nodeid=name) for name in ("before", "crashed", "p", "new")]
    recorder.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["new"]


def test_launches_are_read_off_the_profile(monkeypatch):
    """Those on the device: how many, from when to when, and how long they take."""
    from benchmarks.first_light_steps import profiled

    def event(name, start, end, device="CUDA"):
        times, device_type = (types.SimpleNamespace(**x) for x in ({"start": start, "end": end}, {"name": device}))
        return types.SimpleNamespace(name=name, time_range=times, device_type=device_type)

    class Profile(torch.profiler.profile):
        def __init__(self, activities, **options):
            assert activities == [torch.profiler.ProfilerActivity.CUDA]
            super().__init__(activities=[torch.profiler.ProfilerActivity.CPU], **options)

        def events(self):
            seen = super().events()  # of a CPU
            assert seen and all(x.device_type.name == "CPU" and x.time_range.end >= x.time_range.start for x in seen)
            return [*seen, event("flash", 30.0, 90.0), event("fusion", 10.0, 20.0)]

    monkeypatch.setattr(torch.profiler, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    found = profiled(lambda: torch.ones(1))
    assert found == {"launches": 2, "names": {"flash": 1, "fusion": 1}, "span": 8e-5, "busy": pytest.approx(7e-5)}


def test_the_headline_begins_with_what_is_worth_most():
    from benchmarks.first_light_steps import GPU, GROUPS, headline_cells

    cells = list(headline_cells(GPU))
    abouts = [tuple(cell.about[name] for name in ("group", "n", "d", "dtype", "what")) for cell in cells]
    assert len(set(abouts)) == len(abouts)
    wide = [(group, 16384, d, "float16", "forward") for group in ("ours", "cuDNN") for d in (32, 64)]
    assert abouts[:4] == wide and abouts[-1][0] == "torch.compile"
    by_group = {cell.about["group"]: set(cell.methods) for cell in cells}
    assert all(by_group[group] == set(names) for group, names in GROUPS.items() if group != "PyKeOps")


def test_costs_are_fitted_to_what_is_there(part, monkeypatch):
    from benchmarks import fit_costs
    from benchmarks.first_light_steps import EMULATED, GPU, costs

    seen = []

    def fit(device, runs, out, emulate):
        seen.append((device, runs, emulate))
        print("CUDA, flash: cheap")
        out.write_text("{}")

    monkeypatch.setattr(fit_costs, "main", fit)
    for sizes in (GPU, EMULATED):
        new = part()
        costs(new, sizes, 3)
        assert new.data["cells"] == [{"figure": "costs", "printed": ["CUDA, flash: cheap"], "table": {}}]
    assert seen == [("cuda", 3, False), ("cuda", 3, True)]
