"""What `explain` foretells, by which one decides: doubt, tests, drifts, memory, compiling, and the dense form.

No time is asserted, but what has to take longer than what.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgauss
from jaxgauss import explain
from jaxgauss._inspect.dense_form import DenseForm, verdict


def normal(num, dim, scale=1.0):
    return jnp.asarray(scale * np.random.default_rng([num, dim]).normal(size=(num, dim)), "float32")


def shapes(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def found_by(samples, places):
    return jaxgauss.kde_logpdf(places, samples, 25.0)


@pytest.mark.parametrize("name", ["gauss_sum", "kde_logpdf"])
def test_queries_in_doubt_are_told_and_priced(name):
    """Far tails of a map: waves sum them, and tiles sum them again. Near places, as many, are not in doubt."""
    samples = normal(16000, 2)
    line = np.linspace(-6, 6, 80, dtype="float32")
    places = jnp.asarray(np.stack([x.ravel() for x in np.meshgrid(line, line)], 1))
    ones = [jnp.ones((16000, 1), "float32")] if name == "gauss_sum" else []

    def found(queries):
        of_call = explain(getattr(jaxgauss, name), queries, samples, *ones, 25.0)
        assert of_call.parts[0].engine == "fourier"
        return of_call

    far, near = found(places), found(places / 4)
    assert far.parts[0].doubt > 0.1 and near.parts[0].doubt == 0
    assert far.milliseconds > 1.5 * near.milliseconds and far.seconds > near.seconds
    assert "of the queries are in doubt and summed again" in str(far) and "doubt" not in str(near)
    if not ones:  # each sum by its own points
        both = explain(lambda: [found_by(samples, x) for x in (places, places[1:] / 4)])
        assert sorted(x.doubt for x in both.parts) == [0, far.parts[0].doubt]
    if ones:
        assert explain(places, samples, *ones, 25.0).reason.endswith("ms more")
        assert not explain(places / 4, samples, *ones, 25.0).reason.endswith("ms more")


def test_the_share_in_doubt_is_that_of_the_sum(monkeypatch):
    """Of what the sum itself finds, of all queries."""
    shares = []
    resolved = jaxgauss._engines.far.doubt_resolved

    def noting(found, doubt, *others):
        shares.append(float(np.mean(doubt[0])))
        return resolved(found, doubt, *others)

    monkeypatch.setattr(jaxgauss._engines.far, "doubt_resolved", noting)
    samples, queries = normal(16000, 1), normal(5000, 1, 3.0)
    jaxgauss.gauss_sum(queries, samples, jnp.ones(16000, "float32"), 400.0).block_until_ready()
    found = explain(jaxgauss.gauss_sum, queries, samples, jnp.ones(16000, "float32"), 400.0).parts[0].doubt
    assert len(shares) == 1 and shares[0] > 0.01 and 0.6 < found / shares[0] < 1.6


def with_labelings(resampling, num=4000, number=200):
    x, y = shapes(num, 10), shapes(num, 10)
    key = jax.random.PRNGKey(0)
    return explain(
        lambda x, y: jaxgauss.mmd_test(x, y, 0.1, rng_key=key, num_permutations=number, resampling=resampling), x, y
    )


def test_tests_are_sums_of_labelings():
    """A swap of pairs needs no sorting; bins share labels; half of the labelings take less."""
    permuted, wild, bins = map(with_labelings, ("permutation", "wild", "bins"))
    (part,) = permuted.parts
    assert (part.kind, part.queries, part.keys, part.dim, part.channels) == ("labelings", 8000, 8000, 10, 200)
    assert wild.milliseconds < permuted.milliseconds and bins.milliseconds < permuted.milliseconds / 2
    assert with_labelings("wild", number=800).milliseconds > 2 * wild.milliseconds
    assert permuted.parts[0].milliseconds > 0.9 * permuted.milliseconds


def test_drifts_are_seen():
    """Forward, among other work and in gradients; those of a target that is not differentiated are none of its own."""

    def parts(function):
        found = explain(function, shapes(600, 5), shapes(700, 5), 0.2).parts
        return [(x.kind, x.queries, x.keys, x.dim, x.backward) for x in found]

    own = ("drift", 600, 1300, 5)

    def loss(x, y, tau):
        return jnp.square(x - jax.lax.stop_gradient(x + jaxgauss.drift(x, y, tau))).sum()

    assert parts(jaxgauss.drift) == [(*own, False)]
    assert parts(lambda *x: jnp.sin(jaxgauss.drift(*x) @ jnp.ones((5, 900), "float32"))) == [(*own, False)]
    assert parts(jax.grad(loss)) == [(*own, False)]
    assert sorted(parts(jax.grad(lambda *x: jaxgauss.drift(*x).sum()))) == [(*own, False), (*own, True)]


def test_sums_in_forward_mode_are_seen():
    points, column = shapes(3000, 5), shapes(3000, 1)
    found = explain(jaxgauss.gauss_sum_blocked, points, points, column)
    assert [(x.kind, x.queries, x.keys, x.channels) for x in found.parts] == [("sum", 3000, 3000, 1)]


def test_memory_is_that_of_the_largest_arrays():
    """Of a product and what is made of it; loops take one step's, and what is never used takes none."""
    x, mebibytes = shapes(1000, 8), 4e6 / 2**20

    def matrix(x):
        return jnp.exp(x @ x.T) @ x

    def of(function):
        return explain(function, x).mebibytes

    assert mebibytes <= of(matrix) < 1.1 * mebibytes
    assert of(lambda x: jax.lax.scan(lambda y, _: (matrix(y), None), x, None, length=9)[0]) < 1.2 * mebibytes
    assert of(lambda x: matrix(x) + jnp.exp(2 * x @ x.T) @ x) < 1.2 * mebibytes
    both = of(lambda x: (lambda a, b: a @ (b @ x))(jnp.exp(x @ x.T), jnp.exp(2 * x @ x.T)))
    assert 1.9 * mebibytes < both < 2.2 * mebibytes
    assert of(lambda x: (matrix(x), x)[1]) < 0.1 * mebibytes


