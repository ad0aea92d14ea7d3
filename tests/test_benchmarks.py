"""The benchmarks measure what they say, go on after an interruption, and draw from their files alone."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import inspect
import itertools
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import jaxgauss
from benchmarks import __main__ as program
from benchmarks import calls, clouds, grids, inside, plots, resampling, rivals, study, suites
from benchmarks.tools import fit_costs
from jaxgauss._engines import costs

ROOT = Path(__file__).parents[1]
OURS = ("auto",)
pytestmark = pytest.mark.usefixtures("as_it_comes")


def some(of, *names):
    return {name: of[name] for name in names or list(of)[:1]}


SMALL: dict[str, tuple[int, dict]] = {  # of a suite, how many rows it finds with these sizes
    "calls": (7, {"NUMS": (16,), "ROUNDS": 1}),
    "clouds": (2 * 5, {"NUMS": (40,), "DIMS": (3,), "FUNCTIONS": ("gauss_sum", "log_gauss_sum")}),
    "compiling": (
        3,
        {"SIZES": [(40, 3)], "PROCESSES": 1, "FUNCTIONS": lambda m: some(m.FUNCTIONS, *list(m.FUNCTIONS)[:3])},
    ),
    "foretold": (3, {"SHARE": 0.01, "NUM_SAME": 40, "CALLS": lambda m: some(m.CALLS, *list(m.CALLS)[::13])}),
    "first_calls": (3, {"NUM": 40, "NAMES": ("gauss_sum", "gradients of hsic", "mmd_estimate of chunks")}),
    "few_dimensions": (
        2 * 4 + 7 + 2 + 6 * 2 + 2,
        {"SUMS": [(1, 8, 200), (1, 8, 300)], "DIMS": (1,), "HOSTILE": 100, "SMALL": (64,), "LENGTHS": (5,)}
        | {"PLANE": 80, "PERMUTATIONS": 19, "CHECKED": 8, "TAUS": lambda m: some(m.TAUS)}
        | {"METHODS": lambda m: some(m.METHODS, "score", "log-density", "MMD flow, a step")},
    ),
    "kernels": (2 * 2 * 2, {"NUM": 100, "DIMS": (3,), "KEOPS": lambda m: some(m.KEOPS, "matern12", "imq")}),
    "million": (2, {"PROCESSES": [("jaxgauss", 90), ("scikit-learn", 90)], "SIDE": 20}),
    "mmd": (
        2 + 2 * 2 + 2 + 4 + 3 + 2 * 2,
        {"GROUPS": (3, 20), "SETS": (4, 5, 9), "ROWS": 20} | {"SIZES": lambda m: {f: mmd_sizes(m, f) for f in m.SIZES}},
    ),
    "precision": (124, {"NUM": 300, "DIMS": (3,), "TAUS": (1.0, 1.0, 1.0, 100.0), "OFFSETS": (10.0, 0.0)}),
    "resampling": (
        3 * 3 + 3,
        {"DRAWS": 2, "NUM": 24, "RESAMPLINGS": 19, "SIZES": (24,), "METHODS": lambda m: firsts(m.METHODS)}
        | {"ALTERNATIVES": lambda m: firsts(m.ALTERNATIVES)},
    ),
    "sliced_tests": (
        5 + 6 + 2,
        {"SHIFTS": [(40, 0.1, 2), (30, 0.1, 2)], "FEW": 35, "TIMES": [("mmd_test", 90), ("hsic_test", 90)]},
    ),
    "sliced": (
        2 * 2 * (3 + 1 + 2 + 1) + 6 + 2 * 2 * 2 + 2,
        {"DIMS": (7,), "DIRECTIONS": (8, 32), "QUERIES": 20, "KEYS": 30, "OF_PAIRS": 5, "DRAWS": 2, "STEEP_DRAWS": 2}
        | {"STEEP_DIRECTIONS": 64, "NUMS": (50, 100), "LARGEST": 60, "PART": 40, "CHECKED": 8}
        | {"WIDER": (16,), "OF_WAVES": 100},
    ),
    "scaling": (5 + 2, {"NUM": 40, "DIMS": (3,), "KEYS": 3000, "QUERIES": 20, "CHUNK": 1000}),
}
MODULES = {"mmd": "applications", "first_calls": "calls"}
SLOW = ("few_dimensions", "kernels", "million", "mmd", "resampling", "scaling", "sliced", "sliced_tests")


def firsts(of):
    return {name: some(x) for name, x in of.items()}


def mmd_sizes(m, cell):
    """Two of what is drawn over N."""
    if cell in (m.grouped_sums, m.grouped_mmd):
        return [("gradients", 3)]
    return [(32, 3), (64, 3)] if cell is m.mmd_step else [(32, 3)]


@pytest.fixture
def quickly(monkeypatch):
    """Times and memory mean nothing here."""
    monkeypatch.setattr(study, "peak_mebibytes", lambda call: 1.0)
    for name, value in {"SETTLED": 1e-4, "SHORTEST": 1e-4, "WARM_UPS": 1}.items():
        monkeypatch.setattr(costs, name, value)


@pytest.fixture
def small(monkeypatch, quickly):
    """A suite and its module, with small sizes and without other libraries that compile for long."""

    def small(name):
        module = importlib.import_module(f"benchmarks.{MODULES.get(name, name)}")
        for key, value in SMALL[name][1].items():
            monkeypatch.setattr(module, key, value(module) if callable(value) else value)
        monkeypatch.setattr(module, "elsewhere", lambda function, *x: function(*x), raising=False)
        find, missing = importlib.util.find_spec, ("pykeops", "hyppo", "kt")
        monkeypatch.setattr(importlib.util, "find_spec", lambda x: None if x in missing else find(x))
        return module, suites.SUITES[name]

    return small


METHODS = {  # of a suite's figure, or of its rows that have this
    ("few_dimensions", "figure", "sums"): {"auto", "products", "all pairs", "finufft"},
    ("mmd", "figure", "iteration"): {"jaxgauss", "OTT online", "OTT dense"},
    ("mmd", "figure", "sums"): {"segments", "one by one"},
    ("precision", "guard", False): {"reweight", "prescale", "rescale"},
    ("sliced", "kernel", "gauss"): {"P directions", "P/4 directions, 4 frequencies", "Sliced"}
    | {"random Fourier features"},
    ("sliced", "figure", "times"): {"Sliced", "all pairs"},
    ("scaling", "figure", "streamed"): {"streamed", "in memory"},
}
SHOWN = {
    "few_dimensions": ("| test, a bandwidth, N = 80 ", "hostile to waves"),
    "kernels": ("| matern12 ", "| imq "),
    "mmd": ("MMD step, dense / ours: ", "| kde_logpdf "),
    "scaling": ("million keys of 16",),
    "sliced": ("| gauss: random Fourier features ", "take less time from N = ", "| matern12 "),
}
LARGEST = {"kernels": 1e-5, "few_dimensions": 1e-3, "scaling": 2e-5, "mmd": 1e-3}  # errors


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in SMALL])
def test_a_suite_is_measured_shown_and_drawn(small, tmp_path, capsys, name):
    """And shown and drawn again from its file alone."""
    _, suite = small(name)
    out, picture = tmp_path / f"{name}.json", tmp_path / f"{name}.png"
    suite.measure(name, "cpu", 2, out)
    data = study.read(out)
    cells = data["cells"]
    assert data["complete"] and data["suite"] == name and len(cells) == SMALL[name][0]
    assert not [c for c in cells if "failed" in c and c["method"] != "blackjax"]
    assert all(0 <= c.get("rejected", 0) <= 2 and 0.5 < c.get("within", 1) <= 1 for c in cells)
    errors = [c["error"] for c in cells if c.get("error") is not None and name in LARGEST]
    assert max(errors, default=0) <= LARGEST.get(name, 0) and (errors or name not in LARGEST)
    for (of, key, value), methods in METHODS.items():
        assert of != name or {c["method"] for c in cells if c.get(key) == value} == methods
    report, printed = suite.report(data), capsys.readouterr().out
    assert report in printed and all(text in report for text in SHOWN.get(name, ()))
    assert name != "resampling" or "kerneltests is not installed: left out\nhyppo is not" in printed
    if suite.draw:
        before = picture.read_bytes()
        picture.unlink()
        program.main(["--plot", str(out)])
        assert picture.read_bytes() == before and len(before) > 10_000


WRONG = {  # by suite and figure, what is put in the place of a function of ours
    ("kernels", "time"): ("kernel_sum", lambda q, k, v, kernel: jaxgauss.gauss_sum(q, k, v)),
    ("mmd", "MMD step"): ("mmd_squared", lambda x, y, tau: jaxgauss.mmd_squared(x, y, 1.1 * tau)),
    ("mmd", "sums"): ("gauss_sum", lambda *x, **how: jaxgauss.gauss_sum(*x)),
    ("sliced", "times"): ("gauss_sum", lambda *x, **how: 2.0 * jaxgauss.gauss_sum(*x, **how)),
    ("few_dimensions", "methods"): ("METHODS", {"score": lambda x, y, tau: jaxgauss.kde_score(x, y, 1.1 * tau)}),
}


@pytest.mark.parametrize(("name", "figure"), WRONG)
def test_a_wrong_result_is_not_timed(small, monkeypatch, name, figure):
    module, suite = small(name)
    monkeypatch.setattr(module, *WRONG[name, figure])
    step = next(step for step in suite.steps("cpu") if step.about["figure"] == figure)
    with pytest.raises(AssertionError, match=f"({'|'.join(suite.ours)}), .*: error"):
        step.found(1, suite.ours, ())


def test_a_test_rejects_what_differs():
    for problem, strength in (("two-sample", 8.0), ("independence", 0.999), ("goodness of fit", 8.0)):
        draw = resampling.sample(resampling.TIMED[problem][0], 24, strength, 0)
        assert next(iter(resampling.METHODS[problem].values())).test(*draw, 0, 19)


def test_a_wavy_density_has_its_waves(rng):
    draws = resampling.wavy(rng, lambda n: rng.uniform(size=(n, 1)), lambda x: np.sin(2 * np.pi * x[:, 0]), 4000)
    assert draws.shape == (4000, 1)
    assert (draws < 0.5).mean() == pytest.approx(0.5 + 1 / np.pi, abs=0.05)


def test_a_function_runs_in_a_process_of_its_own():
    assert study.elsewhere(os.getppid) == os.getpid()
    assert study.elsewhere(os.path.join, "a", "b") == os.path.join("a", "b")


def test_figures_stay_where_git_ignores_them_unless_kept(tmp_path, monkeypatch, capsys):
    assert (study.OUTPUTS, study.RESULTS) == (ROOT / "outputs" / "benchmarks", ROOT / "benchmarks" / "results")
    monkeypatch.setattr(study, "OUTPUTS", tmp_path / "ignored")
    monkeypatch.setattr(study, "RESULTS", tmp_path / "kept")

    def nothing(device):
        """Nothing."""
        return []

    monkeypatch.setitem(suites.SUITES, "quick", study.Study(nothing, lambda data: ""))
    program.main(["--suite", "quick"])
    assert [path.name for path in tmp_path.iterdir()] == ["ignored"]
    program.main(["--suite", "quick", "--keep"])
    program.main(["--suite", "quick", "--out", str(tmp_path / "mine" / "a.json")])
    found = sorted((path.parent.name, path.suffix) for path in tmp_path.rglob("*.*"))
    assert found == [(folder, ".json") for folder in ("ignored", "kept", "mine")]
    for wrong in (["--keep", "--out", "a.json"], ["--suite", "calls", "--device", "cuda"], ["--help"]):
        with pytest.raises(SystemExit):
            program.main(wrong)
    assert "Whether `auto` is ever slower" in capsys.readouterr().out


def cell(name, calls, error=0.0, series="series", **more):
    methods = {method: (lambda call=call: call) for method, call in calls.items()}
    about = {"figure": name, "n": 1, "d": 1}
    return study.Cell(about, methods, lambda results: results * error, 1e-3, series, **more)


def info(**more):
    return {"device": "cpu", "commit": "abc", "suite": "test", "runs": 2} | more


def result(d, c, n, what, method, milliseconds, **more):
    """A cell of a result file: N² times the milliseconds at N = 16."""
    seconds = milliseconds * (n / 16) ** 2 / 1e3
    about = {"figure": f"N, D = {d}, C = {c}", "n": n, "d": d, "c": c, "batch": 1, "dtype": "float32", "what": what}
    return about | {"method": method, "seconds": 3 * [seconds]} | dict.fromkeys(("q1", "median", "q3"), seconds) | more


def quick():
    """A result file of the quick suite."""
    cells = [
        result(d, c, n, what, method, time * d * (1 + (what == "gradients")), mib=mib, error=1e-6 / d)
        for (d, c), what, n in itertools.product(((3, 1), (32, 32)), ("forward", "gradients"), (16, 64, 256))
        for method, time, mib in (("dense JAX", 0.25, n), ("auto", 0.125, 0.0))
    ]
    return info(device_name="this machine", cores=2, suite="quick", cells=cells)


def test_every_method_is_a_gauss_sum_with_its_gradients():
    batch, single = rivals.Problem(40, 3, 2, batch=2), rivals.Problem(40, 3, 1)
    for problem, what, names in (
        (batch, "gradients", (*rivals.OURS, *rivals.JAX_NATIVE, "torch eager")),
        (single, "forward", ("float32", "waves", "scikit-learn", "OTT online", "PyKeOps")),
    ):
        for name, prepare in rivals.calls(names, problem, what).items():
            call = prepare()
            assert not isinstance(call, str)
            assert problem.error(what, call()) < (5e-3 if name == "float16x2" else 1e-5), name
    for name, problem in {"dense JAX": rivals.Problem(10**6, 3, 1), "OTT online": batch, "cudnn": batch}.items():
        assert isinstance(rivals.calls([name], problem, "forward")[name](), str) == (name != "cudnn")
    assert rivals.OTHERS.keys() >= {"PyKeOps", "torch.compile", "OTT online"}


def test_an_interrupted_run_goes_on_where_it_was(tmp_path, capsys, monkeypatch, quickly):
    made, out = [], tmp_path / "result.json"
    monkeypatch.setattr(study, "environment", lambda device: info(device=device))

    def measured(*names, fails=()):
        def call(name):
            made.append(name)
            if name in fails:
                raise KeyboardInterrupt
            return 1.0

        steps = [cell(name, {"auto": functools.partial(call, name)}, times={"auto": 64}) for name in names]
        study.Study(lambda device: steps, lambda data: "a report", ours=OURS).measure("test", "cpu", 8, out)
        return json.loads(out.read_text())

    with pytest.raises(KeyboardInterrupt):
        measured("first", "second", fails=["second"])
    assert not json.loads(out.read_text())["complete"]
    firsts = made.count("first")
    data = measured("first", "second")
    assert made.count("first") == firsts and made.count("second") > 8 and data["complete"]
    for c in data["cells"]:
        assert len(c["seconds"]) == 8 and c["q1"] <= c["median"] <= c["q3"] and c["error"] == 0
        assert c["median"] == pytest.approx(64 * np.median(c["seconds"]))  # of all queries, where a part was timed
    assert "a report\nraw data: " in capsys.readouterr().out
    assert measured("first", "second") == data
    assert "measured before (delete it to measure again): " in capsys.readouterr().out
    monkeypatch.setattr(study, "environment", lambda device: info(commit="other"))
    with pytest.raises(SystemExit, match="of another device, commit, suite or number of runs"):
        measured("first")


IN_TURN = """#!{python}
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from pathlib import Path
from types import SimpleNamespace
from test_benchmarks import cell, info, logged, study
assert sys.argv[1:10] == "-m benchmarks --suite test --device cpu --runs 2 --out".split()
assert sys.argv[11:] == ["--in-turn"]
study.environment = lambda device: info(commit="other", versions={{"jax": "0.1"}})
steps = [cell(name, {{"auto": logged({log!r}, "there " + name)}}) for name in {names!r}]
study.Study(lambda device: steps, str).measure("test", "cpu", 2, Path(sys.argv[10]), in_turn=True)
"""


def logged(log, line):
    """A call that writes the line."""

    def call():
        with open(log, "a") as file:
            print(line, file=file)
        return 1.0

    return call


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for Python is a script with a shebang")
@pytest.mark.parametrize("ends", [False, True])
def test_two_environments_take_turns(tmp_path, monkeypatch, capsys, quickly, ends):
    """Each step is measured here, then there, and both stand in one file; if the other one ends, so does the run."""
    monkeypatch.setattr(study, "environment", lambda device: info(versions={"jax": "0.2"}))
    python, log, out = (tmp_path / name for name in ("python", "log", "result.json"))
    names, folders = ["a", "b"], {"root": str(ROOT), "tests": str(ROOT / "tests")}
    text = IN_TURN.format(python=sys.executable, log=str(log), names=names, **folders)
    python.write_text(f"#!{sys.executable}\nprint('ready', flush=True)\ninput()" if ends else text)
    python.chmod(0o755)
    steps = [cell(x, {"auto": logged(log, "here " + x)}) for x in names]
    suite = study.Study(lambda device: steps, lambda data: data["commit"], ours=OURS)
    if ends:
        with pytest.raises(SystemExit, match=r"It ended: .*--in-turn"):
            suite.measure("test", "cpu", 2, out, other=python)
        return
    suite.measure("test", "cpu", 2, out, other=python)
    order = [line for line, _ in itertools.groupby(log.read_text().splitlines())]
    assert order == [f"{where} {name}" for name in names for where in ("here", "there")]
    assert "abc\nThat was jax 0.2; beside it, jax 0.1:\n\nother\n" in capsys.readouterr().out
    data = json.loads(out.read_text())
    assert data["complete"] and data["beside"]["complete"] and data["beside"]["commit"] == "other"
    for found in (data, data["beside"]):
        assert [c["figure"] for c in found["cells"]] == names and len(found["cells"][0]["seconds"]) == 2
    assert sorted(x.name for x in tmp_path.iterdir()) == ["log", "python", "result.json"]


def test_wrong_slow_and_broken_methods(tmp_path, monkeypatch, quickly):
    """A wrong result of ours stops the run, another's is not timed; what is slow is timed once, and not again."""

    def broken():
        raise RuntimeError("no such thing")

    def take(calls, *names, error=0.0, series="series"):
        results = study.Results(tmp_path / f"{names[0]}.json", info())
        for name in names:
            results.take(cell(name, calls, error, series), 8, OURS)
        return results.data["cells"]

    monkeypatch.setattr(study, "TOO_SLOW", 0.01)
    calls = {"auto": lambda: 1.0, "slow": lambda: time.sleep(0.02) or 1.0, "broken": broken}
    found = {(c["figure"], c["method"]): c for c in take(calls, "a", "b")}
    assert len(found["a", "slow"]["seconds"]) == 1 and ("b", "slow") not in found
    assert found["a", "broken"]["failed"] == "RuntimeError: no such thing"
    assert len(take({"slow": calls["slow"]}, "f", "g", series="")) == 2
    (wrong,) = take({"other": lambda: 1.0}, "c", error=1.0)
    assert "seconds" not in wrong and wrong["error"] == 1
    with pytest.raises(AssertionError, match="auto"):
        take({"auto": lambda: 1.0}, "d", error=1.0)
    with pytest.raises(RuntimeError, match="no such thing"):
        take({"auto": broken}, "e")


