"""Sketch points that no machine holds, on a cluster of Dask's, and map their density from a few kilobytes.

Stars of a spiral galaxy lie in files, a part in each. Workers read the parts, keep the Fourier coefficients of their
stars, and add them up in a tree. Densities anywhere then take no star any more.

    python examples/dask_sketch.py                               two workers of this machine
    python examples/dask_sketch.py --kill                        one of them is killed on its way
    python examples/dask_sketch.py --scheduler tcp://host:8786   a cluster, whose workers share the folder of the files
"""

import argparse
import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from distributed import Client, LocalCluster
from matplotlib.colors import LogNorm
from tqdm import tqdm

import jaxgauss

BLOCK = 250_000  # stars of a file
BOX = {"lower": -1.0, "upper": 1.0}
TAU = 1 / 0.04**2  # of the bandwidth 0.04
PIXELS = 300  # of a side of the map
CHECKED = 5  # densities that are computed star by star, too


def stars(num: int, seed: int) -> np.ndarray:
    """Of a disk with two arms and a bulge, (N, 2), within the box."""
    rng = np.random.default_rng(seed)
    radius = -0.22 * np.log(1 - 0.985 * rng.random(num))  # less than 0.93
    arm = 4.5 * np.log(radius + 0.03) + np.pi * rng.integers(2, size=num)
    angle = np.where(rng.random(num) < 0.6, arm + rng.normal(0, 0.25, num), rng.uniform(0, 2 * np.pi, num))
    return (radius * np.array([np.cos(angle), np.sin(angle)])).T.astype(np.float32)


def written(block_info: Any = None) -> np.ndarray:
    """The stars of a block; Dask tells its number and shape."""
    of = block_info[None]
    return stars(of["chunk-shape"][0], of["chunk-location"][0])


def peak_mebibytes() -> float:
    """The most memory that this process has had."""
    status = Path("/proc/self/status")
    return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024 if status.exists() else float("nan")


def follow(client: Any, future: Any, kills: bool) -> Any:
    """The result, with a bar of the tasks; a worker is killed on the way if that is asked for."""

    def unfinished(dask_scheduler: Any = None) -> int:
        return sum(task.state not in ("memory", "released") for task in dask_scheduler.tasks.values())

    victim, pid = next(iter(client.run(os.getpid).items()))
    with tqdm(desc="sketch", unit="task") as bar:
        while not future.done():
            left: Any = client.run_on_scheduler(unfinished)
            bar.total = max(bar.total or 0, left)
            bar.n = bar.total - left
            bar.refresh()
            if kills and bar.n > bar.total / 2:
                os.kill(pid, signal.SIGKILL)
                tqdm.write(f"killed a worker, {victim}; what it held is computed again")
                kills = False
            time.sleep(0.5)
        bar.update(bar.total - bar.n)
    return future.result()


def main(points: int, workers: int, memory: str, kill: bool, scheduler: str | None, picture: str) -> tuple:
    """Write the files, sketch them, and map the density; return the sketch, the map and the largest error found."""
    blocks = [BLOCK] * (points // BLOCK) + [points % BLOCK] * (points % BLOCK > 0)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd() if scheduler else None))
        cluster = scheduler or stack.enter_context(
            LocalCluster(n_workers=workers, threads_per_worker=1, memory_limit=memory, dashboard_address=":0")
        )
        client: Any = stack.enter_context(Client(cluster))
        da.to_npy_stack(folder, da.map_blocks(written, chunks=((*blocks,), (2,)), dtype=np.float32))
        data = da.from_npy_stack(folder)
        found = f"{len(blocks)} files, {data.nbytes / 1e6:.0f} MB in all"
        print(f"{points:,} stars in {found}, {len(client.nthreads())} workers")
        start, weights = time.perf_counter(), da.ones_like(data[:, 0])
        future = client.compute(jaxgauss.dask.fourier_sketch(data, weights, TAU, **BOX))
        sketch = follow(client, future, kill)
        seconds, peaks = time.perf_counter() - start, client.run(peak_mebibytes, on_error="ignore").values()
        print(f"sketched in {seconds:.0f} s; the workers' peak memory: {max(peaks):.0f} MiB, libraries included")
        some = stars(CHECKED, seed=len(blocks))
        exact = client.compute(jaxgauss.dask.gauss_sum(some, data, weights, TAU, engine="blocked")).result()
    error = float(np.abs(sketch(some) - exact).max()) / points
    axis = np.linspace(-1, 1, PIXELS, dtype=np.float32)
    grid = np.stack(np.meshgrid(axis, axis), -1)
    start = time.perf_counter()
    density = np.asarray(sketch(grid)) * TAU / (2 * np.pi * points)
    size = (sketch.coefficients.nbytes + sketch.rounding.nbytes) / 1e3
    print(sketch)
    print(f"{size:.0f} kB give {PIXELS}² densities in {time.perf_counter() - start:.1f} s")
    print(f"{CHECKED} sums over all stars differ from the sketch's by at most {error:.0e} of the number of stars")
    draw(density, data.nbytes, size, points, Path(picture))
    return sketch, density, error


def draw(density: np.ndarray, num_bytes: int, size: float, points: int, path: Path) -> None:
    """The stars of a file, the map, and how large both are."""
    fig, axes = plt.subplots(1, 3, figsize=(13, 4.2), width_ratios=[1, 1.15, 0.5], layout="constrained")
    shown = stars(min(points, 20_000), seed=0)
    axes[0].scatter(*shown.T, s=0.3, color="white", linewidths=0)
    scale = LogNorm(3e-4 * density.max(), density.max(), clip=True)
    image = axes[1].imshow(density, norm=scale, origin="lower", extent=(-1, 1, -1, 1), cmap="magma")
    fig.colorbar(image, ax=axes[1], label="density")
    for ax, title in ((axes[0], f"{len(shown):,} of the stars"), (axes[1], f"{points:,} stars, from {size:.0f} kB")):
        ax.set(title=title, xlim=(-1, 1), ylim=(-1, 1), aspect="equal", facecolor="black")
        ax.set(xlabel="$x_1$", ylabel="$x_2$", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    bars = axes[2].bar(["stars", "sketch"], [num_bytes / 1e3, size], color=["0.6", "tab:red"])
    axes[2].bar_label(bars, [f"{num_bytes / 1e6:.0f} MB", f"{size:.0f} kB"])
    axes[2].set(yscale="log", ylabel="kB", title="what is kept")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=120)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=5_000_000, help="stars (default: 5,000,000)")
    parser.add_argument("--workers", type=int, default=2, help="processes of this machine (default: 2)")
    parser.add_argument("--memory", default="1.5GiB", help="that each of them may take (default: 1.5GiB)")
    parser.add_argument("--kill", action="store_true", help="kill one of them in the middle")
    parser.add_argument("--scheduler", help="address of a cluster, instead of processes of this machine")
    parser.add_argument("--picture", default="outputs/dask_sketch.png", help="where to save it")
    main(**vars(parser.parse_args()))