def test_memory_is_linear_and_that_of_the_matrix_is_not():
    few, many = (explain(jaxgauss.gauss_sum, *[shapes(num, 4)] * 2, shapes(num, 1)) for num in (10_000, 40_000))
    assert many.mebibytes < 5 * few.mebibytes and many.mebibytes < 50
    assert few.dense.mebibytes == pytest.approx(10_000**2 * 4 / 2**20)
    assert many.dense.mebibytes == pytest.approx(16 * few.dense.mebibytes)
    (double,) = (
        explain(jaxgauss.gauss_sum, *[shapes(10_000, 4, dtype="float64")] * 2, shapes(10_000, 1, dtype="float64")),
    )
    assert double.dense.mebibytes == 2 * few.dense.mebibytes


def test_gradients_of_the_dense_form_keep_matrices():
    x, y = shapes(3000, 6), shapes(2500, 6)
    sums, gradients = (explain(f, x, y, 0.1) for f in (jaxgauss.mmd_squared, jax.grad(jaxgauss.mmd_squared)))
    assert gradients.dense.mebibytes > 3 * sums.dense.mebibytes
    assert gradients.dense.milliseconds > 2 * sums.dense.milliseconds
    assert gradients.dense.seconds > sums.dense.seconds


def test_compiling_takes_what_the_program_has():
    """Two sums take longer than one, three times the same step as long as one; far points more than near ones."""
    x = normal(4000, 5)

    def step(x):
        return jaxgauss.gauss_sum(x, x, x, 0.1)

    def of(function, x=x):
        return explain(function, x).seconds

    three = of(lambda x: jax.lax.scan(lambda x, _: (step(x), None), x, None, length=3)[0])
    assert three < 1.5 * of(lambda x: jax.lax.scan(lambda x, _: (step(x), None), x, None, length=1)[0])
    assert of(lambda x: step(x) + jaxgauss.kde_logpdf(x, x, 0.1).sum()) > 1.5 * of(step)
    assert of(step, 1e4 * x) > 1.5 * of(step)


def test_many_points_are_worth_it_and_few_are_not():
    many, few = (explain(jaxgauss.gauss_sum, *[shapes(num, 3)] * 2, shapes(num, 1)) for num in (20_000, 64))
    assert many.worth_it and "times as fast" in many.reason
    assert str(many).splitlines()[-1] == f"worth it: yes, because {many.reason}"
    assert str(few).splitlines()[-1] == f"worth it: no, because {few.reason}" and not few.worth_it
    nothing = explain(jnp.sin, shapes(5))
    assert nothing.dense is None and not nothing.worth_it and "worth it" not in str(nothing)


@pytest.mark.parametrize(
    "ours, dense, worth_it, reason",
    [
        ((1.0, 10.0, 0.5), (8.0, 100.0, 0.1), True, "it is 8 times as fast, from 58 calls on, and takes 1/10 of the"),
        ((1.0, 10.0, 0.1), (8.0, 15.0, 0.1), True, "it is 8 times as fast$"),
        ((0.01, 0.1, 2.0), (0.02, 0.1, 0.1), False, "but makes up for compiling after 1900"),
        ((1.0, 10.0, 0.5), (1.0, 100.0, 0.1), False, "plain JAX is as fast, and its matrix takes 100 MiB"),
        ((3.0, 10.0, 0.5), (1.0, 0.02, 0.1), False, "plain JAX is 3 times as fast, and its matrix takes 20.5 KiB"),
        ((3.0, 10.0, 0.5), (1.0, 5000.0, 0.1), True, "the full matrix takes 4.88 GiB, though that is 3 times as fast"),
        ((float("inf"), 10.0, 0.5), (1.0, 0.02, 0.1), False, "no card has timed its kernel"),
        ((3.0, 4000.0, 0.5), (1.0, 5000.0, 0.1), False, "plain JAX is 3 times as fast"),
    ],
)
def test_verdict(ours, dense, worth_it, reason):
    found = verdict(*ours, DenseForm(*dense))
    assert found[0] == worth_it and re.search(reason, found[1])
