"""What a misfit most likely is, and the option that would fix it.

Candidates are asked in turn, from those with a remedy to those without: another link or mask, a skip
connection, a nonlinearity after attention, several heads in one Y, logits that depend on positions, and
logits that are soft-capped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.decision.noise import degrees_of_freedom, noise_sigma
from rankprobe.decision.structure import Floats, mean_score, pair_score
from rankprobe.estimators.inversion import Inversion, Task
from rankprobe.estimators.model import Kind, Model, Sample
from rankprobe.estimators.trial import TRIAL_RANK, Trial
from rankprobe.solver import Fit
from rankprobe.solver.linearization import Block
from rankprobe.solver.problem import apply, swap

MUCH = 0.5
"""A kind of map that leaves less than this share of what the assumed kind leaves explains much more."""

CLEARLY = 0.8
"""The same for noise variances, corrected for the parameters fitted."""

ROUNDS = 12
"""Times that two heads in one Y are fitted in turn, each from where it was."""

SUMMED = "Y is a sum of several heads; record each head before the output projection"

PROBED = 24
"""Features looked at for positions: more would only cost memory."""


def likeliest_cause(task: Task, outcome: Inversion) -> str:
    """The cause and its remedy, as a clause that follows "most likely"."""
    if outcome.parametrization == "grown":
        cause = likelier_cause(task, outcome)
        if cause is not None:
            return cause
    assumed = Trial.of(task.sampler, task.kind, task.causal, task.bias, task.residual)

    def error(kind: Kind, causal: bool, residual: bool) -> float:
        return Trial.of(task.sampler, kind, causal, task.bias, residual).error

    better = _better_kind(task, assumed.error, error)
    if better is not None:
        return better
    if outcome.structure.worst == "magnitude":
        return "its outputs passed a nonlinearity; record Y before it"
    several = _several_heads(task, assumed)
    if several is not None:
        return several
    limit = outcome.structure.limit
    larger = Trial.of(task.sampler, task.kind, task.causal, task.bias, task.residual, least=384)
    if task.kind != "fixed_operator" and _position_score(larger.fit) > limit:
        return (
            "its logits depend on positions (rotary or relative encoding, a window), which no option undoes"
        )
    if task.kind == "softmax" and _cap_score(larger.fit) < -limit:
        return "its large logits are weaker than they should be, as soft-capping makes them"
    return "its values may not be linear in the tokens, or X and Y may not belong together"


def likelier_cause(task: Task, outcome: Inversion) -> str | None:
    """Another map, of no more rank a head, that leaves clearly less noise; None where there is none.

    A few sequences tell little about what noise looks like, but much about how large it is.
    """
    sample, model, rank = task.sampler.take(task.sequences), outcome.model, max(outcome.verdict.rank, 1)
    if model.even is not None:
        sample, model = replace(sample, Y=apply(sample.Y, model.even)), replace(model, even=None)

    def noise(kind: Kind, causal: bool, residual: bool) -> float:
        other = Model.of(kind, causal, task.bias, sample, task.sampler.source.storage_dtype, residual)
        return noise_sigma(Trial.fitted(other, sample, sample, task.sampler.seed, rank).fit) ** 2

    variance = outcome.sigma**2
    better = _better_kind(task, variance, noise, CLEARLY)
    if better is not None:
        return better
    first, second = _two_heads(model, sample, sample, task.sampler.seed, rank + 2)
    equations = second.fit.lin.problem.equations
    free = equations - degrees_of_freedom(first.fit) - degrees_of_freedom(second.fit)
    # With hardly more equations than parameters, two heads fit the noise of one.
    return SUMMED if 2 * free > equations and second.fit.rss / free < MUCH * variance else None


def needs_no_mixing(task: Task, outcome: Inversion) -> bool:
    """Whether a linear map of the token itself explains the outputs as well as the fit does."""
    if outcome.r2_heldout is None or outcome.r2_heldout < MUCH:
        return False
    alone = Trial.of(task.sampler, task.kind, task.causal, task.bias, True, rank=0)
    return alone.error <= 1.2 * (1.0 - outcome.r2_heldout)


def _better_kind(
    task: Task, error: float, of: Callable[[Kind, bool, bool], float], share: float = MUCH
) -> str | None:
    """The link, mask or skip connection whose error, ``of`` it, is less than a ``share`` of ``error``."""
    kinds: list[Kind] = ["softmax", "linear"]
    candidates = {
        (kind, mask, residual): of(kind, mask, residual)
        for kind in kinds
        for mask in (False, True)
        for residual in (False, True)
        if (kind, mask, residual) != (task.kind, task.causal, task.residual)
    }
    least = min(candidates.values())
    if least > share * error:
        return None
    # Of those about as good, the one that changes least.
    kind, mask, residual = min(
        (candidate for candidate, each in candidates.items() if each <= 1.2 * least),
        key=lambda c: ((c[0] != task.kind) + (c[1] != task.causal) + (c[2] != task.residual), candidates[c]),
    )
    causes, options = [], []
    if kind != task.kind:
        causes.append(f"its link is {kind}")
        options.append(f"--attention {kind}")
    if mask != task.causal:
        causes.append(f"its mask is {'causal' if mask else 'not causal'}")
        options.append("--causal" if mask else "--no-causal")
    if residual != task.residual:
        causes.append("Y also holds the token itself" if residual else "Y does not hold the token itself")
        options.append("--residual" if residual else "--no-residual")
    return f"{' and '.join(causes)}; pass {' '.join(options)}"


def _several_heads(task: Task, assumed: Trial) -> str | None:
    """Whether two heads, side by side or summed, explain the outputs much better than one."""
    alone = assumed.error
    if task.sampler.source.value_dim >= 2:
        half = Trial.of(task.sampler, task.kind, task.causal, task.bias, task.residual, part=2)
        if half.error < MUCH * alone:
            return "Y holds several heads side by side; pass --heads H, or split it"
    model, train, test = assumed.model, assumed.train, assumed.test
    rank = min(TRIAL_RANK, model.key.dimension, model.query.dimension)
    _, second = _two_heads(model, train, test, task.sampler.seed, rank)
    return SUMMED if second.error * second.test.variation() < MUCH * alone * test.variation() else None


def _two_heads(model: Model, train: Sample, test: Sample, seed: int, rank: int) -> tuple[Trial, Trial]:
    """Two heads whose sum is Y, each fitted in turn to what the other leaves."""
    seen, unseen = 0.0 * train.Y, 0.0 * test.Y
    heads: list[Trial] = []
    for turn in range(2 * ROUNDS):
        rest = replace(train, Y=train.Y - seen), replace(test, Y=test.Y - unseen)
        start = heads[turn - 2].fit.kernel if turn >= 2 else None
        heads.append(Trial.fitted(model, *rest, seed, rank, start))
        seen, unseen = _fitted(heads[-1], train), _fitted(heads[-1], test)
    return heads[-2], heads[-1]


def _fitted(trial: Trial, sample: Sample) -> Array:
    problem = trial.model.problem(sample)
    kernel = trial.fit.kernel
    return apply(
        problem.regressors(problem.mixer(kernel.left * kernel.values, kernel.right)), trial.fit.lin.W
    )


def _position_score(fit: Fit) -> float:
    """Whether what the logits lack depends on positions: the worst of several waves along the sequence.

    A map that treats tokens alike, whatever else is wrong with it, leaves nothing that varies with the
    distance of query and key once each query's mean over its keys is taken off.
    """
    xp = array_namespace(fit.lin.problem.outputs)
    length = int(fit.lin.problem.outputs.shape[1])
    place = np.arange(length)
    distance = place[:, None] - place[None, :]
    worst = -np.inf
    for wave in range(1, min(8, length), 2):
        for turn in (np.cos, np.sin):
            shares: list[Floats] = []
            for block in fit.lin.blocks:
                weights = xp.asarray(turn(np.pi * wave * distance / length), dtype=block.A.dtype)
                shares.append(_waving(block, weights))
            worst = max(worst, pair_score(np.concatenate(shares)))
    return worst


def _waving(block: Block, weights: Array) -> Floats:
    """Σ_{t≠s} w_ts x_t G_ts k_s of each sequence, w centred over the keys each query sees."""
    xp = array_namespace(block.A)
    apart = 1.0 - xp.eye(weights.shape[0], dtype=weights.dtype)
    visible = block.problem.visible
    seen = apart[None, ...] if visible is None else apart * xp.astype(visible, weights.dtype)
    count = xp.clip(xp.sum(seen, axis=2, keepdims=True), 1.0, None)
    centred = (weights - xp.sum(seen * weights, axis=2, keepdims=True) / count) * seen
    gradient = block.problem.pull(block.A, block.B, block.residual)
    queries, keys = block.problem.query[:, :, :PROBED], block.problem.key[:, :, :PROBED]
    moved = swap(queries) @ ((centred * gradient) @ keys)
    return np.asarray(xp.reshape(moved, (moved.shape[0], -1)), dtype=float)


def _cap_score(fit: Fit) -> float:
    """Whether the residual asks for logits bent along L³: up, positive; down, as under a cap, negative."""
    shares: list[Floats] = []
    for block in fit.lin.blocks:
        xp = array_namespace(block.A)
        logits = (block.query_left * block.kernel.values) @ swap(block.key_right)
        logits = logits - xp.mean(logits, axis=2, keepdims=True)
        bend = block.problem.push(block.A, logits**3, block.B)
        shares.append(np.asarray(xp.sum(bend * block.residual, axis=(1, 2)), dtype=float))
    return mean_score(np.concatenate(shares))
