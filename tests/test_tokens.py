"""The quotient: what the data can see of a kernel."""

import numpy as np
import pytest

from rankprobe.attention import Attention
from rankprobe.tokens import Whitening, centred_keys, second_moment, visible_covariance, with_constant


def test_whitening_makes_the_moment_the_identity_on_its_range():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 7, 4)) @ rng.normal(size=(4, 9))
    whitening = Whitening.of(second_moment(X, 280), 1e-12)
    assert whitening.dimension == 4
    features = X @ whitening.whiten
    np.testing.assert_allclose(second_moment(features, 280), np.eye(4), atol=1e-10)
    np.testing.assert_allclose(features @ whitening.dual().T, X, atol=1e-10)


def test_units_of_single_features_do_not_decide_the_range():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(50, 6, 5)) * np.array([1e-30, 1e30, 1.0, 1e-3, 1e3])
    assert Whitening.of(second_moment(X, 300), 1e-12).dimension == 5


def test_directions_constant_within_sequences_are_not_keys():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 8, 6))
    X[:, :, 0] = rng.normal(size=(60, 1))  # one value a sequence
    X = with_constant(X, None)
    spread = visible_covariance(centred_keys(X, None), Attention("softmax"), None, 480)
    assert Whitening.of(spread, 1e-12).dimension == 5
    assert Whitening.of(second_moment(X, 480), 1e-12).dimension == 7


@pytest.mark.parametrize("causal", [False, True])
def test_visible_covariance_by_loops(causal):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(4, 6, 3))
    mask = rng.random((4, 6)) < 0.8
    X = X * mask[:, :, None]
    expected = np.zeros((3, 3))
    for sequence, real in zip(X, mask, strict=True):
        for t in np.flatnonzero(real):
            keys = sequence[[s for s in np.flatnonzero(real) if s <= t or not causal]]
            expected += np.cov(keys.T, bias=True)
    attention = Attention("softmax", causal)
    got = visible_covariance(X, attention, attention.visible(X, 6, mask), int(mask.sum()))
    np.testing.assert_allclose(got, expected / mask.sum(), atol=1e-12)


def test_printed_kernel_is_the_projection_of_the_teachers():
    # Tokens on a subspace: only P K P can be seen, whatever K is outside.
    rng = np.random.default_rng(4)
    subspace = np.linalg.qr(rng.normal(size=(8, 3)))[0]
    X = rng.normal(size=(50, 6, 3)) @ subspace.T
    whitening = Whitening.of(second_moment(X, 300), 1e-12)
    K = rng.normal(size=(8, 8))
    seen = whitening.dual().T @ K @ whitening.dual()  # the same form in features
    back = whitening.to_tokens(whitening.to_tokens(seen.T).T)
    projector = subspace @ subspace.T
    np.testing.assert_allclose(back, projector @ K @ projector, atol=1e-10)
