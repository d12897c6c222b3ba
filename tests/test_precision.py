"""What rounding leaves in numbers is seen; what is exact is not taken for rounded."""

import ml_dtypes
import numpy as np
import pytest

from rankprobe.precision import coarser, effective

RNG = np.random.default_rng(11)
NORMAL = RNG.standard_normal(5000)
KINDS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32, "float64": np.float64}
ROUNDED = [(one, two) for at, one in enumerate(KINDS) for two in list(KINDS)[at:]]


@pytest.mark.parametrize("scale", [1.0, 1e-3, 300.0])
@pytest.mark.parametrize("kind,stored", ROUNDED)
def test_values_are_as_coarse_as_what_they_were_rounded_to(kind, stored, scale):
    values = (scale * NORMAL).astype(KINDS[kind]).astype(KINDS[stored])
    assert effective(values, stored) == kind
    values[::3] = 0
    values[5] = np.nan
    assert effective(values, stored) == kind


def test_one_finer_value_is_not_rounded():
    values = NORMAL.astype(ml_dtypes.bfloat16).astype(np.float32)
    values[17] = np.float32(1.001)
    assert effective(values, "float32") == "float32"


@pytest.mark.parametrize(
    "values",
    [
        np.eye(100),
        np.zeros(100),
        np.empty(0),
        RNG.integers(0, 256, 5000),
        RNG.integers(-3, 4, 5000),
        RNG.integers(0, 256, 5000) / 256,
        RNG.integers(-30_000, 30_000, 5000),
        2.0 ** RNG.integers(-20, 20, 5000),
        RNG.choice([1.0078125, 0.501953125, 3.0], 5000),
    ],
    ids=["one-hot", "zeros", "empty", "pixels", "small", "shares", "integers", "powers", "codes"],
)
@pytest.mark.parametrize("stored", ["float32", "float64"])
def test_exact_numbers_are_not_coarse(values, stored):
    assert effective(np.asarray(values, dtype=stored), stored) == stored


def test_the_coarser_one():
    assert coarser("float32", "bfloat16") == coarser("bfloat16", "float16") == "bfloat16"
