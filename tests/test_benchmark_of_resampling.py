"""The benchmark of the tests by resampling, small and without the others: it checks what it times, and makes tables."""

import importlib.util
import json

import numpy as np
import pytest


@pytest.fixture
def resampling(as_it_comes, monkeypatch):
    from benchmarks import resampling

    small = {"DRAWS": 2, "NUM": 24, "RESAMPLINGS": 19, "SIZES": (24,), "MANY": 24, "HUGE": 24}
    for name, value in (small | {"DEBIASED": (64,), "FEW_RUNS": 1}).items():
        monkeypatch.setattr(resampling, name, value)
    chosen = {
        "two-sample": ("mmd_test", "MMDAgg", "shift"),
        "independence": ("hsic_test, wild", "hyppo Hsic, χ²", "linear"),
        "goodness of fit": ("ksd_test", "KSDAgg", "shift"),
    }
    methods = {
        x: {name: resampling.METHODS[x][name]._replace(enough=19) for name in names[:2]} for x, names in chosen.items()
    }
    alternatives = {x: {name: resampling.ALTERNATIVES[x][name]} for x, (*_, name) in chosen.items()}
    monkeypatch.setattr(resampling, "METHODS", methods)
    monkeypatch.setattr(resampling, "ALTERNATIVES", alternatives)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == "jaxgauss" else None)
    monkeypatch.setattr(resampling, "memory", resampling.peaks)  # without a process of its own
    return resampling


def test_every_step_is_measured_and_shown(resampling, tmp_path, capsys):
    resampling.main(1, 4.0, tmp_path / "resampling.json")
    cells = json.loads((tmp_path / "resampling.json").read_text())["cells"]
    figures = [c["figure"] for c in cells]
    counts = {"power": 3 * 3, "time": 3, "memory": 3, "many points": 2, "density": 1}
    assert {name: figures.count(name) for name in counts} == counts and len(cells) == sum(counts.values())
    assert all(0 <= c["rejected"] <= 2 for c in cells if c["figure"] == "power")
    printed, shown = capsys.readouterr().out, resampling.report(cells)
    assert shown in printed and shown.count("\n| ") == 3 * 2 * 2 + 4 - 1
    assert all(f"{name} is not installed: left out" in printed for name in ("kerneltests", "hyppo", "scikit-learn"))


def test_a_test_rejects_what_differs(resampling):
    for problem, strength in (("two-sample", 8.0), ("independence", 0.999), ("goodness of fit", 8.0)):
        draw = resampling.sample(resampling.TIMED[problem][0], 24, strength, 0)
        method, _ = resampling.METHODS[problem].values()
        assert method.test(*draw, 0, 19)


def test_a_wavy_density_has_its_waves(resampling, rng):
    draws = resampling.wavy(rng, lambda n: rng.uniform(size=(n, 1)), lambda x: np.sin(2 * np.pi * x[:, 0]), 4000)
    assert draws.shape == (4000, 1)
    assert (draws < 0.5).mean() == pytest.approx(0.5 + 1 / np.pi, abs=0.05)


def test_a_wrong_density_is_not_timed(resampling, monkeypatch):
    monkeypatch.setattr(
        resampling, "debiased", lambda samples, points, tau: resampling.kde_logpdf(points, samples, tau)
    )
    with pytest.raises(AssertionError, match="debiased, N = 64: relative error"):
        resampling.densities(1)
