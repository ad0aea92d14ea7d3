"""The examples run, and show what they claim, with few steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*arguments: str) -> str:
    """The output of a script or module, in a process of its own with JAX as it comes."""
    command = [sys.executable, "-W", "error", *arguments]
    environment = {name: x for name, x in os.environ.items() if name != "XLA_FLAGS"}  # optimized, unlike the tests
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_quickstart_agrees_with_dense():
    lines = run("examples/quickstart.py", "--num", "2048").splitlines()
    errors = [float(line.split()[-1]) for line in lines if "×" in line]
    assert len(errors) == 3 and max(errors) < 1e-5


@pytest.mark.parametrize("options", [[], ["--dense"], ["--learn-tau"]])
def test_mmd_digits_learns(tmp_path, options):
    picture = tmp_path / "digits.png"
    output = run("examples/mmd_digits.py", "--steps", "60", "--batch", "256", "--picture", str(picture), *options)
    before, after = (float(output.split("held-out MMD: ")[1].split()[i]) for i in (0, 2))
    assert after < before / 3
    assert picture.stat().st_size > 10_000 and picture.with_suffix(".npz").exists()


def test_compare_dense_measures_and_draws(tmp_path):
    picture = tmp_path / "compare.png"
    output = run("examples/compare_dense.py", "--largest", "256", "--runs", "2", "--picture", str(picture))
    rows = [line.split() for line in output.splitlines() if line.endswith(tuple("0123456789")) and "e-" in line]
    assert len(rows) == 3 and all(float(row[-1]) < 1e-5 for row in rows)
    assert picture.stat().st_size > 10_000


def test_benchmark_writes_what_it_measured(tmp_path):
    path = tmp_path / "result.json"
    code = (
        "import benchmarks.__main__ as b, pathlib; b.SIZES, b.DIMS = [(3, 1)], (3, 16);"
        "b.memories = b.digits_step = lambda *_: []; errors = b.errors; b.errors = lambda device: errors(device, 200);"
        f"b.main('cpu', 300, 2, pathlib.Path({str(path)!r}))"
    )
    assert "| 3, 1 | gradients |" in run("-c", code)
    result = json.loads(path.read_text())
    cells = [c for c in result["cells"] if c["suite"] == "jax"]
    assert {c["method"] for c in cells} >= {"auto", "rescale", "dense JAX", "blocked JAX", "bare attention kernel"}
    assert all(len(c["seconds"]) == 2 for c in cells) and result["device_name"]


def test_precision_benchmark_measures_and_draws(tmp_path):
    path = tmp_path / "precision.json"
    code = (
        "import benchmarks.precision as p, pathlib; p.NUM, p.DIMS, p.OFFSETS = 300, (3,), (10.0, 0.0);"
        f"p.main('cpu', pathlib.Path({str(path)!r}))"
    )
    output = run("-c", code)
    assert "sum, float16x2, τ = 100" in output and "flash, float16, D = 3: points 3 -> 8, with norms 5 -> 8" in output
    assert path.with_suffix(".png").stat().st_size > 10_000
    before = path.with_suffix(".png").read_bytes()
    path.with_suffix(".png").unlink()
    run("-m", "benchmarks.precision", "--plot", str(path))
    assert path.with_suffix(".png").read_bytes() == before
    cells = json.loads(path.read_text())["cells"]
    raw = {c["method"] for c in cells if not c["guard"]}
    assert raw == {"reweight", "prescale", "rescale"} and {c["what"] for c in cells} == {"sum", "gradient"}


def test_mmd_flow_reaches_the_letters(tmp_path):
    picture = tmp_path / "flow.png"
    output = run("examples/mmd_flow.py", "--num", "300", "--targets", "400", "--steps", "40", "--picture", str(picture))
    before, after = (float(output.split("MMD²: ")[1].split()[i]) for i in (0, 2))
    assert after < before / 3
    assert picture.stat().st_size > 10_000


def test_svgd_posterior_predicts(tmp_path):
    picture = tmp_path / "svgd.png"
    options = ["--particles", "200", "--steps", "40", "--samples", "50", "--picture", str(picture)]
    output = run("examples/svgd_posterior.py", *options)
    accuracies = [float(output.split(name)[1].split()[0]) for name in ("\nMAP", "\nMCMC", "\nSVGD")]
    assert min(accuracies) > 0.93
    assert float(output.split("SVGD - MCMC: ")[1].split()[0]) < 0.5  # posterior sd, on average
    assert picture.stat().st_size > 10_000


def test_two_sample_test_sees_the_blur(tmp_path):
    picture = tmp_path / "test.png"
    options = ["--num", "1000", "--repetitions", "20", "--permutations", "99", "--picture", str(picture)]
    output = run("examples/two_sample_test.py", *options)
    p_values = [float(line.split("p-value ")[1].split(",")[0]) for line in output.splitlines() if "p-value" in line]
    assert len(p_values) == 2 and p_values[1] == 0.01  # several bandwidths see it
    assert picture.stat().st_size > 10_000


def test_kde_agrees_with_scikit_learn(tmp_path):
    picture = tmp_path / "kde.png"
    output = run("examples/kde.py", "--num", "300", "--steps", "20", "--picture", str(picture))
    assert float(output.split("difference ")[1].split()[0]) < 1e-5
    assert picture.stat().st_size > 10_000
