"""Which map: from the call, from what the file says, else decided on held-out sequences."""

from __future__ import annotations

from typing import Any

from rankprobe.errors import DataError, UsageError
from rankprobe.estimators.model import Kind
from rankprobe.estimators.source import Sampler

Map = tuple[Kind, bool]
"""Kind of map, and whether it is causal."""

_KINDS: dict[str, Kind] = {
    "softmax": "softmax",
    "softmax_qk": "softmax",
    "linear": "linear",
    "linear_qk": "linear",
    "fixed_operator": "fixed_operator",
}


def choose_maps(
    sampler: Sampler, attention: str, causal: bool | str, bias: bool, residual: bool = False
) -> tuple[list[Map], dict[str, Any]]:
    """The map, and how it was settled (for the result); several maps where held-out errors tie.

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
            where = getattr(sampler.source, "label", "the data")
            raise DataError(
                f"{where}: attribute attention is {name!r}, no known link; pass --attention softmax or linear"
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
        return candidates[:1], origin
    from rankprobe.estimators.trial import Trial

    trials = {candidate: Trial.of(sampler, *candidate, bias, residual) for candidate in candidates}
    errors = {candidate: trial.error for candidate, trial in trials.items()}
    least = trials[min(errors, key=lambda candidate: errors[candidate])]
    origin["heldout_errors"] = {  # type: ignore[assignment]
        name_of(candidate): error for candidate, error in errors.items()
    }
    return [candidate for candidate, trial in trials.items() if trial.as_good_as(least)], origin


def name_of(candidate: Map) -> str:
    kind, causal = candidate
    return f"{kind}+causal" if causal else kind
