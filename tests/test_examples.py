"""The examples run, and show what they claim, with few steps; the main ones on emulated CUDA, too."""

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest
from scipy.linalg import sqrtm
from scipy.ndimage import gaussian_filter
from threadpoolctl import threadpool_limits

import emulated_cuda
from jaxgauss import fourier_sketch, mmd_squared
from jaxgauss._engines import costs, plan

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent


def run(*arguments: str, flags: str = os.environ["XLA_FLAGS"], **environment: str) -> str:
    """The output of a script, in a process of its own."""
    command, given = [sys.executable, "-W", "error", *arguments], {**os.environ, "XLA_FLAGS": flags, **environment}
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=given)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture
def run_here(as_it_comes, monkeypatch, capsys) -> Callable[..., str]:
    """The same in this one, where everything is imported already."""

    def run_here(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", list(arguments))
        runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
        return capsys.readouterr().out

    return run_here


@pytest.fixture
def picture(as_it_comes, tmp_path) -> Iterator[Path]:
    """Where an example is to leave its picture."""
    path = tmp_path / "picture.png"
    yield path
    assert path.stat().st_size > 10_000


@pytest.fixture
def shrink(monkeypatch) -> Callable[..., None]:
    """An example, or a benchmark, with other constants."""

    def shrink(module: object, **constants: object) -> None:
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)

    return shrink


def test_quickstart_agrees_with_dense(run_here):
    lines = run_here("examples/quickstart.py", "--num", "512").splitlines()
    errors = [float(line.split()[-1]) for line in lines if "×" in line]
    assert len(errors) == 3 and all(x < 1e-5 for x in errors)


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


@pytest.mark.parametrize("kernel, factor", [("gauss", 3), ("energy", 2)])
def test_mmd_digits_learns(picture, shrink, kernel, factor):
    import mmd_digits

    shrink(mmd_digits, SAMPLES=300)
    before, after, _ = mmd_digits.main(steps=40, batch=128, kernel=kernel, picture=picture)
    assert after < before / factor
    assert picture.with_suffix(".npz").exists()


def test_mmd_digits_takes_options(picture, run_here):
    size = "--steps", "2", "--batch", "16", "--picture", str(picture)
    output = run_here("examples/mmd_digits.py", "--dense", "--learn-tau", *size)
    assert "2 steps of 16 images" in output and "learned bandwidths: tau = 0.1" in output
    assert 0 < float(output.split("held-out MMD: ")[1].split()[0]) < 1


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


def test_compare_dense_measures_and_draws(picture, run_here):
    output = run_here("examples/compare_dense.py", "--largest", "256", "--runs", "2", "--picture", str(picture))
    rows = [line.split() for line in output.splitlines() if line.endswith(tuple("0123456789")) and "e-" in line]
    assert len(rows) == 3 and all(float(row[-1]) < 1e-5 for row in rows)


def test_mmd_flow_reaches_the_letters_by_kernels_that_see_far(picture):
    from mmd_flow import main

    flows, scale = main(num=200, targets=250, steps=40, picture=picture)
    assert {curve[-1][0] for curve in flows.values()} == {40}
    after = {kernel: curve[-1][1] for kernel, curve in flows.items()}
    assert after["gauss"] > 1.5 * after["imq"] and after["imq"] > after["energy"] and after["energy"] < 10 * scale
    *panels, curves = plt.gcf().axes
    assert len(panels) == 12 and len(curves.lines) == 4 and len({ax.get_position().bounds for ax in panels}) == 12
    for i, ax in enumerate(panels):
        low, high = np.transpose([ax.get_xlim(), ax.get_ylim()])
        particles = np.asarray(ax.collections[1].get_offsets())
        assert len(particles) == 200 and ax.get_aspect() == 1
        assert i % 4 == 3 or ((low < particles) & (particles < high)).all()  # nobody leaves a picture that is whole


