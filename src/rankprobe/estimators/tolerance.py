"""What loss is acceptable, and the least rank that stays within it: r*(ε) read off a curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rankprobe.errors import UsageError
from rankprobe.estimators.result import Curve

SCORE = 1.96
"""Standard errors on either side of a 95 % interval."""


@dataclass(frozen=True)
class Tolerance:
    """ε: squared error a sequence beyond the noise, or (``share``) a share of the explainable variance."""

    value: float
    share: bool

    @classmethod
    def of(cls, given: float | str) -> Tolerance:
        """From a number, or a text such as ``2.5`` or ``1%``; raises :class:`UsageError`."""
        text = str(given).strip()
        share = text.endswith("%")
        try:
            value = float(text.removesuffix("%")) / (100.0 if share else 1.0)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0.0):
            raise UsageError(f"tolerance {text!r} is no excess risk; write for example 2.5, or 1%")
        return cls(value, share)

    def excess(self, curve: Curve) -> float:
        """ε in the units of the curve's excess risk."""
        return self.value * curve.explainable if self.share else self.value

    def least_rank(self, curve: Curve, enough: int, most: int) -> tuple[int, tuple[int, int]]:
        """The least rank with excess ≤ ε, and the least and the largest that the error bars allow.

        ``enough`` and ``most`` are the decided rank and the end of its interval: they suffice for any ε,
        and are the answer for ε = 0, which the test behind them knows better than held-out errors do.
        """
        epsilon = self.excess(curve)
        if epsilon <= 0.0:
            return enough, (enough, most)

        def least(score: float, otherwise: int) -> int:
            fits = (p.rank for p in curve.points if p.excess + score * p.standard_error <= epsilon)
            return min(next(fits, otherwise), otherwise)

        return least(0.0, enough), (least(-SCORE, enough), least(SCORE, most))
