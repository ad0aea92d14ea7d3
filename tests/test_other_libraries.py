"""Other libraries are imported where they are asked for, and named where they are missing."""

import importlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import jaxgauss

MODULES = {  # what each needs, and what pip calls that
    "dask": ("dask", "dask"),
    "lineax": ("lineax", "lineax"),
    "optax": ("optax", "optax"),
    "ott": ("ott", "ott-jax"),
    "sklearn": ("sklearn", "scikit-learn"),
}


@pytest.mark.slow
def test_importing_imports_no_neighbour():
    others = {"equinox", "flax", "matfree", "numpyro", *(module for module, _ in MODULES.values())}
    show = f"print(sorted({others} & sys.modules.keys()))"
    code = f"import sys, jaxgauss; {show}; import jaxgauss.lineax; {show}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "['equinox', 'lineax']"]


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_found_as_attributes(monkeypatch, name):
    module = importlib.import_module(f"jaxgauss.{name}")
    monkeypatch.delattr(jaxgauss, name)
    assert getattr(jaxgauss, name) is module
    with pytest.raises(AttributeError, match="no attribute 'keops'"):
        _ = jaxgauss.keops


def without(monkeypatch, module):
    """As if it were not installed."""
    for name in [x for x in sys.modules if x.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(("name", "needs"), MODULES.items(), ids=MODULES)
def test_a_missing_neighbour_is_named(monkeypatch, name, needs):
    module, distribution = needs
    importlib.import_module(f"jaxgauss.{name}")
    without(monkeypatch, module)
    monkeypatch.delitem(sys.modules, f"jaxgauss.{name}")
    monkeypatch.delitem(sys.modules, "jaxgauss._methods.symmetric", raising=False)  # which imports lineax
    monkeypatch.delattr(jaxgauss, name)
    message = rf"`jaxgauss.{name}` needs {distribution}, .*got no module named '{module}'.* pip install {distribution}"
    with pytest.raises(ImportError, match=message):
        getattr(jaxgauss, name)


def test_what_only_one_function_needs_is_named_by_it(monkeypatch):
    operator = jaxgauss.lineax.gauss_operator(jnp.ones((3, 2)), noise=1.0)
    without(monkeypatch, "matfree")
    with pytest.raises(ImportError, match=r"`jaxgauss.lineax.log_determinant` needs matfree.* pip install matfree"):
        jaxgauss.lineax.log_determinant(operator, rng_key=0)
    without(monkeypatch, "lineax")
    monkeypatch.delitem(sys.modules, "jaxgauss.lineax")
    with pytest.raises(ImportError, match=r"`jaxgauss.sklearn.KernelRidge` needs lineax.* pip install lineax"):
        jaxgauss.sklearn.KernelRidge().fit(np.eye(3), np.ones(3))


def test_an_error_of_our_own_is_not_taken_for_a_missing_neighbour():
    from jaxgauss._checks.optional import needed

    with pytest.raises(ModuleNotFoundError, match=r"jaxgauss\.nothing"), needed("jaxgauss.ott", "ott-jax"):
        importlib.import_module("jaxgauss.nothing")
