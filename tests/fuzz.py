"""Random calls of the public functions, for as long as one likes: not among the tests.

    python tests/fuzz.py --minutes 10

Each case draws a function, shapes, dtypes, a kernel, points, weights, an engine, a transformation and settings of JAX,
and compares with the formula in float64. Right digits are good, and so are readable errors. Anything else is a finding,
which Hypothesis makes small, and whose last line repeats it. The cases run in a process of their own: one that dies or
hangs is a finding as well.
"""

# ruff: noqa: B023, RUF005

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from fuzz_targets import TARGETS, exact_of
from hypothesis import strategies as st
from jax import lax

TOLERANCES = {"float64": (1e-10, 1e-9), "float32": (1e-5, 2e-5), "float16": (2e-3, 4e-3), "bfloat16": (2e-2, 4e-2)}
RENEWED, PATIENCE = 150, 120  # seconds: a process that compiles more and more is replaced; a case that takes longer
SHRINKING = 25  # seconds
OURS = re.compile(r"`jaxgauss[.`]|jaxgauss: ")
READABLE = ValueError, TypeError, NotImplementedError, ImportError
CLOUDS = {  # points (n, D) in bandwidths, of a random generator
    "near": lambda rng, n, d: rng.normal(size=(n, d)),
    "two": lambda rng, n, d: rng.normal(size=(n, d)) + 1e4 * rng.integers(0, 2, (n, 1)),
    "line": lambda rng, n, d: np.linspace(0, 100, n)[:, None] * np.ones(d),
    "one": lambda rng, n, d: np.zeros((n, d)) + 0.5,
    "copies": lambda rng, n, d: rng.normal(size=(3, d))[rng.integers(0, 3, n)],
    "grid": lambda rng, n, d: rng.integers(0, 4, (n, d)).astype(float),
    "offset": lambda rng, n, d: np.round(rng.normal(size=(n, d)) * 16) / 16 + 1e5,
    "outlier": lambda rng, n, d: rng.normal(size=(n, d)) * np.where(np.arange(n) == 1, 1e5, 1)[:, None],
    "spread": lambda rng, n, d: rng.normal(size=(n, d)) * 1e3,
}
WEIGHTS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "equal": lambda rng, n: np.ones(n) / max(1, n),
    "zeros": lambda rng, n: rng.uniform(size=n) * rng.integers(0, 2, n),
    "none": lambda rng, n: np.zeros(n),
    "large": lambda rng, n: rng.normal(size=n) * 1e4,
}
SETTINGS = {
    "": contextlib.nullcontext,
    "debug_nans": lambda: jax.debug_nans(True),
    "checks": lambda: jax.enable_checks(True),
    "rank": lambda: jax.numpy_rank_promotion("raise"),
    "strict": lambda: jax.numpy_dtype_promotion("strict"),
    "no transfer": lambda: jax.transfer_guard("disallow"),
    "disable_jit": lambda: jax.disable_jit(True),
    "seterr": lambda: np.errstate(all="raise"),
}
FORMS = {"list": list, "tuple": tuple}
ENGINES = ["auto"] * 4 + ["blocked", "dense", "clusters", "differences", "rescale", "prescale", "reweight", "fourier"]
PRIMAL = ["eager", "jit", "vmap", "scan"]
GUARDED = ["eager", "jit", "vmap", "jit grad"]
GRADIENTS = ["grad", "jit grad", "vmap grad", "checkpoint", "jvp"]


@dataclasses.dataclass(frozen=True)
class Case:
    """One call."""

    target: str
    kernel: str = "gauss"
    sizes: tuple[int, int, int, int] = (7, 7, 3, 1)  # queries, keys, dimensions, channels (0: weights)
    dtype: str = "float32"
    x64: bool = False
    numpy: bool = False
    cloud: str = "near"
    unit: float = 1.0  # of the points; τ is 1/unit²
    tau: float = 1.0  # in these units
    taus: int = 0  # bandwidths; 0: a number
    form: str = ""  # of several bandwidths, if they are no array
    weights: str = "normal"
    batch: int = 0
    options: tuple[tuple[str, object], ...] = ()
    how: str = "eager"
    setting: str = ""
    seed: int = 0