def test_mmd_flow_in_the_plane_nears_the_letters(picture, capsys):
    from mmd_flow_plane import main

    frames, curve, scale = main(points=300, steps=30, frames=4, picture=picture)
    assert list(frames) == [0, 10, 20, 30] and {x.shape for x in frames.values()} == {(300, 2)}
    assert curve[-1][0] == 30 and curve[-1][1] < min(scale, curve[0][1]) / 10
    output = capsys.readouterr()
    assert "300 particles, 300 points: 30 steps in" in output.out and "100%" in output.err
    titles = [ax.get_title() for ax in plt.gcf().axes]
    assert titles == ["step 0", "step 10", "step 20", "step 30", "target", "MMD² to the target"]


def test_svgd_in_the_plane_follows_the_density(picture, capsys):
    import svgd_plane

    exact = svgd_plane.exact_bins()
    assert exact.sum() == pytest.approx(1, abs=0.02)  # of the density, nearly all is in the window
    x, curve, scale, wrong = svgd_plane.main(points=500, steps=60, picture=picture)
    assert x.shape == (500, 2) and curve[-1][1] < min(scale, curve[0][1] / 3) / 2
    assert wrong["particles"] < 1.1 * wrong["independent points"]
    assert "500 particles: 60 steps in" in capsys.readouterr().out and len(plt.gcf().axes) == 4


def test_two_samples_in_the_plane_differ_at_the_spot(picture, shrink, capsys):
    import two_sample_plane

    shrink(two_sample_plane, SHARE=0.1)
    test, witness, (pointwise, everywhere), axes = two_sample_plane.main(1000, 99, 24, picture)
    assert float(test.p_value) == pytest.approx(0.01)
    row, column = np.unravel_index(np.abs(witness).argmax(), witness.shape)
    spot = np.array([axes[0][column], axes[1][row]])
    assert witness[row, column] < 0 and np.linalg.norm(spot - two_sample_plane.SPOT) < 0.3
    assert everywhere[row, column] and (pointwise | ~everywhere).all() and pointwise.sum() < pointwise.size / 2
    assert "2 × 1000 points, 99 permutations" in capsys.readouterr().out


def test_the_bands_hold_what_does_not_differ(as_it_comes, rng):
    """Of labelings that are like the samples: at each point nineteen of twenty, everywhere nearly as many."""
    import two_sample_plane

    x, y = (two_sample_plane.blobs(rng, 300).astype("float32") for _ in range(2))
    grid = jnp.asarray(rng.uniform(-1.5, 1.5, (40, 2)), jnp.float32)
    _, null = two_sample_plane.witness_map(rng, x, y, grid, 399)
    pointwise, everywhere = two_sample_plane.bands(null[:199])
    assert (np.abs(null[199:]) > pointwise).mean() == pytest.approx(0.05, abs=0.03)
    assert (np.abs(null[199:]) > everywhere).any(1).mean() == pytest.approx(0.05, abs=0.05)


def test_kernels_are_within_the_tolerances(picture, capsys):
    from kernels import NAMES, SHOWN, TOLERANCES, main

    cells, differences = main(num=101, picture=picture)
    assert len(cells) == len(NAMES) * len(TOLERANCES) and "rational_quadratic(2)" in NAMES
    for (_, tolerance), (_, errors, _) in cells.items():
        assert TOLERANCES[tolerance] / 3 < errors.max() < TOLERANCES[tolerance]
    assert differences.keys() == set(SHOWN) and 0 < max(differences.values()) < 1e-5
    assert capsys.readouterr().out.count("\n") == len(NAMES) + 3
    legend = [x.get_text() for x in plt.gcf().axes[2].get_legend().get_texts()]
    assert len(legend) == len(SHOWN) * len(TOLERANCES) and "imq, 1e-3: 7 terms" in legend


