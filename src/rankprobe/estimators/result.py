"""What an estimate answers: a rank, how sure, and what it rests on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How far the rank may be trusted."""

    IDENTIFIED = "identified"
    """The data fix the integer: more rank is not needed, less does not fit."""
    LOWER_BOUND = "lower_bound"
    """At least this rank is needed; the data do not exclude more."""
    NOT_IDENTIFIABLE = "not_identifiable"
    """The data do not determine the kernel (too few sequences, tokens that do not move)."""
    MISFIT = "misfit"
    """No attention map of the assumed kind explains the outputs."""
    DEGENERATE = "degenerate"
    """The outputs carry nothing of the inputs (zero, constant or noise): no kernel can be seen."""

    @property
    def usable(self) -> bool:
        """Whether ``rank`` may be acted on (exit code 0 on the command line; otherwise 4)."""
        return self in (Status.IDENTIFIED, Status.LOWER_BOUND)


@dataclass(frozen=True)
class CurvePoint:
    """The best kernel of one rank."""

    rank: int
    excess: float
    """Least squared error a sequence (summed over T · d_v) beyond the noise; negative by chance only."""
    standard_error: float
    """Of ``excess``, from the spread over sequences."""
    parameters: int
    """r(p_q + p_k − r): degrees of freedom of a kernel of this rank."""
    explained: float | None
    """Share of the explainable variance that this rank explains."""
    kl_bound: float | None
    """Most that the rows of A move, in mean KL divergence, when the logits are cut to this rank (softmax)."""


@dataclass(frozen=True)
class Curve:
    """Excess risk against rank, on sequences the refits have not seen."""

    points: tuple[CurvePoint, ...]
    floor: float
    """Squared error a sequence that the largest rank of the curve leaves: the noise, σ²Td_v."""
    explainable: float
    """Variance of Y beyond ``floor``, a sequence: what an attention map can explain."""
    singular_values: tuple[float, ...]
    """Of the kernel of the curve's largest rank, in token units: signal, then noise."""
    heldout: str
    """Sequences the errors were counted on: ``fresh`` to decision and refits, ``left-out`` of the refits, or
    ``cross-fit``, each under the one refit that left it out."""
    sequences_fitted: int
    sequences_heldout: int


@dataclass(frozen=True)
class Estimate:
    """The answer of one estimator on one head.

    Singular values are those of the kernel in the quotient of unseen directions, in the units of the
    data (logits per squared token unit, scale divided out); a linear link fixes kernel and value map
    only up to a common factor, set by ‖V‖_F² = d_v.
    """

    estimator: str
    solver: str
    status: Status
    message: str
    rank: int | None
    rank_interval: tuple[int, int] | None
    confidence: float | None
    energy_rank: float | None
    energy_rank_interval: tuple[float, float] | None
    energy_rank_data: float | None
    effective_rank: float | None
    stable_rank: float | None
    singular_values: tuple[float, ...]
    singular_values_data: tuple[float, ...]
    noise_edge: float | None
    noise_sigma: float | None
    r2_heldout: float | None
    sequences_used: int
    attention: str
    causal: bool
    bias: bool
    residual: bool
    """Whether Y was taken to hold a linear map of the token itself beside the attention output."""
    kernel: str
    """How it was fitted: ``full``, ``factored``, ``grown`` from rank 0, or ``none`` (not at all)."""
    visible_dimensions: tuple[int, int] | None = None
    """Directions in which queries and keys move, p_q and p_k, a constant one for biases counted: K is seen
    in no others."""
    starts: tuple[int, int] | None = None
    """Fits at this rank that reached the same least residual, and all that were tried, if several were."""
    sequences_wanted: int | None = None
    """About how many sequences would settle a lower bound, at this noise."""
    curve: Curve | None = None
    """Where it was asked for and the status is usable."""
    tolerance: float | None = None
    """ε in units of the curve's excess."""
    rank_at_tolerance: int | None = None
    """r*(ε): the least rank with excess ≤ ε."""
    rank_at_tolerance_interval: tuple[int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, floats as they are (non-finite ones are the output layer's to null)."""
        out = dataclasses.asdict(self)
        out["status"] = str(self.status)
        return {name: _plain(value) for name, value in out.items()}


@dataclass(frozen=True)
class Result:
    """All estimators' answers on one head; the main one's fields are also the result's own."""

    estimates: dict[str, Estimate]
    main: str
    provenance: dict[str, Any] = field(default_factory=dict)
    """What repeats the run: source, head, command, versions, seed, threads, storage dtype, sequences."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("estimates", "main"):
            raise AttributeError(name)
        return getattr(self.estimates[self.main], name)

    def to_dict(self) -> dict[str, Any]:
        """One flat JSON object: provenance, the main estimate's fields, then ``estimates``."""
        return {
            **self.provenance,
            **self.estimates[self.main].to_dict(),
            "estimates": {name: estimate.to_dict() for name, estimate in self.estimates.items()},
        }


def _plain(value: Any) -> Any:
    """Tuples as lists, at any depth."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
