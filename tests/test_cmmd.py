"""The example of the metric: it orders what is worse, its error bars hold, and the FID is biased."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.linalg import sqrtm


def test_the_metric_orders_what_is_worse_and_has_no_bias(as_it_comes, tmp_path, monkeypatch, capsys):
    import cmmd

    monkeypatch.setattr(cmmd, "SIZES", (50, 200))
    scores, ratios, errors = cmmd.main(repetitions=40, picture=tmp_path / "cmmd.png")
    assert float(capsys.readouterr().out.split("accuracy of the network: ")[1].split("%")[0]) > 95
    value, error, _ = scores["real"]
    assert abs(value) < 3 * error
    for what, levels in cmmd.WRONG.items():
        values, bars, fids = np.transpose([scores[what.format(level)] for level in levels])
        assert (np.diff(values) > 0).all() and (np.diff(fids) > 0).all()
        assert values[-1] > 5 * bars[-1] > 0
    for name, is_biased in {"FID": True, "MMD², biased": True, "MMD², unbiased": False}.items():
        mean, spread = ratios[name]
        off = (mean - 1) / (spread / 40**0.5)
        assert (off > 5).all() if is_biased else (np.abs(off) < 5).all()
    _, spread = ratios["MMD², unbiased"]
    assert (np.abs(spread / errors - 1) < 0.5).all()  # a spread of 40 errs by 11 %, an error of few images by up to √2
    assert (tmp_path / "cmmd.png").stat().st_size > 10_000
    images, *panels = plt.gcf().axes
    (legend,) = (ax.get_legend() for ax in panels if ax.get_legend())
    assert images.images and len(panels) == 3 and len(legend.get_texts()) == 4


def test_the_fid_is_the_distance_of_gaussians(as_it_comes, rng):
    from cmmd import frechet

    x, y = rng.normal(size=(40, 3)), 2 * rng.normal(size=(50, 3)) + 1
    a, b = np.cov(x.T), np.cov(y.T)
    exact = np.square(x.mean(0) - y.mean(0)).sum() + np.trace(a + b - 2 * np.real(sqrtm(a @ b)))
    assert frechet(x, y) == pytest.approx(exact, rel=1e-10)
    assert abs(frechet(x, x)) < 1e-10


def test_embeddings_stream(as_it_comes, capsys):
    from cmmd import stream

    stream(600, chunk=200, dim=5, shift=0.5)
    printed = capsys.readouterr()
    value, error, exact = map(float, re.search(r"MMD² (\S+) ± (\S+) \(exact: (\S+)\)", printed.out).groups())
    assert abs(value - exact) < 5 * error < exact and "36/36" in printed.err
    assert re.search(r", \d+ s, peak memory \+ \d+ MiB$", printed.out.strip())
