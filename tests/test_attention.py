"""The map and its derivatives against independent computations."""

import numpy as np
import pytest
from scipy.special import softmax

from rankprobe.attention import Attention

MASK = np.array([[True] * 5, [False, False, True, True, True], [True, True, True, False, False]])


def cases():
    for link in ("softmax", "linear"):
        for causal in (False, True):
            for mask in (None, MASK):
                yield pytest.param(
                    link, causal, mask, id=f"{link}-{causal}-{'padded' if mask is not None else 'all'}"
                )


def visible_by_hand(causal, mask, n=3, T=5):
    seen = np.ones((n, T, T), dtype=bool)
    for t in range(T):
        for s in range(T):
            if causal and s > t:
                seen[:, t, s] = False
            if mask is not None:
                seen[:, t, s] &= mask[:, t] & mask[:, s]
    return seen


@pytest.mark.parametrize(("link", "causal", "mask"), list(cases()))
def test_mixer_against_scipy(link, causal, mask):
    logits = np.random.default_rng(0).normal(size=(3, 5, 5))
    attention = Attention(link, causal)
    A = attention.mixer(logits, attention.visible(logits, 5, mask))
    seen = visible_by_hand(causal, mask)
    if link == "linear":
        expected = logits * seen
    else:
        with np.errstate(invalid="ignore"):
            expected = np.nan_to_num(softmax(np.where(seen, logits, -np.inf), axis=2))
    np.testing.assert_allclose(A, expected, atol=1e-15)


@pytest.mark.parametrize(("link", "causal", "mask"), list(cases()))
def test_push_is_the_derivative_and_pull_its_adjoint(link, causal, mask):
    rng = np.random.default_rng(1)
    logits, change, gradient = rng.normal(size=(3, 3, 5, 5))
    attention = Attention(link, causal)
    visible = attention.visible(logits, 5, mask)
    A = attention.mixer(logits, visible)
    pushed = attention.push(A, change, visible)
    step = 1e-6
    ahead, behind = (attention.mixer(logits + sign * step * change, visible) for sign in (1, -1))
    np.testing.assert_allclose(pushed, (ahead - behind) / (2 * step), atol=1e-8)
    pulled = attention.pull(A, gradient, visible)
    assert np.sum(pushed * gradient) == pytest.approx(np.sum(change * pulled), rel=1e-12)


def test_saturated_logits_stay_finite():
    logits = np.array([[[1e4, -1e4], [0.0, 1e4]]])
    A = Attention("softmax").mixer(logits)
    np.testing.assert_array_equal(A, [[[1.0, 0.0], [0.0, 1.0]]])