def test_svgd_posterior_predicts(picture, capsys):
    from svgd_posterior import main

    shift, *_ = main(particles=200, steps=100, samples=50, picture=picture)
    output = capsys.readouterr().out
    assert min(float(output.split(name)[1].split()[0]) for name in ("\nMAP", "\nMCMC", "\nSVGD")) > 0.93
    assert shift.mean() < 0.5  # posterior standard deviations
    axes = plt.gcf().axes
    assert len({ax.get_position().bounds for ax in axes}) == len(axes) == 4  # none on another
    assert all(ax.get_ylabel() for ax in axes)


def test_two_sample_test_sees_the_blur(picture, shrink, capsys):
    import two_sample_test

    assert two_sample_test.SLIGHT in two_sample_test.BLURS
    shrink(two_sample_test, SIZES=(20, 40), BLURS=(0.0, 1.0, 1.5), SLIGHT=1.0)
    big, level, _ = two_sample_test.main(num=500, repetitions=4, permutations=99, picture=picture)
    p_values = [float(test.p_value) for test in big.values()]
    assert len(p_values) == 2 and p_values[1] < 0.011 < p_values[0]  # several bandwidths see it, one does not
    assert all(p.shape == (2, 4) for p in level.values())
    assert float(capsys.readouterr().out.split("apart patches are; ")[1].split("%")[0]) > 90  # brightness
    axes = plt.gcf().axes
    sharp, blurred = (ax.images[0].get_array() for ax in axes if ax.images)
    photo = two_sample_test.load_sample_image("china.jpg").mean(-1) / 255
    np.testing.assert_array_equal(sharp, photo[two_sample_test.CROP])
    np.testing.assert_array_equal(blurred, gaussian_filter(photo, 1.0)[two_sample_test.CROP])  # the one that is tested
    (legend,) = (ax.get_legend() for ax in axes if "MMD" in ax.get_xlabel())
    assert len(legend.get_texts()) == 2 * len(big)  # the labelings and the statistic of each test


def test_kde_agrees_with_scikit_learn(picture, capsys):
    from kde import main

    _, ours, theirs, *_ = main(num=300, steps=20, picture=picture)
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert "leave_one_out_tau: 100%" in capsys.readouterr().err


def test_kriging_holds_what_it_claims(picture, monkeypatch, capsys):
    import kriging

    monkeypatch.setattr(kriging, "FEW", 100)
    monkeypatch.setattr(kriging, "get_sample_data", lambda name: {"elevation": terrain()})
    with threadpool_limits(1):
        process, errors, held = kriging.main(points=3000, picture=picture)
    assert errors[0] < 0.5 * min(errors[1:]) and 0.92 < held < 0.98 and process.exact_
    assert "3000 heights, learned in" in capsys.readouterr().out


def terrain():
    """Heights of 60 × 80 places, smooth but for noise of a meter."""
    rng = np.random.default_rng(0)
    return 500 + 400 * gaussian_filter(rng.normal(size=(60, 80)), 4.0) + rng.normal(size=(60, 80))


def test_the_density_of_many_points_is_scikit_learns(picture, capsys):
    from density_map import attractor, main

    search, scores, by_tree, shown = main(points=6000, grid=60, taus=6, picture=picture)
    assert np.abs(scores[: len(by_tree)] - by_tree).max() < 1e-3
    low, high = attractor(6000, 0).min(0) - 0.05, attractor(6000, 0).max(0) + 0.05
    assert np.exp(shown).mean() * np.prod(high - low) == pytest.approx(1, abs=0.05)
    assert 0 < search.scores.argmax() < 5 and "leave-one-out: 6 bandwidths, 6000 points" in capsys.readouterr().out


def test_dependence_is_seen_where_correlation_is_blind(picture, shrink, capsys):
    import dependence

    shrink(dependence, LEVEL_SIZES=(20,), POWER_SIZES=(60,), ANGLES=(45,), STYLES={"permutation": "-"})
    by_hsic, by_correlation, level, power = dependence.main(50, 20, 799, picture=picture)
    assert (by_hsic == by_hsic.T).all() and not by_hsic.diagonal().any()
    assert by_hsic[dependence.PIXEL].any() and (by_hsic & by_correlation).sum() > 100
    assert {values.shape for values in level.values()} == {(20,)} and len(level) == 1
    assert power["permutation", 45][0] > 0.4  # of what is not correlated
    assert "2016 pairs of pixels, 50 digits: HSIC finds" in capsys.readouterr().out


