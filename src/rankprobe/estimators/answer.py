"""From a decided fit to the public answer: measures, status, and the words that go with it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from rankprobe import spectra
from rankprobe.attention import Array
from rankprobe.decision.verdict import CONFIDENCE, REACH
from rankprobe.estimators.inversion import Inversion, Refusal, Task
from rankprobe.estimators.model import ROUNDING
from rankprobe.estimators.result import Estimate, Status

EXACT = 1e-6
"""Held-out share of the variance below which a fit counts as exact."""

COARSE = 0.05
"""Share of the noise from which rounding makes what a fit leaves follow the tokens."""

_MEASURES = ("energy_rank", "energy_rank_data", "effective_rank", "stable_rank")


def estimate_of(task: Task, name: str, outcome: Inversion | Refusal) -> Estimate:
    """The public answer: measures, status, and the words that go with it."""
    common: dict[str, Any] = {
        "estimator": name,
        "solver": "gauss-newton",
        "attention": task.kind,
        "causal": task.causal,
        "bias": task.bias,
        "residual": task.residual,
    }
    if isinstance(outcome, Refusal):
        measures = dict.fromkeys(_MEASURES, None if outcome.rank is None else 0.0)
        return Estimate(
            status=outcome.status,
            message=outcome.message,
            rank=outcome.rank,
            rank_interval=None,
            energy_rank_interval=None,
            confidence=None,
            singular_values=(),
            singular_values_data=(),
            noise_edge=None,
            noise_sigma=None,
            r2_heldout=None,
            sequences_used=task.sequences,
            kernel="none",
            **measures,
            **common,
        )
    verdict = outcome.verdict
    status, message = _status(task, outcome)
    told = status.usable or status is Status.DEGENERATE
    values, weighted = _floats(outcome.kernel.values), _floats(outcome.fit.kernel.values)
    energy = spectra.energy_rank(values)
    return Estimate(
        status=status,
        message=message,
        # What the data do not give, or give for another map, is no number; the spectrum stays to look at.
        rank=verdict.rank if told else None,
        rank_interval=(verdict.rank, verdict.upper) if told else None,
        confidence=CONFIDENCE if told else None,
        energy_rank=energy if told else None,
        energy_rank_interval=_around(energy, outcome.energy_error, len(values)) if told else None,
        energy_rank_data=spectra.energy_rank(weighted) if told else None,
        effective_rank=spectra.effective_rank(values) if told else None,
        stable_rank=spectra.stable_rank(values) if told else None,
        singular_values=values,
        singular_values_data=weighted,
        noise_edge=outcome.noise_edge,
        noise_sigma=outcome.sigma,
        r2_heldout=outcome.r2_heldout,
        sequences_used=outcome.sequences,
        kernel=outcome.parametrization,
        visible_dimensions=(outcome.model.query.dimension, outcome.model.key.dimension),
        starts=verdict.starts,
        sequences_wanted=_wanted(outcome) if status is Status.LOWER_BOUND else None,
        **common,
    )


def tied(answers: dict[str, Estimate]) -> Estimate:
    """One answer from those under several maps, by name, that the data do not tell apart."""
    first, *others = answers.values()
    if not first.status.usable:
        return first
    names = " from ".join(answers)
    if all((each.status, each.rank_interval) == (first.status, first.rank_interval) for each in others):
        return replace(first, message=f"{first.message}; cannot tell {names}, the rank is the same")
    found = " or ".join(
        str(each.status) if each.rank is None else f"{each.status} {each.rank}" for each in answers.values()
    )
    told = ("rank", "rank_interval", "confidence", "energy_rank_interval", "sequences_wanted", *_MEASURES)
    nothing: dict[str, Any] = dict.fromkeys(told)
    message = (
        f"cannot tell {names}: their held-out errors tie, the answers do not ({found.strip()}); "
        "pass --attention, and --causal or --no-causal"
    )
    return replace(first, **nothing, status=Status.NOT_IDENTIFIABLE, message=message)


def _status(task: Task, outcome: Inversion) -> tuple[Status, str]:
    verdict, r2, ratio = outcome.verdict, outcome.r2_heldout, outcome.heldout_ratio
    if outcome.signal < 4.0 and (verdict.rank == 0 or not outcome.converged):
        return Status.DEGENERATE, "the outputs carry nothing of the inputs, so no kernel can be seen"
    if not outcome.predicts:
        return (
            Status.NOT_IDENTIFIABLE,
            "the fit explains nothing of sequences it has not seen; it takes more sequences",
        )
    # A fit to the last digits: its noise is rounding, not alike everywhere. A factored fit stops before that.
    exact = EXACT if outcome.parametrization == "factored" else EXACT**2
    inexact = r2 is None or 1.0 - r2 > exact
    # Rounded tokens make errors that follow the tokens, as a misfit's do.
    coarse = inexact and outcome.rounded >= COARSE
    if outcome.structure.found and inexact and not coarse:
        return Status.MISFIT, _misfit(task, outcome)
    if outcome.parametrization == "grown" and inexact and not coarse:
        from rankprobe.estimators.diagnose import likelier_cause

        cause = likelier_cause(task, outcome)
        if cause is not None:
            return (
                Status.MISFIT,
                f"another map leaves much less noise: Y is not this {outcome.model.kind} attention; "
                f"most likely {cause}",
            )
    if coarse and (
        not (verdict.settled and outcome.converged) or (ratio or 0.0) > 2.0 or _faint(task, outcome)
    ):
        return (
            Status.NOT_IDENTIFIABLE,
            f"{outcome.rounded:.0%} of the noise is the rounding of the stored numbers and looks like rank; "
            "store float32",
        )
    if not outcome.converged and inexact:
        from rankprobe.estimators.diagnose import needs_no_mixing

        if needs_no_mixing(task, outcome):
            return (
                Status.NOT_IDENTIFIABLE,
                "Y is a linear map of the token itself: whether a token attends to others cannot be seen",
            )
        return (
            Status.NOT_IDENTIFIABLE,
            f"the fit did not settle in {outcome.fit.steps} steps; more sequences make the problem easier",
        )
    if ratio is not None and ratio > 2.0 and inexact and outcome.sequences >= 32:
        return (
            Status.MISFIT,
            f"unseen sequences leave {ratio:.1f} times the noise variance of the fit: this is not "
            f"{outcome.model.kind} attention as assumed; try --attention, --causal or --bias",
        )
    if not verdict.settled:
        return Status.LOWER_BOUND, f"{verdict.reason}; about {_wanted(outcome)} sequences would settle it"
    return Status.IDENTIFIED, verdict.reason


def _faint(task: Task, outcome: Inversion) -> bool:
    """Whether the rank counts a singular value that rounding could make: its errors are not wholly random."""
    values = outcome.kernel.values[: outcome.verdict.rank]
    unit = ROUNDING.get(task.sampler.source.storage_dtype, 0.0)
    return bool(outcome.verdict.rank) and float(values[-1]) < unit * float(values[0])


def _wanted(outcome: Inversion) -> int:
    """Sequences that would settle the rank, to two digits: the noise of a kernel falls as 1/√n."""
    return int(float(f"{math.ceil(outcome.verdict.short * outcome.sequences):.2g}"))


def _misfit(task: Task, outcome: Inversion) -> str:
    from rankprobe.estimators.diagnose import likeliest_cause

    tests = outcome.structure
    score = tests.scores[tests.worst or ""]
    return (
        f"what the fit leaves is not noise (by {score:.0f} standard deviations, limit {tests.limit:.1f}): "
        f"Y is not this {outcome.model.kind} attention; most likely {likeliest_cause(task, outcome)}"
    )


def _around(energy: float, error: float, rank: int) -> tuple[float, float]:
    """The interval of an energy rank, which lies between 1 and the rank."""
    return max(energy - REACH * error, min(1.0, float(rank))), min(energy + REACH * error, float(rank))


def _floats(values: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
