"""Programs of the public functions for CUDA, as JAX lowers them; see `cuda_compiled` for what XLA makes of them."""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.lib.mlir import ir

import jaxgauss

CALLBACK = "xla_buffer_python_gpu_callback"


class Program(NamedTuple):
    """A function and the letters of its operands: points x and y, values v, scores s, log-weights w, τ, a key.

    `gradients` are those of the sum of its results, of all operands but keys.
    """

    function: Callable
    operands: str
    gradients: bool = True

    def structs(self, num: int, dim: int, channels: int = 1, **options: Any) -> list[jax.ShapeDtypeStruct]:
        """The shapes of the operands."""
        shapes = {"v": (num, channels), "w": (num,), "t": (), "T": (3,)}
        shaped = functools.partial(jax.ShapeDtypeStruct, **options)
        keys = jax.eval_shape(lambda: jax.random.key(0))
        return [keys if x == "r" else shaped(shapes.get(x, (num, dim)), "float32") for x in self.operands]

    @property
    def run(self) -> Callable:
        """The function with its gradients."""
        if not self.gradients:
            return self.function
        indices = [i for i, x in enumerate(self.operands) if x != "r"]
        return jax.value_and_grad(lambda *x: jnp.sum(self.function(*x)), indices)


def _partial(name: str, **options: Any) -> Callable:
    return functools.partial(getattr(jaxgauss, name), **options)


def _drawn(name: str, **options: Any) -> Callable:
    return lambda *x: getattr(jaxgauss, name)(*x[:-1], rng_key=x[-1], **options)


PROGRAMS = {
    "gauss_sum": Program(jaxgauss.gauss_sum, "xyvt"),
    "log_gauss_sum": Program(jaxgauss.log_gauss_sum, "xywt"),
    "kernel_mean": Program(jaxgauss.kernel_mean, "xyvt"),
    "kde_logpdf": Program(jaxgauss.kde_logpdf, "xyt"),
    "kde_score": Program(jaxgauss.kde_score, "xyt"),
    "mmd_squared": Program(jaxgauss.mmd_squared, "xyt"),
    "mmd_squared of three τ": Program(jaxgauss.mmd_squared, "xyT"),
    "mmd_squared_matrix": Program(lambda x, t: jaxgauss.mmd_squared_matrix(x, t, segments=np.arange(len(x)) % 5), "xt"),
    "mmd_squared_to_normal": Program(jaxgauss.mmd_squared_to_normal, "xt"),
    "uniformity": Program(jaxgauss.uniformity, "xt"),
    "mmd_flow_velocity": Program(jaxgauss.mmd_flow_velocity, "xyt", False),
    "mmd_witness": Program(jaxgauss.mmd_witness, "xyyt"),
    "ksd_squared": Program(jaxgauss.ksd_squared, "xst"),
    "svgd_direction": Program(jaxgauss.svgd_direction, "xst", False),
    "hsic": Program(jaxgauss.hsic, "xytt"),
    "energy_distance": Program(jaxgauss.energy_distance, "xy"),
    **{f"kernel_sum of {x}": Program(_partial("kernel_sum", kernel=x), "xyvt") for x in ("matern32", "imq")},
    "kernel_sum of matern12": Program(_partial("kernel_sum", kernel="matern12"), "xyvt"),
    "log_kernel_sum of imq": Program(_partial("log_kernel_sum", kernel="imq"), "xywt"),
    "kde_logpdf of weights": Program(lambda x, y, t, w: jaxgauss.kde_logpdf(x, y, t, weights=jnp.exp(w)), "xytw"),
    "mmd_squared of imq": Program(_partial("mmd_squared", kernel="imq"), "xyt"),
    "ksd_squared of imq": Program(_partial("ksd_squared", kernel="imq"), "xst"),
    "leave_one_out_tau": Program(lambda x, t: jaxgauss.leave_one_out_tau(x, t).scores, "xT"),
    "second derivatives": Program(lambda *x: jax.grad(lambda *y: jaxgauss.gauss_sum(*y).sum())(*x), "xyvt"),
    "gauss_sum of segments": Program(
        lambda x, y, v, t: jaxgauss.gauss_sum(x, y, v, t, segments=(np.arange(len(x)) % 5,) * 2), "xyvt"
    ),
    "gauss_sum under vmap": Program(
        lambda x, y, v, t: jax.vmap(jaxgauss.gauss_sum, (None, None, None, 0))(x, y, v, t), "xyvT"
    ),
    "float32": Program(_partial("gauss_sum", precision="float32"), "xyvt"),
    "bfloat16": Program(_partial("gauss_sum", precision="bfloat16"), "xyvt"),
    "float16x2": Program(_partial("gauss_sum", precision="float16x2"), "xyvt"),
    "reweight": Program(_partial("gauss_sum", engine="reweight"), "xyvt"),
    "blocked": Program(_partial("gauss_sum", engine="blocked"), "xyvt"),
    "differences": Program(_partial("gauss_sum", engine="differences"), "xyvt", False),
    "kernel_herding": Program(_partial("kernel_herding", num=8), "xt", False),
    "drift": Program(jaxgauss.drift, "xyt"),
    "mean_shift": Program(lambda x, t: jaxgauss.mean_shift(x, x, t).points, "xt", False),
    "mmd_test": Program(_drawn("mmd_test", num_permutations=99), "xytr", False),
    "hsic_test": Program(_drawn("hsic_test", num_permutations=99), "xyttr", False),
    "ksd_test": Program(_drawn("ksd_test"), "xstr", False),
    "estimate_error": Program(_drawn("estimate_error"), "xyvtr", False),
}