def differing(case):
    """What of a case is not the default, as code."""
    parts = ((f.name, getattr(case, f.name), f.default) for f in dataclasses.fields(case))
    return f"Case({', '.join(f'{name}={value!r}' for name, value, default in parts if value != default)})"


def drawn():
    """Hypothesis' strategy of cases; simple ones first, for shrinking."""
    units = st.sampled_from([1.0, 1.0, 1.0, 1e-3, 1e3, 1e-12, 1e12])

    @st.composite
    def case(draw):
        target = draw(st.sampled_from([*TARGETS]))
        kinds = TARGETS[target]
        options = [(k, draw(st.sampled_from(v))) for k, v in kinds.options.items() if draw(st.integers(0, 2)) == 2]
        if kinds.engines and draw(st.booleans()):
            options.append(("engine", draw(st.sampled_from(ENGINES))))
        x64, setting = draw(st.booleans()), draw(st.sampled_from(["", "", *SETTINGS]))
        dtype = draw(st.sampled_from(["float32", "float32", "float16", "bfloat16", *(["float64"] * 2 * x64)]))
        ways = PRIMAL * 2 + (GRADIENTS if kinds.differentiable else [])
        ways = [x for x in ways if x in GUARDED or setting != "no transfer"]  # else JAX itself moves constants
        return Case(
            target,
            draw(st.sampled_from(kinds.kernels)),
            tuple(draw(st.sampled_from(s)) for s in ([2, 7, 33, 260, 1, 0],) * 2)
            + (draw(st.sampled_from([1, 2, 3, 5, 17, 64])), draw(st.sampled_from([1, 0, 3, 40]))),
            dtype,
            x64,
            draw(st.booleans()) and setting != "no transfer",  # JAX refuses NumPy's
            draw(st.sampled_from([*CLOUDS])),
            draw(units),
            draw(st.sampled_from([1.0, 1.0, 0.3, 1e-4, 1e3])),
            taus := draw(st.sampled_from([0, 0, 1, 2, 3] if kinds.taus else [0])),
            draw(st.sampled_from(["", *FORMS])) if taus else "",
            draw(st.sampled_from([*WEIGHTS])),
            draw(st.sampled_from([0, 0, 0, 1, 3] if kinds.batches and not taus else [0])),
            tuple(options),
            draw(st.sampled_from(ways)),
            setting,
            draw(st.integers(0, 3)),
        )

    return case()


def arrays_of(case):
    """The operands in float64 as their dtype rounds them, each (batch, …); a cotangent is left to the comparison."""
    m, n, d, c = case.sizes
    kind, rng, elements = TARGETS[case.target], np.random.default_rng(case.seed), []
    for _ in range(case.batch or 1):
        both = CLOUDS[case.cloud](rng, m + n, d) / d**0.5
        labels = {"x": both[:m], "y": both[m:], "s": rng.normal(size=(m, d)), "z": rng.normal(size=(m, 2))}
        points = {key: x * (1.0 if key == "s" else case.unit) for key, x in labels.items()}
        values = np.stack([WEIGHTS[case.weights](rng, n) for _ in range(max(1, c))], 1)
        a, b = (WEIGHTS[case.weights](rng, number) for number in (m, n))
        if kind.probabilities or case.kernel == "energy":
            a, b = (
                np.abs(x) / max(np.abs(x).sum(), 1e-30) if np.any(x) else np.ones(len(x)) / max(1, len(x))
                for x in (a, b)
            )
        tau = case.tau / case.unit**2 * (np.ones(case.taus) * 2.0 ** np.arange(case.taus) if case.taus else 1.0)
        of = points | {"v": values if c else values[:, 0], "a": a, "b": b, "l": b, "tau": np.asarray(tau)}
        elements.append([of[name] for name in kind.operands])
    found = []
    for name, *xs in zip(kind.operands, *elements, strict=True):
        wide = "float32" if name == "tau" and case.dtype != "float64" else case.dtype
        wide = (
            "float64"
            if case.numpy
            and name != "tau"
            and case.dtype == "float32"
            and (case.cloud, case.how) == ("offset", "eager")
            else wide
        )
        with np.errstate(all="ignore"):
            found.append((np.stack(xs).astype(jnp.dtype(wide)), wide))
    return found


