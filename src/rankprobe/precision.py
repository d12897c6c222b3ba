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

INPUTS, OUTPUTS = (1e-30, 1e100), (1e-15, 1e15)
"""Sizes of X and Y beyond which squares and their products overflow or vanish (those of Y in float32)."""


def out_of_range(top: float, limits: tuple[float, float], stored: str) -> str | None:
    """What is wrong with numbers of which ``top`` > 0 is the largest, and the remedy; None if nothing is."""
    low, high = limits
    if stored == "float16":
        low = max(low, float(np.finfo(np.float16).smallest_normal))
    if top > high:
        return f"values reach {top:.3g}, beyond {high:g}, where squares overflow; divide them by a constant"
    if top < low:
        return (
            f"values reach no more than {top:.3g}, below {low:.2g}, where {stored} or its squares lose "
            "digits; multiply them by a constant before they are stored"
        )
    return None


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
