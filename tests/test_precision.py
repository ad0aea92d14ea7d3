"""What half precision promises, what it does with points that it does not hold, and that nothing is wrong silently."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_backend
from jaxgauss import Attention, Clusters, explain, gauss_sum
from oracle import assert_close, gauss_sum64, gradients64, problem, relative_error, with_gradients
from torch_backend import guard, kernels, operators

# what the docstring of gauss_sum promises for a handful of terms within reach
GRADES = {"float16": 1e-2, "bfloat16": 8e-2, "float16x2": 1e-3, "bfloat16x2": 8e-3, "float32": 2.4e-4, None: 2.4e-4}


def bound64(queries, keys, values, tau):
    """Σ Φ|v|, which bounds the sum and is not shrunk by cancellation."""
    with np.errstate(over="ignore"):
        return gauss_sum64(queries, keys, np.abs(values), tau)


def error_of(result, case) -> float:
    """‖s - ŝ‖₂ / ‖Σ Φ|v|‖₂, apart from terms that float32 does not hold."""
    with np.errstate(over="ignore"):
        exact = gauss_sum64(*case.operands)
    bound = bound64(*case.operands)
    result = np.asarray(result, np.float64)
    assert np.isfinite(result).all()
    scale = max(float(np.abs(case.values).max()), 1e-30)
    # terms with Φ, and sums, below the smallest normal number
    lost = 2e-38 * result.size * (len(case.keys) + 1 / scale)
    error, size = np.linalg.norm((result - exact) / scale), np.linalg.norm(bound / scale)
    return float(max(error - lost, 0.0) / max(size, 1e-300))


@pytest.mark.parametrize(
    "precision, dim, promised",
    [("float16", 3, 5e-4), ("float16", 64, 5e-4), ("float16x2", 64, 4e-4), ("bfloat16x2", 16, 4e-3)],
)
def test_sums_hold_their_grade(rng, precision, dim, promised):
    """Relative to Σ Φ|v|; in float16 also relative to the sum."""
    for tau, positive in ((0.01, True), (1.0, False), (10.0, True), (10.0, False), (100.0, False)):
        case = problem(rng, 800, 1000, dim, 1, tau=tau, dtype="float32", positive=positive)
        case = case._replace(queries=case.queries + np.float32(1000), keys=case.keys + np.float32(1000))
        bound = 5e-3 if (precision, tau) == ("float16", 100.0) else promised
        result = gauss_sum(*case.operands, precision=precision)
        assert error_of(result, case) <= bound, (tau, positive)
        if (precision, positive) == ("float16", False) and tau < 100:
            assert relative_error(result, gauss_sum64(*case.operands)) <= 1.5e-3


@pytest.mark.parametrize("precision", ["float16", "float16x2"])
def test_gradients_of_queries_hold_their_grade(rng, precision):
    """In few dimensions: see below."""
    slope = jax.grad(lambda *x: gauss_sum(*x, precision=precision).sum())
    for tau, promised in ((1.0, 2e-3), (10.0, 2e-3), (100.0, 7e-3)):
        case = problem(rng, 400, 500, 64, 1, tau=tau, dtype="float32")
        exact = gradients64(*case.operands, np.ones((400, 1)))[0]
        assert relative_error(slope(*map(jnp.asarray, case.operands)), exact) <= promised


@pytest.mark.parametrize(
    "method, precision",
    [*(("rescale", x) for x in ("float16", "float16x2", "float32")), ("reweight", "float16"), ("prescale", "float32")],
)
def test_clusters_far_apart_are_summed_elsewhere(precision, method):
    for apart, tau in ((1e3, 1.0), (1e4, 1e6), (40.0, 1.0)):
        case = problem(np.random.default_rng(0), 40, 60, 3, 1, tau=tau, dtype="float32")
        case.queries[::2] += apart
        case.keys[::2] += apart
        case.keys[:40] = case.queries * np.float32(1 + 1e-7)
        result = gauss_sum(*case.operands, engine=method, precision=precision)
        assert error_of(result, case) <= 1e-4
        if apart * tau >= 1e3:
            assert explain(*case.operands, engine=method, precision=precision).name == "clusters"


@pytest.mark.parametrize("precision", ["float16", "float16x2", "float32"])
def test_values_of_all_sizes_meet_in_one_channel(rng, precision):
    case = problem(rng, 50, 80, 3, 1, tau=4.0, dtype="float32")
    case = case._replace(values=(10.0 ** rng.uniform(-30, 30, size=(80, 1))).astype("float32"))
    case.keys[:40] += 5.0  # 10 bandwidths away: sums there are of small values
    case.values[:40] *= 1e-15
    case.queries[::2] += 5.0
    result = gauss_sum(*case.operands, precision=precision)
    allowed = 2e-2 if precision == "float16" else 1e-3  # in every row, also where the terms are 10 bandwidths away
    assert (np.abs(np.asarray(result) - gauss_sum64(*case.operands)) <= allowed * bound64(*case.operands)).all()


@pytest.mark.parametrize("precision", GRADES)
def test_one_key_duplicates_and_far_queries(precision):
    far = jnp.asarray([[0.0, 0.0], [3.0, 4.0], [10.0, 0.0], [1e10, 0.0]], jnp.float32)
    one = gauss_sum(far, jnp.zeros((1, 2), jnp.float32), jnp.full(1, 2.0, jnp.float32), precision=precision)
    assert np.allclose(one, 2 * np.exp([0, -12.5, -50, -np.inf]), rtol=1e-3, atol=0)
    many = gauss_sum(far, jnp.zeros((3000, 2), jnp.float32), jnp.ones(3000, jnp.float32), precision=precision)
    assert np.allclose(many, 3000 * np.exp([0, -12.5, -50, -np.inf]), rtol=1e-3, atol=0)


CALLS = [("auto", None), ("blocked", None), ("differences", None), ("rescale", "float32"), ("rescale", "float16")]
CALLS += [("rescale", "bfloat16"), ("rescale", "float16x2"), ("rescale", "bfloat16x2")]
CALLS += [("reweight", "float32"), ("reweight", "float16"), ("prescale", "float32"), ("prescale", "float16x2")]
jitted = jax.jit(gauss_sum, static_argnames=("engine", "precision"))


@st.composite
def hostile(draw, channels):
    """Clusters anywhere, of any spread, duplicates, values of any size, any bandwidth."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    m, n, d, c = 7, 9, 3, draw(st.sampled_from(channels))  # few shapes: each is compiled once
    tau = 10.0 ** draw(st.floats(-6, 6))
    spread, apart, offset = (10.0 ** draw(st.floats(-4, 4)) for _ in range(3))
    centers = apart * rng.normal(size=(draw(st.integers(1, 3)), d))
    points = offset + centers[rng.integers(len(centers), size=m + n)] + spread * rng.normal(size=(m + n, d))
    if draw(st.booleans()):
        points[rng.integers(m + n, size=3)] = points[0]
    if draw(st.booleans()):
        points[0] += 10.0 ** draw(st.floats(0, 30))
    low, high = draw(st.floats(-30, 30)), draw(st.floats(-30, 30))
    sizes = 10.0 ** (low + (high - low) * rng.random((n, 1)))
    values = sizes * rng.normal(size=(n, c))
    arrays = points[:m], points[m:], np.abs(values) if draw(st.booleans()) else values, np.asarray(tau)
    return type(problem(rng))(*(x.astype("float32") for x in (*arrays, rng.normal(size=(m, c)))))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(hostile([2]), st.sampled_from(CALLS))
