"""CUDA's programs, without a GPU: nothing waits, nothing large is written, and the numbers are right."""

import math
import re

import pytest

from cuda_programs import CALLBACK, PROGRAMS, WAVES, loops_of_unknown_length, lowered, operations_in_branches

pytestmark = [pytest.mark.usefixtures("cuda"), pytest.mark.emulated]

# Statistics of float64 by design: of resamplings, of errors, and of points chosen one after another.
IN_FLOAT64 = {"mmd_test", "hsic_test", "ksd_test", "estimate_error", "kernel_herding"}
# Callbacks of many points: a sum has two, one of them in a branch; its gradients take another sum.
CALLBACKS = {name: 4 for name in PROGRAMS} | {
    **dict.fromkeys(("mmd_flow_velocity", "mmd_witness", "ksd_squared", "svgd_direction"), 2),
    **dict.fromkeys(("estimate_error", "second derivatives", "kernel_herding", "mean_shift", "mmd_test"), 2),
    **dict.fromkeys(("mmd_squared", "mmd_squared of three τ", "mmd_squared of imq"), 2),  # gradients of both samples
    **dict.fromkeys(
        (
            "energy_distance",
            "kernel_sum of matern12",
            "ksd_squared of imq",
            "log_kernel_sum of imq",
            "blocked",
            "differences",
            "drift",
        ),
        0,
    ),
    **dict.fromkeys(("hsic_test", "ksd_test"), 0),
    **{"kde_score": 6, "kernel_mean": 6, "mmd_squared_matrix": 0, "leave_one_out_tau": 6, "uniformity": 6, "hsic": 12},
    "mmd_squared_to_normal": 2,
}


# Variants of one function, which few points do not tell from another.
OF_MANY = "float32", "bfloat16", "reweight", "blocked", "kernel_sum of matern12", "kernel_sum of matern32"
OF_MANY += "kde_logpdf of weights", "mmd_squared of three τ"
OF_TILES = "log_gauss_sum", "kde_score", "hsic", "leave_one_out_tau", "second derivatives"  # which XLA sums
CASES = [(name, (100_000, 16)) for name in PROGRAMS] + [(x, (300, 3)) for x in PROGRAMS if x not in OF_MANY]
CASES += [(name, (20_000, 3)) for name in OF_TILES] + [("gauss_sum by waves", (100_000, x)) for x in (1, 2, 3)]
CASES += [(name, (100_000, 3 - i % 3)) for i, name in enumerate(WAVES) if i]


@pytest.mark.parametrize("name, sizes", CASES, ids=str)
def test_the_host_decides_nothing(name, sizes):
    """A loop of unknown length copies what it depends on to the host and waits for it; so does a loop in a branch.

    Other conditionals are parts of CUDA graphs. There is one for each sum by attention, around its second kernel.
    """
    program = lowered(name, *sizes)
    text, within = program.as_text(), operations_in_branches(program)
    callbacks = text.count(CALLBACK.replace("gpu", "cpu"))
    assert len(re.findall(r"stablehlo\.(?:case|if)\b", text)) * 2 == callbacks
    assert "stablehlo.while" not in within and ("stablehlo.custom_call" in within) == (callbacks > 0)
    assert (loops_of_unknown_length(text) > 0) == (name == "mean_shift")
    assert "f64" not in text or name in IN_FLOAT64
    products = [x for x in text.splitlines() if "dot_general" in x and "xf32>" in x]
    assert all("HIGHEST, HIGHEST" in x for x in products)  # others take float32 numbers in TF32, with 11 bits
    if sizes[0] == 100_000:
        assert callbacks == CALLBACKS.get(name, 0)
    if name in WAVES:
        assert max(math.prod(map(int, x.split("x"))) for x in re.findall(r"tensor<([\dx]+)xf32>", text)) < 2**25