class Finding(Exception):
    """What is neither right nor a readable refusal."""


def outcome(case):
    """ "right", "refused" or "skipped"; a finding is raised."""
    kind, given = TARGETS[case.target], arrays_of(case)
    exact_operands = [np.asarray(x, np.float64) for x, _ in given]
    if not all(np.isfinite(x).all() for x in exact_operands) or not all(
        (x > 1e-37).all() for x, name in zip(exact_operands, kind.operands, strict=True) if name == "tau"
    ):
        return "skipped"
    with jax.enable_x64(case.x64), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        shared = case.batch == 0
        operands = [x[0] if shared or name == "tau" else x for (x, _), name in zip(given, kind.operands, strict=True)]
        operands = operands if case.numpy else [jnp.asarray(x) for x in operands]
        cotangent = None
        try:
            with SETTINGS[case.setting]():
                found, cotangent = computed(case, kind, operands)
        except READABLE as error:
            if OURS.match(str(error)) or any(OURS.match(x) for x in getattr(error, "__notes__", ())):
                return "refused"
            raise Finding(described(error)) from error
        except Exception as error:
            if case.setting == "debug_nans" and isinstance(error, FloatingPointError) and is_nan(case, exact_operands):
                return "refused"
            raise Finding(described(error)) from error
    foreign = [str(x.message) for x in seen if not OURS.match(str(x.message))]
    if foreign:
        raise Finding(f"warns: {foreign[0][:300]}")
    if any("should lie near a common center" in str(x.message) for x in seen):
        return "skipped"
    return compared(case, kind, exact_operands, found, cotangent)


def is_nan(case, operands):
    """Whether the formula itself is not finite, so that JAX's search for NaN is right."""
    every = [exact_of(case, x, None) for x in elements_of(case, operands)]
    return any(not np.isfinite(x).all() for found in every if found for x, _ in found)


def elements_of(case, operands):
    """The operands of each element of the batch."""
    names = TARGETS[case.target].operands
    return [
        [x[i] if name != "tau" else x[0] for x, name in zip(operands, names, strict=True)]
        for i in range(case.batch or 1)
    ]


def second(x):
    """Its second element, without an index that JAX would have to transfer."""
    return lax.index_in_dim(x, 1, keepdims=False)


def described(error):
    """An error in one line, with the last line of ours that raised it."""
    ours = [x for x in traceback.extract_tb(error.__traceback__) if f"{os.sep}jaxgauss{os.sep}" in x.filename]
    where = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__}{where}: {' '.join(str(error).split())[:300]}"


def in_form(case, tau):
    """Several bandwidths as they are given."""
    return FORMS[case.form](lax.index_in_dim(tau, i, keepdims=False) for i in range(case.taus)) if case.form else tau


