"""What holds for every Gauss sum: linearity, translation, scaling, permutation, adjoint, bounds, batch = loop."""

import functools

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgauss import gauss_sum
from oracle import gauss_sum64, problem

SIZES = st.sampled_from([(1, 1, 1, 1), (5, 7, 3, 4)])  # few shapes: each is compiled once
problems = st.builds(
    lambda seed, size, tau: problem(np.random.default_rng(seed), *size, tau=tau),
    st.integers(0, 2**31),
    SIZES,
    st.sampled_from([1e-3, 0.05, 1.0, 100.0, 1e4]),
)
methods = st.sampled_from(["rescale", "reweight", "blocked"])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(problems, methods, st.floats(-10, 10), st.floats(-1000, 1000), st.randoms(use_true_random=False))
def test_what_holds_for_every_sum(case, method, factor, offset, random):
    q, k, v, tau, g = case
    total = functools.partial(gauss_sum, engine=method)
    result, other = np.asarray(total(q, k, v, tau)), np.cos(v)

    def close(x, y, tolerance=1e-11):
        """Equal to within rounding, relative to Σ |v|, which bounds every sum."""
        return np.abs(np.asarray(x) - np.asarray(y)).max() <= tolerance * np.abs(v).sum(0).max()

    assert close(result, gauss_sum64(q, k, v, tau)), "it is what it says"
    assert np.all(np.abs(result) <= np.abs(v).sum(0) * (1 + 1e-12)), "bounded"
    assert np.all(np.asarray(total(q, k, np.abs(v), tau)) >= 0), "positive weights give positive sums"
    apart = result + factor * total(q, k, other, tau)
    assert close(total(q, k, v + factor * other, tau), apart, 1e-9), "linear in the values"
    moved = q + offset, k + offset, v, tau
    assert close(total(*moved), gauss_sum64(*moved)), "translation changes nothing"
    assert close(total(q * np.sqrt(tau), k * np.sqrt(tau), v, 1.0), result), "the bandwidth is a scale of the points"
    order = np.array(random.sample(range(len(k)), len(k)))
    assert close(total(q, k[order], v[order], tau), result), "the order of the keys does not matter"
    batch = total(np.stack([q, q * 2]), np.stack([k, k + 1]), v, np.stack([tau, tau * 3]))
    assert close(batch, jnp.stack([result, total(q * 2, k + 1, v, tau * 3)])), "a batch is a loop"
    left, right = np.vdot(g, result), np.vdot(total(k, q, g, tau), v)
    assert abs(left - right) <= 1e-11 * np.abs(g).sum() * np.abs(v).sum(), "the transposed sum is the adjoint"
