"""Which kind of map: from the call, from what the file says, else decided on held-out sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankprobe.errors import DataError, UsageError
from rankprobe.estimators.model import Kind, Model
from rankprobe.estimators.source import Sampler
from rankprobe.solver import FittedValueMap, Settings, fit
from rankprobe.solver.start import first_kernel

_KINDS: dict[str, Kind] = {
    "softmax": "softmax",
    "softmax_qk": "softmax",
    "linear": "linear",
    "linear_qk": "linear",
    "fixed_operator": "fixed_operator",
}

TRIAL_RANK = 12
"""Rank of the trial fits: enough to tell kinds apart, cheap where tokens are wide."""


def choose_kind(
    sampler: Sampler, attention: str, causal: bool | str, bias: bool
) -> tuple[Kind, bool, dict[str, Any]]:
    """The kind of map, whether it is causal, and how that was settled (for the result).

    Raises :class:`UsageError` for a kind that does not exist, :class:`DataError` for one noted in the file.
    """
    noted = sampler.source.attributes
    kinds: list[Kind] = ["softmax", "linear"]
    origin = {"attention_from": "data", "causal_from": "data"}
    if attention != "auto":
        if attention not in _KINDS:
            raise UsageError(
                f"there is no attention {attention!r}; choose auto, softmax, linear or fixed_operator"
            )
        kinds, origin["attention_from"] = [_KINDS[attention]], "option"
    elif noted.get("attention") is not None:
        name = str(noted["attention"])
        if name not in _KINDS:
            raise DataError(
                f"the file says attention={name!r}, which is not known; pass --attention softmax or linear"
            )
        kinds, origin["attention_from"] = [_KINDS[name]], "file"
    masks = [False, True]
    if kinds == ["fixed_operator"]:
        masks, origin["causal_from"] = [False], "kind"
    elif causal != "auto":
        masks, origin["causal_from"] = [bool(causal)], "option"
    elif noted.get("causal") is not None:
        masks, origin["causal_from"] = [bool(noted["causal"])], "file"
    candidates = [(kind, mask) for kind in kinds for mask in masks]
    if len(candidates) == 1 or sampler.source.sequences < 2:
        return (*candidates[0], origin)
    errors = {candidate: _heldout_error(sampler, *candidate, bias) for candidate in candidates}
    best = min(errors, key=lambda candidate: errors[candidate])
    origin["heldout_errors"] = {  # type: ignore[assignment]
        f"{kind}{'+causal' if mask else ''}": error for (kind, mask), error in errors.items()
    }
    return (*best, origin)


def _heldout_error(sampler: Sampler, kind: Kind, causal: bool, bias: bool) -> float:
    """Share of the variance of Y that a quick fit leaves on sequences it has not seen."""
    source = sampler.source
    rows = source.tokens
    unknowns = 2 * TRIAL_RANK * (source.dim + 1) + (source.dim + 1) * source.value_dim
    count = int(np.clip(6 * unknowns // (rows * source.value_dim), 32, 512))
    held = min(max(1, source.sequences // 4), max(16, count // 3))
    count = min(count, source.sequences - held)
    sample = sampler.take(count + held)
    train, test = sample.part(0, count), sample.part(count, count + held)
    model = Model.of(kind, causal, bias, train, source.storage_dtype)
    rng = np.random.default_rng(sampler.seed)
    problem, values = model.problem(train), FittedValueMap()
    start = first_kernel(problem, values, TRIAL_RANK if source.dim > 64 else source.dim + 1, rng)
    trial = fit(problem, start, values, rng, Settings(outer=12, inner=30, stall=0.02, last_ridge=1e-6))
    variation = test.variation()
    return model.residual(trial, test) / variation if variation > 0 else 0.0
