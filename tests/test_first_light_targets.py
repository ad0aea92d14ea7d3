"""What the program for a GPU's first day says of targets: met and missed, on both sides of each threshold."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("as_it_comes")

TARGETS = {  # by what their lines begin with
    "tests": "GPU tests",
    "bare 32": "float16, D = C = 32, N = 16384",
    "bare 64": "float16, D = C = 64, N = 16384",
    "bare 32 large": "float16, D = C = 32, N = 65536",
    "bare 64 large": "float16, D = C = 64, N = 65536",
    "keops": "float16, D ≥ 16, forward",
    "keops float32": "float32, D ≥ 16, forward",
    "keops gradients": "float16, D ≥ 16, gradients",
    "keops gradients float32": "float32, D ≥ 16, gradients",
    "jax": "`auto` never slower",
    "mmd": "MMD step",
    "memory": "memory linear",
    "densities": "SD-KDE",
}
INFO = {"date": "2026-12-01", "commit": "abc", "device_name": "a card", "cores": 2, "versions": {"jax": "0.11"}}
PASSED, FAILED = {"test": "a", "outcome": "passed"}, {"test": "b", "failed": "assert"}
HALF = {"figure": "headline", "n": 16384, "d": 32, "c": 32, "batch": 1, "dtype": "float16", "what": "forward"}
NAMES = {"bare": "bare attention", "own": "bare attention, own width", "dense": "dense JAX", "keops": "PyKeOps"}


def timed(seconds, **about):
    return about | {"seconds": [seconds] * 3, "median": seconds, "q1": seconds, "q3": seconds}


def sums(n, d, c, what="forward", dtype="float16", **milliseconds):
    """Cells of the headline. The errors of `auto` are a tenth of all others'."""
    about = HALF | {"n": n, "d": d, "c": c, "dtype": dtype, "what": what}
    found = {NAMES.get(name, name): ms / 1e3 for name, ms in milliseconds.items()}
    return [timed(s, **about, method=m, error=1e-4 if m == "auto" else 1e-3) for m, s in found.items()]


def all_sums(**milliseconds):
    from benchmarks.grids import HEADLINE, WHAT

    sizes = [(n, d, c, w, t) for n in (16384, 65536) for d, c in HEADLINE for w in WHAT for t in ("float16", "float32")]
    return [x for size in sizes for x in sums(*size, **milliseconds)]


def mmd_steps(ratio, nums=(1024, 4096, 16384)):
    about = [{"figure": "MMD step", "n": n, "d": d, "mib": 1.0} for n in nums for d in (16, 64)]
    return [timed(s, **x, method=m) for x in about for m, s in (("mmd_squared", 1.0), ("dense JAX", ratio))]


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
    from benchmarks.first_light_targets import targets

    rows = targets(data)
    found = {name: [r.verdict for r in rows if r.target.startswith(start)] for name, start in TARGETS.items()}
    assert all(len(x) == 1 for x in found.values()) and len(rows) == len(found)
    return {name: x[0] for name, x in found.items()}


