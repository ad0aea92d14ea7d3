"""SlicedSketch: a sketch in any dimension, of the waves of `Sliced`; its sums are as approximate as those."""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays.compensated import compensated
from .._arrays.devices import vary_alike
from .._arrays.tracing import own_arrays
from .._calls import readable
from .._engines.sliced.engine import Sliced
from .._engines.sliced.sums import wave_sums, wave_values
from .._kernels.kernels import GAUSS
from .sketch import STATIC, Sketch, check_sketched


@readable
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class SlicedSketch(Sketch):
    """Waves of weighted points Σ_n v_n δ(k_n) in any dimension, as `fourier_sketch` computes them with `Sliced`.

    `sketch(queries)` are their Gauss sums, with errors as for `Sliced`. `first + second` is the sketch of both sets of
    points, if τ, dimension, engine and its random key are equal. There is no box: points may lie anywhere, but lose
    digits far from the origin. Otherwise it is like a `FourierSketch`.

    Attributes:
        coefficients: (C, 2 P J), cosines, then sines, for P directions of J frequencies.
        rounding: the rounding errors of added sketches, in the same shape.
        tau: τ = 1/σ² of the Gaussian.
        dim: D.
        directions, frequencies: P and J.
        rng_key: the numbers of the random key.
        generator: the name of its random generator.
        one_weight: whether values were (N,), so that sums are (…, M).
    """

    coefficients: Float[Array, "c waves"]
    rounding: Float[Array, "c waves"]
    tau: float = field(metadata=STATIC)
    dim: int = field(metadata=STATIC)
    directions: int = field(metadata=STATIC)
    frequencies: int = field(metadata=STATIC)
    rng_key: tuple[int, ...] = field(metadata=STATIC)
    generator: str = field(metadata=STATIC)
    one_weight: bool = field(metadata=STATIC)
    alike = "tau, and the same engine and random key, for points of one dimension"

    def __repr__(self) -> str:
        found, waves = self.coefficients, f"{self.directions} directions × {self.frequencies}"
        return f"SlicedSketch({found.dtype}[{len(found)}], {waves}, tau={self.tau:.6g}, {self.dim} dimensions)"

    @property
    def engine(self) -> Sliced:
        """The engine, with its random key."""
        key = jax.random.wrap_key_data(jnp.asarray(self.rng_key, "uint32"), impl=self.generator)
        return Sliced(self.directions, self.frequencies, rng_key=key)

    @property
    def kind(self) -> dict[str, Any]:
        return {"engine": self.engine}

    def sketched(self, keys: Any, values: Any, margin: Any = None) -> Array:
        return _sketched(*self._static, self.coefficients, keys, values)

    def sums_of(self, queries: Any) -> Array:
        return _sums_of(*self._static, self.one_weight, self.coefficients, self.rounding, queries)

    @property
    def _static(self) -> tuple[Any, ...]:
        engine, key = self.engine.without_arrays()
        return engine, key, np.asarray(self.tau, self.coefficients.dtype)


def empty_sliced_sketch(
    function: str, engine: Sliced, keys: Any, values: Any, tau: Any, box: tuple[Any, ...]
) -> SlicedSketch:
    """The sketch of no keys, for keys and values like these; `box`: lower, upper and tolerance, which it has not."""
    where = f"`jaxgauss.{function}`"
    dtype = check_sketched(function, keys, values, tau)
    if any(x is not None for x in box):
        given = "got lower {}, upper {}, tolerance {}".format(*box)
        raise ValueError(
            f"{where}: `lower`, `upper` and `tolerance` must be left out with Sliced, for any points; {given}."
        )
    if isinstance(own_arrays(), jax.core.Tracer):
        raise TypeError(
            f"{where}: `rng_key` must be known before a transformation such as jit; got a tracer. Close over it."
        )
    with jax.ensure_compile_time_eval():
        key = own_arrays()
        key = jax.random.wrap_key_data(key) if key.dtype == np.uint32 else key
        numbers = tuple(map(int, np.asarray(jax.random.key_data(key))))
    channels = values.shape[1] if len(values.shape) > 1 else 1
    zeros = jax.device_put(np.zeros((channels, 2 * engine.directions * engine.frequencies), dtype))
    return SlicedSketch(
        zeros,
        zeros,
        float(tau),
        keys.shape[-1],
        engine.directions,
        engine.frequencies,
        numbers,
        str(jax.random.key_impl(key)),
        len(values.shape) == 1,
    )


@functools.partial(jax.jit, static_argnums=0)
def _sketched(engine: Sliced, rng_key: Array, tau: Any, like: Array, keys: Any, values: Any) -> Array:
    """`wave_sums`, transposed."""
    keys, values = vary_alike(*(jnp.asarray(x, like.dtype) for x in (keys, values)))
    if not len(keys):
        return jnp.zeros_like(like)
    of = engine.drawn(rng_key, GAUSS, keys.shape[-1], like.dtype)
    return wave_sums(of, keys * jnp.sqrt(tau), values[:, None] if values.ndim == 1 else values).T


@functools.partial(jax.jit, static_argnums=(0, 3))
def _sums_of(engine: Sliced, rng_key: Array, tau: Any, one_weight: bool, found: Array, rounding: Array, queries: Any):
    """The sums at queries (…, M, D)."""
    points = jnp.asarray(queries, found.dtype).reshape(-1, queries.shape[-1])
    if not len(points):
        return jnp.zeros(queries.shape[:-1] + (() if one_weight else (len(found),)), found.dtype)
    of = engine.drawn(rng_key, GAUSS, points.shape[-1], found.dtype)
    points, found = vary_alike(points * jnp.sqrt(tau), compensated(found, rounding).T / of.frequencies.size)
    sums = wave_values(of, points, found).reshape(*queries.shape[:-1], -1)
    return sums[..., 0] if one_weight else sums
