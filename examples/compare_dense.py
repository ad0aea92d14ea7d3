"""Time, memory and error of gauss_sum against dense and blocked JAX over N: `python examples/compare_dense.py`."""

import argparse
import contextlib
import functools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from tqdm import tqdm

from jaxgauss import gauss_sum

dot = functools.partial(jnp.matmul, precision="highest")  # in float32 on GPUs, too


def dense(q, k, v):
    """The formula in plain JAX, with the kernel matrix in memory."""
    squared = jnp.square(q).sum(-1)[:, None] + jnp.square(k).sum(-1) - 2 * dot(q, k.T)
    return dot(jnp.exp(-squared / 2), v)


def blocked(q, k, v):
    """The same for some queries at a time; gradients compute the rows again."""
    return jax.lax.map(jax.checkpoint(lambda query: dense(query[None], k, v)[0]), q, batch_size=max(1, 2**18 // len(k)))


METHODS = {"gauss_sum": gauss_sum, "blocked JAX": blocked, "dense JAX": dense}
COLUMNS = {"ms": "value and gradients, ms", "mib": "peak memory, MiB", "error": "relative L2 error"}


def peak_bytes():
    """The most memory that has been in use: the device's, or on a CPU the process's."""
    stats = jax.devices()[0].memory_stats() or {}
    status = Path("/proc/self/status")  # on Linux getrusage would count the parent process's peak
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    if status.exists():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    import resource  # which Windows has not

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(method, num, dim, runs):
    """One cell, in this process: median time, memory above the start, error of the sum against float64."""
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(num, dim)) / dim**0.5, jnp.float32) for _ in range(2))
    v = jnp.asarray(rng.normal(size=num), jnp.float32)
    step = jax.jit(jax.value_and_grad(lambda q, k, v: jnp.square(METHODS[method](q, k, v)).mean(), argnums=(0, 1, 2)))
    step = step.lower(q, k, v).compile()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # on Linux the peak begins anew, without what compiling took

    before, times = peak_bytes(), []
    jax.block_until_ready(step(q, k, v))
    memory = (peak_bytes() - before) / 2**20
    for _ in range(runs):
        start = time.perf_counter()
        jax.block_until_ready(step(q, k, v))
        times.append(1e3 * (time.perf_counter() - start))
    rows = slice(0, 256)
    d2 = np.square(np.asarray(q, float)[rows, None] - np.asarray(k, float)).sum(-1)
    exact = np.exp(-d2 / 2) @ np.asarray(v, float)
    error = np.linalg.norm(METHODS[method](q, k, v)[rows] - exact) / np.linalg.norm(exact)
    return {"method": method, "n": num, "ms": statistics.median(times), "mib": memory, "error": float(error)}


def main(dim=16, largest=32768, runs=10, picture="outputs/compare_dense.png"):
    """Measure every cell in a process of its own, print the table, and draw it."""
    sizes = [n for n in (256, 1024, 2048, 4096, 8192, 16384, 32768, 65536) if n <= largest]
    cells = []
    for method, n in tqdm([(m, n) for n in sizes for m in METHODS if m != "dense JAX" or n <= 16384], unit="cell"):
        code = f"import json, compare_dense as c; print(json.dumps(c.measure({method!r}, {n}, {dim}, {runs})))"
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE, check=True
        )
        cells.append(json.loads(run.stdout))
    print(f"{jax.devices()[0].device_kind}, float32, D = {dim}, one channel; dense JAX stops at N = 16384")
    print(f"{'N':>7}  {'method':<12}{'ms':>10}{'MiB':>10}{'rel. error':>12}")
    for c in cells:
        print(f"{c['n']:>7}  {c['method']:<12}{c['ms']:>10.2f}{c['mib']:>10.1f}{c['error']:>12.1e}")
    fig, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for (column, title), ax in zip(COLUMNS.items(), axes, strict=True):
        for method, marker, size in zip(METHODS, "os^", (10, 7, 4), strict=True):  # all seen where they agree
            ax.loglog(
                *zip(*[(c["n"], max(c[column], 1e-9)) for c in cells if c["method"] == method], strict=True),
                marker=marker,
                markersize=size,
                label=method,
            )
        ax.set(xlabel="N = M", title=title, xscale="log")
        ax.grid(alpha=0.3, which="both")
    axes[0].legend()
    axes[2].set_ylim(1e-8, 1e-4)
    Path(picture).parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(picture, dpi=150)
    print(f"picture: {picture}")
    return cells


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--dim", type=int, default=16, help="dimensions")
    parser.add_argument("--largest", type=int, default=32768, help="largest N")
    parser.add_argument("--runs", type=int, default=10, help="timed runs a cell")
    parser.add_argument("--picture", default="outputs/compare_dense.png", help="where to save it")
    main(**vars(parser.parse_args()))
