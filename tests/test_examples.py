"""The examples run, and show what they claim, with few steps."""

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
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest
from scipy.linalg import sqrtm
from scipy.ndimage import gaussian_filter
from threadpoolctl import threadpool_limits

from jaxgauss import fourier_sketch, mmd_squared

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

    def run_here(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return run_here


@pytest.fixture
def example(as_it_comes, monkeypatch, tmp_path) -> Iterator[Callable[..., tuple]]:
    """What the `main` of an example returns, in which some constants are other ones; it leaves a picture."""

    def example(name: str, *arguments: Any, constants: dict[str, Any] | None = None, **options: Any) -> tuple:
        module = importlib.import_module(name)
        for constant, value in (constants or {}).items():
            monkeypatch.setattr(module, constant, value)
        return module.main(*arguments, picture=tmp_path / "picture.png", **options)

    yield example
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_quickstart_agrees_with_dense(run_here):
    lines = run_here("quickstart.py", "--num", "512").splitlines()
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


def test_mmd_digits_learns(example, tmp_path):
    before, after, _ = example("mmd_digits", 40, 128, constants={"SAMPLES": 300})
    assert after < before / 3 and (tmp_path / "picture.npz").exists()


def test_mmd_digits_takes_options(tmp_path, run_here, capsys):
    size = "--steps", "2", "--batch", "16", "--picture", str(tmp_path / "picture.png")
    output = run_here("mmd_digits.py", "--dense", "--learn-tau", *size)
    assert "2 steps of 16 images" in output and "learned bandwidths: tau = 0.1" in output
    assert 0 < float(output.split("held-out MMD: ")[1].split()[0]) < 1
    with pytest.raises(SystemExit):
        run_here("mmd_digits.py", "--kernel", "energy", "--learn-tau")
    assert "has no bandwidth to learn" in capsys.readouterr().err


def test_mmd_digits_shows_noise_once(as_it_comes):
    from mmd_digits import shown_steps

    assert len(shown_steps(4000)) == 4 and [s for s in shown_steps(4000) if 40 <= s <= 100]
    assert sum(s < 40 for s in shown_steps(4000)) <= 1
    assert all(0 < s <= steps for steps in range(1, 100) for s in shown_steps(steps))


def test_mmd_digits_learns_bandwidths_as_with_matrices(as_it_comes):
    from mmd_digits import TAUS, initial, mmd_squared_dense, train_step

    images, log_taus = jax.random.uniform(jax.random.key(0), (80, 64)), jnp.log(jnp.array(TAUS))
    results = []
    for loss in (mmd_squared, mmd_squared_dense):
        variables, optimizer = {"params": initial(), "log_taus": log_taus}, optax.sgd(1.0)
        step = train_step(partial(loss, kernel="matern12"), optimizer, images, None, 50)
        results.append(step(variables, optimizer.init(variables), jax.random.key(1)))
    (ours, _, value), (dense, _, expected) = results
    assert float(value) == pytest.approx(float(expected), rel=1e-4)
    assert jnp.abs(ours["log_taus"] - log_taus).min() > 1e-4
    assert jnp.allclose(ours["log_taus"], dense["log_taus"], rtol=1e-4)


def test_drifting_learns_as_with_the_matrix(example, capsys):
    constants = {"COMPARED": 5, "TIMED": {16: 1, 3000: 1}}
    curve, apart, costs = example("drifting_digits", 60, 100, constants=constants)
    assert curve[-1][0] == 60 and curve[-1][1] < curve[0][1] / 2 and 0 < apart < 1e-5
    (_, memory), (_, dense) = costs[3000]
    assert 3 * memory < dense and "60 steps of 100 images towards 1437 real ones" in capsys.readouterr().out


def test_compare_dense_measures_and_draws(tmp_path, run_here):
    size = "--largest", "256", "--runs", "2", "--picture", str(tmp_path / "picture.png")
    output = run_here("compare_dense.py", *size)
    rows = [line.split() for line in output.splitlines() if line.endswith(tuple("0123456789")) and "e-" in line]
    assert len(rows) == 3 and all(float(row[-1]) < 1e-5 for row in rows) and (tmp_path / "picture.png").exists()


def test_mmd_flow_reaches_the_letters_by_kernels_that_see_far(example):
    flows, scale = example("mmd_flow", num=200, targets=250, steps=40)
    assert {curve[-1][0] for curve in flows.values()} == {40}
    after = {kernel: curve[-1][1] for kernel, curve in flows.items()}
    assert after["gauss"] > 1.5 * after["imq"] and after["imq"] > after["energy"] and after["energy"] < 10 * scale
    *panels, _ = plt.gcf().axes
    for ax in (ax for i, ax in enumerate(panels) if i % 4 < 3):  # nobody leaves a picture that is whole
        low, high = np.transpose([ax.get_xlim(), ax.get_ylim()])
        particles = np.asarray(ax.collections[1].get_offsets())
        assert len(particles) == 200 and ((low < particles) & (particles < high)).all()


def test_mmd_flow_in_the_plane_nears_the_letters(example, capsys):
    frames, curve, scale = example("mmd_flow_plane", points=300, steps=30, frames=4)
    assert list(frames) == [0, 10, 20, 30] and {x.shape for x in frames.values()} == {(300, 2)}
    assert curve[-1][0] == 30 and curve[-1][1] < min(scale, curve[0][1]) / 10
    output = capsys.readouterr()
    assert "300 particles, 300 points: 30 steps in" in output.out and "100%" in output.err


def test_mmd_flow_in_any_dimension_makes_digits(example, capsys):
    flows, scale = example("mmd_flow_any_dimension", num=1000, few=300, steps=100, directions=128)
    for num, frames, curve, _ in flows.values():
        assert list(frames) == [0, 12, 33, 100] and {x.shape for x in frames.values()} == {(num, 64)}
        assert curve[-1][0] == 100 and abs(curve[-1][1] - scale) < curve[0][1] / 50
    output = capsys.readouterr()
    assert "1,000 by 128 directions: " in output.out and "times as long" in output.out and "100%" in output.err


def test_svgd_in_the_plane_follows_the_density(example, capsys):
    import svgd_plane

    assert svgd_plane.exact_bins().sum() == pytest.approx(1, abs=0.02)  # of the density, nearly all is in the window
    x, curve, scale, wrong = example("svgd_plane", points=500, steps=60)
    assert x.shape == (500, 2) and curve[-1][1] < min(scale, curve[0][1] / 3) / 2
    assert wrong["particles"] < 1.1 * wrong["independent points"]
    assert "500 particles: 60 steps in" in capsys.readouterr().out


def test_two_samples_in_the_plane_differ_at_the_spot(example, capsys):
    import two_sample_plane

    test, witness, bands, axes = example("two_sample_plane", 1000, 99, 24, constants={"SHARE": 0.1})
    pointwise, everywhere = bands
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


def test_kernels_are_within_the_tolerances(example, capsys):
    from kernels import NAMES, SHOWN, TOLERANCES

    cells, differences = example("kernels", num=101)
    assert len(cells) == len(NAMES) * len(TOLERANCES) and "rational_quadratic(2)" in NAMES
    for (_, tolerance), (_, errors, _) in cells.items():
        assert TOLERANCES[tolerance] / 3 < errors.max() < TOLERANCES[tolerance]
    assert differences.keys() == set(SHOWN) and 0 < max(differences.values()) < 1e-5
    assert capsys.readouterr().out.count("\n") == len(NAMES) + 3


def test_svgd_posterior_predicts(example, capsys):
    shift, *_ = example("svgd_posterior", particles=200, steps=100, samples=50)
    output = capsys.readouterr().out
    assert min(float(output.split(name)[1].split()[0]) for name in ("\nMAP", "\nMCMC", "\nSVGD")) > 0.93
    assert shift.mean() < 0.5  # posterior standard deviations


def test_two_sample_test_sees_the_blur(example, capsys):
    import two_sample_test

    assert two_sample_test.SLIGHT in two_sample_test.BLURS
    constants = {"SIZES": (20, 40), "BLURS": (0.0, 1.0, 1.5), "SLIGHT": 1.0}
    big, level, _ = example("two_sample_test", num=500, repetitions=4, permutations=99, constants=constants)
    p_values = [float(test.p_value) for test in big.values()]
    assert len(p_values) == 2 and p_values[1] < 0.011 < p_values[0]  # several bandwidths see it, one does not
    assert all(p.shape == (2, 4) for p in level.values())
    assert float(capsys.readouterr().out.split("apart patches are; ")[1].split("%")[0]) > 90  # brightness
    sharp, blurred = (ax.images[0].get_array() for ax in plt.gcf().axes if ax.images)
    photo = two_sample_test.load_sample_image("china.jpg").mean(-1) / 255
    np.testing.assert_array_equal(sharp, photo[two_sample_test.CROP])
    np.testing.assert_array_equal(blurred, gaussian_filter(photo, 1.0)[two_sample_test.CROP])  # the one that is tested


def test_kde_agrees_with_scikit_learn(example, capsys):
    _, ours, theirs, *_ = example("kde", num=300, steps=20)
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert "leave_one_out_tau: 100%" in capsys.readouterr().err


def test_kriging_holds_what_it_claims(example, capsys, rng):
    heights = 500 + 400 * gaussian_filter(rng.normal(size=(60, 80)), 4.0) + rng.normal(size=(60, 80))
    constants = {"FEW": 100, "get_sample_data": lambda name: {"elevation": heights}}
    with threadpool_limits(1):
        process, errors, held = example("kriging", points=3000, constants=constants)
    assert errors[0] < 0.5 * min(errors[1:]) and 0.92 < held < 0.98 and process.exact_
    assert "3000 heights, learned in" in capsys.readouterr().out


def test_the_density_of_many_points_is_scikit_learns(example, capsys):
    search, scores, by_tree, shown = example("density_map", points=6000, grid=60, taus=6)
    assert np.abs(scores[: len(by_tree)] - by_tree).max() < 1e-3
    points = importlib.import_module("density_map").attractor(6000, 0)
    low, high = points.min(0) - 0.05, points.max(0) + 0.05
    assert np.exp(shown).mean() * np.prod(high - low) == pytest.approx(1, abs=0.05)
    assert 0 < search.scores.argmax() < 5 and "leave-one-out: 6 bandwidths, 6000 points" in capsys.readouterr().out


def test_dependence_is_seen_where_correlation_is_blind(example, capsys):
    constants = {"LEVEL_SIZES": (20,), "POWER_SIZES": (60,), "ANGLES": (45,), "STYLES": {"permutation": "-"}}
    by_hsic, by_correlation, level, power = example("dependence", 50, 20, 799, constants=constants)
    assert (by_hsic == by_hsic.T).all() and not by_hsic.diagonal().any()
    assert by_hsic[importlib.import_module("dependence").PIXEL].any() and (by_hsic & by_correlation).sum() > 100
    assert {values.shape for values in level.values()} == {(20,)} and len(level) == 1
    assert power["permutation", 45][0] > 0.4  # of what is not correlated
    assert "2016 pairs of pixels, 50 digits: HSIC finds" in capsys.readouterr().out


def test_regression_fills_in_and_colors(example, capsys):
    import regression

    constants = {"SIGMAS": regression.SIGMAS[::4], "NEIGHBORS": {"n_neighbors": [4, 8]}}
    search, curve, errors, of_colors, losses = example("regression", 0.1, 8, 150, 20, constants=constants)
    left_out = np.sqrt(-np.asarray(search.scores) / 3)
    np.testing.assert_allclose(left_out, curve, rtol=0.15)  # leave-one-out foretells the error of held-out pixels
    assert errors["kernel_mean"] < 1.05 * errors["neighbors"] < 0.25
    assert of_colors["by place and brightness"] < 0.8 * of_colors["gray"] and losses[-1] < losses[0]
    assert "kernel_mean: held-out error" in capsys.readouterr().out


def test_mean_shift_makes_segments(example, capsys):
    modes, of_all, agree, ours, theirs = example("mean_shift", num=400, sigma=0.1, subset=100)
    assert 2 <= len(modes) <= 10 and of_all.max() == len(modes) - 1
    assert agree > 0.9 and abs(ours - theirs) <= 5
    dark, bright = modes[modes.sum(1).argmin()], modes[modes.sum(1).argmax()]
    assert dark.max() < 0.4 and bright.min() > 0.6  # trees and sky
    output = capsys.readouterr()
    assert "400 pixels, σ = 0.1:" in output.out and "mean_shift" in output.err


def test_herding_beats_random_choices(example, capsys):
    herd, sizes, weighted, random, big, others = example("herding", 30, 1000, 50, constants={"RANDOM": 3, "SIZES": 3})
    assert len(set(herd.indices.tolist())) == 30 and len(sizes) == 3
    assert (np.asarray(herd.mmd)[sizes - 1] < random.min(1)).all()
    assert (np.array(weighted) <= np.asarray(herd.mmd)[sizes - 1] + 1e-6).all()
    assert big.mmd[-1] < others.min() / 2
    assert "of each digit" in capsys.readouterr().out


def test_the_metric_orders_what_is_worse_and_has_no_bias(example, capsys):
    import cmmd

    scores, ratios, errors = example("cmmd", repetitions=40, constants={"SIZES": (50, 200)})
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


def test_svgd_of_eight_schools_comes_near_nuts(example, capsys):
    """By the bandwidth that KSD prefers; the median's underestimates."""
    from svgd_numpyro import compared

    size = {"particles": 200, "steps": 300, "samples": 300}
    found, best, nuts = example("svgd_numpyro", **size, constants={"TAUS": (0.1, "median")})
    assert best == 0.1 and found[0.1][1] < found["median"][1] / 3
    assert found["median"][0] > 0.2  # a narrower kernel
    (shift, ratio), (of_median, ratio_of_median) = (compared(found[x][2], nuts) for x in found)
    assert shift.max() < 0.2 < of_median.max() and abs(ratio - 1).max() < 0.2 < 1 - ratio_of_median.min()
    output = capsys.readouterr().out
    assert "least KSD²: τ = 0.1" in output and output.count(" sd   ") == 2


@pytest.mark.parametrize("library, name", [("flax", "mmd_flax"), ("equinox", "mmd_equinox")])
def test_generators_of_libraries_learn(example, capsys, library, name):
    pytest.importorskip(library)
    losses, held = example(name, steps=40, batch=128)
    assert len(losses) == 40 and losses[-1] < losses[0] / 3
    assert held[-1][1] < held[0][1] / 2 and held[-1][0] == 40
    output = capsys.readouterr()
    assert "between real digits" in output.out and "100%" in output.err


# The batch is small: of half a million hidden units a few lie within rounding of zero, and gradients differ by 7e-5 and
# more where a ReLU lets one through on one device and not on four.
SCRIPT = """
import importlib, json, sys
import jax
import numpy as np
from jaxgauss import embedding_norm_squared

def first_step(library, num_devices):
    example = importlib.import_module(f"mmd_{library}")
    mesh = jax.make_mesh((num_devices,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:num_devices])
    model, optimizer, others, images, _ = example.begin(mesh, 10)
    norm = embedding_norm_squared(images, example.TAUS, mesh=mesh, query_axis="data")
    if library == "flax":
        loss = example.train_step(model, optimizer, others, images, norm, mesh=mesh, batch=16)
        state = optimizer.opt_state
    else:
        _, state, loss = example.train_step(model, others, images, norm, jax.random.key(1), optimizer, mesh, 16)
    moments = [np.ravel(x) for x in jax.tree.leaves(state[0].mu)]  # a tenth of the gradient
    return float(loss), np.concatenate(moments), [len(x.data) for x in images.addressable_shards]

for library in sys.argv[1:]:
    (loss, one, _), (loss_of_four, four, shares) = (first_step(library, num) for num in (1, 4))
    print(json.dumps([loss, loss_of_four, float(np.linalg.norm(four - one) / np.linalg.norm(one)), shares, len(one)]))
"""


def test_generators_of_libraries_take_on_several_devices_the_step_of_one():
    libraries = [x for x in ("flax", "equinox") if importlib.util.find_spec(x)]
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    output = run("-c", SCRIPT, *libraries, flags=flags, PYTHONPATH=str(ROOT / "examples"))
    for line in output.splitlines()[-len(libraries) :]:
        loss, of_four, difference, shares, num = json.loads(line)
        assert of_four == pytest.approx(loss, rel=0, abs=3e-6)  # each within 1e-6 of its terms
        assert num > 1e5 and difference < 2e-5  # of gradients in float32; it is 1e-7
        assert shares == [320] * 4


def test_a_gaussian_process_fills_in_a_photo(example, capsys):
    losses, (theirs, ours), error = example("gaussian_process", num=1500, side=40, steps=8, stride=4)
    assert losses[-1] < losses[0]
    assert ours < 1.2 * theirs < 0.2  # of brightness from 0 to 1, whose standard deviation is 0.3
    assert error < 0.12
    printed = capsys.readouterr().out
    assert "scikit-learn on " in printed and "products with the matrix" in printed


def test_stars_on_a_cluster_become_a_map(example, capsys, monkeypatch, tmp_path):
    from dask.distributed import LocalCluster
    from dask_sketch import BOX, TAU, stars

    whole, part = (stars(num, seed) for num, seed in ((250_000, 0), (10_000, 1)))
    monkeypatch.chdir(tmp_path)  # where files go that all workers of a cluster see
    with LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster:  # its workers are threads
        where = {"kill": False, "scheduler": cluster.scheduler_address}
        sketch, density, error = example("dask_sketch", 260_000, 2, "1.5GiB", **where)
    assert error < 1e-6 and 0 < density.mean() * 4 < 1  # some stars are outside
    expected = fourier_sketch(whole, np.ones(250_000, "float32"), TAU, **BOX)
    expected += fourier_sketch(part, np.ones(10_000, "float32"), TAU, **BOX)
    np.testing.assert_allclose(sketch(part[:100]), expected(part[:100]), rtol=1e-5)
    printed = capsys.readouterr()
    assert "260,000 stars in 2 files, 2 MB in all, 2 workers" in printed.out and "100%" in printed.err


def test_photos_exchange_their_colors(example):
    out, before, after = example("optimal_transport", num=500, stride=8)
    assert out.converged and after < before / 20
