"""What `mmd_test`, `hsic_test` and `ksd_test` have in common: p-values that are uniform, and no evidence of NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, kstest

from jaxgauss import hsic_test, ksd_test, mmd_test

KEY = jax.random.key(7)
# of x, y and τ
TESTS = {
    "mmd": lambda x, y, tau, num, **o: mmd_test(x, y, tau, num_permutations=num, **o),
    "mmd, wild": lambda x, y, tau, num, **o: mmd_test(x, y, tau, num_permutations=num, resampling="wild", **o),
    "mmd, bins": lambda x, y, tau, num, **o: mmd_test(x, y, tau, num_permutations=num, resampling="bins", **o),
    "hsic": lambda x, y, tau, num, **o: hsic_test(x, y, tau, tau, num_permutations=num, **o),
    "hsic, wild": lambda x, y, tau, num, **o: hsic_test(x, y, tau, tau, num_permutations=num, resampling="wild", **o),
    "ksd": lambda x, _, tau, num, **o: ksd_test(x, -x, tau, num_bootstrap=num, **o),
}


@pytest.mark.parametrize(
    "name, num, tau, kernel",
    [
        ("mmd", 15, 0.5, {}),
        ("mmd", 12, (0.3, 3.0), {"kernel": "energy"}),
        ("mmd, wild", 15, (0.2, 2.0), {"kernel": "imq"}),
        ("mmd, bins", 43, 0.5, {}),
        ("hsic", 50, 0.5, {}),
        ("hsic, wild", 50, (0.5, 5.0), {}),
        ("ksd", 50, (0.1, 1.0, 10.0), {}),
    ],
    ids=str,
)
def test_p_values_are_uniform_under_the_null(monkeypatch, name, num, tau, kernel):
    """300 nulls; the shares of rejections at six levels lie in binomial intervals that hold 99.99 % each."""
    monkeypatch.setattr("jaxgauss._methods.mmd_test.BINS", 10)

    def p_value(key):
        data, labels = jax.random.split(key)
        x, y = jax.random.normal(data, (2, num, 2))
        return TESTS[name](x, y, np.asarray(tau), 19, rng_key=labels, **kernel).p_value

    mapped = jax.jit(lambda keys: jax.lax.map(p_value, keys, batch_size=20))  # under vmap
    found = np.asarray(mapped(jax.random.split(KEY, 300)), np.float64)
    for level in (1, 2, 4, 8, 12, 16):
        low, high = binom.interval(0.9999, 300, level / 20)
        assert low <= (found <= level / 20 + 1e-9).sum() <= high
    jittered = found - np.random.default_rng(0).uniform(size=300) / 20  # uniform on (0, 1), not on its twentieths
    assert kstest(jittered, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_what_is_no_number_is_no_evidence_nor_are_equal_points(name):
    """Whichever way equal points are labeled, the statistic is the same."""
    ones = jnp.ones((8, 2))
    found = TESTS[name](ones.at[0, 0].set(jnp.nan), ones, 1.0, 19, rng_key=KEY)
    assert np.isnan(found.p_value)
    if name in ("mmd", "hsic"):
        assert float(TESTS[name](ones, ones, 1.0, 19, rng_key=KEY).p_value) == 1.0