def test_regression_fills_in_and_colors(picture, shrink, capsys):
    import regression

    shrink(regression, SIGMAS=regression.SIGMAS[::4], NEIGHBORS={"n_neighbors": [4, 8]})
    search, curve, errors, of_colors, losses = regression.main(0.1, 8, 150, 20, picture)
    left_out = np.sqrt(-np.asarray(search.scores) / 3)
    np.testing.assert_allclose(left_out, curve, rtol=0.15)  # leave-one-out foretells the error of held-out pixels
    assert errors["kernel_mean"] < 1.05 * errors["neighbors"] < 0.25
    assert of_colors["by place and brightness"] < 0.8 * of_colors["gray"] and losses[-1] < losses[0]
    assert "kernel_mean: held-out error" in capsys.readouterr().out


def test_mean_shift_makes_segments(picture, capsys):
    from mean_shift import main

    modes, of_all, agree, ours, theirs = main(num=400, sigma=0.1, subset=100, picture=picture)
    assert 2 <= len(modes) <= 10 and of_all.max() == len(modes) - 1
    assert agree > 0.9 and abs(ours - theirs) <= 5
    dark, bright = modes[modes.sum(1).argmin()], modes[modes.sum(1).argmax()]
    assert dark.max() < 0.4 and bright.min() > 0.6  # trees and sky
    output = capsys.readouterr()
    assert "400 pixels, σ = 0.1:" in output.out and "mean_shift" in output.err


def test_herding_beats_random_choices(picture, shrink, capsys):
    import herding

    shrink(herding, RANDOM=3, SIZES=3)
    herd, sizes, weighted, random, big, others = herding.main(30, 1000, 50, picture)
    assert len(set(herd.indices.tolist())) == 30 and len(sizes) == 3
    assert (np.asarray(herd.mmd)[sizes - 1] < random.min(1)).all()
    assert (np.array(weighted) <= np.asarray(herd.mmd)[sizes - 1] + 1e-6).all()
    assert big.mmd[-1] < others.min() / 2
    assert "of each digit" in capsys.readouterr().out


def test_the_metric_orders_what_is_worse_and_has_no_bias(picture, shrink, capsys):
    import cmmd

    shrink(cmmd, SIZES=(50, 200))
    scores, ratios, errors = cmmd.main(repetitions=40, picture=picture)
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


def test_svgd_of_eight_schools_comes_near_nuts(picture, shrink, capsys):
    """By the bandwidth that KSD prefers; the median's underestimates."""
    import svgd_numpyro

    shrink(svgd_numpyro, TAUS=(0.1, "median"))
    found, best, nuts = svgd_numpyro.main(particles=200, steps=300, samples=300, picture=picture)
    assert best == 0.1 and found[0.1][1] < found["median"][1] / 3
    assert found["median"][0] > 0.2  # a narrower kernel
    (shift, ratio), (of_median, ratio_of_median) = (svgd_numpyro.compared(found[x][2], nuts) for x in found)
    assert shift.max() < 0.2 < of_median.max() and abs(ratio - 1).max() < 0.2 < 1 - ratio_of_median.min()
    output = capsys.readouterr().out
    assert "least KSD²: τ = 0.1" in output and output.count(" sd   ") == 2
    axes = plt.gcf().axes
    assert len(axes) == 5 and all(ax.get_ylabel() for ax in axes)
    assert [len(ax.collections[0].get_offsets()) for ax in axes[1:3]] == [200, 200]  # as many of NUTS


