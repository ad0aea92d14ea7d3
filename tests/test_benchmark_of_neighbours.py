"""The benchmark of OTT's and lineax's solvers on our sums, small: it checks what it times, and makes the tables."""

import functools
import json

import pytest


@pytest.fixture
def neighbours(as_it_comes, monkeypatch):
    from benchmarks import neighbours

    small = {"DIMS": (3,), "SIZES": (200,), "LARGE": (300, 4), "AGREEING": 100, "SYSTEMS": (100, 150), "RANKS": (0, 60)}
    for name, value in small.items():
        monkeypatch.setattr(neighbours, name, value)
    return neighbours


def test_every_step_is_measured_and_shown(neighbours, tmp_path, capsys, monkeypatch):
    from benchmarks import pages

    neighbours.main(2, tmp_path / "neighbours.json")
    cells = json.loads((tmp_path / "neighbours.json").read_text())["cells"]
    assert {c["method"] for c in cells if c["figure"] == "iteration"} == {"jaxgauss", "OTT online", "OTT dense"}
    assert all(c["error"] < 1e-5 for c in cells if c["figure"] == "agreement" and c["what"] != "gradient")
    plain, preconditioned = (c for c in cells if c["figure"] == "system" and c["n"] == 100)
    assert preconditioned["steps"] < plain["steps"] and preconditioned["refined"] < 1e-6
    assert preconditioned["error refined"] < 1e-4
    (determinant, _) = (c for c in cells if c["figure"] == "log-determinant")
    assert abs(determinant["value"] - determinant["exact"]) < 5 * determinant["standard_error"] + 1e-2
    shown = neighbours.report(cells)
    assert shown in capsys.readouterr().out
    monkeypatch.setattr(pages, "_read", lambda name: json.loads((tmp_path / "neighbours.json").read_text()))
    assert shown in pages.neighbours() and "300 points in 4 dimensions" in pages.neighbours()


def test_wrong_logarithms_are_not_timed(neighbours, monkeypatch):
    wrong = functools.partial(neighbours.jaxgauss.ott.PointCloud, scale_cost=1.01)
    monkeypatch.setattr(neighbours, "geometries", lambda num: {"jaxgauss": wrong})
    with pytest.raises(AssertionError, match="jaxgauss, n = 200, D = 3: error"):
        neighbours.iterations(200, 3, 1)
