"""Wrong calls: each error names the function that was called, the argument, what was given, and one fix."""

import functools
import inspect
import itertools
import math
import re
from importlib import import_module

import dask.array as da
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import jaxgauss

# call | argument, and what it must be; ! of a TypeError | what was given | the fix; the last two from their beginning
TABLE = """
# gauss_sum, and what all sums have in common: points
gauss_sum(q[0], k, v) | queries | queries (3,), keys (7, 3), values (7, 2) | One-dimensional points are queries[:
gauss_sum(q, k[0], v) | keys | queries (5, 3), keys (3,), values (7, 2) | One-dimensional points are keys[:, None].
gauss_sum(q.T, k, v) | queries | queries (3, 5), keys (7, 3), values (7, 2) | Their last axes must be equal.
gauss_sum(q[:, :0], k[:, :0], v) | queries | queries (5, 0), keys (7, 0), values (7, 2) | Add a column of zeros.
gauss_sum(q, k, v.T) | values | queries (5, 3), keys (7, 3), values (2, 7) | Keys come first: values.T.
gauss_sum(q, k, v[:5]) | values | queries (5, 3), keys (7, 3), values (5, 2) | The last two axes of values are keys
gauss_sum(q, k, w[:5]) | values | queries (5, 3), keys (7, 3), values (5,) | Weights are one for each key, (7,).
gauss_sum(q, k, w[0]) | values | queries (5, 3), keys (7, 3), values () | Pass one a key.
gauss_sum(stack(q, q), stack(k, k), stack(w, w)) | values | queries (2, 5, 3) | Weights in batches need an axis of
gauss_sum(stack(q, q), stack(k, k, k, k), v) | tau | queries (2, 5, 3), keys (4, 7, 3) | Add axes of length 1.
gauss_sum(stack(q, q), k, v, np.ones(3)) | tau | queries (2, 5, 3), keys (7, 3) | Add axes of length 1. For one
gauss_sum(stack(q, q), k, v, np.ones(4)) | tau | queries (2, 5, 3), keys (7, 3), values (7 | Add axes of length 1.
gauss_sum([[1.0, 2.0], [3.0]], k, v) | queries! | list | Convert with jnp.asarray(queries
gauss_sum([["a", "b", "c"]], k, v) | queries! | list | Convert with jnp.asarray(queries
gauss_sum([[1.0, 2.0]], k, v) | queries | queries (1, 2), keys (7, 3) | Their last axes must be equal.
gauss_sum([[1.0, 2.0, 3j]], k, v) | queries! | queries complex128 | Complex coordinates are two real ones each:
gauss_sum("points", k, v) | queries! | str | Convert with jnp.asarray(queries
gauss_sum(None, k, v) | queries! | NoneType | Convert with jnp.asarray(queries
gauss_sum(q, k, 1) | values! | int | For all alike jnp.full(number, 1).
gauss_sum(q.astype(int), k, v) | queries! | queries int64 | Convert with queries.astype(jnp.float32).
gauss_sum(q, k.astype(bool), v) | keys! | keys bool | Convert with keys.astype(jnp.float32).
gauss_sum(q, k.astype("float8_e4m3fn"), v) | keys! | keys float8_e4m3fn | Convert with keys.astype(jnp.float32).
gauss_sum(q, k.astype(complex), v) | keys! | keys complex128 | Complex coordinates are two real ones each:
gauss_sum(q, k, v.astype(complex)) | values! | values complex128 | Sum the parts by themselves
gauss_sum(q, k, np.ones((7, 2), object)) | values! | values object | Convert with values.astype(jnp.float32).
gauss_sum(torch.ones(5, 3), k, v) | queries! | queries torch.float32 | Convert with jnp.from_dlpack(queries). For
gauss_sum(rng_key, k, v) | queries! | queries key<fry> | Random keys go by `rng_key`, where there is one.
# τ
gauss_sum(q, k, v, 0) | tau | tau 0 | Pass 1 / sigma**2.
gauss_sum(q, k, v, -1.0) | tau | tau -1.0 | Pass 1 / sigma**2.
gauss_sum(q, k, v, jnp.asarray(-1.0)) | tau | tau -1.0 | Pass 1 / sigma**2.
gauss_sum(q, k, v, [1.0, -2.0]) | tau | tau [1.0, -2.0] | Pass 1 / sigma**2.
gauss_sum(q, k, v, math.nan) | tau | tau nan | Pass 1 / sigma**2.
gauss_sum(q, k, v, math.inf) | tau | tau inf | Pass 1 / sigma**2.
gauss_sum(q, k, v, 10**400) | tau | tau 1000000 | Pass 1 / sigma**2.
gauss_sum(q, k, v, True) | tau! | tau True | Pass 1 / sigma**2.
gauss_sum(q, k, v, "wide") | tau! | tau 'wide' | Pass 1 / sigma**2.
gauss_sum(q, k, v, None) | tau! | tau None | Pass 1 / sigma**2.
gauss_sum(q, k, v, 1j) | tau! | tau 1j | Pass 1 / sigma**2.
gauss_sum(q, k, v, np.zeros((), [("a", "f4")])) | tau! | tau array((0.,), dtype=[('a', '<f4')]) | Pass 1 / sigma**2.
# options
gauss_sum(q, k, v, engine="blokced") | engine | 'blokced' | Did you mean 'blocked'?
gauss_sum(q, k, v, engine=None) | engine! | NoneType | Pass 'auto'.
gauss_sum(q, k, v, engine=["blocked"]) | engine! | list | Pass 'auto'.
gauss_sum(q, k, v, precision="double") | precision | 'double' | Did you mean 'float64'?
gauss_sum(q, k, v, precision=jnp.float32) | precision | <class 'jax.numpy.float32'> | Did you mean 'float32'?
gauss_sum(q, k, v, engine="gpu") | engine | 'gpu' | Did you mean 'auto'?
gauss_sum(q, k, v, engine=jaxgauss.Fourier) | engine! | the class Fourier | Pass Fourier().
gauss_sum(q, k, v, engine="rescale", precision="half") | precision | 'half' | Did you mean 'float16'?
gauss_sum(q, k, v, engine=Dense(precision="float64"), precision="float32") | precision | 'float32' and D | Leave it
Attention("rescaled") | method | 'rescaled' | Did you mean 'rescale'?
Attention(kernel="flesh") | kernel | 'flesh' | Did you mean 'flash'?
Differences(precision="single") | precision | 'single' | Did you mean 'float32'?
Blocked(precision="double") | precision | 'double' | Did you mean 'float64'?
Dense(precision=32) | precision | 32 | Pass 'float16', for example.
Clusters(precision="fp32") | precision | 'fp32' | Did you mean 'float32'?
Engine(precision="bf16") | precision | 'bf16' | Did you mean 'bfloat16'?
Mixture("attention") | gaussians! | str | Pass jaxgauss.Attention(), for example.
Mixture(Mixture()) | gaussians! | Mixture | Pass jaxgauss.Attention(), for example.
Mixture(Attention(precision="float16"), precision="float32") | precision | 'float32' and Attention( | Leave it out.
gauss_sum(q, k, v, engine="flash") | engine | 'flash' | Pass jaxgauss.Attention(kernel='flash').
estimate_error(q, k, v, rng_key=rng_key, engine="dense", precision="float16") | engine | Dense(precision= | Use engine=
gauss_sum(q, k, v, engine=jaxgauss.Attention(kernel="flash")) | engine | Attention(kernel='flash') | Use engine='auto'.
gauss_sum(np.ones((5, 4)), np.ones((7, 4)), v, engine="fourier") | engine | Fourier() | Use engine='auto'.
Fourier(tolerance="1e-3") | tolerance! | str | Pass one such as 1e-4.
Fourier(2) | tolerance | 2 | Pass one such as 1e-4.
Sliced(0) | directions | 0 | Leave it out, for 256.
Sliced(frequencies=1.5) | frequencies | 1.5 | Leave it out, for 1.
gauss_sum(q, k, v, segments=labels) | segments | ndarray | If both are the same points: (labels, labels).
gauss_sum(q, k, v, segments=(labels, labels)) | segments | (5,) | All elements of a batch share the labels.
gauss_sum(q, k, v, segments=(["a"] * 5, ["b"] * 7)) | segments! | list | Convert the labels with np.asarray.
gauss_sum(q, k, v, segments=(a, w)) | segments! | float64 | Number the groups: np.unique(labels
jax.jit(lambda labels: gauss_sum(q, q, q, segments=(labels, labels)))(labels) | segments! | a tracer, int64[ | Close
gauss_sum(q, k, v, segments=(labels,)) | segments | 1 of them | If both are the same points: (labels, labels).
gauss_sum(x, x, x, segments=(labels, labels.astype("uint64") + 2**63)) | segments! | uint64 | Number the groups: np.uni
gauss_sum(x, x, x, segments=(labels, labels > 0)) | segments! | bool | Number the groups: np.unique(labels, return_inve
gauss_sum(q, k, v, engine="blocked", precision="float16") | engine | Blocked(precision='float16') | Use engine='auto'.
gauss_sum(x, x, x, engine="fourier", precision="float16") | engine | Fourier(precision='float16') | Use engine='auto'.
gauss_sum(x, x, x, segments=(labels, labels), progress=True) | progress | True | Leave it out.
gauss_sum(q, k, v, exclude_self=True) | exclude_self | queries (5, 3), keys (7, 3) | Pass the same array as both.
kernel_sum(q, k, v, exclude_self=True) | exclude_self | queries (5, 3), keys (7, 3) | Pass the same array as both.
gauss_sum(x, x, x, exclude_self=True, progress=True) | progress | True | Leave it out.
gauss_sum(x, x, x, segments=(labels, labels + 1), exclude_self=True) | segments | labels (5,) and (5,) that | Pass (l
jax.jit(lambda q: gauss_sum(q, k, v, progress=True))(q) | progress | True | Leave it out.
jax.grad(lambda q: gauss_sum(q, k, v, progress=True).sum())(q) | progress | True | Leave it out.
jax.vmap(lambda q: gauss_sum(q, k, v, progress=True))(stack(q)) | progress | True | Leave it out.
# other sums
gauss_sum_dense(q, k.T, v) | queries | queries (5, 3), keys (3, 7), values (7, 2) | Their last axes must be equal.
gauss_sum_blocked(q, k, v, -1.0) | tau | tau -1.0 | Pass 1 / sigma**2.
explain(q, k, v, kernel="gaussian") | kernel | 'gaussian' | Did you mean 'gauss'?
explain(q, k, v, kernel="imq", engine="rescale") | engine | Attention() | Use engine='auto'.
explain(q, k, v, 0.0) | tau | tau 0.0 | Pass 1 / sigma**2.
kernel_sum(q, k, v, -1.0) | tau | tau -1.0 | Pass 1 / sigma**2.
kernel_sum(q, k, v.T) | values | queries (5, 3), keys (7, 3), values (2, 7) | Keys come first: values.T.
kernel_sum(q, k, v, kernel="rbf") | kernel | 'rbf' | Did you mean 'gauss'?
kernel_sum(q, k, v, kernel="Matern52") | kernel | 'Matern52' | Did you mean 'matern52'?
kernel_sum(q, k, v, kernel="rational_quadratic") | kernel | 'rational_quadratic' | Others are a jaxgauss.Kernel
kernel_sum(q, k, v, kernel=lambda u: jnp.exp(-u)) | kernel! | function | Wrap a function of u = τ‖x - y‖²:
kernel_sum(q, k, v, kernel=student, engine="mixture") | engine | Mixture() | Use engine='auto'.
kernel_sum(x, x, x, segments=(labels, labels[:4])) | segments | (4,) | All elements of a batch share the labels.
kernel_sum(x, x, x, segments=(labels[None], labels)) | segments | (1, 5) | All elements of a batch share the labels.
kernel_sum(q, k, v, kernel="imq", engine="rescale") | engine | Attention() | Use engine='auto'.
kernel_sum(q, k, v, engine="mixture") | engine | Mixture() | Use engine='auto'.
kernel_mean(q, k[:0], v[:0]) | keys | queries (5, 3), keys (0, 3) | There is no mean of nothing.
kernel_mean(q, k, v, log_weights=np.ones(5)) | log_weights | log_weights (5,) | Its last axis must be that of the
kernel_mean(q, k, v, kernel="energy") | kernel | Kernel(energy) | Use kernel='matern12', or 'imq'.
kernel_mean(q, k, v[:5]) | values | queries (5, 3), keys (7, 3), values (5, 2) | The last two axes of values are keys a
kernel_mean(q, k, v, engine="prescale") | engine | Attention(method='prescale') | Use engine='auto'.
kernel_mean(q, k, v, log_weights=w - np.inf) | log_weights | log_weights (7,) | There is no mean of nothing.
log_kernel_sum(q, k, exclude_self=True) | exclude_self | queries (5, 3), keys (7, 3) | Pass the same array as both.
kernel_mean(q, k, v, exclude_self=True) | exclude_self | queries (5, 3), keys (7, 3) | Pass the same array as both.
kernel_mean(x[:1], x[:1], a[:1], exclude_self=True) | keys | queries (1, 3), keys (1, 3) | There is no mean of nothing.
kernel_mean(x, x, x, log_weights=np.where(a.cumsum() > 1, -np.inf, 0), exclude_self=True) | log_weights | log_wei | The
kernel_mean(x, x, x, mesh=mesh, query_axis="i", exclude_self=True) | mesh | a mesh of {'i': 1} | One device sums.
kde_logpdf(x, y, 1.0, exclude_self=True) | exclude_self | points (5, 3), samples (4, 3) | Pass the same array as both.
kde_score(x, x, 1.0, weights=np.eye(5)[0], exclude_self=True) | samples | 1 of 5 | Leave it out.
kde_logpdf(x, x, 1.0, exclude_self=True, progress=True) | progress | True | Leave it out.
kde_logpdf(x, x, 1.0, mesh=mesh, query_axis="i", exclude_self=True) | mesh | a mesh of {'i': 1} | One device sums.
log_gauss_sum(q, k, v) | log_weights | log_weights (7, 2), keys (7, 3) | Its last axis must be that of the keys.
log_gauss_sum(q, k, 1.0) | log_weights! | float | For all alike jnp.full(number, 1.0).
log_gauss_sum(q, k, engine="reweight") | engine | Attention(method='reweight') | Use engine='auto'.
log_gauss_sum(q, k, kernel="imq", engine="rescale") | engine | Attention() | Use engine='auto'.
log_gauss_sum(q, k, kernel="energy") | kernel | Kernel(energy) | Use kernel='matern12', or 'imq'.
log_gauss_sum(q, k, w[0]) | log_weights | log_weights (), keys (7, 3) | Its last axis must be that of the keys.
log_gauss_sum(q, k, [1.0] * 5) | log_weights | log_weights (5,), keys (7, 3) | Its last axis must be that of the keys.
log_gauss_sum(q, k, w > 0) | log_weights! | log_weights bool | Convert with log_weights.astype(jnp.float32).
log_gauss_sum(q, k, w.astype(int)) | log_weights! | log_weights int64 | Convert with log_weights.astype(jnp.float32).
log_kernel_sum(q, k, w[:5]) | log_weights | log_weights (5,), keys (7, 3) | Its last axis must be that of the keys.
gauss_sum_sharded(q, k, v, mesh=mesh) | query_axis | query_axis None | Pass query_axis='i', for example.
gauss_sum_sharded(q, k, v, mesh=mesh, query_axis="j") | query_axis | query_axis 'j' | Pass query_axis='i'
gauss_sum_sharded(q, k, v, mesh=mesh, query_axis="i", key_axis="i") | query_axis | query_axis 'i' | Pass query_axis=
gauss_sum_sharded(q, k, v, mesh=mesh, query_axis=0) | query_axis | query_axis 0 | Pass query_axis='i', for example.
gauss_sum_sharded(q, k, v, mesh=jax.devices(), query_axis="i") | mesh! | list | See jax.make_mesh.
kernel_sum_sharded(q, k, v, mesh=None, query_axis="i") | query_axis | query_axis 'i' | Make a mesh by jax.make_mesh.
kernel_sum_sharded(q, k, v, mesh=mesh, query_axis="i", kernel="imqq") | kernel | 'imqq' | Did you mean 'imq'?
gauss_sum_streamed(q, k, v) | chunks! | (ndarray) as chunk 0 | Use jaxgauss.KeyChunks(keys, values).
gauss_sum_streamed(q, 3) | chunks! | int | Use KeyChunks.
gauss_sum_streamed(q, []) | chunks | none | Pass an empty one for zeros.
gauss_sum_streamed(q, [(k, v), (k, w)]) | chunks | keys (7, 3) float64 | Sum others by themselves.
gauss_sum_streamed(q, KeyChunks(k, v), saved=True) | saved! | True | Pass the name of a file.
jax.jit(lambda q: gauss_sum_streamed(q, [(k, v)]))(q) | queries! | a tracer | Use `gauss_sum`
gauss_sum_streamed(q, [(k, v), None]) | chunks! | (NoneType) as chunk 1 | Use jaxgauss.KeyChunks(keys, values).
gauss_sum_streamed(q, [(k, [None] * 7)]) | chunks! | (ndarray, list) as chunk 0 | Use jaxgauss.KeyChunks(keys, values).
gauss_sum_streamed(q, [(k[:, :2], v)]) | queries | queries (5, 3), keys (7, 2), values (7, 2) | Their last axes must be
gauss_sum_streamed(q, [(k.astype(int), v)]) | keys! | keys int64 | Convert with keys.astype(jnp.float32).
gauss_sum_streamed(q, [(k[None], v)]) | chunks | keys (1, 7, 3), values (7, 2) | Leading axes are for queries and tau.
gauss_sum_streamed(q, [(k, v), (k[:, :2], v)]) | chunks | keys (7, 2) float64, values (7, 2) | Sum others by themselves
gauss_sum_streamed(q, [(k, v), (k, v[:5])]) | chunks | keys (7, 3) float64, values (5, 2) flo | Sum others by themselve
gauss_sum_streamed(q, [(k, v)] * 2 + [(k, v.astype("f4"))]) | chunks | keys (7, 3) float64, v | Sum others by themselve
gauss_sum_streamed(q, [(k, v)], engine="softmax") | engine | 'softmax' | Pass 'auto', for example.
gauss_sum_streamed(q, [(k, v)], -1) | tau | tau -1 | Pass 1 / sigma**2.
gauss_sum_streamed(stack(q), [(k, v)], np.ones(2), engine="fourier") | tau | tau (2,) | Make a sketch for each.
gauss_sum_streamed(1e6 * q, [(k, v)], 1e12, engine="fourier") | tau | 2611265022320 for 6.86e | Use `gauss_sum`, or a s
gauss_sum_streamed(q, [(k, v)], engine=jaxgauss.Attention(kernel="flash")) | engine | Attention(kernel='flash') | Use en
jax.grad(lambda v: gauss_sum_streamed(q, [(k, v)]).sum())(v) | queries! | a tracer | Use `gauss_sum`, or `gauss_sum_sha
gauss_sum_streamed(q, [(k, v)], saved="missing/sum.npz") | saved | 'missing/sum.npz' | Create it.
kernel_sum_streamed(q, [(k, v[:3])]) | values | queries (5, 3), keys (7, 3) | The last two axes of values are keys
kernel_sum_streamed(q, [(k, v)], precision="fp16") | precision | 'fp16' | Did you mean 'float16'?
KeyChunks(k, v[:3]) | values | keys (7, 3), values (3, 2) | The first axes must be equal.
KeyChunks(k, v, 0) | size | size 0 | Pass None for 4 MiB.
KeyChunks(["k"], v) | keys! | list, ndarray | Use np.asarray.
KeyChunks(k, v, True) | size | size True | Pass None for 4 MiB.
fourier_sketch(np.ones((5, 4)), a) | keys | keys (5, 4), values (5,) | More dimensions take engine=jaxgauss.Sliced
fourier_sketch(x, a[:3]) | values | keys (5, 3), values (3,) | Row i belongs to key i.
fourier_sketch(x, a, [1.0, 2.0]) | tau | tau (2,) | Make a sketch for each.
fourier_sketch(x, a, lower=2.0, upper=0.0) | lower | [2.0, 2.0, 2.0] and [0.0, 0.0, 0.0] | Swap them.
fourier_sketch(x, a, lower="left") | lower | lower left | Leave it out for that of the keys.
fourier_sketch(x, a, upper=0.5) | keys | [0.44285714285714284 | Make the sketch with `lower` and
fourier_sketch(x, a, lower=-1e9, upper=1e9) | tau | 7616189720 | Use `gauss_sum`
fourier_sketch(x[:0], a[:0]) | lower | None | Pass a number.
fourier_sketch(stack(x, x), a) | values | keys (2, 5, 3), values (5,) | Row i belongs to key i.
fourier_sketch(x.astype(int), a) | keys! | keys int64 | Convert with keys.astype(jnp.float32).
fourier_sketch(x, a, -1.0) | tau | tau -1.0 | Pass 1 / sigma**2.
fourier_sketch(x, a, lower=[0.0] * 2) | lower | lower [0.0, 0.0] | Leave it out for that of the keys.
fourier_sketch(x, a, upper=np.inf) | upper | upper inf | Leave it out for that of the keys.
fourier_sketch(x, a, tolerance=0) | tolerance | 0 | Pass one such as 1e-4.
fourier_sketch(x * np.nan, a, lower=0, upper=1) | keys | [nan, nan, nan], and 4 others outsid | Make the sketch with `l
jax.jit(fourier_sketch)(x, a) | lower! | None | Pass a number.
jax.jit(lambda tau: fourier_sketch(x, a, tau, lower=0, upper=1))(1.0) | tau! | a tracer | Close over it.
FourierSketch.__call__(sketch, 99 * x) | queries | [9.9, 15.5 | Make the sketch with `lower` and `upper`
FourierSketch.__call__(sketch, x[:, :2]) | queries | queries (5, 2), keys (0, 3) | Their last axes must be equal.
FourierSketch.__add__(sketch, fourier_sketch(x, a, 2.0)) | other | tau 1.0 and 2.0 | Give `fourier_sketch` the same
SlicedSketch.load(__file__) | path | '/ | Write it again.
FourierSketch.load(__file__) | path | '/ | Write it again.
FourierSketch.__add__(sketch, fourier_sketch(x, x)) | other | one_weight True and False, chan | Give `fourier_sketch` t
estimate_error(q, k, v, rng_key=0) | rng_key! | 0 | Make one with jax.random.key(0), several with jax.random.split.
estimate_error(q, k, v, rng_key=rng_key, num_queries=True) | num_queries | num_queries True | Pass num_queries=10
estimate_error(q, k, v, rng_key=rng_key, sums=v) | sums | sums (7, 2) | Pass what `gauss_sum` returned.
estimate_error(q, k[:0], v[:0], rng_key=rng_key) | queries | queries (5, 3), keys (0, 3) | An empty sum is exact.
estimate_error(q, k, v, rng_key=rng_key, num_queries=1) | num_queries | num_queries 1 | Pass num_queries=10
estimate_error(q, k, v[:6], rng_key=rng_key) | values | queries (5, 3), keys (7, 3), values (6, 2) | The last two
# kernels and bandwidths
Kernel("gauss") | profile! | str | Pass lambda u: ….
Kernel(lambda u: np.exp(-u)) | profile! | <lambda>, which raises | Use jax.numpy for numpy, and jnp.where for if.
Kernel(lambda u: 1.0 if u > 1 else 0.0) | profile! | <lambda>, which raises | Use jax.numpy for numpy
Kernel(lambda x, y: jnp.exp(-x)) | profile! | <lambda>(x, y) | Write k(x, y) as a function of u alone.
Kernel(lambda u: 1.0) | profile! | float64 for float32 | Use jax.numpy.
Kernel(lambda u: jnp.exp(-u).sum()) | profile | () for u (2, 3) | It takes all pairs at once.
Kernel(jnp.log) | profile | -inf | Add a positive number to u.
Kernel(lambda u: jnp.exp(u.astype("float64"))) | profile! | float64 for float32 | Use jax.numpy.
rational_quadratic(0.0) | alpha | 0.0 | α = 1 is a start.
rational_quadratic(True) | alpha | True | α = 1 is a start.
rational_quadratic(np.inf) | alpha | inf | α = 1 is a start.
rational_quadratic("a") | alpha | 'a' | α = 1 is a start.
tau_from_bandwidth(-1.0) | bandwidth | -1.0 | Pass its absolute value.
tau_from_bandwidth("1") | bandwidth! | '1' | Pass 0.5, for example.
tau_from_bandwidth(1e-200) | bandwidth | 1e-200 | Pass its absolute value.
tau_from_bandwidth(1.0, "scikit_learn") | convention | 'scikit_learn' | Did you mean 'scikit-learn'?
tau_from_bandwidth(1.0, "scipy") | convention must be that of a bandwidth | 'scipy', whose `factor` | Use `kde_log
tau_from_bandwidth(1.0, "foo") | convention | 'foo' | Pass 'sigma', for example.
median_tau(a) | points | points (5,) | One-dimensional points are points[:, None].
median_tau(x[:1]) | points | points (1, 3) | Pass more points.
median_tau(x, rng_key=0) | rng_key! | 0 | Make one with jax.random.key(0), several with jax.random.split.
median_tau(x, max_points=1) | max_points | max_points 1 | Pass max_points=10, for example.
leave_one_out_tau(x, 1.0) | taus | taus () | Pass candidates, such as np.geomspace(0.1, 100, 25).
leave_one_out_tau(x, np.array([1.0, -1.0])) | taus | taus [ 1. -1.] | Pass 1 / sigma**2.
leave_one_out_tau(x, values=a[:3]) | values | points (5, 3), values (3,) | Row i belongs to point i.
leave_one_out_tau(x, kernel=student) | kernel | Kernel(<lambda>) in 3 dimensions | Use a Matérn kernel
jax.jit(lambda x: leave_one_out_tau(x, progress=True))(x) | progress must be False | True | Leave it out.
# MMD and energy
mmd_squared(x, y.T, 1.0) | x | x (5, 3), y (3, 4) | A point is a row: transpose columns.
mmd_squared(x[0], y, 1.0) | x | x (3,), y (4, 3) | One-dimensional points are x[:, None].
mmd_squared(stack(x, x), stack(y, y, y), 1.0) | x | x (2, 5, 3), y (3, 4, 3) | Add axes of length 1.
mmd_squared(stack(x, x), y, np.ones((3, 1))) | tau | x (2, 5, 3), y (4, 3), tau (3, 1) | Add axes of length 1. The last
mmd_squared(stack(x, x), y, np.ones(2)) | tau | x (2, 5, 3), y (4, 3), tau (2,) | Pass tau[..., None] for one in each
mmd_squared(stack(x, x), y, 1.0, x_weights=np.ones((3, 5))) | x_weights | x (2, 5, 3), y (4, 3), x_weights (3, 5) | Add
mmd_squared(stack(x, x), y, 1.0, x_weights=a[:3]) | x_weights | x (2, 5, 3), y (4, 3), x_weights (3,) | Its shape
mmd_squared(stack(x, x), y, 1.0, x_weights=stack(a > 0, a < 0)) | x_weights | False for all 5 points of an el | Change
mmd_squared(stack(x, x), y, 1.0, y_norm_squared=a) | y_norm_squared must be one number, or of | ndarray (5,) | Pass
mmd_squared(x, y, 1.0, x_weights=stack(a, a - 1), normalize=True) | x_weights | weights of the sum 0 | Leave `normal
mmd_squared(x, y[:0], 1.0) | y | x (5, 3), y (0, 3) | Pass more points.
mmd_squared(x, y[:1], 1.0, estimator="unbiased") | y | x (5, 3), y (1, 3) | Pass more points.
mmd_squared([["1.0"]], y, 1.0) | x! | list | Convert with jnp.asarray(x
mmd_squared(x.astype(int), y, 1.0) | x! | x int64 | Convert with x.astype(jnp.float32).
mmd_squared(x, y, np.ones((2, 0))) | tau | tau (2, 0) | Pass one number, or several as (T,).
mmd_test(x, y, np.ones((2, 2)), rng_key=rng_key) | tau | tau (2, 2) | Pass one number, or several as (T,).
mmd_test(stack(x), y, 1.0, rng_key=rng_key) | x | x (1, 5, 3), y (4, 3) | One-dimensional points are x[:, None]
mmd_squared(x, y, tau="median") | tau! | tau 'median' | Pass 1 / sigma**2.
mmd_squared(x, y, 1.0, estimator="unbias") | estimator | 'unbias' | Did you mean 'unbiased'?
mmd_squared(x, y, 1.0, x_weights=a[:3]) | x_weights | x (5, 3), y (4, 3), x_weights (3,) | Its shape must be (…, 5).
mmd_squared(x, y, 1.0, y_weights=[1.0]) | y_weights | x (5, 3), y (4, 3), y_weights (1,) | Its shape must be (…, 4).
mmd_squared(x, y, 1.0, y_weights=np.eye(4)[0], estimator="unbiased") | y_weights | 1 of 4 points | Use estimator='bi
mmd_squared(x, y, 1.0, y_weights=np.tri(2, 4), estimator="unbiased") | y_weights | 1 of 4 points | Use estimator='bi
mmd_squared(x, y, 1.0, y_norm_squared=y) | y_norm_squared | ndarray (4, 3) | Pass embedding_norm_squared(y,
mmd_squared(x, y, 1.0, kernel="energy", x_weights=a) | x_weights | sums 5 and 1 | Pass normalize=True.
mmd_squared(x, y, 1.0, kernel="imq", engine="prescale") | engine | Attention(method='prescale') | Use engine='auto'.
mmd_squared(x, y, 1.0, engine=jaxgauss.Attention(kernel="cudnn")) | engine | Attention(kernel='cudnn') | Use engine='au
mmd_squared(x, y, 1.0, key_axis="rows") | query_axis | query_axis None, key_axis 'rows', axes | Make a mesh by jax.make
mmd_squared(x, y, 1.0, mesh=mesh, key_axis="rows") | query_axis | query_axis None, key_axis ' | Pass query_axis='i', fo
embedding_norm_squared(x, 1.0, kernel=3) | kernel! | int | Wrap a function of u = τ‖x - y‖²:
energy_distance(x, y, estimator="best") | estimator | 'best' | Pass 'biased', for example.
energy_distance(x, y, y_weights=np.ones(4)) | x_weights | sums 1 and 4 | Pass normalize=True.
energy_distance(x, y, y_weights=np.tri(4) / 4) | x_weights | sums 1 and 0.25 | Pass normalize=True.
energy_distance(x, y, y_norm_squared=y) | y_norm_squared | ndarray (4, 3) | Pass embedding_norm_squared(y,
mmd_squared_to_normal(x[0]) | x | x (3,) | One-dimensional points are x[:, None].
mmd_squared_to_normal(x, -1.0) | tau | tau -1.0 | Pass 1 / sigma**2.
mmd_squared_to_normal(x[:1], estimator="unbiased") | x | x (1, 3) | Pass more points.
mmd_squared_to_normal(x, estimator="unbiased", weights=np.eye(5)[0]) | weights | 1 of 5 points | Use estimator='biased'.
uniformity(x[:1]) | x | x (1, 3) | Pass more points.
uniformity(x, 0.0) | tau | tau 0.0 | Pass 1 / sigma**2.
uniformity(x, weights=-a) | weights | weights from -1.0 to -1.0 | Pass positive ones.
uniformity(x, weights=np.eye(5)[0]) | weights | 1 of 5 points with weight | Give two points a weight.
alignment(x, y) | x | x (5, 3), y (4, 3) | Row i of each is one pair.
alignment(x, x[:, :2]) | x | x (5, 3), y (5, 2) | Row i of each is one pair.
alignment(x, x, power=0) | power | power 0 | Pass power=1.0.
alignment(x, x, weights=-a) | weights | weights from -1.0 to -1.0 | Pass positive ones.
mmd_estimate(3.0, y, 1.0) | x! | float | Pass a list, or a function that returns what is iterated over.
mmd_estimate(iter([x]), y, 1.0) | x! | list_iterator | Pass a list, or a function that returns what is iterated over.
mmd_estimate(lambda: None, y, 1.0) | x! | function | Pass a list, or a function that returns what is iterated over.
mmd_estimate(stack(x), y, 1.0, progress=True) | progress | True | Leave it out.
mmd_estimate([], y, 1.0) | x | dimensions [] | Pass chunks (number, D).
mmd_estimate([x, x[:, :2]], y, 1.0) | x | dimensions [2, 3] | Pass chunks (number, D).
mmd_estimate([x[0]], y, 1.0) | x[0] | x[0] (3,) | One point is point[None].
mmd_estimate([x[:1]], y, 1.0) | x | x (1, 3), y (4, 3) | Pass more points.
mmd_estimate([x.astype(str)], y, 1.0) | x[0]! | x[0] <U | Convert with x[0].astype(jnp.float32).
mmd_estimate([x[:, :2]], y, 1.0) | x | x (5, 2), y (4, 3) | A point is a row: transpose columns.
mmd_estimate([x], y, 0.0) | tau | tau 0.0 | Pass 1 / sigma**2.
mmd_estimate([x], [y, y.astype(complex)], 1.0) | y[1]! | y[1] complex128 | Complex coordinates are two real ones each:
mmd_estimate([x], KeyChunks(y, y), 1.0) | y[0]! | a tuple | Pass the points alone, lambda: (keys for keys
mmd_estimate(changing(), y, 1.0) | x must have the same chunks each time | others, or fewer, from chunk 0 | A function 
mmd_estimate(changing(x), y, 1.0) | x | others, or fewer, from chunk 1 | A function must
mmd_estimate(changing(x, x[:2]), y, 1.0) | x | others, or fewer, from chunk 1 | A function must
mmd_estimate(changing(x, x, x), y, 1.0) | x | others, or fewer, from chunk 2 | A function must
jax.jit(lambda x: mmd_estimate([x], y, 1.0))(x) | x, y and tau must be known outside! | a tracer | Pass arrays.
jax.jit(lambda tau: mmd_estimate([x], y, tau))(1.0) | tau! | a tracer | Pass arrays.
jax.jit(lambda _: mmd_estimate([x], y, 1.0))(1.0) | x! | a tracer | Pass arrays.
jax.jit(lambda x: mmd_estimate(x, y, 1.0, progress=True))(x) | progress must be False | True | Leave it out.
mmd_squared_matrix(x, 1.0, segments=labels[:3]) | segments | (3,) | All elements of a batch share the labels.
mmd_squared_matrix(x, 1.0, segments=["a"] * 5) | segments! | list | Convert the labels with np.asarray.
mmd_squared_matrix(x, 1.0, segments=np.arange(5), estimator="unbiased") | segments | 5 of 5 sets | Use estimator='bi
mmd_squared_matrix(stack(x), 1.0, segments=labels) | points | points (1, 5, 3) | One-dimensional points are points[:, N
mmd_squared_matrix(x[:0], 1.0, segments=labels[:0]) | points | points (0, 3) | Pass more points.
mmd_squared_matrix(x, -1.0, segments=labels) | tau | tau -1.0 | Pass 1 / sigma**2.
mmd_squared_matrix(x, 1.0, segments=a) | segments! | float64 | Number the groups: np.unique(labels, return_inverse=True
mmd_squared_matrix(x, 1.0, segments=labels, weights=a[:2]) | weights | points (5, 3), weights | Its shape must be (5,).
mmd_squared_matrix(x, 1.0, segments=labels, weights=a > 0) | weights! | booleans | Pass points[mask] and segments[mask]
mmd_squared_matrix(x, 1.0, segments=labels, estimator="V") | estimator | 'V' | Pass 'biased', for example.
mmd_squared_matrix(x, 1.0, segments=labels, weights=a, kernel="energy") | weights | sums from 2 | Divide those of each
mmd_witness(x[:, :2], x, y, 1.0) | x | x (5, 3), y (4, 3), points (5, 2) | A point is a row: transpose columns.
mmd_witness(x, x, y, 0) | tau | tau 0 | Pass 1 / sigma**2.
mmd_flow_velocity(x, y, 1.0, x_weights=a[:3]) | x_weights | x (5, 3), y (4, 3) | Its shape must be (…, 5).
# drift
drift(x[0], y, 1.0) | x | x (3,), positives (4, 3) | One-dimensional points are x[:, None].
drift(x, y[:, :2], 1.0) | positives | x (5, 3), positives (4, 2) | A point is a row: transpose columns.
drift(x, y, 1.0, negatives=y[:, :2]) | negatives | x (5, 3), positives (4, 3), negatives (4, 2) | A point is a row
drift(x, y[:0], 1.0) | positives | x (5, 3), positives (0, 3) | Pass more points.
drift(x[:1], y, 1.0) | x | x (1, 3) | Each is a negative for the others.
drift(x, y, 1.0, positive_weights=a) | positive_weights | x (5, 3), positives (4, 3), positive_weights (5,) | Its shape
drift(x, y, 1.0, negative_weights=a) | negative_weights | negative_weights (5,) | Those of x are `self_weights`.
drift(x, y, 1.0, self_weights=-a) | self_weights | self_weights from -1.0 to -1.0 | Pass positive ones.
drift(stack(x, x), stack(y, y, y), 1.0) | x | x (2, 5, 3), positives (3, 4, 3) | Add axes of length 1.
drift(x, y, np.ones((2, 2))) | tau | tau (2, 2) | Pass one number, or several as (T,).
drift(x, y, -1.0) | tau | tau -1.0 | Pass 1 / sigma**2.
drift(x, y.astype(complex), 1.0) | positives! | positives complex128 | Complex coordinates are two real ones each
drift(x, y, 1.0, kernel="energy") | kernel | Kernel | Use kernel='matern12', or 'imq'.
drift(x, y, 1.0, kernel=2) | kernel! | int | Wrap a function
# tests
mmd_test(x, y[:1], 1.0, rng_key=rng_key) | y | x (5, 3), y (1, 3) | Pass more points.
mmd_test(x, y, 1.0, rng_key=None) | rng_key! | None | Make one with jax.random.key(0), several with jax.random.split.
mmd_test(x, y, 1.0, rng_key=a) | rng_key! | float64 (5,) | Make one with jax.random.key(0)
mmd_test(x, y, 1.0, rng_key=jax.random.split(rng_key)) | rng_key! | key<fry> (2,) | Make one with jax.random.key(0)
mmd_test(x, y, 1.0, rng_key=np.uint32(3)) | rng_key! | uint32 () | Make one with jax.random.key(0)
mmd_test(x, y, 1.0, rng_key=rng_key, num_permutations=-5) | num_permutations | num_permutations | Pass num_permutati
mmd_test(x, y, 1.0, rng_key=rng_key, resampling="wild") | x | x (5, 3), y (4, 3) | Use resampling='permutation'.
mmd_test(x, y, 1.0, rng_key=rng_key, resampling="boot") | resampling | 'boot' | Pass 'permutation', for example.
jax.jit(lambda x: mmd_test(x, x, 1.0, rng_key=rng_key, progress=True))(x) | progress | True | Leave it out.
hsic(x, y, 1.0, 1.0) | x | x (5, 3), y (4, 3) | Row i of each is one pair.
hsic(x, a, 1.0, 1.0) | y | x (5, 3), y (5,) | One-dimensional points are y[:, None].
hsic(stack(x, x), x, 1.0, np.ones(2)) | tau_y | x (2, 5, 3), y (5, 3), tau_y (2,) | Pass tau_y[..., None] for one in
hsic(x, x, -1.0, 1.0) | tau_x | tau_x -1.0 | Pass 1 / sigma**2.
hsic(x, x, 1.0, 1.0, weights=stack(a, 0 * a)) | weights | weights from 0.0 to 0.0 | Pass positive ones.
hsic(x, x, 1.0, 1.0, weights=-a) | weights | weights from -1.0 to -1.0 | Pass positive ones.
hsic(x[:3], x[:3], 1.0, 1.0, estimator="unbiased") | x | x (3, 3), y (3, 3) | Pass more points.
hsic(x, x, 1.0, 1.0, estimator="unbiased", weights=np.eye(5)[0]) | weights | 1 of 5 points | Use estimator='biased'.
hsic_test(x, x, [1.0, 2.0], 1.0, rng_key=rng_key, estimator="biased") | estimator | 'biased', tau_x | Leave it out:
hsic_test(x, x, 1.0, 1.0, rng_key=rng_key, num_permutations=0) | num_permutations | num_permutations | Pass num_permu
jax.jit(lambda x: hsic_test(x, x, 1.0, 1.0, rng_key=rng_key, progress=True))(x) | progress | True | Leave it out.
ksd_squared(x, s[:3], 1.0) | scores | points (5, 3), scores (3, 3) | One for each:
ksd_squared(x, jnp.sin, 1.0) | scores! | PjitFunction | Convert with jnp.asarray(scores
ksd_squared(x, s, 1.0, kernel="laplace") | kernel | Kernel(matern12) | Use kernel='imq', or 'matern52'.
ksd_test(x, s, 1.0, rng_key=7) | rng_key! | 7 | Make one with jax.random.key(0), several with jax.random.split.
ksd_test(x[:1], s[:1], 1.0, rng_key=rng_key) | points | points (1, 3), scores (1, 3) | Pass more points.
ksd_test(x, s, [1.0, 2.0], rng_key=rng_key, estimator="biased") | estimator | 'biased', tau | Leave it out: the
ksd_test(x, s, 1.0, rng_key=rng_key, num_bootstrap=1.5) | num_bootstrap | num_bootstrap | Pass num_bootstrap=10
ksd_test(x, s, 1.0, rng_key=rng_key, flip_probability="half") | flip_probability | flip_probability | Independent
jax.jit(lambda x: ksd_test(x, x, 1.0, rng_key=rng_key, progress=True))(x) | progress | True | Leave it out.
# densities, particles and modes
kde_logpdf(a, y, 1.0) | points | samples (4, 3), points (5,) | One-dimensional points are points[:, None]
kde_logpdf(x, y, 1.0, kernel="imq") | kernel | Kernel(imq) in 3 dimensions | Use a Matérn kernel
kde_logpdf(x, y, 1.0, weights=np.zeros(4)) | weights | weights from 0.0 to 0.0 | Pass positive ones.
jax.grad(lambda x: kde_logpdf(x, y, 1.0, progress=True).sum())(x) | progress must be False | True | Leave it out.
kde_logpdf(x, y) | tau must be given, or bandwidth | tau None, bandwidth None | Pass bandwidth='scott'.
kde_logpdf(x, y, "silverman") | tau must be given | tau 'silverman', bandwidth None | Pass bandwidth='silverman'.
kde_logpdf(x, y, 1.0, bandwidth="scott") | tau | tau 1.0, bandwidth 'scott' | Leave one out.
kde_logpdf(x, y, bandwidth="scot") | bandwidth must be one of scott, silverman | 'scot' | Pass 'scott', for example.
kde_score(x, y, bandwidth=0.5) | bandwidth | 0.5 | A number is tau=jaxgauss.tau_from_bandwidth(0.5).
kde_score(x, y[:3], bandwidth="scott") | samples must vary in every direction | samples (3, 3) of a s | Pass tau, or few
kde_score(x, y[:0], 1.0) | samples | samples (0, 3), points (5, 3) | Pass more points.
kde_score(x, y, 1.0, kernel="laplacian") | kernel | 'laplacian' | Did you mean 'laplace'?
mean_shift(x, y, [1.0, 2.0]) | tau | tau (2,) | Try each by itself.
mean_shift(x, y, 1.0, tol="small") | tol | tol 'small' | It is a part of a bandwidth, such as 1e-3.
mean_shift(x, y, 1.0, max_steps=0) | max_steps | max_steps 0 | Pass max_steps=10, for example.
mean_shift(x, y[:0], 1.0) | data | data (0, 3), points (5, 3) | Pass more points.
mean_shift(x, y, 1.0, weights=-np.ones(4)) | weights | weights from -1.0 to -1.0 | Pass positive ones.
jax.jit(lambda x: mean_shift(x, x, 1.0, progress=True))(x) | progress | True | Leave it out.
kernel_herding(x, 1.0, 0) | num | num 0 | Pass num=10, for example.
kernel_herding(x, 1.0, 6) | num | num 6, points (5, 3) | With unique=False a point may be chosen again.
kernel_herding(x, 1.0, 2.0) | num | num 2.0 | Pass num=10, for example.
kernel_herding(x, 1.0, 2, weights=-a) | weights | weights from -1.0 to -1.0 | Pass positive ones.
jax.jit(kernel_herding)(x, 1.0, 2) | num! | a tracer, ~int64[] | Mark it as static: jax.jit(…
kernel_herding(x, 1.0, 2, kernel="energy") | kernel | Kernel(energy) | Use kernel='matern12', or 'imq'.
svgd(None, adam) | grad_logdensity_fn! | NoneType | Pass jax.grad(log_density).
svgd(jnp.sin, 0.1) | optimizer! | float | Pass optax.adam(0.1), for example.
svgd(jnp.sin, adam, tau=-1.0) | tau | tau -1.0 | Pass 1 / sigma**2.
svgd(jnp.sin, adam, kernel="energy") | kernel | Kernel(energy) | Use kernel='matern12', or 'imq'.
svgd(jnp.sin, adam).init({"a": x, "b": y}) | particles | {'a': (5, 3), 'b': (4, 3)} | Make them by jax.vmap of what
svgd(jnp.sin, adam).init(x.astype(int)) | particles! | particles int64 | Convert with particles.astype(jnp.float32).
svgd_direction(x, s[:3], 1.0) | scores | particles (5, 3), scores (3, 3) | One for each:
svgd_direction({"a": x}, {"a": s}, 1.0) | particles! | dict | Convert with jnp.asarray(particles
svgd_direction(x, s, 1.0, kernel="energy") | kernel | Kernel(energy) | Use kernel='matern12', or 'imq'.
# other libraries
dask.gauss_sum(q, k, v) | keys! | ndarray | Use dask.array.from_array, or `jaxgauss.gauss_sum` for arrays in memory.
dask.gauss_sum([[None]], K, V) | queries! | list | Convert with jnp.asarray(queries
dask.gauss_sum(x[:, :2], K, V) | queries | queries (5, 2), keys (5, 3), values (5,) | Their last axes must be equal.
dask.gauss_sum(x, K, V, kernel="box") | kernel | 'box' | Others are a jaxgauss.Kernel, such as jaxgauss.rational_quadra
dask.gauss_sum(x, K, V, engine="fast") | engine | 'fast' | Pass 'auto', for example.
dask.fourier_sketch(k, v, lower=0.0, upper=1.0) | keys! | ndarray | Use dask.array.from_array
dask.fourier_sketch(K, a, lower=0, upper=1) | values! | ndarray | Use dask.array.from_array, or `jaxgauss.fourier_sketc
dask.fourier_sketch(K[None], V, lower=0, upper=1) | keys | keys (1, 5, 3), values (5,) | Leading axes are for queries a
dask.fourier_sketch(K, V.rechunk(2), lower=0, upper=1) | values | keys ((3, 2), (3,)), values | Use keys.rechunk({1: -1
dask.fourier_sketch(K.rechunk((3, 1)), V, lower=0, upper=1) | values | keys ((3, 2), (1, 1, 1 | Use keys.rechunk({1: -1
dask.fourier_sketch(K, V, lower=None, upper=1) | lower | lower None, upper 1 | dask.compute(keys.min(0), keys.max(0)) f
dask.fourier_sketch(K @ np.ones((3, 4)), V, lower=0, upper=1) | keys | keys (5, 4), values (5 | More dimensions take eng
dask.fourier_sketch(K.astype(int), V, lower=0, upper=1) | keys! | keys int64 | Convert with keys.astype(jnp.float32).
dask.fourier_sketch(K, V, -1.0, lower=0, upper=1) | tau | tau -1.0 | Pass 1 / sigma**2.
lineax.gauss_operator([[None]]) | points! | list | Convert with jnp.asarray(points
lineax.gauss_operator(stack(x)) | points must be (N, D) | points (1, 5, 3) | Batches go by jax.vmap.
lineax.gauss_operator(x, -1.0) | tau | tau -1.0 | Pass 1 / sigma**2.
lineax.gauss_operator(x, [1.0, 2.0]) | tau must be one number | tau (2,) | Make one operator for each.
lineax.gauss_operator(x, noise=-1.0) | noise must not be negative | noise from -1.0 to -1.0 | It is a variance, σ².
lineax.gauss_operator(x, noise="loud") | noise! | 'loud' | It is a variance, σ².
lineax.gauss_operator(x, precision="float16") | precision | 'float16' | Conjugate gradients do not survive half
lineax.gauss_operator(x.astype("float16")) | points must be float32 or float64! | points float16 | Convert with .astype
lineax.gauss_operator(x, noise=a[:3]) | noise must be a number or one for each point | noise (3,), points (5, 3) | It is
lineax.gauss_operator(x, kernel="energy") | kernel must be positive definite | Kernel(energy) | Use kernel='matern12', 
lineax.nystrom_preconditioner(x, 2, rng_key=rng_key) | operator! | ndarray | Make one with it.
lineax.nystrom_preconditioner(operator, True, rng_key=rng_key) | rank | rank True | Pass rank=10, for example.
lineax.nystrom_preconditioner(operator, 9, rng_key=rng_key) | rank must be at most | rank 9, 5 points | Pass rank=5.
lineax.nystrom_preconditioner(lineax.gauss_operator(x), 2, rng_key=rng_key) | operator must have | noise 0 | Add some
lineax.log_marginal_likelihood(x, x, rng_key=rng_key) | operator! | ndarray | Make one with it.
lineax.log_marginal_likelihood(operator, x[:2], rng_key=rng_key) | values | values (2, 3), points (5, 3) | Batches go b
lineax.log_marginal_likelihood(operator, x, rng_key=rng_key, rtol=2) | rtol | rtol 2 | Pass rtol=1e-4.
lineax.log_marginal_likelihood(operator, x, rng_key=0) | rng_key! | 0 | Make one with jax.random.key(0)
lineax.log_marginal_likelihood(operator, None, rng_key=rng_key) | values must be a JAX or NumPy! | NoneType | Convert
lineax.log_marginal_likelihood(operator, x, rng_key=rng_key, preconditioner="") | preconditioner! | str | Make one with
lineax.log_marginal_likelihood(operator, x, rng_key=rng_key, num_samples=1) | num_samples | num_samples 1 | Pass num_sa
lineax.log_marginal_likelihood(operator, x, rng_key=rng_key, rtol=0) | rtol | rtol 0 | Pass rtol=1e-4.
lineax.log_marginal_likelihood(operator, x, rng_key=rng_key, max_steps=0) | max_steps | max_steps 0 | Pass max_steps=10
lineax.log_marginal_likelihood(lineax.gauss_operator(x), x, rng_key=rng_key) | operator | noise 0 | Add some: noise=1e-
lineax.log_marginal_likelihood(lineax.gauss_operator(x, noise=1e-20), x, rng_key=rng_key) | operator | noise 1e-20 | Add
lineax.log_determinant(operator, rng_key=0) | rng_key! | 0 | Make one with jax.random.key(0)
lineax.log_determinant(operator, rng_key=rng_key, num_samples=1) | num_samples | num_samples 1 | Pass num_samples=10
lineax.log_determinant(operator, rng_key=rng_key, num_matvecs=2.5) | num_matvecs | num_matvecs 2.5 | Pass num_matvec
lineax.log_determinant(x, rng_key=rng_key) | operator must be from jaxgauss.lineax.gauss_operator! | ndarray | Make one
lineax.log_determinant(operator, rng_key=rng_key) | num_matvecs must be at most | num_matvecs 20, 5 points | Pass num_m
optax.scale_by_svgd("mean") | tau must be a positive number or 'median' | 'mean' | Pass 1 / sigma**2.
optax.scale_by_svgd(1.0).update(x, ()) | params | None | Call update(gradients, state, params).
optax.scale_by_svgd(1.0).update(x, (), y) | updates | updates (5, 3), params (4, 3) | Take them of the sum of all
optax.scale_by_svgd(-1.0) | tau | tau -1.0 | Pass 1 / sigma**2.
optax.scale_by_svgd(kernel="energy") | kernel must be positive definite | Kernel(energy) | Use kernel='matern12', or 'i
optax.scale_by_svgd(query_axis="x") | query_axis and key_axis must name axes of | query_axis 'x' | Make a mesh by jax
optax.scale_by_svgd(1.0).update({}, (), {}) | params must be a pytree | {} | Call update(gradients, state, params).
optax.scale_by_svgd(1.0).update((x, y), (), (x, y)) | params must be a pytree | ((5, 3), (4, 3)) | Call update(gradient
optax.scale_by_svgd(1.0).update([a[0]], (), [a[0]]) | params | [()] | Call update(gradients, state, params).
optax.scale_by_svgd(1.0).update({"y": x}, (), {"x": x}) | updates | updates {'y': (5, 3)}, params {'x': (5, 3)} | Take
optax.scale_by_svgd(1.0).update(x.astype(int), (), x.astype(int)) | params! | params int64 | Convert with params.astype
ott.PointCloud(x, y, engine="fast") | engine | 'fast' | Pass 'auto', for example.
ott.PointCloud(x, y, cost_fn=ott.costs.PNormP(1.5)) | cost_fn must be the squared Euclidean | <ott | Leave it out, or u
sklearn.KernelDensity(tau="scott").fit(x) | tau | tau 'scott', bandwidth None | Pass bandwidth='scott'.
sklearn.KernelDensity(tau="wide").fit(x) | tau | tau 'wide' | Pass 1 / sigma**2.
sklearn.KernelDensity(1.0, bandwidth="scott").fit(x) | tau | tau 1.0, bandwidth 'scott' | Leave one out.
sklearn.KernelDensity(bandwidth="scott").fit(x[:3]) | X must vary in every direction | X (3, 3) of | Pass tau, or few
sklearn.KernelDensity(-1.0).fit(x) | tau | tau -1.0 | Pass 1 / sigma**2.
sklearn.KernelDensity(True).fit(x) | tau must be a positive number or 'leave_one_out' | tau True | Pass 1 / sigma**2.
sklearn.KernelDensity(kernel="imq").fit(x) | kernel must have an integral | Kernel(imq) in 3 dimensions | Use a Matérn 
sklearn.KernelDensity(kernel="matern12").fit(x).sample() | kernel must be 'gauss' | 'matern12' | Add noise of the kerne
sklearn.KernelDensity("leave_one_out").fit(x[:1]) | X must have 2 rows | X (1, 3) | Pass tau=1.0.
sklearn.KernelMean(kernel="energy").fit(x, a) | kernel | Kernel(energy) | Use kernel='matern12', or 'imq'.
sklearn.KernelMean(tau=np.inf).fit(x, a) | tau | tau inf | Pass 1 / sigma**2.
sklearn.KernelMean(kernel="rbf").fit(x, a) | kernel | 'rbf' | Did you mean 'gauss'?
sklearn.KernelMean().fit(x, a, sample_weight=s[:, 0]) | sample_weight must not be negative | weights from -0.7 | Leave
sklearn.KernelMean().fit(x, a, sample_weight=x) | sample_weight must be one-dimensional | sample_weight (5, 3) | Pass on
sklearn.KernelRidge(alpha=-1.0).fit(x, a) | alpha must be a positive finite number | alpha -1.0 | Pass alpha=1.0.
sklearn.KernelRidge(rank=0).fit(x, a) | rank must be a positive integer | rank 0 | Pass rank=10, for example.
sklearn.KernelRidge(tau="leave_one_out").fit(x, a) | tau must be a positive number | tau 'leave_one_out' | Pass 1 / sig
sklearn.KernelRidge(kernel="energy").fit(x, a) | kernel must be positive definite | Kernel(energy) | Use kernel='matern
sklearn.KernelRidge(max_iter=0).fit(x, a) | max_iter | max_iter 0 | Pass max_iter=10, for example.
sklearn.KernelRidge(tol=-1e-3).fit(x, a) | tol must be a positive finite number | tol -0.001 | Pass tol=1.0.
sklearn.GaussianProcess(noise=0.0).fit(x, a) | noise must be a positive finite number | noise 0.0 | Pass noise=1.0.
sklearn.GaussianProcess(learn=False).fit(x, a) | length_scale must be given if it is not learned | None | Pass learn=Tr
sklearn.GaussianProcess(noise=1e-13).fit(x, a) | noise must be at least 5e-11 for 5 points | noise 1e-13 | With less, r
sklearn.GaussianProcess(max_iter=1.5).fit(x, a) | max_iter must be a positive integer | max_iter 1.5 | Pass max_iter=10
sklearn.GaussianProcess(num_samples=True).fit(x, a) | num_samples | num_samples True | Pass num_samples=10, for example
sklearn.GaussianProcess(-1.0).fit(x, a) | length_scale must be positive | length_scale -1.0 | Pass None to have it foun
sklearn.GaussianProcess([1.0, 2.0]).fit(x, a) | length_scale | length_scale [1.0, 2.0] | Pass None to have it found.
sklearn.GaussianProcess().fit(np.ones((8193, 4)), np.ones(8193)) | X must have at most 8192 rows | X (8193, 4) | Use jax
sklearn.GaussianProcess(1e-5, learn=False).fit(many, many[:, 0]) | points | 1e+05 × 1e+05 length scales | Pass a longer
sklearn.GaussianProcess(1.0, learn=False).fit(x, a).log_marginal_likelihood(a) | theta | theta (5,) | Pass logarithms
"""
# call that Python refuses | the hint in a note
HINTS = """
gauss_sum(q, k, v, sigma=2.0) | Pass tau=jaxgauss.tau_from_bandwidth(sigma): τ is 1/σ².
gauss_sum(q, k, v, gamma=2.0) | Pass tau=jaxgauss.tau_from_bandwidth(gamma, 'gamma'): τ is 1/σ².
gauss_sum(q, k, v, tolerance=1e-3) | Pass engine=jaxgauss.Fourier(tolerance=0.001).
gauss_sum(q, k, v, method="dense") | Did you mean engine?
gauss_sum(q, k, v, kernel="imq") | jaxgauss.kernel_sum takes it.
gauss_sum(q, k, v, mesh=mesh) | jaxgauss.gauss_sum_sharded takes it.
gauss_sum_streamed(q, [(k, v)], tolerance=0.1) | Pass engine=jaxgauss.Fourier(tolerance=0.1).
kernel_mean(q, k, v, bandwidth=0.5) | Pass tau=jaxgauss.tau_from_bandwidth(bandwidth): τ is 1/σ².
log_gauss_sum(q, k, weights=w) | Pass log_weights=jnp.log(weights).
log_kernel_sum(q, k, length_scale=1.0) | Pass tau=jaxgauss.tau_from_bandwidth(length_scale): τ is 1/σ².
mmd_squared(x, y) | A tau is 1/σ²; jaxgauss.median_tau finds one.
mmd_test(x, y, 1.0, rng_key=rng_key, num_samples=99) | Did you mean num_permutations?
mmd_test(x, y, 1.0, key=rng_key) | Did you mean rng_key?
hsic(x, x, sigma=1.0) | Pass tau_x=jaxgauss.tau_from_bandwidth(sigma): τ is 1/σ².
kde_logpdf(x, y, h=1.0) | Pass tau=jaxgauss.tau_from_bandwidth(h, 'h'): τ is 1/σ².
mean_shift(x, y, 1.0, max_iter=5) | Did you mean max_steps?
lineax.gauss_operator(x, sigma=1.0) | Pass tau=jaxgauss.tau_from_bandwidth(sigma): τ is 1/σ².
"""
CALLS = [line.split(" | ") for line in TABLE.strip().splitlines() if not line.startswith("#")]
RESULTS = {  # classes that users do not make themselves, and a function that takes nothing that may be wrong
    "calibrate",
    *("Explanation", "Plan", "Herding", "BandwidthSearch", "MeanShift", "MMDEstimate", "KernelTest", "SVGD"),
    *("SVGDState", "Calibration", "ErrorEstimate", "lineax.GaussOperator", "lineax.NystromPreconditioner"),
    *("lineax.LogDeterminant", "lineax.LogLikelihood"),
}
OTHERS = {name: import_module(f"jaxgauss.{name}") for name in jaxgauss._WITH_OTHERS}
PUBLIC = {
    prefix + name
    for prefix, module in {"": jaxgauss, **{f"{name}.": module for name, module in OTHERS.items()}}.items()
    for name, value in vars(module).items()
    if name[0] != "_" and (inspect.isfunction(value) or inspect.isclass(value))
    if module is jaxgauss or value.__module__ in (module.__name__, "jaxgauss._estimator")
}
NAMED = re.compile(rf"(?<![\w.])({'|'.join(sorted(map(re.escape, PUBLIC), key=len, reverse=True))})\b")


