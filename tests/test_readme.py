"""What the documentation says is true: the README's example, the docstrings' examples, and the numbers' sources."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import jax
import pytest

import jaxgauss

ROOT = Path(__file__).parent.parent
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
README = PAGES["README.md"]
MODULES = [module.name for module in pkgutil.walk_packages(jaxgauss.__path__, "jaxgauss.") if not module.ispkg]


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run(capsys, page):
    code = "".join(re.findall(r"```python\n(.*?)```", PAGES[page], re.S))
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(code, page, "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    expected = re.findall(r"# -> (.*)", code)
    if page != "README.md":
        expected *= len(printed)  # of a loop
    assert len(printed) == len(expected) > 2
    for got, said in zip(printed, expected, strict=True):
        assert got == said or float(got) == pytest.approx(float(said), rel=1e-4)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module, finder, runner = importlib.import_module(name), doctest.DocTestFinder(), doctest.DocTestRunner()
    own = {x for x, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == name}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        for test in (test for x in sorted(own) for test in finder.find(getattr(module, x), x, globs={})):
            runner.run(test)
    public = {x for x in own & vars(jaxgauss).keys() if x.islower()}
    without = {"gauss_sum_dense", "gauss_sum_blocked"}
    assert runner.failures == 0 and runner.tries >= len(public - without)


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_files_that_exist(page):
    named = set(re.findall(r"(?:examples|benchmarks)/[\w./-]+\.(?:py|json|png)", PAGES[page]))
    linked = {target for target in re.findall(r"\]\(([^)#]+)\)", PAGES[page]) if "://" not in target}
    missing = [path for path in named if not (ROOT / path).exists()]
    missing += [path for path in linked if not (ROOT / page).parent.joinpath(path).exists()]
    assert linked and not missing


def test_public_functions_are_documented():
    functions = [name for name in vars(jaxgauss) if name.islower() and not name.startswith("_")]
    assert len(functions) > 15
    for name in functions:
        assert len(getattr(jaxgauss, name).__doc__) > 200
        assert f"`{name}`" in README, name
