"""The curve r ↦ least excess risk at rank r, around a decided fit, and what a cut of its logits costs.

Every rank is refitted on the same sequences: downwards from the truncated kernel of the rank above, upwards
from the kernel of the rank below and the direction its residual calls for, and the better one stays. Its
errors are counted on sequences the refit has not seen: fresh ones where the source has enough, else each
sequence under a refit that left it out, or where refits are dear an eighth left out once (decision.excess).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.decision.excess import Errors, Floats
from rankprobe.estimators.inversion import Inversion, Refusal, Task, unit_of, values_of
from rankprobe.estimators.model import Model, Sample
from rankprobe.estimators.result import Curve, CurvePoint, Estimate
from rankprobe.estimators.tolerance import Tolerance
from rankprobe.solver import Fit, Kernel, Problem, Settings, ValueMap, fit
from rankprobe.solver.parallel import map_blocks
from rankprobe.solver.problem import apply
from rankprobe.solver.start import first_kernel

BEYOND = 2
"""Ranks past the decided one: they show that more rank gains nothing."""

TOKENS = 1 << 15
"""Tokens worth reading for a curve: on the paper's cells its error bars are then a few percent."""

FOLDS = 8
"""Parts left out in turn where there are no fresh sequences."""

NARROW = Settings(ridge=1e-8, damping=1e-2, stall=1e-5)
WIDE = Settings(ridge=1e-8, damping=1e-3, outer=6, inner=15, floor=3e-10, stall=3e-3)
"""Refits of kernels fitted whole, and of those fitted in factored form, which stop as the decision's do."""


@dataclass(frozen=True, eq=False)
class Refit:
    """A kernel and value map fitted at one rank; ``errors`` [n] are its squared errors a sequence.

    wider : where a fit of one more rank may start, or None.
    """

    kernel: Kernel
    W: Array
    errors: Floats
    wider: Kernel | None

    @property
    def rss(self) -> float:
        return float(np.sum(self.errors))


def trace(task: Task, outcome: Inversion) -> Curve:
    """Excess risk, parameters and KL bound for r = 0 … min(r* + 2, max(2, 2r*))."""
    decided = outcome.fit.kernel
    size = min(int(decided.left.shape[0]), int(decided.right.shape[0]))
    top = min(decided.rank + BEYOND, max(2, 2 * decided.rank), size)
    refits = _Refits(task, outcome, decided, top)
    count = min(task.sequences, max(2 * outcome.sequences, math.ceil(TOKENS / task.sampler.source.tokens)))
    sample = task.sampler.take(count)
    fresh = count >= 2 * outcome.sequences
    if fresh or outcome.parametrization == "factored":
        cut = count // 2 if fresh else count - max(1, count // FOLDS)
        path, errors = refits.apart(sample.part(0, cut), sample.part(cut, count))
        seen, heldout = cut, "fresh" if fresh else "left-out"
    else:
        path, errors = refits.crossed(sample, min(FOLDS, count))
        seen, heldout = count, "cross-fit"
    excess, deviation = errors.excess(top)
    floor = float(errors.risk()[top])
    explainable = max(sample.variation() / count - floor, 0.0)
    rows, columns = int(decided.left.shape[0]), int(decided.right.shape[0])
    bounds = _kl_bounds(outcome.model, path[decided.rank].kernel, sample)
    points = tuple(
        CurvePoint(
            rank=r,
            excess=float(excess[r]),
            standard_error=float(deviation[r]),
            parameters=r * (rows + columns - r),
            explained=1.0 - float(excess[r]) / explainable if explainable > 0 else None,
            kl_bound=bounds[min(r, decided.rank)] if bounds else None,
        )
        for r in range(top + 1)
    )
    largest = path[top]
    spectrum = outcome.model.in_tokens(largest.kernel).values * unit_of(task, refits.model, largest.W)
    return Curve(
        points,
        floor,
        explainable,
        tuple(float(value) for value in spectrum),
        heldout,
        seen,
        int(errors.heldout.shape[1]),
    )


def with_curve(
    task: Task, outcome: Inversion | Refusal, estimate: Estimate, tolerance: Tolerance | None
) -> Estimate:
    """``estimate`` with its curve and what ``tolerance`` reads off it; as it is where it is not usable."""
    if isinstance(outcome, Refusal) or not estimate.status.usable:
        return estimate
    curve = trace(task, outcome)
    if tolerance is None:
        return replace(estimate, curve=curve)
    rank, interval = tolerance.least_rank(curve, outcome.verdict.rank, outcome.verdict.upper)
    return replace(
        estimate,
        curve=curve,
        tolerance=tolerance.excess(curve),
        rank_at_tolerance=rank,
        rank_at_tolerance_interval=interval,
    )


