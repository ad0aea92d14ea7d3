"""Train a generator on MMD² in several processes, each with its part of the data.

Two processes of this machine, which talk to each other over the loopback address (half a minute):

    python examples/multi_process.py

On a cluster every process runs the same program, and JAX finds the others (see docs/scale.md). A process may have one
device or many:

    srun python examples/multi_process.py --cluster
"""

import argparse
import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from tqdm import trange

from jaxgauss import embedding_norm_squared, mmd_squared, tau_from_bandwidth

OUTPUTS = Path(__file__).parent.parent / "outputs"
TAUS = tau_from_bandwidth(np.array([0.1, 0.4, 1.6], np.float32))
LAYERS = (2, 64, 64, 64, 2)
DRAWN = 4000  # points of a panel, at most


def moons(start: int, stop: int) -> np.ndarray:
    """Points of two crescents, those from `start` to `stop`: every process makes its own, in blocks of 256."""
    blocks = [np.random.default_rng(i).normal(size=(256, 3)) for i in range(start // 256, -(-stop // 256))]
    which, *noise = np.concatenate(blocks)[start % 256 :][: stop - start].T
    angle, side = np.pi * np.abs(which) % np.pi, np.sign(which)
    points = np.array([side * (np.cos(angle) - 0.5), side * (np.sin(angle) - 0.25)])
    return (points + 0.05 * np.array(noise)).T.astype(np.float32)


def initial(rng_key: jax.Array) -> list:
    """Weights and biases."""
    shapes = itertools.pairwise(LAYERS)
    keys = jax.random.split(rng_key, len(LAYERS) - 1)
    return [(jax.random.normal(key, (m, n)) / m**0.5, jnp.zeros(n)) for key, (m, n) in zip(keys, shapes, strict=True)]


def generate(params: list, x: jax.Array) -> jax.Array:
    """From normal points to those of the generator, (N, 2)."""
    *hidden, (last, shift) = params
    for weights, bias in hidden:
        x = jax.nn.silu(x @ weights + bias)
    return x @ last + shift


def gather(data: jax.Array, everywhere: NamedSharding) -> tuple[np.ndarray, np.ndarray]:
    """Every so many points of all processes' data, and the process that has each: all processes take part."""
    process = np.empty(len(data), int)
    for device, (rows, _) in data.sharding.devices_indices_map(data.shape).items():
        process[rows] = device.process_index
    stride = -(-len(data) // DRAWN)
    return np.asarray(jax.jit(lambda x: x[::stride], out_shardings=everywhere)(data)), process[::stride]


def train(steps: int, num_points: int, num_latents: int, folder: Path) -> None:
    """The same program in every process: what is not shared out, all of them compute alike."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    shared_out, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    def own_part(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(num_points)
        return moons(start, stop)

    data = jax.make_array_from_callback((num_points, 2), shared_out, own_part)
    shares = {"mesh": mesh, "key_axis": "data"}
    norm_squared = jax.jit(lambda data: embedding_norm_squared(data, TAUS, **shares))(data)
    optimizer = optax.adam(optax.cosine_decay_schedule(5e-3, steps))

    @jax.jit
    def step(params, state, rng_key, data, norm_squared):
        latents = jax.random.normal(rng_key, (num_latents, LAYERS[0]))

        def loss(params):
            return mmd_squared(generate(params, latents), data, TAUS, y_norm_squared=norm_squared, **shares)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    params, losses = initial(jax.random.key(0)), []
    params, state = jax.device_put((params, optimizer.init(params)), everywhere)
    first = jax.process_index() == 0
    for i in (bar := trange(steps, desc=f"{jax.process_count()} processes", unit="step", disable=not first)):
        params, state, value = step(params, state, jax.random.key(i + 1), data, norm_squared)
        losses.append(float(value))  # waits for the step: an error of another process is raised here
        bar.set_postfix(mmd=f"{max(losses[-1], 0) ** 0.5:.4f}")
    shown, process = gather(data, everywhere)
    if not first:
        return
    places = f"{jax.device_count()} devices of {jax.process_count()} processes"
    print(f"{num_points} points on {places}: MMD {max(losses[0], 0) ** 0.5:.4f} -> {max(losses[-1], 0) ** 0.5:.4f}")
    folder.mkdir(exist_ok=True)
    params = jax.tree.map(np.asarray, params)
    np.savez(folder / "multi_process.npz", *jax.tree.leaves(params), shown=shown, process=process)
    plot(params, shown, process, losses, places, folder / "multi_process.png")


def plot(params: list, shown: np.ndarray, process: np.ndarray, losses: list[float], places: str, path: Path) -> None:
    """The data by process, what the generator makes, and the loss."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    mixed = np.random.default_rng(0).permutation(len(shown))  # no process covers another
    points = generate(params, jax.random.normal(jax.random.key(0), (DRAWN, LAYERS[0])))
    dots = axes[0].scatter(
        *shown[mixed].T, s=4, c=process[mixed], cmap="tab10", vmin=0, vmax=max(9, process.max()), linewidths=0
    )
    axes[0].legend(*dots.legend_elements(), title="process", loc="upper right", fontsize=8)
    axes[1].scatter(*np.asarray(points).T, s=4, color="0.3", linewidths=0)
    for axis, title in ((axes[0], "data, by process"), (axes[1], "generated")):
        axis.set(title=title, xlim=(-1.9, 1.9), ylim=(-1.9, 1.9), aspect="equal", xlabel="$x_1$", ylabel="$x_2$")
    axes[2].semilogy(np.sqrt(np.maximum(losses, 1e-8)), color="0.3")
    axes[2].set(title=f"training on {places}", xlabel="step", ylabel="MMD")
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def start_all(num_processes: int, arguments: list[str]) -> int:
    """Start the processes on this machine, and end all of them when one has failed."""
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        name = socket.gethostname()
        sys.exit(f"Gloo looks this machine up by its name, {name!r}, which does not resolve: add it to /etc/hosts.")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    print(f"starting {num_processes} processes", flush=True)
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // num_processes)), **os.environ}
    programs = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments, "--join", address, str(num_processes), str(i)], env=environment
        )
        for i in range(num_processes)
    ]
    try:
        return max(abs(program.wait()) for program in programs)
    finally:
        for program in programs:
            program.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="how many to start on this machine (default: 2)")
    parser.add_argument(
        "--cluster", action="store_true", help="this is one process of a cluster's: JAX finds the others"
    )
    parser.add_argument("--join", nargs=3, metavar=("ADDRESS", "NUMBER", "INDEX"), help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--points", type=int, default=8192, help="of all processes together (default: 8192)")
    parser.add_argument("--latents", type=int, default=1024, help="generated in a step (default: 1024)")
    parser.add_argument("--folder", type=Path, default=OUTPUTS, help="for the picture (default: outputs)")
    options = parser.parse_args()
    if options.cluster:
        jax.distributed.initialize()
    elif options.join:
        address, number, index = options.join
        jax.distributed.initialize(address, int(number), int(index), heartbeat_timeout_seconds=10)
    elif options.processes > 1:
        sys.exit(start_all(options.processes, sys.argv[1:]))
    train(options.steps, options.points, options.latents, options.folder)
