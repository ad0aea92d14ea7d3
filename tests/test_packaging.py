"""The sdist holds what the README's test command needs, and nothing stray; versions and bounds stand in one place."""

import importlib.metadata
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import jaxgauss

ROOT = Path(__file__).parents[1]
FOLDERS = (".ci", ".github", "benchmarks", "docs", "examples", "jaxgauss", "tests", "torch_backend")
FILES = (".pre-commit-config.yaml", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in")
FILES += ("README.md", "justfile", "mkdocs.yml", "pyproject.toml")
STRAY = (".venv/lib/a.py", ".git/config", "outputs/benchmarks/a.json", "tests/__pycache__/a.pyc", "examples/a.pyc")


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The files of a copy of the source tree, and the folder of the sdist that is built of them among stray files."""
    tree, built = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("built")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    needed = files(tree)
    for name in STRAY:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(built)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=tree, stdout=subprocess.DEVNULL, check=True)
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extraction_filter = getattr(tarfile, "data_filter", None)  # not before Python 3.11.4
        file.extractall(built)
    return needed, built / archive.name.removesuffix(".tar.gz")


@pytest.mark.slow
def test_sdist_holds_the_source_tree_and_nothing_stray(sdist):
    needed, folder = sdist
    assert {"tests/oracle.py", "tests/sharded.py", "benchmarks/grids.py", "examples/kde.py", ".ci/run"} <= needed
    made = {name for name in files(folder) if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert files(folder) - made == needed - made


@pytest.mark.slow
def test_sdist_tests_are_collected(sdist):
    names = [f"tests/test_{name}.py" for name in ("sharding", "examples", "benchmarks")]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *names]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
    result = subprocess.run(command, cwd=sdist[1], capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0 and all(f"{x}::test_" in result.stdout for x in names), result.stdout + result.stderr


def test_version_is_said_once():
    assert jaxgauss.__version__ == importlib.metadata.version("jaxgauss")
    said = [name for name in FILES if name != "CHANGELOG.md" and jaxgauss.__version__ in (ROOT / name).read_text()]
    assert not said


def test_versions_follow_the_bounds():
    requirements = runpy.run_path(str(ROOT / ".ci" / "requirements.py"))["requirements"]
    oldest, default, newest = (requirements(versions) for versions in ("oldest", "default", "newest"))
    assert all("==" in x for x in oldest) and len(oldest) == len(newest) == len(default) - 1
    assert set(default) - set(newest) == {"torch<2.14"}  # by which README's commands take a small wheel
    assert "torch==2.11" in oldest and "torch>=2.11,<2.16" in newest


def test_it_imports_no_library_that_few_functions_need():
    """Each takes as long to import as all of jaxgauss."""
    found = "import jaxgauss, sys; print(*({'scipy.stats', 'torch', 'matplotlib', 'pandas', 'dask'} & {*sys.modules}))"
    run = subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