def test_measured_memory_is_that_of_the_call():
    found = study.peak_mebibytes(lambda: np.ones(2**24).sum())
    assert found is None or 120 < found < 200


@pytest.mark.slow
def test_gauss_sums_are_measured_and_drawn(tmp_path, capsys, monkeypatch, quickly):
    monkeypatch.setattr(study, "peak_mebibytes", lambda call: None)  # as where the system does not tell
    names = ["auto", "rescale", "dense JAX", "bare attention"]
    few, many = (rivals.Problem(num, 3, 1) for num in (32, 64))
    speed = {"rates": {"float32": rivals.rates("cpu", "float32", 256, runs=2)}}
    figures = [("N, D = 3, C = 1", few), ("N, D = 3, C = 1", many), ("headline", few), ("memory", many)]
    steps = [grids.cell(figure, p, "forward", names, d=3) for figure, p in figures]
    suite = dataclasses.replace(suites.SUITES["paper"], steps=lambda device: steps, info=lambda device: speed)
    suite.measure("paper", "cpu", 2, tmp_path / "paper.json")
    grids.draw_ratios(study.read(next(study.RESULTS.glob("*_jax.json"))), tmp_path / "jax.json")
    output = capsys.readouterr().out
    assert "| forward: D, C  | 3, 1 " in output and "PyTorch's bare attention call" in output
    assert "| auto           | memory unknown |" in output
    pictures = {path.name: path.stat().st_size for path in tmp_path.glob("*.png")}
    assert pictures.keys() == {"paper_float32_time.png", "paper_float32_memory.png", "jax.png"}
    assert min(pictures.values()) > 10_000