def test_never_wrong_silently(case, call):
    method, precision = call
    result = jitted(*case.operands, engine=method, precision=precision)
    assert error_of(result, case) <= GRADES[precision]
    if (case.values >= 0).all():
        assert (np.asarray(result) >= 0).all()
    assert (np.abs(result) <= 1.01 * np.abs(case.values.astype(np.float64)).sum(0)).all()  # Φ ≤ 1


gradients = {x: with_gradients(functools.partial(gauss_sum, engine=x[0], precision=x[1])) for x in CALLS}


@settings(max_examples=80, deadline=None, derandomize=True)
@given(hostile([1, 3]), st.sampled_from([CALLS[0], CALLS[2], CALLS[4]]))
def test_gradients_are_finite(case, call):
    *operands, g = case
    operands[2] = operands[2] / max(np.abs(operands[2]).max(), np.float32(1e-30))
    assert all(np.isfinite(x).all() for x in gradients[call](*operands, g)[1])


FAR = [(("rescale", x), 1) for x in ("float16", "bfloat16", "float16x2", "float32")]
FAR += [(("differences", None), 1), (("blocked", None), 9)]


@pytest.mark.parametrize("call, channels", FAR)
def test_gradients_of_points_far_apart_have_all_digits(rng, call, channels):
    """Of one distant query, which gets none, and of two clusters: moments about one center would lose all digits."""
    case = problem(rng, 60, 50, 3, channels, tau=1.0, dtype="float32")
    index, far = np.arange(60)[:, None], np.float32([1e4, 1e6, 1e24])
    clouds = [(np.where(index == 7, x, case.queries), case.keys) for x in far]
    clouds += [(case.queries + x * (index % 2 > 0), case.keys + x * (index[:50] % 2 > 0)) for x in far[:2]]
    for queries, keys in clouds:
        d_queries, *others = gradients[call](queries, keys, *case[2:])[1]
        there = np.abs(queries).max(1) < 1e7  # beyond, squares overflow in the oracle
        exact = gradients64(queries[there], keys, *case[2:4], case.cotangent[there])
        assert_close([d_queries[there], *others], exact, 1e-5)


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("tau", [0.1, 1.0, 5.0])
def test_proposition_1(rng, monkeypatch, precision, tau):
    """κ/(N + 1) ≤ β ≤ κ and |α| ≤ max|v|, for the means that attention returns."""
    q, k, v, *_ = (torch.from_numpy(x) for x in problem(rng, 50, 70, 4, 2))
    seen, original = [], operators.FORWARD["cpu"]
    monkeypatch.setitem(operators.FORWARD, "cpu", lambda *x: (seen.append(original(*x)[0]), original(*x))[1])
    torch_backend.gauss_sum(q, k, v, tau, method="reweight", precision=precision)
    alpha, beta, kappa = seen[0][..., :2].double(), seen[0][..., 2].double(), 71**0.5
    unit = torch.finfo(seen[0].dtype).eps
    assert len(seen) == 1
    assert torch.all((kappa / 71 * (1 - unit) <= beta) & (beta <= kappa * (1 + unit)))
    assert torch.all(alpha.abs() <= (1 if unit > 1e-6 else v.abs().max()))  # half precision: of values divided by it


