"""The house has storeys: who may import whom, that nobody imports in a circle, and that files are pages."""

import ast
import inspect
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import jaxgauss
import torch_backend

PACKAGES = [Path(package.__file__).parent for package in (jaxgauss, torch_backend)]
FILES = {path.relative_to(package.parent): path for package in PACKAGES for path in package.rglob("*.py")}
STOREYS = (
    "_calls",
    "_arrays",
    "_kernels",
    "_engines",
    "_checks",
    "_sums",
    "_inspect",
    "_methods",
)  # from the ground up
DOORS = {  # of the engines, for each room
    "_checks": "attention.engine engine engines settings",
    "_sums": "branches bridge engine engines forward_mode fourier.devices fourier.frame log_rules near plan programs"
    " request rules run sliced.engine sliced.sums fourier.engine",
    "_inspect": "apart bridge costs differences.all_pairs engine engines forward_mode fourier.cost fourier.engine near"
    " plan programs request scopes",
    "_methods": "fourier.forms fourier.trigonometric pair_distances programs scopes sliced.covariances"
    " sliced.directions sliced.engine sliced.forms",
}
LONGEST = 400  # lines that are no docstring
LONGEST_DOCSTRING = 45
PUBLIC = [jaxgauss, torch_backend, *(import_module(f"jaxgauss.{name}") for name in jaxgauss._WITH_OTHERS)]


def module(path):
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports(path):
    """The modules of its own package that a file imports, outside of functions or inside."""
    found, parts, known = set(), path.parts[:-1], {module(x) for x in FILES}
    for node in ast.walk(ast.parse(FILES[path].read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join((*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])))
            found |= {x if (x := f"{base}.{alias.name}") in known else base for alias in node.names}
    return found


@pytest.mark.parametrize("path", [path for path in FILES if len(path.parts) == 3], ids=str)
def test_imports_lead_downstairs(path):
    own = path.parts[1]
    names = [name.removeprefix("jaxgauss.") for name in imports(path)]
    assert {name.split(".")[0] for name in names} <= {*STOREYS[: STOREYS.index(own) + 1]}
    engines = {name.removeprefix("_engines.") for name in names if name.startswith("_engines.")}
    assert own == "_engines" or engines <= {*DOORS.get(own, "").split()}


def test_nobody_imports_in_a_circle():
    order = list(TopologicalSorter({module(path): imports(path) for path in FILES}).static_order())
    assert order.index("jaxgauss._engines.bridge") < order.index("jaxgauss._sums.gauss_sum")


@pytest.mark.parametrize("text, name", [("import torch", "bridge.py"), ('import_module("finufft")', "nufft.py")])
def test_only_one_file_names_another_library(text, name):
    ours = [path for path in FILES.values() if path.is_relative_to(PACKAGES[0])]
    assert {path.name for path in ours if text in path.read_text()} == {name}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_says_whose_room_it_is_and_is_no_longer_than_some_pages(path):
    source = FILES[path].read_text()
    tree, lines = ast.parse(source), set(range(1, 1 + len(source.splitlines())))
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    assert len(lines) <= LONGEST


def test_a_public_docstring_fits_on_a_screen():
    lengths = {
        f"{value.__module__}.{name}": len(inspect.cleandoc(value.__doc__ or "").splitlines())
        for package in PUBLIC
        for name, value in vars(package).items()
        if name[0] != "_" and (inspect.isfunction(value) or inspect.isclass(value))
        if package in (jaxgauss, torch_backend) or value.__module__ in (package.__name__, "jaxgauss._estimator")
    }
    assert not {name: lines for name, lines in lengths.items() if lines > LONGEST_DOCSTRING} and len(lengths) > 60
