"""What a call compiles: programs that XLA makes for another number of points, and for other numbers."""

import jax
import numpy as np
import pytest

import jaxgauss
from jaxgauss import estimate_error, hsic_test, ksd_test, mean_shift, mmd_estimate, mmd_test

COMPILED = "/jax/core/compile/backend_compile_duration"
KEY = jax.random.key(0)
MOST = 2  # programs for another number of points
CALLS = {  # of x and y, and of numbers
    "mean_shift": (lambda x, y, **n: mean_shift(x, y, **n), {"tau": 1.0, "tol": 1e-2, "max_steps": 30}),
    "ksd_test": (
        lambda x, y, **n: ksd_test(x, y, rng_key=KEY, num_bootstrap=9, **n),
        {"tau": 1.0, "flip_probability": 0.3},
    ),
    "hsic_test": (
        lambda x, y, **n: hsic_test(x, y, rng_key=KEY, num_permutations=9, **n),
        {"tau_x": 1.0, "tau_y": 1.0},
    ),
    "mmd_test": (lambda x, y, **n: mmd_test(x, y, rng_key=KEY, num_permutations=9, **n), {"tau": 1.0}),
    "estimate_error": (lambda x, y, **n: estimate_error(x, y, x, rng_key=KEY, num_queries=9, **n), {"tau": 1.0}),
    "mmd_estimate": (lambda x, y, **n: mmd_estimate(x, y, **n), {"tau": 1.0}),
    "mmd_estimate of chunks": (
        lambda x, y, **n: mmd_estimate(*(np.array_split(np.asarray(z), [7, 10]) for z in (x, y)), **n),
        {"tau": 1.0},
    ),
    "log_gauss_sum": (lambda x, y, **n: jaxgauss.log_gauss_sum(x, y, **n), {"tau": 1.0}),
    "log_gauss_sum with weights": (
        lambda x, y, **n: jaxgauss.log_gauss_sum(x, y, np.zeros(len(y), "float32"), **n),
        {"tau": 1.0},
    ),
    "kernel_mean": (lambda x, y, **n: jaxgauss.kernel_mean(x, y, x, **n), {"tau": 1.0}),
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
