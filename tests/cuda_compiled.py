"""What XLA makes of CUDA's programs: compiled, where JAX's CUDA plugin is installed, and replayed.

XLA compiles for a card of which it has a description, without a driver. What it has made of a program runs on a CPU,
with the stand-ins of `emulated_cuda` as PyTorch's kernels: the numbers are those of XLA's GPU pipeline, but for the
rounding of its own kernels. This needs names of JAX that are not public: those of the version of `.ci/cuda-programs`,
whose first word `write` makes cuda_programs.json anew.
"""

import collections
import contextlib
import functools
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import _jax
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo
from jax.experimental import topologies

import emulated_cuda
from cuda_programs import CALLBACK, lowered

FACTS = Path(__file__).with_name("cuda_programs.json")
FEW = "gauss_sum", "log_gauss_sum", "kernel_sum of imq", "mmd_squared", "ksd_squared of imq", "hsic"
HIGH = "gauss_sum", "log_gauss_sum", "second derivatives"
MANY = "gauss_sum", "float32", "log_gauss_sum", "kernel_mean", "mmd_squared", "mmd_flow_velocity", "leave_one_out_tau"
MANY += "ksd_squared of imq", "energy_distance"
SIZES = ((1000, 3), FEW), ((2000, 64), HIGH), ((16384, 16), MANY), ((16384, 2), ("gauss_sum by waves",))
CASES = [(name, *sizes) for sizes, names in SIZES for name in names]
COUNTED = {"fusion", "custom-call", "copy", "sort", "dot", "reduce", "scatter"}


class Device(NamedTuple):
    """A card, with the numbers of NVIDIA's data sheets and of the tables of compute capabilities."""

    name: str
    capability: tuple[int, int]
    cores: int  # multiprocessors
    gigahertz: float
    bandwidth: float  # GB/s
    cache: int  # MiB
    memory: int  # GiB
    shared: int  # KiB of a multiprocessor
    threads: int = 2048

    @property
    def target(self) -> str:
        """The description that XLA compiles for."""
        major, minor = self.capability
        own = "ACCELERATED_FEATURES" if major in (9, 10) else "NONE"
        most = self.shared - (1 if major >= 8 else 0)
        numbers = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 48 << 10,
            "shared_memory_per_core": self.shared << 10,
            "threads_per_core_limit": self.threads,
            "core_count": self.cores,
            "fpus_per_core": 64 if self.capability in ((7, 5), (8, 0)) else 128,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": int(self.bandwidth * 1e9),
            "l2_cache_size": self.cache << 20,
            "clock_rate_ghz": self.gigahertz,
            "device_memory_size": self.memory << 30,
            "shared_memory_per_block_optin": most << 10,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
        }
        rest = "".join(f"{name}: {x}\n" for name, x in numbers.items())
        capability = f"cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {own} }}"
        versions = 'driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0"'
        info = f'{rest}{capability} name: "{self.name}" {versions} dnn_version: "9.10.0"'
        return f'gpu_device_info {{ {info} }} platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }}'


DEVICES = {
    "H100": Device("NVIDIA H100 80GB HBM3", (9, 0), 132, 1.98, 3352, 50, 79, 228),
    "A100": Device("NVIDIA A100-SXM4-40GB", (8, 0), 108, 1.41, 1555, 40, 39, 164),
    "RTX 4090": Device("NVIDIA GeForce RTX 4090", (8, 9), 128, 2.52, 1008, 72, 23, 100, 1536),
    "B200": Device("NVIDIA B200", (10, 0), 148, 1.965, 7672, 126, 178, 228),
    "T4": Device("Tesla T4", (7, 5), 40, 1.59, 320, 4, 14, 64, 1024),
}


@functools.cache
def sharding(name: str) -> jax.sharding.Sharding:
    """On a card that is not there."""
    described = topologies.get_topology_desc(platform="cuda", target_config=DEVICES[name].target, topology="1x1x1")
    return jax.sharding.SingleDeviceSharding(described.devices[0])


class Compiled(NamedTuple):
    """What XLA has made of a program.

    Attributes:
        waits: loops of unknown length.
        kernels, callbacks: how many a call launches, loops once, without the branches of conditionals.
        temporary: bytes of arrays besides arguments and results.
        largest: numbers of the largest array.
        dtypes: of all arrays.
        layouts: orders of the axes of the callbacks' arrays, without those of rows one after another.
    """

    waits: int
    kernels: int
    callbacks: int
    temporary: int
    largest: int
    dtypes: set[str]
    layouts: list[str]