class _Refits:
    """Refits at all ranks 0 … ``top`` of one decided kernel."""

    def __init__(self, task: Task, outcome: Inversion, decided: Kernel, top: int) -> None:
        self.task, self.decided, self.top = task, decided, top
        # Excess risk counts the columns of Y as they are.
        self.model = replace(outcome.model, even=None)
        self.values: ValueMap = values_of(task, self.model)
        self.settings = WIDE if outcome.parametrization == "factored" else NARROW
        self.rng = np.random.default_rng(task.sampler.seed)

    def apart(self, train: Sample, test: Sample) -> tuple[list[Refit], Errors]:
        """Refits on ``train``, errors on it and on ``test``."""
        path = self._path(self._problem(train))
        held = [_errors(self._problem(test), refit) for refit in path]
        return path, Errors(np.stack([refit.errors for refit in path]), np.stack(held), same=False)

    def crossed(self, sample: Sample, folds: int) -> tuple[list[Refit], Errors]:
        """Refits on all of ``sample``, errors of refits from there that leave out every ``folds``-th part."""
        path = self._path(self._problem(sample))
        index = np.arange(sample.sequences)
        seen = np.zeros((len(path), sample.sequences))
        held = np.zeros_like(seen)
        for k in range(folds):
            out = index % folds == k
            train, test = self._problem(_chosen(sample, ~out)), self._problem(_chosen(sample, out))
            for r, whole in enumerate(path):
                refit = self._refit(train, whole.kernel, f"part {k + 1} of {folds}, rank {r}", widen=False)
                seen[r, ~out] += refit.errors / (folds - 1)
                held[r, out] = _errors(test, refit)
        return path, Errors(seen, held, same=True)

    def _problem(self, sample: Sample) -> Problem:
        return self.model.problem(sample, self.decided.left.dtype)

    def _path(self, problem: Problem) -> list[Refit]:
        """The best refit of each rank: down from the decided one, up again, and down from what got better."""
        decided = self.decided.rank
        best = {decided: self._refit(problem, self.decided, f"rank {decided}")}
        for r in reversed(range(decided)):
            best[r] = self._refit(problem, best[r + 1].kernel.truncated(r), f"rank {r} from above")
        better = set()
        for r in range(1, self.top + 1):
            # At rank 0 a linear mixer gives no gradient; the solver's own start knows what to do.
            start = best[r - 1].wider or first_kernel(problem, self.values, r, self.rng)
            if self._improve(best, r, problem, start, f"rank {r} from below"):
                better.add(r)
        for r in reversed(range(1, decided)):
            if r + 1 in better:
                start = best[r + 1].kernel.truncated(r)
                if self._improve(best, r, problem, start, f"rank {r} from above"):
                    better.add(r)
        return [best[r] for r in range(self.top + 1)]

    def _improve(self, best: dict[int, Refit], rank: int, problem: Problem, start: Kernel, text: str) -> bool:
        """Keep the better fit; True where it is another minimum, not the same one more finished."""
        refit, known = self._refit(problem, start, text), best.get(rank)
        if known is None or refit.rss < known.rss:
            best[rank] = refit
        return known is None or refit.rss < known.rss * (1 - 10 * self.settings.stall)

    def _refit(self, problem: Problem, start: Kernel, text: str, widen: bool = True) -> Refit:
        if self.task.report is not None:
            self.task.report(f"curve: {text}")
        settings = self.settings
        if start.rank and not float(array_namespace(start.values).max(start.values)):
            # From uniform attention, which leaves V badly determined.
            settings = replace(settings, ridge=1e-2, ridge_fall=100.0, damping=1.0)
        done = fit(problem, start, self.values, self.rng, settings)
        errors = [_squares(block.residual) for block in done.lin.blocks]
        wider = _wider(done) if widen and 0 < start.rank < self.top else None
        return Refit(done.kernel, done.lin.W, np.concatenate(errors), wider)


