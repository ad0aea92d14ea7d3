"""The examples run, and show what they claim, with few steps."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest
from scipy.ndimage import gaussian_filter

from jaxgauss import mmd_squared

ROOT = Path(__file__).parent.parent


def run(*arguments: str, optimized: bool = False) -> str:
    """The output of a script, in a process of its own."""
    command = [sys.executable, "-W", "error", *arguments]
    flags = os.environ["XLA_FLAGS"].replace("--xla_backend_optimization_level=0", "").strip()
    environment = {**os.environ, "XLA_FLAGS": flags if optimized else os.environ["XLA_FLAGS"]}
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture
def run_here(as_it_comes, monkeypatch, capsys) -> Callable[..., str]:
    """The same in this one, where everything is imported already: of the arguments of `python`."""

    def run_here(*arguments: str) -> str:
        is_module = arguments[0] == "-m"
        monkeypatch.setattr(sys, "argv", list(arguments[1:] if is_module else arguments))
        if is_module:
            monkeypatch.delitem(sys.modules, arguments[1])  # which Python warns of
            runpy.run_module(arguments[1], run_name="__main__")
        else:
            runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
        return capsys.readouterr().out

    return run_here


def test_quickstart_agrees_with_dense():
    lines = run("examples/quickstart.py", "--num", "2048", optimized=True).splitlines()
    errors = [float(line.split()[-1]) for line in lines if "×" in line]
    assert len(errors) == 3 and max(errors) < 1e-5


def test_two_processes_train_like_one(tmp_path, as_it_comes, gloo):
    from multi_process import moons, train

    (tmp_path / "two").mkdir()
    size = ["--steps", "3", "--points", "1000", "--latents", "101"]
    output = run("examples/multi_process.py", "--processes", "2", *size, "--folder", str(tmp_path / "two"))
    assert "1000 points on 2 devices of 2 processes: MMD" in output
    train(3, 1000, 101, tmp_path)
    with np.load(tmp_path / "multi_process.npz") as one, np.load(tmp_path / "two" / "multi_process.npz") as two:
        assert len(one.files) == 8 + 2  # weights and biases, and what is drawn of the data
        for name in set(one.files) - {"process"}:
            np.testing.assert_allclose(two[name], one[name], rtol=0, atol=1e-6)
        np.testing.assert_array_equal(two["shown"], moons(0, 1000))
        assert np.bincount(two["process"]).tolist() == [500, 500] and np.bincount(one["process"]).tolist() == [1000]


def test_mmd_digits_learns(tmp_path, run_here):
    picture = tmp_path / "digits.png"
    output = run_here("examples/mmd_digits.py", "--steps", "40", "--batch", "128", "--picture", str(picture))
    before, after = (float(output.split("held-out MMD: ")[1].split()[i]) for i in (0, 2))
    assert after < before / 3
    assert picture.stat().st_size > 10_000 and picture.with_suffix(".npz").exists()


@pytest.mark.parametrize("kernel", ["imq", "energy"])
def test_mmd_digits_learns_by_other_kernels(as_it_comes, tmp_path, monkeypatch, kernel):
    import mmd_digits

    monkeypatch.setattr(mmd_digits, "SAMPLES", 300)
    before, after, _ = mmd_digits.main(steps=40, batch=128, kernel=kernel, picture=tmp_path / "digits.png")
    assert after < before / 2


def test_mmd_digits_refuses_to_learn_a_bandwidth_that_is_none(run_here, capsys):
    with pytest.raises(SystemExit):
        run_here("examples/mmd_digits.py", "--kernel", "energy", "--learn-tau")
    assert "has no bandwidth to learn" in capsys.readouterr().err


def test_mmd_digits_shows_noise_once(as_it_comes):
    from mmd_digits import shown_steps

    assert len(shown_steps(4000)) == 4 and [s for s in shown_steps(4000) if 40 <= s <= 100]
    assert sum(s < 40 for s in shown_steps(4000)) <= 1
    assert all(0 < s <= steps for steps in range(1, 100) for s in shown_steps(steps))


def digits_steps(kernel="gauss"):
    """A step of the training that learns bandwidths, too: by `mmd_squared`, and by the dense formula."""
    from mmd_digits import TAUS, initial, mmd_squared_dense, train_step

    images, log_taus = jax.random.uniform(jax.random.key(0), (80, 64)), jnp.log(jnp.array(TAUS))
    results = []
    for loss in (mmd_squared, mmd_squared_dense):
        variables, optimizer = {"params": initial(), "log_taus": log_taus}, optax.sgd(1.0)
        step = train_step(partial(loss, kernel=kernel), optimizer, images, None, 50)
        results.append(step(variables, optimizer.init(variables), jax.random.key(1)))
    return results


@pytest.mark.parametrize("kernel", ["gauss", "matern12"])
def test_mmd_digits_learns_bandwidths_as_with_matrices(as_it_comes, kernel):
    from mmd_digits import TAUS

    log_taus = jnp.log(jnp.array(TAUS))
    (ours, _, value), (dense, _, expected) = digits_steps(kernel)
    assert float(value) == pytest.approx(float(expected), rel=1e-4)
    assert jnp.abs(ours["log_taus"] - log_taus).min() > 1e-4
    assert jnp.allclose(ours["log_taus"], dense["log_taus"], rtol=1e-4)


def test_compare_dense_measures_and_draws(tmp_path, run_here):
    picture = tmp_path / "compare.png"
    output = run_here("examples/compare_dense.py", "--largest", "256", "--runs", "2", "--picture", str(picture))
    rows = [line.split() for line in output.splitlines() if line.endswith(tuple("0123456789")) and "e-" in line]
    assert len(rows) == 3 and all(float(row[-1]) < 1e-5 for row in rows)
    assert picture.stat().st_size > 10_000


def test_mmd_flow_reaches_the_letters_by_kernels_that_see_far(as_it_comes, tmp_path):
    from mmd_flow import main

    flows, scale = main(num=200, targets=250, steps=40, picture=tmp_path / "flow.png")
    assert {curve[-1][0] for curve in flows.values()} == {40}
    after = {kernel: curve[-1][1] for kernel, curve in flows.items()}
    assert after["gauss"] > 1.5 * after["imq"] and after["imq"] > after["energy"] and after["energy"] < 10 * scale
    assert (tmp_path / "flow.png").stat().st_size > 10_000
    *panels, curves = plt.gcf().axes
    assert len(panels) == 12 and len(curves.lines) == 4 and len({ax.get_position().bounds for ax in panels}) == 12
    for i, ax in enumerate(panels):
        low, high = np.transpose([ax.get_xlim(), ax.get_ylim()])
        particles = np.asarray(ax.collections[1].get_offsets())
        assert len(particles) == 200 and ax.get_aspect() == 1
        assert i % 4 == 3 or ((low < particles) & (particles < high)).all()  # nobody leaves a picture that is whole


def test_kernels_are_within_the_tolerances(as_it_comes, tmp_path, capsys):
    from kernels import NAMES, SHOWN, TOLERANCES, main

    cells, differences = main(num=101, picture=tmp_path / "kernels.png")
    assert len(cells) == len(NAMES) * len(TOLERANCES) and "rational_quadratic(2)" in NAMES
    for (_, tolerance), (_, errors, _) in cells.items():
        assert TOLERANCES[tolerance] / 3 < errors.max() < TOLERANCES[tolerance]
    assert differences.keys() == set(SHOWN) and 0 < max(differences.values()) < 1e-5
    assert capsys.readouterr().out.count("\n") == len(NAMES) + 3
    assert (tmp_path / "kernels.png").stat().st_size > 10_000
    legend = [x.get_text() for x in plt.gcf().axes[2].get_legend().get_texts()]
    assert len(legend) == len(SHOWN) * len(TOLERANCES) and "imq, 1e-3: 7 terms" in legend


def test_svgd_posterior_predicts(as_it_comes, tmp_path, capsys):
    from svgd_posterior import main

    shift, *_ = main(particles=200, steps=100, samples=50, picture=tmp_path / "svgd.png")
    output = capsys.readouterr().out
    assert min(float(output.split(name)[1].split()[0]) for name in ("\nMAP", "\nMCMC", "\nSVGD")) > 0.93
    assert shift.mean() < 0.5  # posterior standard deviations
    assert (tmp_path / "svgd.png").stat().st_size > 10_000
    axes = plt.gcf().axes
    assert len({ax.get_position().bounds for ax in axes}) == len(axes) == 4  # none on another
    assert all(ax.get_ylabel() for ax in axes)


def test_two_sample_test_sees_the_blur(as_it_comes, tmp_path, monkeypatch, capsys):
    import two_sample_test

    assert two_sample_test.SLIGHT in two_sample_test.BLURS
    monkeypatch.setattr(two_sample_test, "SIZES", (20, 40))
    monkeypatch.setattr(two_sample_test, "BLURS", (0.0, 1.0, 1.5))
    monkeypatch.setattr(two_sample_test, "SLIGHT", 1.0)
    big, level, _ = two_sample_test.main(num=500, repetitions=4, permutations=99, picture=tmp_path / "test.png")
    p_values = [float(test.p_value) for test in big.values()]
    assert len(p_values) == 2 and p_values[1] < 0.011 < p_values[0]  # several bandwidths see it, one does not
    assert all(p.shape == (2, 4) for p in level.values())
    assert (tmp_path / "test.png").stat().st_size > 10_000
    assert float(capsys.readouterr().out.split("apart patches are; ")[1].split("%")[0]) > 90  # brightness
    axes = plt.gcf().axes
    sharp, blurred = (ax.images[0].get_array() for ax in axes if ax.images)
    photo = two_sample_test.load_sample_image("china.jpg").mean(-1) / 255
    np.testing.assert_array_equal(sharp, photo[two_sample_test.CROP])
    np.testing.assert_array_equal(blurred, gaussian_filter(photo, 1.0)[two_sample_test.CROP])  # the one that is tested
    (legend,) = (ax.get_legend() for ax in axes if "MMD" in ax.get_xlabel())
    assert len(legend.get_texts()) == 2 * len(big)  # the labelings and the statistic of each test


def test_kde_agrees_with_scikit_learn(as_it_comes, tmp_path, capsys):
    from kde import main

    _, ours, theirs, *_ = main(num=300, steps=20, picture=tmp_path / "kde.png")
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert "leave_one_out_tau: 100%" in capsys.readouterr().err
    assert (tmp_path / "kde.png").stat().st_size > 10_000


def test_dependence_is_seen_where_correlation_is_blind(as_it_comes, tmp_path, monkeypatch, capsys):
    import dependence

    for name, values in {
        "LEVEL_SIZES": (20,),
        "POWER_SIZES": (60,),
        "ANGLES": (45,),
        "STYLES": {"permutation": "-"},
    }.items():
        monkeypatch.setattr(dependence, name, values)
    by_hsic, by_correlation, level, power = dependence.main(50, 20, 799, picture=tmp_path / "dependence.png")
    assert (by_hsic == by_hsic.T).all() and not by_hsic.diagonal().any()
    assert by_hsic[dependence.PIXEL].any() and (by_hsic & by_correlation).sum() > 100
    assert {values.shape for values in level.values()} == {(20,)} and len(level) == 1
    assert power["permutation", 45][0] > 0.4  # of what is not correlated
    assert "2016 pairs of pixels, 50 digits: HSIC finds" in capsys.readouterr().out
    assert (tmp_path / "dependence.png").stat().st_size > 10_000


def test_regression_fills_in_and_colors(as_it_comes, tmp_path, monkeypatch, capsys):
    import regression

    monkeypatch.setattr(regression, "SIGMAS", regression.SIGMAS[::4])
    monkeypatch.setattr(regression, "NEIGHBORS", {"n_neighbors": [4, 8]})
    search, curve, errors, of_colors, losses = regression.main(0.1, 8, 150, 20, tmp_path / "regression.png")
    left_out = np.sqrt(-np.asarray(search.scores) / 3)
    np.testing.assert_allclose(left_out, curve, rtol=0.15)  # leave-one-out foretells the error of held-out pixels
    assert errors["kernel_mean"] < 1.05 * errors["neighbors"] < 0.25
    assert of_colors["by place and brightness"] < 0.8 * of_colors["gray"] and losses[-1] < losses[0]
    assert "kernel_mean: held-out error" in capsys.readouterr().out
    assert (tmp_path / "regression.png").stat().st_size > 10_000


def test_mean_shift_makes_segments(as_it_comes, tmp_path, capsys):
    from mean_shift import main

    modes, of_all, agree, ours, theirs = main(num=400, sigma=0.1, subset=100, picture=tmp_path / "mean_shift.png")
    assert 2 <= len(modes) <= 10 and of_all.max() == len(modes) - 1
    assert agree > 0.9 and abs(ours - theirs) <= 5
    dark, bright = modes[modes.sum(1).argmin()], modes[modes.sum(1).argmax()]
    assert dark.max() < 0.4 and bright.min() > 0.6  # trees and sky
    output = capsys.readouterr()
    assert "400 pixels, σ = 0.1:" in output.out and "mean_shift" in output.err
    assert (tmp_path / "mean_shift.png").stat().st_size > 10_000


def test_herding_beats_random_choices(as_it_comes, tmp_path, monkeypatch, capsys):
    import herding

    monkeypatch.setattr(herding, "RANDOM", 3)
    monkeypatch.setattr(herding, "SIZES", 3)
    herd, sizes, weighted, random, big, others = herding.main(30, 1000, 50, tmp_path / "herding.png")
    assert len(set(herd.indices.tolist())) == 30 and len(sizes) == 3
    assert (np.asarray(herd.mmd)[sizes - 1] < random.min(1)).all()
    assert (np.array(weighted) <= np.asarray(herd.mmd)[sizes - 1] + 1e-6).all()
    assert big.mmd[-1] < others.min() / 2
    assert "of each digit" in capsys.readouterr().out
    assert (tmp_path / "herding.png").stat().st_size > 10_000