def examined(executable: Any) -> Compiled:
    """The facts of a compiled program, read from its text."""
    text = executable.as_text()
    fused = set(re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", text))
    in_branches, counts, largest = _in_branches(text), collections.Counter(), 0
    computation = ""
    for line in text.splitlines():
        if begins := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            computation = begins[2]
            continue
        found = re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = (\(.*?\)|\S+) ([\w\-]+)\(", line)
        if found is None or computation in fused:
            continue
        if computation not in in_branches:
            counts["callback" if CALLBACK in line else found[2]] += 1
        for dims in re.findall(r"\w+\[([\d,]+)\]", found[1]):
            largest = max(largest, math.prod(map(int, dims.split(","))))
    loops = [x for x in text.splitlines() if re.search(r" while\(", x)]
    layouts = [
        y for x in text.splitlines() if CALLBACK in x for y in re.findall(r"\]\{([\d,]+)\}", x.split("metadata=")[0])
    ]
    return Compiled(
        waits=sum("known_trip_count" not in x for x in loops),
        kernels=sum(counts[x] for x in COUNTED),
        callbacks=counts["callback"],
        temporary=executable.memory_analysis().temp_size_in_bytes,
        largest=largest,
        dtypes=set(re.findall(r"\b([a-z]+\d+)\[", text)),
        layouts=[x for x in layouts if sorted(x.split(","), key=int, reverse=True) != x.split(",")],
    )


def _in_branches(text: str) -> set[str]:
    """The computations that only branches of conditionals call."""
    bodies, computation = collections.defaultdict(list), ""
    for line in text.splitlines():
        if begins := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            computation = begins[1]
        bodies[computation].append(line)
    found: set[str] = set()
    waiting = re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", text)
    for branches in re.findall(r"branch_computations=\{([^}]*)\}", text):
        waiting += re.findall(r"[\w.\-]+", branches)
    while waiting:
        found.add(name := waiting.pop())
        waiting += set(re.findall(r"(?:body|condition)=%?([\w.\-]+)", "\n".join(bodies[name]))) - found
    return found


def not_recorded(name: str, *sizes: int, **options: Any) -> list[str]:
    """The conditionals, loops and callbacks that XLA leaves out of CUDA graphs."""
    with tempfile.TemporaryDirectory() as folder:
        compile_for(name, *sizes, xla_dump_to=folder, xla_dump_hlo_as_text=True, **options)
        (thunks,) = Path(folder).glob("*thunk_sequence_after_thunk_passes.txt")
        return re.findall(r"^\d+: (kConditional|kWhile|kCustomCall)", thunks.read_text(), re.MULTILINE)


class Loop(NamedTuple):
    """How many steps a loop has, what a step launches, by kind, and the numbers of its largest array."""

    steps: int
    kernels: list[str]
    largest: int


def loops(executable: Any) -> list[Loop]:
    """Those of a compiled program."""
    text, found = executable.as_text(), []
    for body, count in re.findall(r" while\(.*body=%?([\w.\-]+).*known_trip_count\W+n\W+(\d+)", text):
        lines = text[text.index(f"%{body} (") :].partition("\n}\n")[0].splitlines()
        kernels = [
            x[1]
            for x in (re.match(r"\s+(?:ROOT )?%(\S+) = .* (?:fusion|custom-call|copy|reduce|dot)\(", y) for y in lines)
            if x
        ]
        sizes = [math.prod(map(int, x.split(","))) for x in re.findall(r"\w+\[([\d,]+)\]", "\n".join(lines[1:]))]
        found.append(Loop(int(count), kernels, max(sizes)))
    return found


def compile_for(name: str, *sizes: int, device: str = "H100", channels: int = 1, **options: Any) -> Any:
    """The program as XLA compiles it for a card, with options of XLA."""
    program = lowered(name, *sizes, channels=channels, sharding=sharding(device))
    return program.compile(compiler_options=options or None)


@contextlib.contextmanager
def without_callbacks(kept: list[Any]) -> Iterator[None]:
    """JAX refuses to compile callbacks for a card that is not there; XLA does not, and the callbacks are kept here."""
    original = compiler.backend_compile_and_load

    def compile_(client: Any, module: Any, devices: Any, options: Any, callbacks: Any) -> Any:
        if not isinstance(client, _jax.CompileOnlyPyClient):
            return original(client, module, devices, options, callbacks)
        kept[:] = callbacks
        return original(client, module, devices, options, ())

    compiler.backend_compile_and_load = compile_
    try:
        yield
    finally:
        compiler.backend_compile_and_load = original


# Replayed on a CPU: fusions and bitcasts, which only XLA's GPU compiler knows, are opened, and callbacks are ours.


def replayed(
    executable: Any, callbacks: list[Any], operands: list[Any], change: Callable = lambda text: text
) -> list[Any]:
    """The results of a compiled program; `change` may change the text of its module."""
    (module,) = executable.runtime_executable().hlo_modules()
    with mlir.make_ir_context(), ir.Location.unknown():
        opened = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto()))
        for function in list(opened.body.operations):
            for block in _blocks(function):
                _open(block)
        text = (
            str(opened).replace(f"{CALLBACK}_cmd_buffer", CALLBACK).replace(CALLBACK, "xla_buffer_python_cpu_callback")
        )
        text = re.sub(r"module @(\S+) attributes \{.*\} \{\n", r"module @\1 {\n", text, count=1)
        for unknown in (
            r" \{mhlo\.frontend_attributes = \{[^{}]*\}, mhlo\.sharding = \"\{replicated\}\"\}",
            r"mhlo\.frontend_attributes = \{xla\.sdy\.sharding = \"[^\"]*\"\}(, )?",
            r"mhlo\.sharding = \"\{replicated\}\"",
        ):
            text = re.sub(unknown, "", text)
        cpu = jax.devices("cpu")[0]
        options, devices = compiler.get_compile_options(num_replicas=1, num_partitions=1), _jax.DeviceList((cpu,))
        runnable = cpu.client.compile_and_load(
            ir.Module.parse(change(text)), executable_devices=devices, compile_options=options, host_callbacks=callbacks
        )
    used = [jax.device_put(operands[i], cpu) for i in sorted(executable._executable._kept_var_idx)]
    return [np.asarray(x[0]) for x in runnable.execute_sharded(used).disassemble_into_single_device_arrays()]


