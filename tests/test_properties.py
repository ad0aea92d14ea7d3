"""What holds for every Gauss sum: linearity, translation, scaling, permutation, adjoint, bounds, batch = loop."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgauss import gauss_sum
from oracle import gauss_sum64, problem

SIZES = st.sampled_from([(1, 1, 1, 1), (5, 7, 2, 1), (5, 7, 3, 4)])  # few shapes: each is compiled once
problems = st.builds(
    lambda seed, size, tau: problem(np.random.default_rng(seed), *size, tau=tau),
    st.integers(0, 2**31),
    SIZES,
    st.sampled_from([1e-3, 0.05, 1.0, 100.0, 1e4]),
)
methods = st.sampled_from(["rescale", "reweight", "blocked"])
few = settings(max_examples=60, deadline=None, derandomize=True)


def close(x, y, case, tolerance=1e-11):
    """Equal to within rounding, relative to Σ |v|, which bounds every sum."""
    return np.abs(np.asarray(x) - np.asarray(y)).max() <= tolerance * np.abs(case.values).sum(0).max()


@few
@given(problems, methods)
def test_is_what_it_says(case, method):
    result = np.asarray(gauss_sum(*case.operands, method=method))
    assert close(result, gauss_sum64(*case.operands), case)
    assert np.all(np.abs(result) <= np.abs(case.values).sum(0) * (1 + 1e-12))


@few
@given(problems, methods, st.floats(-10, 10))
def test_linear_in_the_values(case, method, factor):
    q, k, v, tau = case.operands
    other = np.cos(v)
    together = gauss_sum(q, k, v + factor * other, tau, method=method)
    apart = gauss_sum(q, k, v, tau, method=method) + factor * gauss_sum(q, k, other, tau, method=method)
    assert close(together, apart, case, 1e-9)


@few
@given(problems, methods, st.floats(-1000, 1000))
def test_translation_changes_nothing(case, method, offset):
    q, k, v, tau = case.operands
    moved = gauss_sum(q + offset, k + offset, v, tau, method=method)
    assert close(moved, gauss_sum64(q + offset, k + offset, v, tau), case)


@few
@given(problems, methods)
def test_bandwidth_is_a_scale_of_the_points(case, method):
    q, k, v, tau = case.operands
    scaled = gauss_sum(q * np.sqrt(tau), k * np.sqrt(tau), v, 1.0, method=method)
    assert close(scaled, gauss_sum(*case.operands, method=method), case)


@few
@given(problems, methods, st.randoms(use_true_random=False))
def test_order_of_the_keys_does_not_matter(case, method, random):
    q, k, v, tau = case.operands
    order = np.array(random.sample(range(len(k)), len(k)))
    assert close(gauss_sum(q, k[order], v[order], tau, method=method), gauss_sum(*case.operands, method=method), case)


@few
@given(problems, methods)
def test_a_batch_is_a_loop(case, method):
    q, k, v, tau = case.operands
    batch = gauss_sum(np.stack([q, q * 2]), np.stack([k, k + 1]), v, np.stack([tau, tau * 3]), method=method)
    loop = [gauss_sum(q, k, v, tau, method=method), gauss_sum(q * 2, k + 1, v, tau * 3, method=method)]
    assert close(batch, jnp.stack(loop), case)


@few
@given(problems, methods)
def test_transposed_sum_is_the_adjoint(case, method):
    q, k, v, tau, g = case
    left = np.vdot(g, gauss_sum(q, k, v, tau, method=method))
    right = np.vdot(gauss_sum(k, q, g, tau, method=method), v)
    assert abs(left - right) <= 1e-11 * np.abs(g).sum() * np.abs(v).sum()


@few
@given(problems, methods)
def test_positive_weights_give_positive_sums(case, method):
    result = gauss_sum(case.queries, case.keys, np.abs(case.values), case.tau, method=method)
    assert np.all(np.asarray(result) >= 0)