@pytest.mark.parametrize("library, example", [("flax", "mmd_flax"), ("equinox", "mmd_equinox")])
def test_generators_of_libraries_learn(picture, capsys, library, example):
    pytest.importorskip(library)
    losses, held = importlib.import_module(example).main(steps=40, batch=128, picture=picture)
    assert len(losses) == 40 and losses[-1] < losses[0] / 3
    assert held[-1][1] < held[0][1] / 2 and held[-1][0] == 40
    output = capsys.readouterr()
    assert "between real digits" in output.out and "100%" in output.err
    *panels, curves = plt.gcf().axes
    assert sum(len(ax.images) for ax in panels) == 3 and len(curves.lines) == 2


# The batch is small: of half a million hidden units a few lie within rounding of zero, and gradients differ by 7e-5 and
# more where a ReLU lets one through on one device and not on four.
SCRIPT = """
import json, sys
import jax
import numpy as np
from jax.sharding import AxisType
from jaxgauss import embedding_norm_squared

def flax(mesh):
    import mmd_flax
    from flax import nnx

    generator, optimizer, rngs, images, _ = mmd_flax.begin(mesh, 10)
    norm = embedding_norm_squared(images, mmd_flax.TAUS, mesh=mesh, query_axis="data")
    loss = mmd_flax.train_step(generator, optimizer, rngs, images, norm, mesh=mesh, batch=16)
    return loss, jax.tree.leaves(optimizer.opt_state[0].mu), nnx.state(generator), images

def equinox(mesh):
    import mmd_equinox

    model, optimizer, state, images, _ = mmd_equinox.begin(mesh, 10)
    norm = embedding_norm_squared(images, mmd_equinox.TAUS, mesh=mesh, query_axis="data")
    given = model, state, images, norm, jax.random.key(1), optimizer, mesh, 16
    model, state, loss = mmd_equinox.train_step(*given)
    return loss, jax.tree.leaves(state[0].mu), [x for x in jax.tree.leaves(model) if isinstance(x, jax.Array)], images

def run(library, devices):
    mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)
    loss, moments, model, images = globals()[library](mesh)
    return {
        "loss": float(loss),
        "gradient": np.concatenate([np.ravel(x) for x in moments]),  # a tenth of it, after the first step
        "images": [len(x.data) for x in images.addressable_shards],
        "devices": sorted({len(x.devices()) for x in jax.tree.leaves(model)}),
    }

for library in sys.argv[1:]:
    found = [run(library, jax.devices()[:1]), run(library, jax.devices())]
    one, four = (each.pop("gradient") for each in found)
    print(json.dumps([*found, len(one), float(np.linalg.norm(four - one) / np.linalg.norm(one))]))
"""


def test_generators_of_libraries_take_on_several_devices_the_step_of_one():
    libraries = [x for x in ("flax", "equinox") if importlib.util.find_spec(x)]
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    output = run("-c", SCRIPT, *libraries, flags=flags, PYTHONPATH=str(ROOT / "examples"))
    for line in output.splitlines()[-len(libraries) :]:
        one, four, num, difference = json.loads(line)
        assert one["images"] == [1280] and four["images"] == [320] * 4  # shared out
        assert one["devices"] == [1] and four["devices"] == [4]  # which all have the generator
        assert four["loss"] == pytest.approx(one["loss"], rel=0, abs=3e-6)  # each within 1e-6 of its terms
        assert num > 1e5 and difference < 2e-5  # of gradients in float32; it is 1e-7


def test_a_gaussian_process_fills_in_a_photo(picture, capsys):
    from gaussian_process import main

    losses, (theirs, ours), error = main(num=1500, side=40, steps=8, stride=4, picture=picture)
    assert losses[-1] < losses[0]
    assert ours < 1.2 * theirs < 0.2  # of brightness from 0 to 1, whose standard deviation is 0.3
    assert error < 0.12
    printed = capsys.readouterr().out
    assert "scikit-learn on " in printed and "products with the matrix" in printed


