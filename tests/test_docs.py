"""What the documentation says is true: its examples run, its numbers come from files, its links lead somewhere."""

import doctest
import hashlib
import importlib
import inspect
import pkgutil
import pydoc
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import jaxgauss
import torch_backend
from benchmarks.tools import pages
from jaxgauss._checks.settings import Queries

ROOT = Path(__file__).parent.parent
entries = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "site" / "entries.py")))
PATHS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PATHS}
WITH_CODE = [
    pytest.param(page, marks=[pytest.mark.slow] * (page != "README.md"))
    for page, text in PAGES.items()
    if "```python\n" in text
]
SLOW = {f"jaxgauss.{name}" for name in jaxgauss._WITH_OTHERS} | {"jaxgauss._estimator"}  # other libraries
WITH_DOCSTRINGS = [
    pytest.param(module.name, marks=[pytest.mark.slow] * (module.name in SLOW))
    for module in pkgutil.walk_packages(jaxgauss.__path__, "jaxgauss.")
    if not module.ispkg
]


@pytest.mark.parametrize("page", WITH_CODE)
def test_examples_of_a_page_run(as_it_comes, capsys, page):
    code = "".join(re.findall(r"```python\n(.*?)```", PAGES[page], re.S))
    exec(compile(code, page, "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    expected = re.findall(r"# -> (.*)", code)
    if len(expected) == 1:
        expected *= len(printed)  # of a loop
    assert len(printed) == len(expected) > 0
    for got, said in zip(printed, expected, strict=True):
        assert got == said or float(got) == pytest.approx(float(said), rel=1e-4)


@pytest.mark.parametrize("name", WITH_DOCSTRINGS)
def test_docstring_examples(as_it_comes, name):
    module, finder, runner = importlib.import_module(name), doctest.DocTestFinder(), doctest.DocTestRunner()
    own = {x for x, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == name}
    for test in (test for x in sorted(own) for test in finder.find(getattr(module, x), x, globs={})):
        runner.run(test)
    public = {x for x in own & vars(jaxgauss).keys() if x.islower()}
    without = {"gauss_sum_dense", "gauss_sum_blocked"}
    assert runner.failures == 0 and runner.tries >= len(public - without)


def slug(heading):
    """As GitHub and Python-Markdown make it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    named = set(re.findall(r"(?:examples|benchmarks|docs)/[\w./-]+\.(?:py|json|png|md)", PAGES[page]))
    missing = [path for path in named if not (ROOT / path).exists() and not (ROOT / "docs" / path).exists()]
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            there = (ROOT / page).parent.joinpath(path) if path else ROOT / page
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.M) if anchor and there.exists() else []
            if not there.exists() or (anchor and anchor not in map(slug, headings)):
                missing.append(target)
    assert not missing


@pytest.mark.parametrize("path", pages.PAGES, ids=lambda path: path.name)
def test_figures_are_those_of_the_measurements(path):
    assert pages.filled(path.read_text()) == path.read_text(), "python -m benchmarks.tools.pages writes them anew"


def test_every_block_of_figures_is_shown_and_every_measurement_has_its_command():
    text = "".join(PAGES.values())
    assert {name for _, name, _, _ in pages.BLOCK.findall(text)} == pages.BLOCKS.keys()
    made = set(re.findall(r"\.venv/bin/python (-m benchmarks(?! --suite all)[^`\n]*--keep)", text))
    results = [path.name for path in pages.RESULTS.glob("*.json")]
    assert len(made) == len(results) - 1 == sum(name in text for name in results) - 1  # one on two machines


def test_a_figure_that_was_typed_is_noticed():
    page = (ROOT / "docs" / "precision.md").read_text()
    assert "| 3.3e-4 " in page and pages.filled(page.replace("| 3.3e-4 ", "| 3.2e-4 ")) == page


def test_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= 9000


@pytest.mark.parametrize("package", [jaxgauss, torch_backend], ids=lambda package: package.__name__)
def test_public_names_have_a_place_in_the_api(package):
    shown = [x for page, text in PAGES.items() if "docs/api/" in page for x in entries.ENTRY.findall(text)]
    assert len(shown) == len(set(shown))
    shown = {name.removeprefix(f"{package.__name__}.") for name in shown if name.startswith(package.__name__)}
    exported = set(re.findall(r"^from \S+ import \w+ as ([^_]\w*)$", Path(package.__file__).read_text(), re.M))
    for path in Path(package.__file__).parent.glob("[!_]*.py") if package is jaxgauss else ():  # of other libraries
        for own in (r"^(?:def|class) ([^_]\w*)", r"^ *from \._\S+ import (\w+) as \1$"):
            exported |= {f"{path.stem}.{x}" for x in re.findall(own, path.read_text(), re.M)}
    assert shown == exported and len(shown) > 15


@pytest.mark.parametrize("page", entries.PAGES, ids=lambda page: page.stem)
def test_the_api_says_what_docstrings_say_today(page):
    assert entries.written(page.read_text()) == page.read_text(), "python docs/site/entries.py writes it anew"


def test_public_functions_are_documented():
    functions = [name for name, value in vars(jaxgauss).items() if name[0].islower() and inspect.isfunction(value)]
    assert len(functions) > 15
    for name in functions:
        assert len(getattr(jaxgauss, name).__doc__) > 200
        assert f"`{name}`" in PAGES["README.md"] and f"`{name}`" in PAGES["docs/api/index.md"], name


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.stem)
def test_the_gallery_shows_what_an_example_prints_today(path):
    page = PAGES[f"docs/gallery/{path.stem}.md"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    assert f"the code's digest is {digest}" in page, f"python docs/site/gallery.py {path.stem} writes it anew"
    assert f"$ python examples/{path.name}\n" in page and f"](../../examples/{path.name})" in page
    assert path.stem == "quickstart" or f"](../../examples/pictures/{path.stem}.png)" in page
    assert f"({path.stem}.md)" in PAGES["docs/gallery/index.md"]


def test_contributing_names_tests_that_exist():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "CONTRIBUTING.md").read_text()))
    there = set(re.findall(r"^def (test_\w+)", "".join(x.read_text() for x in (ROOT / "tests").glob("*.py")), re.M))
    assert len(named) >= 4 and named <= there


def test_help_opens_with_a_signature_that_one_can_read():
    modules = {
        "jaxgauss": jaxgauss,
        **{name: importlib.import_module(f"jaxgauss.{name}") for name in jaxgauss._WITH_OTHERS},
    }
    signatures = {
        f"{module}.{name}": str(inspect.signature(value))
        for module, names in modules.items()
        for name, value in vars(names).items()
        if name[0] != "_" and (inspect.isfunction(value) or inspect.isclass(value))
        if names is jaxgauss or value.__module__ in (names.__name__, "jaxgauss._estimator")
    }
    unreadable = {name: text for name, text in signatures.items() if "jaxtyping" in text or len(text) > 320}
    assert len(signatures) > 60 and not unreadable
    opens = "gauss_sum(queries: Array, keys: Array, values: Array, tau: Array | float = 1.0, *, engine: str | Engine ="
    assert pydoc.render_doc(jaxgauss.gauss_sum, renderer=pydoc.plaintext).splitlines()[2].startswith(opens)
    assert jaxgauss.gauss_sum.__annotations__["queries"] is Queries  # for those who check types
