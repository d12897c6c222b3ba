"""Rank measures of a spectrum (method section 5; paper equations 1–3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def _entropy_rank(weights: np.ndarray) -> float:
    total = float(np.sum(weights))
    if total <= 0.0:
        return 0.0
    p = weights[weights > 0] / total
    return math.exp(-float(np.sum(p * np.log(p))))


def effective_rank(singular_values: Sequence[float] | np.ndarray) -> float:
    """exp H(σ/Σσ), equation 1; 0 for a zero spectrum."""
    return _entropy_rank(np.asarray(singular_values, dtype=np.float64))


def energy_rank(singular_values: Sequence[float] | np.ndarray) -> float:
    """Energy effective rank R̃ = exp H(σ²/Σσ²), equation 2; 0 for a zero spectrum."""
    return _entropy_rank(_unit(singular_values) ** 2)


def energy_rank_gradient(singular_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """∂R̃/∂σ_i = 2 σ_i R̃ (−ln p_i − H) / Σσ² with p = σ²/Σσ², [r]; 0 for a zero spectrum."""
    values = np.asarray(singular_values, dtype=np.float64)
    largest = float(np.max(values, initial=0.0))
    if largest <= 0.0:
        return np.zeros_like(values)
    energies = (values / largest) ** 2
    p = energies / np.sum(energies)
    surprise = -np.log(np.where(p > 0, p, 1.0))
    entropy = float(np.sum(p * surprise))
    return np.asarray(2 * math.exp(entropy) * values / largest**2 * (surprise - entropy) / np.sum(energies))


def stable_rank(singular_values: Sequence[float] | np.ndarray) -> float:
    """‖M‖_F²/‖M‖₂², equation 3; 0 for a zero spectrum."""
    return float(np.sum(_unit(singular_values) ** 2))


def numerical_rank(singular_values: Sequence[float] | np.ndarray, tolerance: float) -> int:
    """Number of singular values above ``tolerance`` times the largest."""
    return int(np.sum(_unit(singular_values) > tolerance))


def _unit(singular_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The spectrum over its largest value, so that squares neither overflow nor vanish."""
    values = np.asarray(singular_values, dtype=np.float64)
    largest = float(np.max(values, initial=0.0))
    return values / largest if largest > 0 else values * 0.0
