"""What an estimator must survive: the right rank in the quotient of unseen directions, or a right status."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy.special import softmax

import rankprobe
from rankprobe.estimators.result import Status
from rankprobe.teachers import make_teacher

USUAL: dict[str, Any] = {
    "kind": "softmax_qk",
    "rank": 3,
    "tokens": 12,
    "dim": 12,
    "value_dim": 12,
    "noise": 0.03,
    "seed": 0,
}

Data = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def pairs(sequences: int = 400, **changes: Any) -> Data:
    parts = list(zip(*make_teacher(**{**USUAL, **changes}).blocks(sequences), strict=True))
    X, Y = (np.concatenate(part) for part in parts[:2])
    return X, Y, np.concatenate(parts[2]) if len(parts) > 2 else None


def truth(**changes: Any) -> int:
    """Rank in the quotient, from the teacher's own spectrum there."""
    spectrum = np.asarray(make_teacher(**{**USUAL, **changes}).visible_spectrum())
    return int(np.sum(spectrum > 1e-9 * spectrum.max(initial=1e-300)))


TRAPS: dict[str, dict[str, Any]] = {
    "traceless": {"kernel": "traceless"},
    "asymmetric": {"kernel": "asymmetric"},
    "narrow values": {"value_dim": 4},
    "wide values": {"value_dim": 20},
    "fewer tokens than values": {"tokens": 5, "value_dim": 12},
    "more tokens than features": {"tokens": 30, "dim": 6, "value_dim": 6},
    "two tokens": {"tokens": 2, "dim": 8, "value_dim": 8, "noise": 0.01},
    "anisotropic tokens": {"inputs": "anisotropic", "noise": 0.003},
    "layernorm tokens": {"inputs": "layernorm"},
    "a constant feature": {"inputs": "constant-feature"},
    "tokens of low rank": {"inputs": "low-rank"},
    "saturated attention": {"scale": 2.0},
    "near-uniform attention": {"scale": 0.02, "noise": 0.001},
    "causal": {"causal": True},
    "padding on the left": {"padding": "left"},
    "padding on the right": {"padding": "right"},
    "causal and padded": {"causal": True, "padding": "left"},
    "linear": {"kind": "linear_qk"},
    "linear, asymmetric": {"kind": "linear_qk", "kernel": "asymmetric"},
    "linear, causal": {"kind": "linear_qk", "causal": True},
}


@pytest.mark.parametrize("trap", TRAPS)
def test_the_rank_in_the_quotient_is_found(trap: str) -> None:
    changes = TRAPS[trap]
    X, Y, mask = pairs(1200, **changes)
    kind = changes.get("kind", "softmax_qk").removesuffix("_qk")
    answer = rankprobe.estimate(X, Y, mask=mask, attention=kind, causal=changes.get("causal", False))
    assert answer.status is Status.IDENTIFIED, answer.message
    assert answer.rank == truth(**changes)


def test_values_of_deficient_rank_hide_no_rank_of_the_kernel() -> None:
    X, Y, _ = pairs(value_dim=3)
    wider = Y @ np.random.default_rng(1).standard_normal((3, 9))
    wider = wider + 0.03 * np.random.default_rng(2).standard_normal(wider.shape)
    answer = rankprobe.estimate(X, wider, attention="softmax", causal=False)
    assert (answer.status, answer.rank) == (Status.IDENTIFIED, 3)


def test_an_output_bias_is_no_rank() -> None:
    X, Y, _ = pairs()
    answer = rankprobe.estimate(X, Y + np.linspace(-5, 5, 12), attention="softmax", causal=False)
    assert (answer.status, answer.rank) == (Status.IDENTIFIED, 3)


def test_tokens_given_twice_change_no_rank() -> None:
    # Every key twice halves every weight: the map of the single tokens is the same.
    X, Y, _ = pairs(noise=0.0)
    Y = np.repeat(Y, 2, axis=1)
    Y = Y + 0.03 * np.random.default_rng(3).standard_normal(Y.shape)
    answer = rankprobe.estimate(np.repeat(X, 2, axis=1), Y, attention="softmax", causal=False)
    assert (answer.status, answer.rank) == (Status.IDENTIFIED, 3)


def rounded(rank: int, kind: Any, seed: int, *, before: bool) -> Data:
    """No noise but that of storage in ``kind``: of the tokens ``before`` attention or after it."""
    teacher = make_teacher(**{**USUAL, "rank": rank, "noise": 0.0, "seed": seed})
    X = next(iter(teacher.blocks(1200, 1200)))[0]
    stored = X.astype(kind).astype(np.float64)
    seen = stored if before else X
    Y = softmax(teacher.scale * seen @ teacher.K @ seen.swapaxes(1, 2), axis=2) @ seen @ teacher.V
    return stored, Y.astype(kind).astype(np.float64), None


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_a_half_precision_head_has_its_rank(rank: int, kind: Any) -> None:
    X, Y, _ = rounded(rank, kind, 0, before=True)
    answer = rankprobe.estimate(X, Y, attention="softmax", causal=False)
    assert (answer.status, answer.rank) == (Status.IDENTIFIED, rank)


@pytest.mark.parametrize("rank", [0, 1, 4])
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_tokens_rounded_after_attention_raise_no_rank(rank: int, kind: Any) -> None:
    for seed in range(2):
        X, Y, _ = rounded(rank, kind, seed, before=False)
        answer = rankprobe.estimate(X, Y, attention="softmax", causal=False)
        assert answer.rank in (None, rank), answer.message
        if rank == 4:
            assert answer.status is Status.IDENTIFIED, answer.message


def test_a_power_law_that_drowns_is_a_bound_whose_interval_holds_the_rank() -> None:
    X, Y, _ = pairs(rank=10, spectrum="power", noise=1.0)
    answer = rankprobe.estimate(X, Y, attention="softmax", causal=False)
    assert answer.status is Status.LOWER_BOUND
    low, high = answer.rank_interval
    assert 1 <= low <= 10 <= high


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        ("one sequence", {Status.NOT_IDENTIFIABLE}),
        ("tokens that do not move", {Status.NOT_IDENTIFIABLE}),
        ("noise", {Status.NOT_IDENTIFIABLE, Status.DEGENERATE}),
        ("zero", {Status.DEGENERATE}),
    ],
)
def test_what_holds_no_kernel_gives_no_rank(data: str, statuses: set[Status]) -> None:
    X, Y, _ = pairs(1 if data == "one sequence" else 100)
    if data == "tokens that do not move":
        X = np.repeat(X[:, :1, :], X.shape[1], axis=1)
    elif data == "noise":
        Y = np.random.default_rng(4).standard_normal(Y.shape)
    elif data == "zero":
        Y = 0.0 * Y
    answer = rankprobe.estimate(X, Y, attention="softmax", causal=False)
    assert answer.status in statuses, answer.message
    assert answer.rank in (None, 0)
