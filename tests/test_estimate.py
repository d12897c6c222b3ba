"""Ranks from data alone, against teachers whose rank is known."""

import numpy as np
import pytest

import rankprobe
from rankprobe.errors import DataError, UsageError
from rankprobe.estimators.result import Status
from rankprobe.spectra import energy_rank
from rankprobe.teachers import make_teacher


def data_of(kind="softmax_qk", rank=3, n=200, T=10, d=12, **options):
    teacher = make_teacher(kind, rank, T, d, options.pop("value_dim", d), **options)
    blocks = list(teacher.blocks(n, n))
    mask = blocks[0][2] if len(blocks[0]) > 2 else None
    return teacher, blocks[0][0], blocks[0][1], mask


def ask(X, Y, mask=None, kind="softmax", causal=False, **options):
    return rankprobe.estimate(X, Y, mask=mask, attention=kind, causal=causal, **options)


LINK = {"softmax_qk": "softmax", "linear_qk": "linear", "fixed_operator": "fixed_operator"}


@pytest.mark.parametrize("kernel", ["symmetric", "asymmetric", "traceless"])
@pytest.mark.parametrize("kind", ["softmax_qk", "linear_qk"])
def test_rank_and_energy_rank_of_known_teachers(kind, kernel):
    _, X, Y, _ = data_of(kind, 3, kernel=kernel, seed=1)
    answer = ask(X, Y, kind=LINK[kind], scale=12**-0.5)
    assert (answer.rank, answer.rank_interval, answer.status) == (3, (3, 3), Status.IDENTIFIED)
    assert answer.energy_rank == pytest.approx(2.623, abs=0.05)
    if kind == "softmax_qk":
        np.testing.assert_allclose(answer.singular_values, [2.0, 1.5, 1.0], atol=0.1)
    assert answer.noise_sigma == pytest.approx(0.05, rel=0.03)


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True},
        {"padding": "left"},
        {"padding": "right", "causal": True},
        {"inputs": "layernorm"},
        {"inputs": "anisotropic"},
        {"inputs": "constant-feature"},
        {"value_dim": 3},
        {"value_dim": 20},
        {"T": 2},
        {"T": 24, "n": 80},
        {"noise": 0.5, "n": 600},
        {"scale": 3.0},
        {"scale": 0.02, "noise": 0.005, "n": 600},
    ],
    ids=lambda options: "-".join(f"{key}={value}" for key, value in options.items()),
)
def test_rank_survives(options):
    _, X, Y, mask = data_of(rank=2, seed=2, **options)
    answer = ask(X, Y, mask, causal=options.get("causal", False))
    assert (answer.rank, answer.status) == (2, Status.IDENTIFIED)


def test_low_rank_tokens_show_only_the_rank_they_can_see():
    teacher, X, Y, _ = data_of(rank=4, inputs="low-rank", kernel="asymmetric", seed=3)
    basis = np.linalg.svd(X.reshape(-1, 12), full_matrices=False)[2]
    seen = np.linalg.matrix_rank(X.reshape(-1, 12), tol=1e-6)
    projector = basis[:seen].T @ basis[:seen]
    expected = np.linalg.svd(projector @ np.asarray(teacher.K) @ projector)[1]
    answer = ask(X, Y, scale=12**-0.5)
    assert answer.rank == np.sum(expected > 1e-6)
    np.testing.assert_allclose(answer.singular_values, expected[: answer.rank], atol=0.1)


@pytest.mark.parametrize("kind", ["softmax_qk", "linear_qk"])
def test_known_values_agree_with_unknown_ones(kind):
    teacher, X, Y, _ = data_of(kind, 3, seed=4)
    answer = ask(X, Y, kind=LINK[kind], V=np.asarray(teacher.V), estimators=["all"], scale=12**-0.5)
    known, unknown = answer.estimates["v-known"], answer.estimates["v-unknown"]
    assert known.rank == unknown.rank == 3
    np.testing.assert_allclose(known.singular_values, [2.0, 1.5, 1.0], atol=0.05)
    assert known.energy_rank == pytest.approx(unknown.energy_rank, abs=0.05)


