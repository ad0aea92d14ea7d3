"""Every engine sums what it does not refuse as `Differences` does, wherever points lie; an engine of one's own, too."""

import dataclasses
import functools
import pickle
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgauss
from jaxgauss import (
    Attention,
    Differences,
    Engine,
    Fourier,
    Mixture,
    Sliced,
    explain,
    gauss_sum,
    kernel_sum,
    log_gauss_sum,
)
from jaxgauss._engines.engines import ENGINES, NAMES
from oracle import assert_close, in_plain_jax

ERRORS = {"sliced": 0.02}  # of engines that promise less than 1e-5 of the terms, by name
ALL = [Sliced(4096, 4, rng_key=jax.random.key(0)) if isinstance(x, Sliced) else x for x in ENGINES]
GAUSSIAN = [x for x in ALL if not isinstance(x, Mixture)] + [Attention("reweight"), Attention("prescale")]
CLOUDS = ("near", "outlier", "clusters", "copies", "far from the origin")


def cloud(rng, name, num, dim):
    x = rng.normal(size=(num, dim)) / dim**0.5
    if name == "outlier":
        x[0] += 1e3
    elif name == "clusters":
        x[num // 2 :] += 50
    elif name == "copies":
        x[num // 2 :] = x[: num - num // 2]
    elif name == "far from the origin":
        x += 300
    return x.astype("float32")


def names(engines):
    return {"argvalues": engines, "ids": map(repr, engines)}


def with_pullback(engine, q, k, v, g):
    total, pullback = jax.vjp(lambda *x: gauss_sum(*x, 2.0, engine=engine), q, k, v)
    return total, *pullback(jnp.asarray(g))


@pytest.mark.parametrize("name", CLOUDS)
@pytest.mark.parametrize("engine", **names(GAUSSIAN))
def test_values_and_gradients_are_those_of_differences(rng, engine, name):
    """For one channel and for many, under `vmap`, too; relative to the sizes of the terms."""
    if isinstance(engine, Fourier) and name in ("outlier", "clusters"):
        return  # the box is too large: see test_few_dimensions
    error = ERRORS.get(engine.name, 1e-5)
    for num, dim, channels in ((90, 2, 1), (130, 3, 5)):
        points = [cloud(rng, name, n, dim) for n in (num, num + 20)]
        v, g = (rng.normal(size=(n, channels)).astype("float32") for n in (num + 20, num))

        ours, exact = (with_pullback(x, *points, v, g) for x in (engine, Differences()))
        sizes = with_pullback(Differences(), *points, np.abs(v), np.abs(g))
        for x, y, size in zip(ours, exact, sizes, strict=True):
            assert np.linalg.norm(x - y) <= error * np.linalg.norm(size)
        alone = jax.grad(lambda q, k, v, g: jnp.vdot(gauss_sum(q, k, v, 2.0, engine=engine), g))(*points, v, g)
        assert np.linalg.norm(alone - exact[1]) <= error * np.linalg.norm(sizes[1])
        queries = np.stack([points[0], points[0]])
        batch = jax.vmap(functools.partial(gauss_sum, engine=engine), (0, None, None, None))(queries, points[1], v, 2.0)
        assert np.linalg.norm(batch[1] - exact[0]) <= error * np.linalg.norm(sizes[0])


@pytest.mark.parametrize("engine", **names(ALL))
@pytest.mark.parametrize("what", ["imq", "logarithm"])
def test_another_kernel_and_logarithms_are_those_of_differences_or_refused(rng, engine, what):
    x, y = cloud(rng, "near", 90, 3), cloud(rng, "near" if isinstance(engine, Mixture | Sliced) else "outlier", 70, 3)

    def found(engine):
        if what == "imq":
            return kernel_sum(x, y, y[:, :1], kernel="imq", engine=engine)
        return log_gauss_sum(x, y, engine=engine)

    refused = {"imq": ("attention", "fourier"), "logarithm": ("fourier", "mixture", "sliced")}[what]
    if engine.name in refused:
        with pytest.raises(ValueError, match=r"`engine` must be one that sums this: .*; got .*Use engine='auto'"):
            found(engine)
    else:
        assert_close([found(engine)], [found(Differences())], ERRORS.get(engine.name, 1e-5))


@pytest.mark.parametrize("precision", ["float16", "bfloat16x2", "float32", "float64"])
def test_what_explain_returns_runs(rng, precision):
    """With everything that was chosen; its digits are those of the call that it explains."""
    x = cloud(rng, "near", 300, 3)
    for kernel in ("gauss", "imq"):
        if (kernel, precision) == ("imq", "float64"):
            continue  # needs the 64-bit mode, which is on in the tests
        engine = explain(x, x, x[:, :1], kernel=kernel, precision=precision).engine
        assert precision in str(engine) or precision == "float32"
        ours, its = (
            kernel_sum(x, x, x[:, :1], kernel=kernel, **how) for how in ({"engine": engine}, {"precision": precision})
        )
        np.testing.assert_array_equal(ours, its)


def test_a_precision_may_be_as_for_matrix_products(rng):
    x = cloud(rng, "near", 50, 3)
    exact = gauss_sum(x, x, x, engine="attention")
    for precision in (None, "default", "highest", "fastest", jax.lax.Precision.HIGH):
        np.testing.assert_array_equal(gauss_sum(x, x, x, engine="attention", precision=precision), exact)
    preset = jax.lax.DotAlgorithmPreset
    for grade, others in {
        "default": ("fastest", "BF16_BF16_F32", jax.lax.Precision.DEFAULT, preset.DEFAULT),
        "high": ("tensorfloat32", "bfloat16_3x", "TF32_TF32_F32_X3", jax.lax.Precision("high")),
        "highest": (jax.lax.Precision.HIGHEST, jax.lax.Precision("float32"), preset.F32_F32_F32),
    }.items():
        for precision in others:
            jax.eval_shape(functools.partial(jnp.matmul, precision=precision), x, x.T)  # takes it
            assert Attention(precision=precision) == Attention(precision=grade)


@pytest.mark.parametrize("engine", **names([*NAMES.values(), Fourier(1e-3), Mixture(Attention(kernel="cpu"))]))
def test_an_engine_is_a_constant(engine):
    """It can be hashed, pickled, replaced, printed and compared."""
    assert pickle.loads(pickle.dumps(engine)) == engine == dataclasses.replace(engine)
    assert eval(repr(engine), vars(jaxgauss) | {"Auto": type(NAMES["auto"])}) == engine
    assert hash(engine) == hash(dataclasses.replace(engine)) and engine.name in NAMES
    with pytest.raises(dataclasses.FrozenInstanceError):
        engine.precision = "float32"


@dataclass(frozen=True, repr=False)
class RandomFeatures(Engine):
    """A toy: Φ as the mean of cosines of random frequencies. Clusters do the derivatives and the logarithms."""

    num: int = 20_000

    def refuses(self, problem):
        return "there are too many dimensions" if problem.dim > 8 else super().refuses(problem)

    def sums(self, plan, near, queries, keys, values, tau, **_):
        frequencies = jax.random.normal(jax.random.key(0), (queries.shape[-1], self.num), queries.dtype)
        q, k = (jnp.sqrt(tau)[..., None, None] * x @ frequencies for x in (queries, keys))
        products = (jnp.stack([f(k) for f in (jnp.cos, jnp.sin)]).mT @ values) / self.num
        return (jnp.stack([f(q) for f in (jnp.cos, jnp.sin)]) @ products).sum(0)


def test_an_engine_of_ones_own(rng):
    """In every function, under `jit`, `vmap` and `grad`; what it refuses is an error in its words."""
    x, v = cloud(rng, "near", 60, 3), rng.uniform(size=(60, 2)).astype("float32")
    exact = in_plain_jax(x, x, v)
    for found in (gauss_sum, jax.jit(gauss_sum, static_argnames="engine")):
        ours = found(x, x, v, engine=RandomFeatures())
        assert 1e-6 < np.abs(ours - exact).max() / exact.max() < 0.03
    batch = jax.vmap(lambda x: gauss_sum(x, x, v, engine=RandomFeatures()))(np.stack([x, x]))
    assert np.abs(batch - exact[None]).max() / exact.max() < 0.03
    for values in (v, v[:, :1]):  # the value under `value_and_grad` is the engine's, too

        def total(x, engine, values=values):
            return gauss_sum(x, x[::-1], values, engine=engine).sum()

        (value, slope), (_, exact_slope) = (jax.value_and_grad(total)(x, e) for e in (RandomFeatures(), "auto"))
        by_features, exact_sum = (float(total(x, e)) for e in (RandomFeatures(), "auto"))
        assert abs(value - by_features) < 1e-5 * abs(exact_sum) < 1e-2 * abs(value - exact_sum)
        assert_close([slope], [exact_slope], 1e-5)
    assert float(jaxgauss.mmd_squared(x, x + 1, 1.0, engine=RandomFeatures())) > 0
    wide = np.ones((4, 9), "float32")
    with pytest.raises(ValueError, match=r"too many dimensions; got RandomFeatures\(\)\. Use engine='auto'"):
        gauss_sum(wide, wide, wide, engine=RandomFeatures())
    assert isinstance(explain(x, x, v, engine=RandomFeatures()).engine, RandomFeatures)


def test_sums_of_another_shape_are_refused(rng):
    @dataclass(frozen=True, repr=False)
    class Transposed(Engine):
        def sums(self, plan, near, queries, keys, values, tau, **_):
            return in_plain_jax(queries, keys, values, tau).mT

    x = cloud(rng, "near", 6, 3)
    with pytest.raises(ValueError, match=r"`Transposed.sums` must return sums \(…, M, C\); got \(3, 6\) for queries"):
        gauss_sum(x, x, x, engine=Transposed())


@dataclass(frozen=True, repr=False)
class PlainFeatures(RandomFeatures):
    """The same, whose derivatives are JAX's own."""

    plain = True


def test_a_plain_engine_of_ones_own(rng):
    """Its gradients are those of its sums; it is streamed, and its error estimated, as that of others."""
    x, v = cloud(rng, "near", 60, 3), rng.uniform(size=60).astype("float32")
    sums = gauss_sum(x, x, v, engine=PlainFeatures())
    np.testing.assert_allclose(sums, gauss_sum(x, x, v, engine=RandomFeatures()), rtol=1e-5)
    slope = jax.grad(lambda x: gauss_sum(x, x[::-1], v, engine=PlainFeatures()).sum())(x)
    ahead, back = (
        np.float64(gauss_sum(x + s * slope, (x + s * slope)[::-1], v, engine=PlainFeatures())).sum()
        for s in (1e-3, -1e-3)
    )
    assert (ahead - back) / 2e-3 == pytest.approx(float(jnp.square(slope).sum()), rel=1e-2)
    chunks = jaxgauss.KeyChunks(x, v, size=20)
    np.testing.assert_allclose(jaxgauss.gauss_sum_streamed(x, chunks, engine=PlainFeatures()), sums, rtol=1e-2)
    estimate = jaxgauss.estimate_error(x, x, v, rng_key=jax.random.key(0), engine=PlainFeatures())
    assert 1e-6 < estimate.relative_error < 0.03