def computed(case, kind, operands):
    """The results, or value and gradients at a cotangent, which comes with them."""
    options = dict(case.options)

    def call(*operands):
        given = zip(kind.operands, operands, strict=True)
        return kind.call(case, options, *(in_form(case, x) if name == "tau" else x for name, x in given))

    def results(*operands):
        return [jnp.asarray(x) for x in jax.tree.leaves(call(*operands))]

    if case.how == "eager":
        return results(*operands), None
    if case.how == "jit":
        return jax.jit(results)(*operands), None
    if case.how == "vmap":
        found = jax.vmap(results)(*(np.stack([x, x]) if case.numpy else jnp.stack([x, x]) for x in operands))
        return [second(x) for x in found], None
    if case.how == "scan":
        return [second(x) for x in lax.scan(lambda c, _: (c, results(*operands)), (), length=2)[1]], None
    shape = jax.eval_shape(call, *operands)
    g = np.random.default_rng(case.seed).normal(size=shape.shape).astype(shape.dtype)
    g = g if case.numpy else jax.device_put(g)

    def loss(*operands):
        found = (jax.checkpoint(call) if case.how == "checkpoint" else call)(*operands)
        return (
            jnp.asarray(g, "float32" if found.dtype.itemsize < 4 else found.dtype)
            * found.astype("float32" if found.dtype.itemsize < 4 else found.dtype)
        ).sum()

    every = tuple(range(len(operands)))
    if case.how == "jvp":
        ones = [jnp.ones_like(x) for x in operands]
        value, moved = jax.jvp(loss, [*map(jnp.asarray, operands)], ones)
        return [value, moved], g
    slope = jax.value_and_grad(loss, every)
    if case.how == "jit grad":
        slope = jax.jit(slope)
    if case.how == "vmap grad":
        found = jax.vmap(slope)(*(np.stack([x, x]) if case.numpy else jnp.stack([x, x]) for x in operands))
        value, slopes = jax.tree.map(second, found)
    else:
        value, slopes = slope(*operands)
    return [value, *slopes], g


def compared(case, kind, operands, found, cotangent):
    """Raise a finding unless the results are within the promised distance of the formula's."""
    found = [np.asarray(x, np.float64) for x in found]
    narrow = "float64" if case.dtype == "float64" else "float32" if case.dtype == "float32" else case.dtype
    limits = {"float64": (1e-280, 1e280), "float32": (1e-36, 1e36), "float16": (1e-6, 1e4), "bfloat16": (1e-36, 1e36)}
    tiny, largest = limits[narrow]
    tiny *= 1 if cotangent is None else max(1, case.tau / case.unit)  # slopes are τ (k - q) times what may underflow
    elements = elements_of(case, operands)
    g = None if cotangent is None else np.asarray(cotangent, np.float64)
    parts = [exact_of(case, x, None if g is None else g if case.batch == 0 else g[i]) for i, x in enumerate(elements)]
    if parts[0] is None:
        wrong = [x for x in found if not np.isfinite(x).all()]
        if wrong and kind.finite:
            raise Finding(f"not finite: {np.count_nonzero(~np.isfinite(wrong[0]))} of {wrong[0].size}")
        return "right"
    tolerance = TOLERANCES[case.dtype][case.how in GRADIENTS] * kind.looser
    names = ["result"] if g is None else ["value", "tangent"] if case.how == "jvp" else ["value", *kind.operands]
    for i, name in enumerate(names):
        exact, size = (np.stack([np.asarray(p[i][j], np.float64) for p in parts]) for j in range(2))
        if g is not None and (i == 0 or case.how == "jvp" or name == "tau"):
            exact, size = exact.sum(0), size.sum()
        elif case.batch == 0:
            exact = exact[0]
        ours = found[i]
        if ours.shape != exact.shape:
            raise Finding(f"{name}: shape {ours.shape}, not {exact.shape}")
        if not exact.size:
            continue
        scale = np.sqrt(np.square(size).sum())
        if not np.isfinite(exact).all() or np.abs(exact).max() > largest:
            continue
        if not np.isfinite(ours).all() and scale < largest:
            raise Finding(f"{name}: {np.count_nonzero(~np.isfinite(ours))} of {ours.size} not finite")
        if not scale < largest:
            continue
        distance = np.linalg.norm(ours - exact)
        if distance > tolerance * scale + tiny * exact.size**0.5:
            raise Finding(
                f"{name}: wrong by {distance / max(scale, 1e-300):.1e} of the terms, got "
                f"{ours.ravel()[:3]}, not {exact.ravel()[:3]}"
            )
    return "right"