@functools.cache
def arguments():
    """What the calls are made of."""
    x, y, k, v = (np.linspace(0.1, 0.9, n * d).reshape(n, d) for n, d in ((5, 3), (4, 3), (7, 3), (7, 2)))
    return {
        **{name: getattr(jaxgauss, name) for name in PUBLIC if "." not in name},
        **OTHERS,
        **{"jaxgauss": jaxgauss, "jax": jax, "jnp": jnp, "np": np, "math": math, "torch": torch},
        **{"q": x, "k": k, "v": v, "w": np.ones(7), "x": x, "y": y, "a": np.ones(5), "s": -x},
        **{"labels": np.arange(5) % 2, "many": np.linspace(0, 1, 6000).reshape(3000, 2), "__file__": __file__},
        "changing": lambda *later: itertools.chain([[x, x]], itertools.repeat(list(later))).__next__,
        **{"stack": lambda *points: np.stack(points), "rng_key": jax.random.key(0)},
        **{"mesh": jax.make_mesh((1,), ("i",)), "K": da.zeros((5, 3), chunks=(3, 3)), "V": da.ones(5, chunks=3)},
        "student": jaxgauss.Kernel(lambda u: (1 + u / 3) ** -2),
        "sketch": jaxgauss.fourier_sketch(x, np.ones(5)),
        "operator": OTHERS["lineax"].gauss_operator(x, noise=1.0),
        "adam": optax.adam(0.1),
    }