def test_the_table_shows_the_largest_sizes_beside_auto():
    cells = quick()["cells"]
    failed = {"method": "PyKeOps", "failed": "RuntimeError: no compiler"}
    cells += [{k: v for k, v in c.items() if k != "median"} | failed for c in cells[-2:-1]]
    cells += [result(3, 1, n, "forward", "torch eager", 0.1) for n in (16, 64)]  # then too slow
    cells += [result(32, 32, 256, "forward", "scikit-learn", 10) | {"seconds": [2.56]}]
    forward, gradients, rest = grids.times(cells, beside=True).split("\n\n")
    assert forward.splitlines() == [
        "| forward: D, C | 3, 1       | 32, 32       |",
        "|---------------|------------|--------------|",
        "| auto          | 96         | 1024         |",
        "| dense JAX     | 192 (2.0x) | 2048 (2.0x)  |",
        "| scikit-learn  | –          | 2560* (2.5x) |",
    ]
    assert gradients.splitlines()[3:] == [
        "| dense JAX       | 384 (2.0x) | 4096 (2.0x) |",
        "| PyKeOps         | –          | failed      |",
    ]
    assert not rest and grids.times(cells, "float16") == ""


def test_every_figure_has_its_panels(tmp_path, monkeypatch):
    """Those of memory and error, too, each of which begins a row, of five as well; no memory is drawn as one page."""
    found, units = {}, plots.UNITS
    monkeypatch.setattr(plots, "finish", lambda figure, data, path, suffix, note: found.update({suffix: figure}))
    grids.draw(quick(), tmp_path)
    titles = [f"{what}: D = {d}, C = {c}" for d, c in ((3, 1), (32, 32)) for what in ("forward", "gradients")]
    axes = {suffix: [a for a in figure.axes if a.get_visible()] for suffix, figure in found.items()}
    assert axes.keys() == {"_float32_time", "_float32_memory"}
    assert [a.get_title() for a in axes["_float32_time"]] == titles
    assert [a.get_title() for a in axes["_float32_memory"]] == 2 * titles
    assert [a.get_ylabel() for a in axes["_float32_memory"]] == 4 * [units["mib"]] + 4 * [units["error"]]
    (auto,) = [line for line in axes["_float32_memory"][0].lines if line.get_color() == plots.COLORS["auto"]]
    assert list(auto.get_xdata()) == [16, 64, 256] and list(auto.get_ydata()) == [plots.PAGE] * 3
    five = {f"panel {i}": quick()["cells"][:6] for i in range(5)}
    plots.panels(quick(), tmp_path, "five", [("mib", five), ("error", five)])
    labels = [a.get_ylabel() if a.get_visible() else None for a in found["five"].axes]
    assert labels == [units["mib"]] * 5 + [None] + [units["error"]] * 5 + [None]
    assert len({a.get_ylim() for a in found["five"].axes if a.get_ylabel() == units["error"]}) == 1