@pytest.mark.parametrize("kind", ["softmax_qk", "linear_qk"])
def test_known_values_leave_an_output_bias_to_be_found(kind):
    teacher, X, Y, _ = data_of(kind, 2, seed=16)
    answer = ask(X, Y + 3.0, kind=LINK[kind], V=np.asarray(teacher.V), estimators=["v-known"])
    assert (answer.rank, answer.status) == (2, Status.IDENTIFIED)
    assert ask(X, Y + 3.0, kind=LINK[kind]).rank == 2


def test_operator_rank_of_a_fixed_operator():
    _, X, Y, _ = data_of("fixed_operator", 3, n=300, T=16, d=12, seed=5)
    answer = ask(X, Y, kind="fixed_operator")
    assert (answer.rank, answer.status) == (3, Status.IDENTIFIED)


def test_uniform_attention_is_rank_zero():
    _, X, Y, _ = data_of(rank=0, seed=6)
    answer = ask(X, Y)
    assert (answer.rank, answer.rank_interval, answer.status) == (0, (0, 0), Status.IDENTIFIED)
    assert answer.energy_rank == 0.0


@pytest.mark.parametrize("kind", ["softmax", "linear"])
@pytest.mark.parametrize("outputs", ["zero", "constant", "noise"])
def test_outputs_without_the_inputs_never_identify_a_rank(kind, outputs):
    rng = np.random.default_rng(7)
    X = rng.normal(size=(150, 8, 6))
    Y = {
        "zero": np.zeros((150, 8, 6)),
        "constant": np.ones((150, 8, 6)),
        "noise": rng.normal(size=(150, 8, 6)),
    }[outputs]
    answer = ask(X, Y, kind=kind)
    assert not (answer.status is Status.IDENTIFIED and answer.rank)
    assert answer.status is not Status.IDENTIFIED


def test_a_single_sequence_is_not_identifiable():
    _, X, Y, _ = data_of(n=1)
    answer = ask(X, Y)
    assert (answer.rank, answer.status) == (None, Status.NOT_IDENTIFIABLE)


def test_too_few_sequences_say_how_many_it_takes():
    _, X, Y, _ = data_of(n=2, T=4)
    answer = ask(X, Y)
    assert answer.status is Status.NOT_IDENTIFIABLE
    assert "at least" in answer.message


def test_tokens_that_do_not_move_are_not_identifiable():
    rng = np.random.default_rng(8)
    X = np.repeat(rng.normal(size=(50, 1, 4)), 6, axis=1)
    answer = ask(X, rng.normal(size=(50, 6, 4)))
    assert (answer.rank, answer.status) == (None, Status.NOT_IDENTIFIABLE)


@pytest.mark.parametrize("kind", ["softmax_qk", "linear_qk"])
@pytest.mark.parametrize("causal", [False, True])
def test_kind_and_mask_are_found_on_held_out_sequences(kind, causal):
    _, X, Y, _ = data_of(kind, 2, causal=causal, seed=10)
    answer = rankprobe.estimate(X, Y)
    assert (answer.attention, answer.causal, answer.rank) == (LINK[kind], causal, 2)


def test_answers_do_not_depend_on_units_order_or_rotation():
    _, X, Y, _ = data_of(rank=3, n=60, seed=11)
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    order = rng.permutation(60)
    first = ask(X, Y)
    for other in (ask(X * 1e3, Y), ask(X, Y * 1e3), ask(X @ turn, Y), ask(X[order], Y[order])):
        assert (other.rank, other.rank_interval, other.status) == (
            first.rank,
            first.rank_interval,
            first.status,
        )
        assert other.energy_rank == pytest.approx(first.energy_rank, abs=0.02)


def test_heads_are_read_one_at_a_time():
    _, X, Y, _ = data_of(rank=2, heads=3, value_dim=6, seed=12)
    ranks = [ask(X, Y, head=head).rank for head in range(3)]
    assert ranks == [2, 2, 2]
    with pytest.raises(UsageError, match="name one of 0 to 2"):
        ask(X, Y)


