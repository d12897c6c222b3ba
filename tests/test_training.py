"""Students: what they compute, what training finds, and that it can be stopped and taken up again."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankprobe import make_teacher
from rankprobe.attention import Attention
from rankprobe.errors import DataError, MissingDependencyError, UsageError
from rankprobe.training import Schedule, climb, prepare, recover, sweep
from rankprobe.training.checkpoint import Checkpoint
from rankprobe.training.data import Pairs, tensors
from rankprobe.training.groups import train
from rankprobe.training.measure import corrected, spectrum
from rankprobe.training.optimize import Training, errors
from rankprobe.training.students import RUNGS, STUDENT_OF, Member, Students

torch.set_num_threads(1)


def pairs_of(kind: str, rank: int, n: int, T: int, d: int, *, bias: bool = False, **law: Any) -> Pairs:
    """Sequences of a teacher, prepared with its own link, mask, scale and noise."""
    teacher = make_teacher(kind, rank, T, d, **law)  # type: ignore[arg-type]
    X, Y, *mask = next(iter(teacher.blocks(n, n)))
    return prepare(
        X,
        Y,
        mask=mask[0] if mask else None,
        attention=kind.removesuffix("_qk"),
        causal=teacher.causal,
        bias=bias,
        scale=teacher.scale,
        sigma=teacher.noise,
    )


MASKED: list[dict[str, Any]] = [{"causal": True}, {"padding": "left"}, {"causal": True, "padding": "right"}]


@pytest.mark.parametrize(
    "kind,law",
    [("fixed_operator", {}), *((kind, law) for kind in ("linear_qk", "softmax_qk") for law in ({}, *MASKED))],
)
@pytest.mark.parametrize("whiten", [False, True])
def test_a_student_with_the_teachers_weights_leaves_nothing(
    kind: str, law: dict[str, Any], whiten: bool
) -> None:
    rank, d = 3, 6
    law = {**law, "noise": 0.0, "seed": 1, "kernel": "asymmetric", "inputs": "anisotropic"}
    teacher = make_teacher(kind, rank, 7, d, **law)  # type: ignore[arg-type]
    pairs = pairs_of(kind, rank, 40, 7, d, **law)
    model = pairs.coordinates(whiten)
    blocks = tensors(model, pairs.sample, dtype=torch.float64)
    students = Students(STUDENT_OF[pairs.kind], [Member(rank)], blocks[0], pairs.scale, dtype=torch.float64)
    left, values, right = np.linalg.svd(teacher.K)
    # The coordinates of a linear form on tokens x = T f are those on f through T.
    P = model.query.dual().T @ (left[:, :rank] * values[:rank])
    Q = model.key.dual().T @ right[:rank].T
    V = model.value.dual().T @ teacher.V
    students.load({name: torch.from_numpy(value)[None] for name, value in (("P", P), ("Q", Q), ("V", V))})
    scale = float(pairs.sample.size())
    assert float(errors(students, blocks).sum()) < 1e-20 * scale


@pytest.mark.parametrize("link", ["softmax", "linear"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_autograd_goes_through_the_attention_of_the_estimators(link: Any, causal: bool, padded: bool) -> None:
    attention = Attention(link, causal)
    logits = torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True] * 4, [True, True, False, False]]) if padded else None
    visible = attention.visible(logits, 4, mask)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda L: attention.mixer(L, visible), (logits,))
    weights = torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    A = attention.mixer(logits, visible)
    (A * weights).sum().backward()
    torch.testing.assert_close(logits.grad, attention.pull(A.detach(), weights, visible))


def test_members_of_a_stack_do_not_feel_each_other() -> None:
    pairs = pairs_of("softmax_qk", 2, 60, 6, 6)
    members = [Member(1, seed=3), Member(4, seed=0, init=0.3), Member(2, seed=7)]
    schedule = Schedule(steps=50)
    together = train(pairs, RUNGS[3], members, schedule, together=3)
    alone = train(pairs, RUNGS[3], members, schedule)
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.kernel, other.kernel, atol=2e-4)
        assert np.linalg.matrix_rank(one.kernel.astype(np.float64), tol=1e-6) <= one.member.rank


def test_a_linear_student_of_one_rank_less_leaves_the_tail_of_the_spectrum() -> None:
    # Y = A X V with Gaussian tokens: the best operator of rank r leaves ‖V‖² Σ_{j>r} λ_j², λ = 2, 1.5, 1.
    teacher = make_teacher("fixed_operator", 3, 12, 8)
    found = sweep(pairs_of("fixed_operator", 3, 500, 12, 8), range(1, 5), Schedule(steps=300))
    size = float(np.linalg.norm(teacher.V)) ** 2
    assert found.points[0].excess == pytest.approx(3.25 * size, rel=0.1)
    assert found.points[1].excess == pytest.approx(1.0 * size, rel=0.1)
    assert all(abs(point.excess) < 0.02 * found.floor for point in found.points[2:])
    assert [point.achieved for point in found.points] == [False, False, True, True]
    assert found.rank == 3 and "from" in found.message
    # Theorem 5 is a lower bound.
    for point in found.points[:2]:
        assert point.deficiency_bound is not None
        assert 0 < point.deficiency_bound < point.excess


def test_where_the_noise_is_not_known_the_largest_rank_is_no_transition() -> None:
    pairs = dataclasses.replace(pairs_of("softmax_qk", 2, 150, 8, 6), sigma=None)
    schedule = Schedule("lbfgs", 60)
    enough = sweep(pairs, [1, 2, 3], schedule)
    assert enough.rank == 2 and enough.floor_from == "largest rank"
    assert enough.floor == pytest.approx(0.05**2 * 8 * 6, rel=0.1)
    for ranks in ([1, 2], [1]):
        few = sweep(pairs, ranks, schedule)
        assert few.rank is None and "gains over those below" in few.message


@pytest.mark.parametrize("kind", ["linear_qk", "softmax_qk"])
def test_training_recovers_what_the_estimate_says(kind: str) -> None:
    pairs = pairs_of(kind, 2, 400, 10, 8, kernel="asymmetric", seed=2)
    found = recover(pairs, Schedule(steps=400), seeds=(0, 1))
    assert found.verdict == "agrees"
    assert found.rank == 2
    assert [student.kernel.rank for student in found.students] == [2, 2]
    assert found.effective_rank_cv is not None and found.effective_rank_cv < 0.02
    for student in found.students:
        assert student.loss_over_floor == pytest.approx(1.0, abs=0.03)
        # λ = 2, 1: exp of the entropy of (2/3, 1/3), and of (4/5, 1/5).
        assert student.kernel.effective_rank_cut == pytest.approx(1.8899, abs=0.03)
        assert student.kernel.energy_rank == pytest.approx(1.6494, abs=0.05)
        assert student.kernel.effective_rank > student.kernel.effective_rank_corrected > 1.88
    plain = found.to_dict()
    assert plain["verdict"] == "agrees" and plain["students"][0]["rank"] == 2
    assert plain["estimate"]["rank"] == 2


def test_where_directions_cannot_be_counted_losses_at_equal_rank_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rankprobe.training.measure.FULL_LIMIT", 1)
    pairs = pairs_of("softmax_qk", 3, 200, 8, 8)
    found = recover(pairs, Schedule("lbfgs", 80), rank=2, curve=True)
    assert found.verdict == "agrees" and "at equal rank" in found.message
    assert found.rank is None and found.students[0].kernel.noise_edge is None
    assert found.loss_at_rank == pytest.approx(found.students[0].loss, rel=0.1)
    far = recover(pairs, Schedule(steps=25), rank=2, estimate=found.estimate)
    assert far.verdict == "differs"
    blind = recover(pairs, Schedule(steps=25), estimate={**(found.estimate or {}), "curve": None})
    assert blind.verdict == "no_estimate" and "--curve" in blind.message
    unusable = {"status": "misfit", "message": "soft caps", "noise_sigma": None}
    assert "misfit: soft caps" in recover(pairs, Schedule(steps=25), estimate=unusable).message


def test_training_that_is_too_short_is_not_compared() -> None:
    found = recover(pairs_of("softmax_qk", 2, 200, 8, 8), Schedule(steps=25))
    assert found.verdict == "not_converged" and "--optimizer lbfgs" in found.message


def test_the_learned_spectrum_lives_in_the_quotient() -> None:
    # What softmax cannot see (here the constant feature) is not counted, whatever a student has put there.
    pairs = pairs_of("softmax_qk", 2, 60, 6, 6, inputs="constant-feature")
    (student,) = train(pairs, RUNGS[3], [Member(6)], Schedule(steps=25))
    before = spectrum(pairs, student)
    student.kernel[:, -1] += 100.0
    np.testing.assert_allclose(spectrum(pairs, student), before, atol=1e-4)
    assert before[-1] < 1e-6 * before[0]


def test_lbfgs_is_there_long_before_adam() -> None:
    pairs = pairs_of("softmax_qk", 2, 200, 8, 8)
    (fast,) = train(pairs, RUNGS[3], [Member(8, init=0.3)], Schedule("lbfgs", 80))
    (slow,) = train(pairs, RUNGS[3], [Member(8, init=0.3)], Schedule("adam", 80))
    floor = pairs.floor(0.05)
    assert fast.loss < 1.02 * floor < slow.loss


def test_biases_are_learned_where_they_are_allowed() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 6, 5))
    W_Q, W_K, V = (rng.standard_normal((6, width)) / 2 for width in (2, 2, 4))
    one = np.concatenate([X, np.ones((200, 6, 1))], axis=2)
    weights = np.exp((one @ W_Q) @ (one @ W_K).swapaxes(1, 2))
    Y = weights / weights.sum(axis=2, keepdims=True) @ (one @ V)
    share = {}
    for bias in (True, False):
        pairs = prepare(X, Y, attention="softmax", causal=False, bias=bias)
        (student,) = train(pairs, RUNGS[3], [Member(2)], Schedule("lbfgs", 150))
        share[bias] = student.loss / pairs.variation()
    assert share[True] < 1e-5 and share[False] > 1e-2


def test_a_plateau_ends_the_training() -> None:
    pairs = pairs_of("fixed_operator", 1, 60, 6, 4)
    (student,) = train(pairs, RUNGS[0], [Member(1)], Schedule(steps=5000, patience=50, gain=1e-3))
    assert student.stopped and student.steps < 1000
    assert np.all(np.diff(student.history) <= 0)


def test_the_ladder_breaks_where_positions_are_lost() -> None:
    teacher = make_teacher("fixed_operator", 2, 8, 6)
    found = climb(pairs_of("fixed_operator", 2, 200, 8, 6), 2, Schedule(steps=250))
    assert found.breaks == "B1"
    assert [rung.rung for rung in found.rungs] == ["B0", "B1", "B1c", "B2", "B3"]
    assert [rung.solves for rung in found.rungs] == [True, False, False, False, False]
    # Of maps that treat positions alike, linear ones leave all of A* but its parts along I and 11ᵀ.
    A, size = teacher.K, float(np.linalg.norm(teacher.V)) ** 2
    same, other = np.trace(A), A.sum() - np.trace(A)
    left = (np.sum(A * A) - same**2 / 8 - other**2 / (8 * 7)) * size
    assert found.rungs[-1].excess == pytest.approx(left, rel=0.15)


@pytest.mark.parametrize("optimizer,stop", [("adam", 6), ("lbfgs", 14)])
def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, optimizer: Any, stop: int
) -> None:
    path = tmp_path / "left.pt"
    pairs = pairs_of("softmax_qk", 2, 60, 6, 6)
    members, schedule = [Member(2), Member(3)], Schedule(optimizer, 100, patience=0)
    whole = train(pairs, RUNGS[3], members, schedule)
    reports: list[float] = []

    def report(done: float, total: float, text: str) -> None:
        reports.append(done)
        if len(reports) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(pairs, RUNGS[3], members, schedule, checkpoint=str(path), progress=report)
    taken_up = train(pairs, RUNGS[3], members, schedule, checkpoint=str(path), progress=report)
    assert reports[stop] > reports[stop - 1] > 100  # in the middle of the second student
    for one, other in zip(whole, taken_up, strict=True):
        np.testing.assert_array_equal(one.kernel, other.kernel)
        np.testing.assert_array_equal(one.history, other.history)
    with pytest.raises(DataError, match=r"other settings \(members\)"):
        train(pairs, RUNGS[3], members[:1], schedule, checkpoint=str(path))


def test_a_checkpoint_runs_no_code_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(DataError, match="--restart"):
        Checkpoint.open(str(path), {})
    torch.save({"task": {}, "finished": [], "running": Path("code")}, path)
    with pytest.raises(DataError, match="--restart"):
        Checkpoint.open(str(path), {})
    assert Checkpoint.open(str(path), {}, restart=True).finished == []


def test_the_marchenko_pastur_correction_undoes_its_formula() -> None:
    d, n, rank = 32, 500, 4.0
    assert corrected(rank + (d - rank) / (2 * n), d, n) == pytest.approx(rank)


@pytest.mark.parametrize(
    "call,complaint",
    [
        (lambda pairs: recover(pairs, seeds=()), "at least one seed"),
        (lambda pairs: recover(pairs, rank=0), "at least 1"),
        (lambda pairs: sweep(pairs, []), "from 1 up"),
        (lambda pairs: climb(pairs, 0), "rank of at least 1"),
        (lambda pairs: recover(pairs, device="no-such"), "choose cpu or auto"),
        (lambda pairs: Schedule("sgd"), "adam or lbfgs"),  # type: ignore[arg-type]
        (lambda pairs: Schedule(steps=0), "steps must be at least 1"),
        (lambda pairs: Schedule(rate=-1.0), "must be positive"),
        (lambda pairs: prepare(pairs.sample.X), "needs Y"),
        (lambda pairs: prepare(pairs.sample.X, pairs.sample.Y, holdout=1.0), "held out"),
        (lambda pairs: prepare(pairs.sample.X, pairs.sample.Y, sequences=0), "at least 1"),
        (lambda pairs: prepare(pairs.sample.X, pairs.sample.Y, scale=-1.0), "positive"),
    ],
)
def test_wrong_calls_say_what_to_do(call: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        call(pairs_of("fixed_operator", 1, 20, 4, 4))


def test_held_out_sequences_are_not_trained_on() -> None:
    X = np.random.default_rng(0).standard_normal((40, 4, 3))
    X[:, 0, 0] = np.arange(40)
    pairs = prepare(X, X, attention="softmax", causal=False, holdout=0.25)
    assert pairs.heldout is not None
    seen, held = set(pairs.sample.X[:, 0, 0]), set(pairs.heldout.X[:, 0, 0])
    assert len(seen) == 30 and len(held) == 10 and not seen & held


def test_training_knows_when_nothing_is_finite() -> None:
    pairs = pairs_of("linear_qk", 1, 20, 4, 4)
    blocks = tensors(pairs.coordinates(False), pairs.sample)
    students = Students(RUNGS[1], [Member(1)], blocks[0], 1e30)
    training = Training(students, blocks, Schedule(steps=50, patience=25))
    while not training.done:
        training.advance()
    assert training.losses[-1] == [float("inf")]


def test_torch_is_loaded_by_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, rankprobe.training, rankprobe.estimators.facade\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)
    monkeypatch.setitem(sys.modules, "torch", None)
    import rankprobe.training

    with pytest.raises(MissingDependencyError, match=r"pip install 'rankprobe\[train\]'"):
        _ = rankprobe.training.recover