WAVES = {  # of up to three dimensions
    "gauss_sum by waves": Program(_partial("gauss_sum", engine="fourier"), "xyvt"),
    "mmd_squared by waves": Program(_partial("mmd_squared", engine="fourier"), "xyt"),
    "mmd_squared of three τ by waves": Program(_partial("mmd_squared", engine="fourier"), "xyT"),
    "mmd_flow_velocity by waves": Program(_partial("mmd_flow_velocity", engine="fourier"), "xyt", False),
    "svgd_direction by waves": Program(_partial("svgd_direction", engine="fourier"), "xst", False),
    "second derivatives by waves": Program(
        lambda *x: jax.grad(lambda *y: jaxgauss.gauss_sum(*y, engine="fourier").sum())(*x), "xyvt"
    ),
    "fourier_sketch": Program(lambda x, y, v: jaxgauss.fourier_sketch(x, v, 25.0, lower=0, upper=1)(y), "xyv"),
}


def lowered(name: str, *sizes: int, **options: Any) -> jax.stages.Lowered:
    """The program of a function for N points in D dimensions, for the platform that JAX has, or for a `sharding`."""
    program = (PROGRAMS | WAVES)[name]
    with jax.enable_x64(False):
        return jax.jit(program.run).trace(*program.structs(*sizes, **options)).lower()


def loops_of_unknown_length(text: str) -> int:
    """Of a lowered program: loops that do not just count to a constant."""
    conditions = re.findall(r"stablehlo\.while.*?\n\s*cond \{\n(.*?)\n\s*\} do \{", text, re.DOTALL)
    assert len(conditions) == text.count("stablehlo.while")
    of_counter = r"%\S+ = stablehlo\.compare +LT, %iterArg\S*, %c\S*,.*\n\s*stablehlo\.return .*"
    counts = re.compile(rf"\s*(%\S+ = stablehlo\.constant .*\n\s*)?{of_counter}")
    return sum(counts.fullmatch(x) is None for x in conditions)


def operations_in_branches(program: jax.stages.Lowered) -> set[str]:
    """The names of what branches of conditionals hold, and what they call: with a loop in a branch XLA records none."""
    (module,) = program.compiler_ir("stablehlo").operation.regions[0].blocks
    functions = {ir.StringAttr(x.attributes["sym_name"]).value: x.operation for x in module}

    def inside(operation: Any) -> Iterator[Any]:
        for block in (x for region in operation.regions for x in region.blocks):
            for x in block.operations:
                yield x.operation
                called = x.operation.name == "func.call"
                yield from inside(
                    functions[ir.FlatSymbolRefAttr(x.attributes["callee"]).value] if called else x.operation
                )

    conditionals = [x for f in functions.values() for x in inside(f) if x.name in ("stablehlo.case", "stablehlo.if")]
    return {x.name for conditional in conditionals for x in inside(conditional)}
