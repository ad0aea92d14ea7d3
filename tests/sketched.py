"""A program, not a test: points of several processes as one sketch, in a job that can be killed and started again.

    python sketched.py ADDRESS NUM_PROCESSES PROCESS_ID FOLDER [killed]

Each process adds up the sketches of its own chunks of points, saves the sum after every chunk in the folder, and begins
with what it finds there; an all-reduce then adds the sketches of all processes. With "killed", the last process kills
itself on its way. Prints as JSON the number of chunks that were found, the sums at queries, and those by
`gauss_sum_sharded`; and the same of a job in the empty folder FOLDER/undisturbed.
"""

import functools
import json
import os
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxgauss import FourierSketch, fourier_sketch, gauss_sum_sharded

TAU, CHUNKS, ROWS = 30.0, 8, 500
QUERIES = np.random.default_rng(0).uniform(size=(40, 2)).astype("float32")


def chunk(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights that only one process has."""
    rng = np.random.default_rng([1, number])
    return rng.uniform(size=(ROWS, 2)).astype("float32"), rng.normal(size=ROWS).astype("float32")


sketch_of = functools.partial(fourier_sketch, tau=TAU, lower=0, upper=1)


def empty() -> FourierSketch:
    return sketch_of(*(x[:0] for x in chunk(0)))


def own_sketch(process: int, num_processes: int, folder: Path, is_killed: bool) -> tuple[FourierSketch, int]:
    """That of this process's chunks, and how many of them it was found to hold; a file is named by their number."""
    own = range(process, CHUNKS, num_processes)
    saved = {int(path.stem.split("_")[1]): path for path in folder.glob(f"{process}_*.npz")}
    found = max(saved, default=0)
    sketch = FourierSketch.load(saved[found]) if saved else empty()
    for done in range(found, len(own)):
        sketch += sketch_of(*chunk(own[done]))
        sketch.save(folder / f"{process}_{done + 1}.npz")
        if is_killed and done == len(own) // 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return sketch, found


def job(process: int, num_processes: int, folder: Path, is_killed: bool = False) -> dict:
    mesh = jax.make_mesh((num_processes,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    shared_out = NamedSharding(mesh, P("data"))

    def of_all(x):
        """What each process has, as one array that is divided over them."""
        return jax.make_array_from_process_local_data(shared_out, np.asarray(x))

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("data"), out_specs=P())
    def added(sketches):
        return jax.lax.psum(jax.tree.map(lambda x: x[0], sketches), "data")

    sums = jax.jit(lambda sketches: added(sketches)(QUERIES))
    sums(jax.tree.map(lambda x: of_all(x[None]), empty()))  # connects the processes
    sketch, found = own_sketch(process, num_processes, folder, is_killed)
    total = sums(jax.tree.map(lambda x: of_all(x[None]), sketch))
    points = (of_all(np.concatenate(x)) for x in zip(*map(chunk, range(process, CHUNKS, num_processes)), strict=True))
    sharded = gauss_sum_sharded(jnp.asarray(QUERIES), *points, TAU, mesh=mesh, key_axis="data", engine="fourier")
    return {"found": found, "sums": total.tolist(), "sharded": sharded.tolist()}


if __name__ == "__main__":
    address, number, index, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    jax.distributed.initialize(address, number, index, heartbeat_timeout_seconds=10)
    resumed = job(index, number, folder, sys.argv[5:] == ["killed"] and index == number - 1)
    print(json.dumps([resumed, job(index, number, folder / "undisturbed")]))
