"""What a call compiles: programs that XLA makes for another number of points, and for other numbers."""

import functools

import jax
import numpy as np
import pytest

from jaxgauss import estimate_error, hsic_test, kernel_mean, ksd_test, log_gauss_sum, mean_shift, mmd_estimate, mmd_test

COMPILED = "/jax/core/compile/backend_compile_duration"
KEY = jax.random.key(0)
MOST = 2  # programs for another number of points
CALLS = {  # of x and y, and of numbers
    "mean_shift": (mean_shift, {"tau": 1.0, "tol": 1e-2, "max_steps": 30}),
    "ksd_test": (functools.partial(ksd_test, rng_key=KEY, num_bootstrap=9), {"tau": 1.0, "flip_probability": 0.3}),
    "hsic_test": (functools.partial(hsic_test, rng_key=KEY, num_permutations=9), {"tau_x": 1.0, "tau_y": 1.0}),
    "mmd_test": (functools.partial(mmd_test, rng_key=KEY, num_permutations=9), {"tau": 1.0}),
    "estimate_error": (lambda x, y, tau: estimate_error(x, y, x, tau, rng_key=KEY, num_queries=9), {"tau": 1.0}),
    "mmd_estimate": (mmd_estimate, {"tau": 1.0}),
    "mmd_estimate of chunks": (
        lambda *z, tau: mmd_estimate(*(np.array_split(np.asarray(x), [7, 10]) for x in z), tau),
        {"tau": 1.0},
    ),
    "log_gauss_sum": (log_gauss_sum, {"tau": 1.0}),
    "log_gauss_sum with weights": (lambda x, y, tau: log_gauss_sum(x, y, np.zeros(len(y), "f4"), tau), {"tau": 1.0}),
    "kernel_mean": (lambda x, y, tau: kernel_mean(x, y, x, tau), {"tau": 1.0}),
}


@pytest.fixture
def programs():
    """The programs that are compiled."""
    found = []

    def listen(event, *_, **__):
        if event == COMPILED:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("name", CALLS)
def test_other_arguments_compile_little(rng, programs, name):
    """Other numbers nothing, other points two programs at most; chunks of almost as many points nothing."""
    call, numbers = CALLS[name]

    def compiled(num, **others):
        arrays = jax.device_put(tuple(rng.normal(size=(2, num, 2)).astype("float32")))
        programs.clear()
        jax.block_until_ready(jax.tree.leaves(call(*arrays, **numbers | others)))
        return len(programs)

    compiled(40)
    assert {key: compiled(40, **{key: type(x)(1.2 * x)}) for key, x in numbers.items()} == dict.fromkeys(numbers, 0)
    assert compiled(60) <= (0 if "chunks" in name else MOST)
    assert compiled(400) <= MOST
