"""How many digits numbers really have: bfloat16 that was saved as float32 is as coarse as before."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_DIGITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
"""Significant binary digits, fewest first."""

SAMPLE = 1 << 16
"""Numbers that are enough to tell."""
_MANY = 32
"""Different numbers that use every digit; fewer may be a code, such as one-hot, and exact."""


def nominal(dtype: str) -> str:
    """The precision of a type by its name; integers and types unknown here count as float64."""
    return dtype if dtype in _DIGITS else "float64"


def coarser(*precisions: str) -> str:
    """The one with the fewest digits."""
    return min(precisions, key=_DIGITS.__getitem__)


def effective(values: npt.NDArray[np.floating[Any]], stored: str) -> str:
    """The precision that ``values`` show, at most the one they are ``stored`` in.

    Numbers rounded to p digits never need more than p, and need all p at every size. Exact numbers on a grid
    of equal steps (integers, pixels) may need no more either, but all p in the topmost binade only.
    """
    sample = values[np.isfinite(values) & (values != 0)][:SAMPLE]
    bits = np.abs(sample.astype(np.float64)).view(np.int64)
    for name, digits in _DIGITS.items():
        unused = 53 - digits
        if name == stored:
            break
        if np.any(bits & ((1 << unused) - 1)):
            continue
        full = np.unique(bits[(bits >> unused) & 1 == 1])
        if full.size >= _MANY and full[0] >> 52 != full[-1] >> 52:
            return name
    return stored