def test_realized_mixer_follows_its_closed_form():
    # Exchangeable tokens: E[A] = aI + b11ᵀ with rows that sum to one (method section 4).
    _, X, Y, _ = data_of(rank=3, n=800, T=8, d=8, seed=13)
    answer = ask(X, Y, estimators=["v-unknown", "realized-mixer"], scale=8**-0.5)
    logits = X @ make_teacher("softmax_qk", 3, 8, 8, 8, seed=13).K @ np.swapaxes(X, 1, 2) / 8**0.5
    A = np.exp(logits - logits.max(axis=2, keepdims=True))
    A /= A.sum(axis=2, keepdims=True)
    diagonal = np.mean(np.diagonal(A, axis1=1, axis2=2))
    a = diagonal - (1 - diagonal) / 7
    p = np.array([1.0] + [a**2] * 7) / (1 + 7 * a**2)
    assert answer.estimates["realized-mixer"].energy_rank == pytest.approx(
        np.exp(-np.sum(p * np.log(p))), abs=0.05
    )


def test_the_papers_estimator_counts_noise():
    teacher, X, Y, _ = data_of(rank=2, n=400, T=12, d=16, seed=14)
    answer = ask(X, Y, V=np.asarray(teacher.V), estimators=["all"], solver="paper", scale=0.25)
    assert answer.estimates["v-known"].rank > 6
    assert ask(X, Y).rank == 2


def test_arrays_that_disagree_are_named():
    X = np.zeros((4, 3, 2))
    with pytest.raises(DataError, match="disagree"):
        ask(X, np.zeros((4, 5, 2)))
    with pytest.raises(DataError, match="mask"):
        ask(X, X, mask=np.ones((4, 2), dtype=bool))
    Y = X.copy()
    Y[1, 2, 0] = np.nan
    with pytest.raises(DataError, match=r"Y: 1 tokens are not finite \(first at \[1, 2\]\)"):
        ask(X, Y)
    with pytest.raises(UsageError, match="value map"):
        ask(X, X, estimators=["v-known"])


def test_measures_are_those_of_the_printed_spectrum():
    _, X, Y, _ = data_of(rank=3, seed=15)
    answer = ask(X, Y)
    assert answer.energy_rank == pytest.approx(energy_rank(answer.singular_values))
    assert len(answer.singular_values) == answer.rank


def test_no_rank_above_the_largest_asked_for_is_claimed() -> None:
    teacher = make_teacher(kind="softmax_qk", rank=6, tokens=16, dim=16, value_dim=16, noise=0.05)
    X, Y = (np.concatenate(part) for part in zip(*teacher.blocks(300), strict=True))
    answer = rankprobe.estimate(X, Y, attention="softmax", causal=False, max_rank=2)
    assert (answer.status, answer.rank) == (Status.LOWER_BOUND, 2)
    assert len(answer.singular_values) == 2


@pytest.mark.parametrize("rank", [0, 4])
def test_wide_tokens_with_noise_take_no_rank_from_the_noise(rank: int) -> None:
    teacher = make_teacher(
        kind="softmax_qk", rank=rank, tokens=16, dim=176, value_dim=32, noise=0.02, seed=rank
    )
    X, Y = (np.concatenate(part) for part in zip(*teacher.blocks(300), strict=True))
    answer = rankprobe.estimate(X, Y, attention="softmax", causal=False)
    assert answer.kernel == "factored"
    assert (answer.status, answer.rank_interval) == (Status.IDENTIFIED, (rank, rank))


def test_copies_of_a_sequence_are_not_more_data() -> None:
    teacher = make_teacher(kind="softmax_qk", rank=2, tokens=16, dim=8, value_dim=8, noise=0.05, seed=0)
    X, Y = (np.concatenate(part) for part in zip(*teacher.blocks(1), strict=True))
    answer = rankprobe.estimate(np.repeat(X, 200, axis=0), np.repeat(Y, 200, axis=0))
    assert answer.status is Status.NOT_IDENTIFIABLE
    assert "copies" in answer.message