BARE = {(16384, 32): ("bare 32", 0.85), (16384, 64): ("bare 64", 0.85)}
BARE |= {(65536, 32): ("bare 32 large", 0.95), (65536, 64): ("bare 64 large", 0.95)}
CASES = [
    ("tests", [PASSED], "met"),
    ("tests", [PASSED, FAILED], "missed"),
    *((name, sums(n, d, d, auto=9, rescale=1, bare=x + 1e-3), "met") for (n, d), (name, x) in BARE.items()),
    *((name, sums(n, d, d, auto=9, rescale=1, bare=x - 1e-3), "missed") for (n, d), (name, x) in BARE.items()),
    ("bare 32", sums(16384, 32, 32, rescale=1), "not measured"),
    ("bare 32", [*sums(16384, 32, 32, bare=1), HALF | {"method": "auto", "failed": "oh"}], "missed"),
    ("bare 32", [*sums(16384, 32, 32, bare=1), HALF | {"method": "auto", "error": 0.5}], "missed"),
    ("keops", lambda: all_sums(auto=1, keops=2.01), "met"),
    ("keops", sums(16384, 16, 1, auto=1, keops=2.01), "met so far"),
    ("keops", sums(16384, 16, 1, auto=1, keops=1.99), "missed"),
    ("keops", sums(16384, 16, 1, rescale=1, keops=99), "missed"),  # as wrong as that is
    ("keops", sums(16384, 3, 1, auto=1, keops=1), "not measured"),
    ("keops float32", lambda: all_sums(auto=1, keops=2.01), "met"),
    ("keops gradients", lambda: all_sums(auto=1, keops=3.01), "met"),
    ("keops gradients", lambda: all_sums(auto=1, keops=2.99), "missed"),
    ("keops gradients float32", lambda: all_sums(auto=1, keops=2.99), "missed"),
    ("jax", lambda: all_sums(auto=1, dense=1.01), "met"),
    ("jax", sums(16384, 3, 1, auto=1, dense=1.01), "met so far"),
    ("jax", sums(16384, 3, 1, auto=1, dense=0.99), "missed"),
    ("jax", [*sums(16384, 32, 32, dense=1), HALF | {"method": "auto", "failed": "oh"}], "missed"),
    ("mmd", mmd_steps(2.01) + mmd_steps(0.1, (256, 65536)), "met"),
    ("mmd", mmd_steps(1.99) + mmd_steps(9, (256, 65536)), "missed"),
    ("mmd", mmd_steps(2.01, (1024,)), "met so far"),
    ("mmd", mmd_steps(2.01, (256,)), "not measured"),
    ("memory", peaks(1.09), "met"),
    ("memory", peaks(1.11), "missed"),
    ("memory", [*peaks(1.0), {"figure": "memory", "n": 2**19, "method": "auto", "failed": "oh"}], "missed"),
    ("densities", sd_kde(2.29), "met"),
    ("densities", sd_kde(2.31), "missed"),
]


@pytest.mark.parametrize(("target", "cells", "verdict"), CASES)
def test_targets_are_met_from_their_threshold_on(target, cells, verdict):
    step = target if target in ("tests", "mmd", "memory", "densities") else "headline"
    found = verdicts(results(**{step: cells() if callable(cells) else cells}))
    assert found.pop(target) == verdict
    others = {"tests", "mmd", "memory", "densities"} - {target}
    assert all(found[name] == "not measured" for name in (TARGETS if step != "headline" else others) if name in found)


def test_what_is_not_at_its_end_is_met_so_far():
    found = verdicts(results(complete=False, tests=[PASSED], memory=peaks(1.0)))
    assert found["tests"] == found["memory"] == "met so far"


def test_the_report_is_made_from_the_file_alone(tmp_path, capsys):
    from benchmarks.first_light import main

    path = tmp_path / "a.json"
    launch = {"figure": "launches", "c": 32, "what": "forward", "method": "auto", "launches": 7, "names": {"flash": 1}}
    data = results(
        tests=[PASSED, FAILED],
        launches=[launch | {"host": 1e-4, "span": 2e-4, "busy": 1e-4}],
        headline=all_sums(auto=1, cudnn=0.5, bare=0.7, own=0.6, dense=4, keops=8),
        mmd=mmd_steps(3.0),
        memory=peaks(1.0),
        densities=sd_kde(1.0),
        limit=[{"figure": "limit", "dtype": "float16", "matmul": 1e15, "exp": 1e12}],
    )
    path.write_text(json.dumps(data))
    main(0, [], None, emulate=False, again=False, report=path, out=None, keep=False)
    text = path.with_suffix(".md").read_text()
    assert text.startswith("# First light: a card\n\n2026-12-01, commit abc; jax 0.11\n")
    assert "1.40: cudnn 0.5 ms, bare 0.7 ms; 1.20 of it at its own width, 0.6 ms" in text
    assert "| cudnn                     | 0.5 (0.5x) | 0.5 (0.5x) |" in text and " 0.27 auto, 0.54 cudnn " in text
    assert "| auto   | 32 | forward | 7        | 200               | 100           | 100            |" in text
    assert "- tests, b:\n      assert" in text and "3.00x in the geometric mean" in text
    assert path.with_suffix(".png").stat().st_size > 10_000
    assert "| missed " in capsys.readouterr().out


def test_a_report_of_nothing(tmp_path):
    from benchmarks.first_light_report import write

    path = tmp_path / "a.json"
    path.write_text(json.dumps(results()))
    write(path)
    assert set(verdicts(results()).values()) == {"not measured"}
    assert path.with_suffix(".png").exists() and path.with_suffix(".md").read_text().count("| did not begin |") == 8