def test_calls_are_those_of_every_function():
    public = {name for name, x in vars(jaxgauss).items() if inspect.isfunction(x) and not name.startswith("_")}
    assert {x.partition(" of ")[0] for x in (*calls.FUNCTIONS, *calls.LEFT_OUT)} == public
    assert {x.rpartition(" of ")[2] for x in (*calls.NAMES, *clouds.FUNCTIONS)} <= {"chunks", *calls.FUNCTIONS}


def test_all_suites_run_in_turn_and_go_on_the_day_after(monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(program, "subprocess", SimpleNamespace(run=lambda command, check: commands.append(command)))
    program.main(["--suite", "all", "--keep"])
    assert [x[-1] for x in commands] == [x for x in suites.SUITES if x != "quick"]
    assert all(x[2:5] == ["benchmarks", "--suite", "all"] and "--keep" in x for x in commands)
    with pytest.raises(SystemExit):
        program.main(["--suite", "all", "--out", "one.json"])
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    path = study.destination("cpu", "mmd", None, True)
    earlier = path.with_name(f"2000-01-01{path.name[10:]}")
    earlier.write_text("{}")
    assert study.destination("cpu", "mmd", None, True) == earlier
    assert study.destination("cpu", "calls", None, True).name[:10] == path.name[:10]
    monkeypatch.setattr(study, "commit", lambda: study.UNKNOWN)
    earlier.with_name("2000-01-01_cpu_unknown_mmd.json").write_text("{}")
    assert study.destination("cpu", "mmd", None, True).name[:10] == path.name[:10]


def test_suites_name_cells_that_differ_and_say_what_they_decide():
    for name, suite in suites.SUITES.items():
        assert suite.steps.__doc__.endswith(".")
        for device in suite.devices if name in ("quick", "paper", "jax", "precision", "kernels", "calls") else ():
            abouts = [json.dumps(step.about) for step in suite.steps(device)]
            assert len(set(abouts)) == len(abouts) > 0


def test_fit_finds_the_costs(tmp_path, monkeypatch):
    pairs, columns = np.meshgrid([16.0, 4096.0, 10.0**7], [5.0, 20.0, 260.0])
    rows = [(1, p, p * c, 4e4 + p * (0.3 + 0.006 * c)) for p, c in zip(pairs.flat, columns.flat, strict=True)]
    cost, factor = inside.calibrate.fitted(rows)
    assert cost == pytest.approx((4e4, 0.3, 0.006)) and factor == pytest.approx(1)
    table, measured = tmp_path / "costs.json", []
    table.write_text(json.dumps({"A": {"0.1": {}}, costs.vendor(): {"0.2": {}}}))
    monkeypatch.setattr(costs, "TABLE", table)
    found = {"a": cost}, {"a": factor}
    monkeypatch.setattr(inside.calibrate, "measured_costs", lambda *x, **_: measured.append(x) or found)
    fit_costs.main("cpu", 8)
    data = json.loads(table.read_text())
    assert data.keys() == {"A", costs.vendor()} and "0.2" in data[costs.vendor()]
    row = data[costs.vendor()].pop(importlib.metadata.version("jaxlib"))
    assert row["a"] == cost._asdict() and row["device_name"] and measured == [(8, fit_costs.NUMS, fit_costs.SIZES)]
    fit_costs.main("cpu", 8, tmp_path / "row.json")  # which leaves the table as it is
    assert json.loads((tmp_path / "row.json").read_text()).keys() == {costs.vendor()} and len(measured) == 2


def test_limits_count_products_and_exponentials():
    single, batch = rivals.Problem(10, 3, 1), rivals.Problem(10, 3, 1, 2)
    assert rivals.limit(single, "forward", {"matmul": 4.0, "exp": 1e9}) == 100
    assert rivals.limit(single, "forward", {"matmul": 1e9, "exp": 1.0}) == 100
    assert rivals.limit(batch, "gradients", {"matmul": 1e9, "exp": 4.0}) == 100