def _blocks(operation: Any) -> Iterator[Any]:
    for region in operation.operation.regions:
        yield from region.blocks


def _open(block: Any) -> None:
    """Replace what only the GPU compiler knows by what it stands for."""
    for operation in list(block.operations):
        for inner in _blocks(operation):
            _open(inner)
        own, name = operation.operation, operation.operation.name
        if name == "mhlo.fusion":
            (inner,) = _blocks(operation)
            for argument, value in zip(inner.arguments, own.operands, strict=True):
                argument.replace_all_uses_with(value)
            *body, end = inner.operations
            values = list(end.operation.operands)
            end.operation.erase()
            for x in body:
                x.operation.move_before(own)
            for result, value in zip(own.results, values, strict=True):
                result.replace_all_uses_with(value)
        elif name == "mhlo.bitcast":
            own.results[0].replace_all_uses_with(_reshaped(own))
        elif name == "mhlo.copy":
            own.results[0].replace_all_uses_with(own.operands[0])
        elif name != "stablehlo.tuple" or list(own.results[0].uses):
            continue
        own.erase()


def _reshaped(bitcast: Any) -> Any:
    """The same numbers in the order in which they lie in memory."""
    x, wanted = bitcast.operands[0], ir.RankedTensorType(bitcast.results[0].type)
    given = ir.RankedTensorType(x.type)

    def layout(name: str, rank: int) -> list[int]:  # from the slowest axis to the fastest
        if name not in bitcast.attributes:
            return list(range(rank))
        return [int(i) for i in ir.DenseIntElementsAttr(bitcast.attributes[name])][::-1]

    before, after = layout("source_layout", given.rank), layout("result_layout", wanted.rank)
    with ir.InsertionPoint(bitcast):
        if given.element_type != wanted.element_type:
            x = hlo.bitcast_convert(ir.RankedTensorType.get(given.shape, wanted.element_type), x)
        x = hlo.transpose(x, ir.DenseI64ArrayAttr.get(before))
        x = hlo.reshape(ir.RankedTensorType.get([wanted.shape[i] for i in after], wanted.element_type), x)
        return hlo.transpose(x, ir.DenseI64ArrayAttr.get([int(i) for i in np.argsort(after)]))


def write() -> None:
    """What the programs of CASES launch and hold, into FACTS; what stands there as `before` stays."""
    given = json.loads(FACTS.read_text()) if FACTS.exists() else {"rows": []}
    before = {(x["program"], *x["sizes"]): x["before"] for x in given["rows"] if "before" in x}
    rows = []
    with emulated_cuda.emulated(), without_callbacks([]):
        for name, *sizes in CASES:
            found = examined(compile_for(name, *sizes))
            numbers = {"kernels": found.kernels, "callbacks": found.callbacks, "waits": found.waits}
            numbers["mebibytes"] = round(found.temporary / 2**20, 1)
            rows.append({"program": name, "sizes": sizes, **numbers, "before": before.get((name, *sizes), {})})
    facts = given | {"device": "H100", "jax": jax.__version__, "rows": rows}
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    write()