@pytest.mark.parametrize("method", ["rescale", "reweight", "prescale"])
def test_what_half_precision_does_not_hold_is_computed_again(rng, monkeypatch, method):
    again = []
    original = guard.finest_kernel
    monkeypatch.setattr(guard, "finest_kernel", lambda *x: again.append(x) or original(*x))
    case = [torch.from_numpy(x) for x in problem(rng, 30, 40, 3, 2, tau=1.0, dtype="float32").operands]
    torch_backend.gauss_sum(*case, method=method, precision="float16")
    assert again == []
    case[3] = torch.tensor(500.0)
    torch_backend.gauss_sum(*case, method=method, precision="float16")
    assert again == [("cpu", "float32")]
    case[3] = torch.tensor(1e6)
    torch_backend.gauss_sum(*case, method=method, precision="float16")
    assert again[1:] == [("cpu", "float64")]
    del again[:]
    torch_backend.gauss_sum(*case, method=method, precision="float16", guard=False)
    torch_backend.gauss_sum_pullback(*case, torch.ones(30, 2), precision="float16", guard=False)
    assert again == []
    torch_backend.gauss_sum_pullback(*case, torch.ones(30, 2), precision="float16")
    assert again == [("cpu", "float64")]


def test_small_sums_in_half_precision_are_computed_again(rng):
    """All that meets is far apart: within reach, but rounding moves exponents of 25."""
    case = problem(rng, 100, 120, 8, 1, tau=200.0, dtype="float32", positive=True)
    case = case._replace(queries=case.queries + np.float32(0.3))
    operands = [torch.from_numpy(x) for x in case.operands]
    raw = torch_backend.gauss_sum(*operands, precision="float16", guard=False)
    assert relative_error(raw, gauss_sum64(*case.operands)) > 2e-3
    assert relative_error(torch_backend.gauss_sum(*operands, precision="float16"), gauss_sum64(*case.operands)) < 1e-4


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["normal", "of two values", "of one coordinate", "far from the origin"])
def test_what_exponents_lose_is_seen_from_a_few_pairs(rng, precision, kind):
    """As over all pairs, whether errors of coordinates are independent or one and the same; some points coincide."""
    points = rng.normal(size=(2, 300, 32))
    if kind == "of two values":
        points = np.sign(points) * 1.27
    if kind == "of one coordinate":
        points *= np.eye(32)[0]
    if kind == "far from the origin":
        points = (points + 1000).astype("float32").astype(float) - 1000
    a, b = (torch.from_numpy(x) for x in points)
    b[::8] = a[::8]
    rounded = [x.to(getattr(torch, precision)).double() for x in (a, b)]
    squared, moved = (torch.cdist(x, y).square() for x, y in ((a, b), rounded))
    errors = torch.where(squared > 0, (moved - squared) / 2 / squared.sqrt(), 0.0)
    found = guard.relative_loss(a, b, kernels.select_kernel("cpu", precision, "cpu", "float64", 32))
    assert 0.5 < found / errors.square().mean().sqrt() < 2