def signature(case, finding):
    """What makes two findings the same."""
    return f"{case.target}: {re.sub(r'[0-9.e+-]+|[^a-zA-Z ]', '', str(finding))[:60]}"


def work(seed, seconds, log):
    """Run cases until the time is over, and append what happens to the log."""
    end, counts, known = time.monotonic() + seconds, collections.Counter(), set(json.loads(os.environ["FUZZ_KNOWN"]))

    def write(**entry):
        with open(log, "a") as file:
            file.write(json.dumps(entry) + "\n")

    while time.monotonic() < end:
        failed, until = {}, []

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=40,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
            suppress_health_check=[*hypothesis.HealthCheck],
        )
        @hypothesis.given(drawn())
        def run(case):
            if (found := failed.get(text := differing(case))) is None and time.monotonic() < min([end, *until]):
                write(case=text)
                try:
                    counts[outcome(case)] += 1
                except Finding as finding:
                    found = str(finding)
                if found and (signature(case, found) in known or first[0] not in ("", signature(case, found))):
                    counts["again"], found = counts["again"] + 1, None
                write(counts=counts)
            if found:
                failed[text], first[0], smallest[0] = found, signature(case, found), case
                until[:] = until or [time.monotonic() + SHRINKING]
                raise Finding(found)

        first, smallest = [""], [None]
        try:
            run()
        except Finding as finding:
            write(finding=str(finding), case=differing(smallest[0]), name=first[0])
            known.add(first[0])
        except hypothesis.errors.Flaky:  # it does not come back
            write(finding=f"once: {failed[differing(smallest[0])]}", case=differing(smallest[0]), name=first[0])
            known.add(first[0])
        seed += 1000


def show(finding, case):
    print(f"\n{finding}\n    .venv/bin/python tests/fuzz.py --case {json.dumps(case)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", help="run this one, as a finding prints it")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        print(outcome(eval(asked.case)))
        return 0
    if asked.worker:
        work(asked.seed, float(asked.worker[0]), asked.worker[1])
        return 0
    return lead(asked)


def lead(asked):
    """Start processes one after the other, and report what they find."""
    start, totals, found, seed = time.monotonic(), collections.Counter(), {}, asked.seed
    end = start + 60 * asked.minutes
    while (left := end - time.monotonic()) > 10:
        with tempfile.NamedTemporaryFile("r") as log:
            command = [sys.executable, __file__, "--seed", str(seed), "--worker", str(min(left, RENEWED)), log.name]
            env = os.environ | {"FUZZ_KNOWN": json.dumps([*found])}
            child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            counts, case, last, errors = collections.Counter(), "", time.monotonic(), ""
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    errors = child.communicate(timeout=2)[1]
                for line in log:
                    entry, last = json.loads(line), time.monotonic()
                    counts = collections.Counter(entry.get("counts", counts))
                    case = entry.get("case", case)
                    if "finding" in entry:
                        found[entry.get("name") or entry["finding"][:60]] = entry["finding"]
                        show(entry["finding"], entry["case"])
                now = totals + counts
                print(
                    f"\r{(time.monotonic() - start) / 60:4.1f} min, {now.total()} cases, {now['refused']} readable"
                    f" refusals, {len(found)} findings ",
                    end="",
                    flush=True,
                )
                if child.returncode is not None:
                    break
                if time.monotonic() - last > PATIENCE:
                    child.kill()
                    found[f"hangs {case}"] = case
                    show(f"takes longer than {PATIENCE} s", case)
            if child.returncode > 0 or (child.returncode < 0 and f"hangs {case}" not in found):
                found[f"dies {case}"] = case
                show(f"the process ends with {child.returncode}: {errors[-500:]}", case)
            totals, seed = totals + counts, seed + 1
    print(
        f"\n{totals.total()} cases: {totals['right']} right, {totals['refused']} readable refusals,"
        f" {totals['skipped']} skipped, {totals['again']} of findings seen before; {len(found)} findings"
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
