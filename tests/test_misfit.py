"""Outputs of maps that are not the attention assumed: a misfit, its cause, and the option that undoes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rankprobe
from rankprobe.estimators.result import Status

N, T, D, NOISE = 500, 16, 16, 0.05

Floats = np.ndarray


class Draws:
    """Tokens, kernels and values of one seed, and softmax attention written out here."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.X = self.rng.standard_normal((N, T, D))

    def kernel(self) -> Floats:
        return self.rng.standard_normal((D, 3)) @ self.rng.standard_normal((3, D)) / D

    def values(self) -> Floats:
        return self.rng.standard_normal((D, D)) / 4

    def logits(self) -> Floats:
        return self.X @ self.kernel() @ self.X.transpose(0, 2, 1)

    def head(self, logits: Floats | None = None) -> Floats:
        return softmax(self.logits() if logits is None else logits) @ (self.X @ self.values())

    def noise(self) -> Floats:
        return NOISE * self.rng.standard_normal((N, T, D))


def softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def plain(draw: Draws) -> Floats:
    return draw.head()


def causal(draw: Draws) -> Floats:
    return draw.head(np.where(np.tri(T) > 0, draw.logits(), -np.inf))


def linear(draw: Draws) -> Floats:
    return np.asarray(draw.logits() @ draw.X @ draw.values())


def residual(draw: Draws) -> Floats:
    return draw.X + draw.head()


def rectified(draw: Draws) -> Floats:
    return np.maximum(draw.head(), 0.0)


def two_summed(draw: Draws) -> Floats:
    return draw.head() + draw.head()


def two_beside(draw: Draws) -> Floats:
    return np.concatenate([draw.head()[..., : D // 2], draw.head()[..., : D // 2]], axis=2)


def capped(draw: Draws) -> Floats:
    return draw.head(2.0 * np.tanh(draw.logits() / 2.0))


def rotary(draw: Draws) -> Floats:
    angles = np.arange(T)[:, None] * np.array([1.0, 0.1])

    def turned(u: Floats) -> Floats:
        a, b = u[..., :2], u[..., 2:]
        return np.concatenate(
            [a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], axis=2
        )

    queries, keys = (draw.X @ draw.rng.standard_normal((D, 4)) / 2 for _ in range(2))
    return draw.head(turned(queries) @ turned(keys).transpose(0, 2, 1) / 2)


def distance_biased(draw: Draws) -> Floats:
    place = np.arange(T)
    return draw.head(draw.logits() - 0.3 * np.abs(place[:, None] - place[None, :]))


def nonlinear_values(draw: Draws) -> Floats:
    return np.asarray(softmax(draw.logits()) @ np.tanh(draw.X @ draw.rng.standard_normal((D, D)) / 3))


CASES: list[tuple[Callable[[Draws], Floats], str, bool, str]] = [
    (linear, "softmax", False, "--attention linear"),
    (plain, "linear", False, "--attention softmax"),
    (plain, "softmax", True, "--no-causal"),
    (causal, "softmax", False, "--causal"),
    (residual, "softmax", False, "--residual"),
    (rectified, "softmax", False, "nonlinearity"),
    (two_summed, "softmax", False, "sum of several heads"),
    (two_beside, "softmax", False, "side by side"),
    (capped, "softmax", False, "soft-capping"),
    (rotary, "softmax", False, "depend on positions"),
    (distance_biased, "softmax", False, "depend on positions"),
    (nonlinear_values, "softmax", False, "values may not be linear"),
]


@pytest.mark.parametrize(
    ("outputs", "attention", "is_causal", "cause"), CASES, ids=lambda case: getattr(case, "__name__", None)
)
def test_another_map_is_a_misfit_whose_cause_is_named(
    outputs: Callable[[Draws], Floats], attention: str, is_causal: bool, cause: str
) -> None:
    draw = Draws(5)
    answer = rankprobe.estimate(draw.X, outputs(draw) + draw.noise(), attention=attention, causal=is_causal)
    assert answer.status is Status.MISFIT, answer.message
    assert answer.rank is None and answer.energy_rank is None
    assert cause in answer.message


@pytest.mark.parametrize("outputs", [plain, causal, linear])
def test_the_right_map_is_no_misfit(outputs: Callable[[Draws], Floats]) -> None:
    draw = Draws(6)
    answer = rankprobe.estimate(draw.X, outputs(draw) + draw.noise())
    assert (answer.status, answer.rank) == (Status.IDENTIFIED, 3)


@pytest.mark.parametrize("sequences", [14, 30, 50, 80])
@pytest.mark.parametrize("kind", ["softmax_qk", "linear_qk"])
def test_few_sequences_of_the_right_map_are_no_misfit(sequences: int, kind: str) -> None:
    teacher = rankprobe.make_teacher(kind=kind, rank=4, tokens=16, dim=32, value_dim=32, noise=0.05, seed=1)
    X, Y = (np.concatenate(part) for part in zip(*teacher.blocks(sequences), strict=True))
    answer = rankprobe.estimate(X, Y, attention=kind.removesuffix("_qk"), causal=False)
    assert answer.status is not Status.MISFIT, answer.message
    assert answer.rank in (4, None)


def test_unequal_and_correlated_noise_is_no_misfit() -> None:
    draw = Draws(7)
    clean = draw.head()
    mixed = draw.noise() @ draw.rng.standard_normal((D, D)) * draw.rng.uniform(0.2, 2.0, (N, T, 1)) / 4
    answer = rankprobe.estimate(draw.X, clean + mixed, attention="softmax", causal=False)
    assert answer.status is not Status.MISFIT, answer.message


def test_a_skip_connection_can_be_fitted_beside_attention() -> None:
    draw = Draws(8)
    answer = rankprobe.estimate(
        draw.X, residual(draw) + draw.noise(), attention="softmax", causal=False, residual=True
    )
    assert (answer.status, answer.rank) == (Status.IDENTIFIED, 3)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("outputs", "attention", "cause"),
    [(two_summed, "softmax", ""), (plain, "linear", "--attention softmax")],
)
def test_a_handful_of_sequences_of_another_map_is_a_misfit(
    outputs: Callable[[Draws], Floats], attention: str, cause: str, seed: int
) -> None:
    draw = Draws(seed)
    X, Y = draw.X[:20], (outputs(draw) + draw.noise())[:20]
    answer = rankprobe.estimate(X, Y, attention=attention, causal=False)
    assert answer.status is Status.MISFIT, answer.message
    assert cause in answer.message