@pytest.mark.parametrize("precision, parts", [("float16", 1), ("float16x2", 2), ("bfloat16x2", 2), ("float32", 1)])
def test_split_points_hold_their_digits(rng, precision, parts):
    kernel = torch_backend.select_kernel("cpu", precision, "cpu", torch.float32, 3)
    x = torch.from_numpy(rng.normal(size=(50, 3)))
    (a, norms), (b, _) = (torch_backend.layout.point_columns(x, kernel, of_keys=of_keys) for of_keys in (False, True))
    assert kernel.parts == parts and len(a) == (3 if parts == 2 else 1)
    product = sum(y.double() @ z.double().T for y, z in zip(a, b, strict=True))
    unit = (torch.finfo(getattr(torch, kernel.dtype)).eps / 2) ** parts
    assert (product - x @ x.T).abs().max() < 20 * unit
    assert (2 * norms[:, 0] - x.square().sum(-1)).abs().max() < 20 * max(unit, 1e-7)


@pytest.mark.parametrize(
    "precision, dim, expected",
    [
        ("float16x2", 83, ("flash", "float16x2")),
        ("float16x2", 84, ("efficient", "float32")),  # three products there too
        ("bfloat16x2", 300, ("efficient", "float32")),
    ],
)
def test_wide_points_are_split_only_where_they_fit(precision, dim, expected):
    kernel = torch_backend.select_kernel("auto", precision, "cuda", torch.float32, dim)
    assert (kernel.name, kernel.precision) == expected
    with pytest.raises(ValueError, match=r"got points of dimension 84, which take 257 in float16x2"):
        torch_backend.select_kernel("flash", "float16x2", "cuda", torch.float32, 84)


def test_explain_says_what_becomes_of_far_points(rng):
    case = problem(rng, 30, 40, 3, 1, tau=1.0, dtype="float32")
    assert explain(*case.operands, precision="float16").precision == "float16"
    moved = case._replace(tau=np.float32(1e4))
    plan = explain(*moved.operands, precision="float16")
    assert plan.engine == Clusters(precision="float32") and "bandwidths" in plan.reason
    assert explain(*moved.operands).near is False
    for method in ("auto", "blocked"):
        plan = explain(*moved.operands, engine=method)
        assert plan.engine == Clusters(precision="float32")
        assert "farther than float32 reaches" in plan.reason
    farthest = np.square(case.keys - case.keys.mean(0)).sum(1).max()
    middling = case._replace(tau=np.float32(400 / farthest))
    assert explain(*middling.operands, engine="rescale", precision="float32").name == "clusters"
    middling = case._replace(tau=np.float32(50 / farthest))
    plan = explain(*middling.operands, engine="prescale", precision="float16")
    assert plan.engine == Attention(kernel="cpu", precision="float32")  # near enough for float32
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in moved.operands[:3]]
    assert explain(*shapes, 1e4).precision == "float32"


DIGITS = {10.0: (1.4e-3, 1e-3, 7e-3), 100.0: (6.3e-3, 4.4e-3, 3.5e-2)}  # by τ, of the three precisions


def test_gradients_have_the_digits_of_the_readme():
    """Of the queries. Points lie about their mean: about that of eight of them, errors are half as large again."""
    from benchmarks.precision import problem as measured
    from benchmarks.precision import slope

    for tau, bounds in DIGITS.items():
        arrays, _, _, gradient, _ = measured(3, tau, 0.0, "positive")
        for precision, bound in zip(("float16", "float16x2", "bfloat16x2"), bounds, strict=True):
            assert relative_error(slope(precision, *map(jnp.asarray, arrays), tau), gradient) < bound