def test_stars_on_a_cluster_become_a_map(picture, capsys):
    from dask_sketch import BOX, TAU, main, stars

    whole, part = (stars(num, seed) for num, seed in ((250_000, 0), (10_000, 1)))
    sketch, density, error = main(260_000, 2, "1.5GiB", kill=False, scheduler=None, picture=str(picture))
    assert error < 1e-6 and 0 < density.mean() * 4 < 1  # some stars are outside
    expected = fourier_sketch(whole, np.ones(250_000, "float32"), TAU, **BOX)
    expected += fourier_sketch(part, np.ones(10_000, "float32"), TAU, **BOX)
    np.testing.assert_allclose(sketch(part[:100]), expected(part[:100]), rtol=1e-5)
    printed = capsys.readouterr()
    assert "260,000 stars in 2 files, 2 MB in all, 2 workers" in printed.out and "100%" in printed.err
    stars_of_a_file, density_map, *_ = plt.gcf().axes
    assert len(stars_of_a_file.collections[0].get_offsets()) == 20_000 and len(density_map.images) == 1


def test_photos_exchange_their_colors(picture):
    from optimal_transport import main

    out, before, after = main(num=500, stride=8, picture=picture)
    assert out.converged and after < before / 20


AS_IT_COMES, BY_KERNELS = (pytest.param(name, marks=pytest.mark.emulated) for name in ("as it comes", "by kernels"))


@pytest.fixture(params=[AS_IT_COMES, BY_KERNELS])
def way(request, cuda, as_it_comes, monkeypatch):
    """CUDA, emulated: as `auto` sends it, or with every sum sent to the kernels; and the kernels' names that ran."""
    if request.param == "by kernels":
        dear = costs.Cost(1e18, 0.0, 0.0)
        found = costs.cuda_costs("any")[0] | {"dense": dear, "blocked": dear}
        monkeypatch.setattr(plan, "cuda_costs", lambda name: (found, True))
    emulated_cuda.forget()
    with emulated_cuda.counting() as launched:
        yield request.param, launched
    emulated_cuda.forget()


def check_way(way):
    """Kernels ran if, and only if, they were asked to."""
    name, launched = way
    ran = {operator for names in launched for operator in names if "attention" in operator}
    assert bool(ran) == (name == "by kernels"), ran


def test_mmd_digits_on_cuda_takes_the_step_of_the_dense_loss(way):
    from mmd_digits import initial

    (ours, _, value), (dense, _, expected) = digits_steps()
    assert float(value) == pytest.approx(float(expected), rel=5e-3)
    moved = [jax.tree.map(lambda x, y: x - y, x["params"], initial()) for x in (ours, dense)]
    for x, y in zip(*map(jax.tree.leaves, moved), strict=True):
        assert jnp.linalg.norm(x - y) <= 2e-2 * jnp.linalg.norm(y)
    check_way(way)


def test_the_benchmark_of_that_step_bears_half_precision(way):
    from benchmarks.applications import TOLERANCES, digits_step

    cell = digits_step("cuda")
    assert cell.error(cell.methods["mmd_squared"]()()) < TOLERANCES["cuda"] == cell.tolerance
    assert way[1]  # by kernels, either way: so many pairs are worth it


@pytest.mark.parametrize("way", [BY_KERNELS], indirect=True)
def test_mmd_flow_on_cuda_moves(way, picture):
    from mmd_flow import main

    flows, _ = main(num=80, targets=90, steps=20, picture=picture)
    for curve in flows.values():
        assert curve[-1][1] < curve[0][1] / 1.5
    check_way(way)


@pytest.mark.parametrize("way", [BY_KERNELS], indirect=True)
def test_svgd_posterior_on_cuda_predicts(way, picture, capsys):
    from svgd_posterior import main

    main(particles=60, steps=30, samples=5, picture=picture)
    assert float(capsys.readouterr().out.split("\nSVGD")[1].split()[0]) > 0.93
    check_way(way)


@pytest.mark.parametrize("way", [AS_IT_COMES], indirect=True)
def test_kde_on_cuda_agrees_with_scikit_learn(way, picture):
    from kde import main

    _, ours, theirs, *_ = main(num=200, steps=5, picture=picture)
    assert ours == pytest.approx(theirs, abs=1e-4)
    check_way(way)
