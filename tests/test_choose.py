"""Link and mask left to the data."""

import numpy as np
import pytest

import rankprobe
from rankprobe.estimators.result import Status


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("link", ["softmax", "linear"])
def test_link_and_mask_are_told_from_the_pairs(link, causal):
    teacher = rankprobe.make_teacher(f"{link}_qk", 2, 16, 16, 16, causal=causal, noise=0.05, seed=2)
    X, Y = next(iter(teacher.blocks(300, 300)))[:2]
    answer = rankprobe.estimate(X, Y)
    assert (answer.attention, answer.causal, answer.rank) == (link, causal, 2)


@pytest.mark.parametrize("known", ["softmax", "linear"])
def test_uniform_attention_is_of_either_link_so_neither_is_guessed(known):
    # Y = mean(X) V + noise is softmax of K = 0, and linear of the rank-1 kernel of two biases.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 16, 16))
    Y = np.broadcast_to(X.mean(axis=1, keepdims=True) @ rng.standard_normal((16, 16)), X.shape)
    Y = Y + 0.05 * rng.standard_normal(X.shape)
    answer = rankprobe.estimate(X, Y)
    assert answer.status is Status.NOT_IDENTIFIABLE and answer.rank is None
    assert "cannot tell softmax from linear" in answer.message
    assert rankprobe.estimate(X, Y, attention=known).rank in ({"softmax": 0, "linear": 1}[known], None)
