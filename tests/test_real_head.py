"""A head of a trained encoder: its width is known from the architecture, and nothing of it is told."""

from __future__ import annotations

import pytest

import rankprobe
from rankprobe.estimators.result import Status
from test_examples import capture


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    path = tmp_path_factory.mktemp("head") / "layer2.h5"
    ran = capture(path, "--layer", 2, "--head", 4, "--sequences", 350, "--tokens", 64)
    assert ran.returncode == 0, ran.stderr
    return path


def test_rank_of_a_trained_head_is_its_width(layer):
    with rankprobe.open_pairs(layer) as pairs:
        answer = rankprobe.estimate(pairs)
    assert (answer.rank, answer.rank_interval, answer.status) == (32, (32, 32), Status.IDENTIFIED)
    assert 1 - answer.r2_heldout <= 1e-6
    assert answer.kernel == "factored"
    # Most logit energy sits in few directions: the integer and the energy rank answer different questions.
    assert answer.energy_rank_data < 8 < answer.energy_rank
