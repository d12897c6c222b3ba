"""Ranks from a handful of sequences, or under noise that hides a kernel fitted whole."""

import numpy as np
import pytest

import rankprobe
from rankprobe.estimators.result import Status

T, D = 16, 32


def ask(link, rank, n, noise, seed, kernel="symmetric"):
    teacher = rankprobe.make_teacher(f"{link}_qk", rank, T, D, D, kernel=kernel, noise=noise, seed=seed)
    X, Y = next(iter(teacher.blocks(n, n)))[:2]
    return rankprobe.estimate(X, Y, attention=link, causal=False, scale=teacher.scale)


@pytest.mark.parametrize(
    ("rank", "n", "noise", "kernel"),
    [
        (1, 20, 0.05, "symmetric"),
        (2, 14, 0.05, "asymmetric"),
        (4, 14, 0.05, "symmetric"),
        (8, 14, 0.05, "asymmetric"),
        (8, 50, 0.5, "asymmetric"),
    ],
)
def test_the_rank_shows_where_a_whole_kernel_has_too_few_equations(rank, n, noise, kernel):
    answer = ask("softmax", rank, n, noise, 11, kernel)
    assert answer.rank == rank and answer.status.usable
    assert answer.rank_interval[0] == rank
    assert answer.kernel == "grown"
    agreeing, tried = answer.starts
    assert 1 <= agreeing <= tried and tried > 1


def test_a_linear_mixer_lost_from_one_start_is_found_from_another():
    answer = ask("linear", 1, 50, 0.05, 1, "asymmetric")
    assert (answer.rank, answer.rank_interval) == (1, (1, 1))


@pytest.mark.parametrize("link", ["softmax", "linear"])
@pytest.mark.parametrize("n", [14, 50])
def test_no_kernel_is_never_given_a_rank(link, n):
    answer = ask(link, 0, n, 0.5, 3)
    assert answer.status is not Status.IDENTIFIED or answer.rank == 0
    assert not answer.rank


def test_the_number_of_sequences_asked_for_settles_the_rank():
    few = ask("softmax", 3, 50, 0.5, 0, "asymmetric")
    assert few.status is Status.LOWER_BOUND and few.rank_interval[0] <= 3 <= few.rank_interval[1]
    more = ask("softmax", 3, few.sequences_wanted, 0.5, 0, "asymmetric")
    assert (more.rank, more.status) == (3, Status.IDENTIFIED)
    assert more.sequences_wanted is None


def test_dimensions_the_tokens_do_not_use_are_not_counted():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 8, 12))
    X[:, :, 9:] = 0.0
    K, V = np.outer(X[0, 0], X[0, 1]), rng.standard_normal((12, 12))
    logits = X @ K @ X.transpose(0, 2, 1)
    weights = np.exp(logits - logits.max(axis=2, keepdims=True))
    Y = weights / weights.sum(axis=2, keepdims=True) @ X @ V + 0.01 * rng.standard_normal(X.shape)
    answer = rankprobe.estimate(X, Y, attention="softmax", causal=False, bias=False)
    assert answer.visible_dimensions == (9, 9)
    assert answer.rank == 1
