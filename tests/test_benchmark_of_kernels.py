"""The benchmark of the kernels, small: it checks what it times, and makes the table that the page shows."""

import importlib.util
import json

import pytest


@pytest.fixture
def kernels(as_it_comes, monkeypatch):
    from benchmarks import kernels

    monkeypatch.setattr(kernels, "NUM", 600)
    monkeypatch.setattr(kernels, "DIMS", (3,))
    monkeypatch.setattr(kernels, "LARGE", (64,))
    monkeypatch.setattr(kernels, "EXACT", {name: kernels.EXACT[name] for name in ("imq", "energy")})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # PyKeOps compiles for too long
    return kernels


def test_every_cell_is_measured_and_shown(kernels, tmp_path, capsys):
    kernels.main(2, tmp_path / "kernels.json")
    cells = json.loads((tmp_path / "kernels.json").read_text())["cells"]
    assert len(cells) == 2 * 2 * 2 + 2
    assert all(c["error"] < 1e-5 for c in cells if c["method"] == "kernel_sum" and c["figure"] == "time")
    shown = kernels.report(cells)
    assert shown in capsys.readouterr().out and shown.count("\n| ") == 2


def test_a_wrong_sum_is_not_timed(kernels, monkeypatch):
    monkeypatch.setattr(kernels, "kernel_sum", lambda q, k, v, kernel: kernels.gauss_sum(q, k, v))
    with pytest.raises(AssertionError, match="kernel_sum, imq, D = 3: relative error"):
        kernels.cell("imq", 3, "forward", 1)
