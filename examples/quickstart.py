"""A Gauss sum, its gradient, jit and vmap, against the dense formula: `python examples/quickstart.py`."""

import argparse
import functools
import statistics
import time

import jax
import jax.numpy as jnp

import jaxgauss

dot = functools.partial(jnp.matmul, precision="highest")  # in float32 on GPUs, too


def milliseconds(function, *arguments, runs=10):
    """Median time of a call, compiled before."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def dense(queries, keys, weights, tau):
    """The formula in plain JAX, with the kernel matrix in memory."""
    squared = jnp.square(queries).sum(-1)[:, None] + jnp.square(keys).sum(-1) - 2 * dot(queries, keys.T)
    return dot(jnp.exp(-tau / 2 * squared), weights)


def relative_error(x, y):
    """‖x - y‖₂ / ‖y‖₂."""
    return float(jnp.linalg.norm(x - y) / jnp.linalg.norm(y))


def main(num=8192, dim=16):
    """Sum over `num` points in `dim` dimensions."""
    keys = jax.random.split(jax.random.key(0), 3)
    queries, points = (jax.random.normal(k, (num, dim)) / dim**0.5 for k in keys[:2])
    weights = jax.random.normal(keys[2], (num,))
    tau = 2.0  # 1/σ²
    print(jaxgauss.explain(queries, points, weights, tau))

    def energy(function):
        return lambda q, k, v, tau: jnp.square(function(q, k, v, tau)).sum()

    rows = {
        "sum": lambda f: f,
        "gradient, all arguments": lambda f: jax.grad(energy(f), argnums=(0, 1, 2, 3)),
        "vmap over 4 bandwidths": lambda f: jax.vmap(f, in_axes=(None, None, None, 0)),
    }
    print(f"\n{num} queries, {num} keys, {dim} dimensions, float32")
    print(f"{'under jit':<26}{'gauss_sum':>12}{'dense JAX':>12}{'speed-up':>10}{'rel. error':>12}")
    for name, transform in rows.items():
        print(f"{name:<26}", end="", flush=True)
        ours, plain = (jax.jit(transform(f)) for f in (jaxgauss.gauss_sum, dense))
        last = jnp.array([0.5, 1.0, 2.0, 4.0]) if name.startswith("vmap") else jnp.asarray(tau)
        arguments = queries, points, weights, last
        results, exact = (jax.tree.leaves(f(*arguments)) for f in (ours, plain))
        error = max(relative_error(x, y) for x, y in zip(results, exact, strict=True))
        times = milliseconds(ours, *arguments), milliseconds(plain, *arguments)
        print(f"{times[0]:>9.1f} ms{times[1]:>9.1f} ms{times[1] / times[0]:>9.1f}×{error:>12.1e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num", type=int, default=8192, help="queries and keys")
    parser.add_argument("--dim", type=int, default=16, help="dimensions")
    main(**vars(parser.parse_args()))
