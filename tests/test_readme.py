"""What the documentation says is true: the README's example, the docstrings' examples, and the numbers' sources."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import jax
import pytest

import jaxgauss

README = (Path(__file__).parent.parent / "README.md").read_text()
MODULES = [module.name for module in pkgutil.walk_packages(jaxgauss.__path__, "jaxgauss.") if not module.ispkg]


def test_readme_example_runs(capsys):
    code = "".join(re.findall(r"```python\n(.*?)```", README, re.S))
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    expected = re.findall(r"# -> (.*)", code)
    assert len(printed) == len(expected) > 2
    for got, said in zip(printed, expected, strict=True):
        assert got == said or float(got) == pytest.approx(float(said), rel=1e-4)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module, finder, runner = importlib.import_module(name), doctest.DocTestFinder(), doctest.DocTestRunner()
    own = {x for x, value in vars(module).items() if getattr(value, "__module__", "") == name}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        for test in (test for x in sorted(own) for test in finder.find(getattr(module, x), x, globs={})):
            runner.run(test)
    public = {x for x in own & vars(jaxgauss).keys() if x.islower()}
    without = {"gauss_sum_dense", "gauss_sum_blocked"}
    assert runner.failures == 0 and runner.tries >= len(public - without)


def test_readme_names_files_that_exist():
    root = Path(__file__).parent.parent
    named = set(re.findall(r"(?:examples|benchmarks)/[\w./-]+\.(?:py|json|png)", README))
    assert named and all((root / path).exists() for path in named), named


def test_public_functions_are_documented():
    functions = [name for name in vars(jaxgauss) if name.islower() and not name.startswith("_")]
    assert len(functions) > 15
    for name in functions:
        assert len(getattr(jaxgauss, name).__doc__) > 200
        assert f"`{name}`" in README, name