def _wider(done: Fit) -> Kernel:
    """The kernel of a fit, and at value zero the direction (u, v) that lowers its loss most.

    With G the gradient over all kernels and S the curvature of the key side, the gain of a step along u vᵀ
    is (uᵀ G v)² / vᵀ S v: v = S^{-1/2} w, with u and w the first singular vectors of G S^{-1/2}.
    """
    kernel, curvature = done.kernel, done.curvature
    xp = array_namespace(kernel.left)
    steepest = Kernel.of(curvature.scaled(done.lin.ambient_gradient(), -0.5, 1e-2), 1)
    left, right = steepest.left, curvature.scaled(steepest.right.T, -0.5, 1e-2).T
    return Kernel(
        xp.concat([kernel.left, _outside(kernel.left, left)], axis=1),
        xp.concat([kernel.values, 0.0 * steepest.values]),
        xp.concat([kernel.right, _outside(kernel.right, right)], axis=1),
    )


def _outside(basis: Array, column: Array) -> Array:
    """``column`` [p, 1] orthogonal to ``basis`` [p, r], of length one."""
    xp = array_namespace(basis)
    for _ in range(2):  # once more for what rounding left
        column = column - basis @ (basis.T @ column)
        column = column / xp.linalg.vector_norm(column)
    return column


def _squares(residual: Array) -> Floats:
    """‖·‖² of each sequence of [m, T, d_v], [m] in float64."""
    xp = array_namespace(residual)
    return np.asarray(xp.sum(residual * residual, axis=(1, 2), dtype=xp.float64), dtype=np.float64)


def _errors(problem: Problem, refit: Refit) -> Floats:
    """Squared error of each sequence of ``problem`` [m]."""
    kernel = refit.kernel
    W = array_namespace(refit.W).astype(refit.W, kernel.left.dtype)

    def part(block: Problem) -> Floats:
        Z = block.regressors(block.mixer(kernel.left * kernel.values, kernel.right))
        return _squares(block.outputs - apply(Z, W))

    return np.concatenate(map_blocks(part, problem.blocks))


def _chosen(sample: Sample, which: np.ndarray) -> Sample:
    """The sequences at which ``which`` [n] is true."""
    xp = array_namespace(sample.X)
    index = xp.asarray(np.flatnonzero(which), device=sample.X.device)

    def pick(array: Array) -> Array:
        return xp.take(array, index, axis=0)

    return Sample(pick(sample.X), pick(sample.Y), None if sample.mask is None else pick(sample.mask))


def _kl_bounds(model: Model, kernel: Kernel, sample: Sample) -> list[float] | None:
    """min{T_r/4, √(2T_r)} for r = 0 … kernel.rank; None where rows of A are no distributions.

    T_r is the mean over query rows of Σ_s δ_s², δ the change of a row's logits when the kernel is cut to
    rank r in whitened tokens, less its mean (softmax ignores it). log Σ exp has a Hessian below ½, which
    gives KL ≤ ‖δ‖²/4, and KL ≤ max δ − min δ ≤ √(2‖δ‖²); both are kept in the mean over rows (the second
    is concave). Where queries and keys vary independently T_r = (keys a row sees) · Σ_{j>r} σ_j², the tail
    of the data-weighted spectrum.
    """
    if model.kind != "softmax":
        return None
    problem = model.problem(sample, kernel.left.dtype)
    tails = np.zeros(kernel.rank + 1)
    for r in range(kernel.rank):
        tail = Kernel(kernel.left[:, r:], kernel.values[r:], kernel.right[:, r:])
        moved = map_blocks(partial(_moved, tail), problem.blocks)
        tails[r] = sum(moved) / max(problem.rows, 1)
    return [min(float(tail) / 4.0, math.sqrt(2.0 * float(tail))) for tail in tails]


def _moved(tail: Kernel, block: Problem) -> float:
    """Σ over query rows of Σ_s δ_s², δ the logits of ``tail`` about their mean over the keys a row sees."""
    change = block.logits(tail.left * tail.values, tail.right)
    xp = array_namespace(change)
    if block.visible is None:
        change = change - xp.mean(change, axis=2, keepdims=True)
        return float(xp.sum(change * change, dtype=xp.float64))
    seen = xp.astype(block.visible, change.dtype)
    count = xp.clip(xp.sum(seen, axis=2, keepdims=True), 1.0, None)
    change = (change - xp.sum(change * seen, axis=2, keepdims=True) / count) * seen
    return float(xp.sum(change * change, dtype=xp.float64))