@pytest.mark.parametrize("call, argument, given, fix", CALLS, ids=[call for call, *_ in CALLS])
def test_an_error_names_function_argument_given_and_fix(call, argument, given, fix):
    with pytest.raises((TypeError, ValueError)) as caught:
        eval(call, dict(arguments()))
    function, message = NAMED.search(call)[1], str(caught.value)
    assert isinstance(caught.value, TypeError) == argument.endswith("!")
    argument = argument.removesuffix("!")
    required, _, rest = message.removeprefix(f"`jaxgauss.{function}`: ").partition("; got ")
    words, name = required.replace("`", ""), argument.split(" ")[0].rstrip(",")
    assert message.startswith(f"`jaxgauss.{function}`: ") and argument in words
    assert f"`{name}`" in required or words.startswith(f"{name} must")
    assert rest.startswith(given) and f". {fix}" in rest and message[-1] in ".?"


def test_the_table_calls_every_public_function():
    assert {NAMED.search(call)[1] for call, *_ in CALLS} == PUBLIC - RESULTS and len(CALLS) > 380


@pytest.mark.parametrize("call, hint", [line.split(" | ") for line in HINTS.strip().splitlines()])
def test_what_python_refuses_has_a_hint(call, hint):
    with pytest.raises(TypeError, match=r"unexpected keyword argument|missing \d required") as caught:
        eval(call, dict(arguments()))
    assert hint in caught.value.__notes__


def test_an_option_that_a_method_does_not_take_is_refused_as_python_does():
    with pytest.raises(TypeError, match=r"^mmd_squared\(\) got an unexpected keyword argument 'speed'$"):
        eval('mmd_squared(x, y, 1.0, speed="fast")', dict(arguments()))
