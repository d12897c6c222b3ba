"""What a rebuilt table is made of: entries with the paper's value, ours, and one that neither drew."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CLOSE = 0.15
"""A larger relative deviation from the paper is marked and explained."""

SMALL = 0.01
"""Differences below this are none: noise of an excess about zero."""

Cell = dict[str, Any]
"""What determines one piece of work, in plain values; equal cells have equal results."""

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """One number of a table.

    row, column : where it stands. paper, ours : the values compared; None where there is none.
    reference : a value for the same draws as ours that does not depend on how well anything was trained, and
        what it is (``closed form``, ``best found``).
    values : ours seed by seed.
    slack : absolute difference that is no deviation.
    note : what the table itself has to say about a deviation.
    """

    row: str
    column: str
    ours: float | None
    paper: float | None = None
    reference: float | None = None
    reference_is: str | None = None
    values: tuple[float, ...] = ()
    slack: float = SMALL
    note: str | None = None

    @property
    def deviation(self) -> float | None:
        """Ours over the paper's, less one; None where the paper's is (about) zero or not there."""
        if self.paper is None or self.ours is None or abs(self.paper) <= SMALL:
            return None
        return self.ours / self.paper - 1.0

    @property
    def differs(self) -> bool:
        """Whether the deviation from the paper needs an explanation."""
        return not _near(self.ours, self.paper, self.slack)

    def explanation(self) -> str:
        """Why ours is not the paper's, with the evidence."""
        place = f"{self.row}, {self.column}"
        apart = "" if self.deviation is None else f" ({self.deviation:+.0%})"
        said = [f"{place}: {_number(self.ours)} against {_number(self.paper)}{apart}"]
        if self.reference is not None:
            held = f"the {self.reference_is} for our draws is {_number(self.reference)}"
            if _near(self.ours, self.reference, self.slack):
                held += ", so ours is right for them: the paper's is of other draws, or of another minimum"
            said.append(held)
        if len(self.values) > 1:
            said.append(
                f"over seeds ours runs from {_number(min(self.values))} to {_number(max(self.values))}"
            )
        if self.note:
            said.append(self.note)
        return "; ".join(said)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        facts = dataclasses.asdict(self)
        return {**facts, "values": list(self.values), "deviation": self.deviation, "differs": self.differs}


@dataclass(frozen=True)
class Table:
    """A finished table."""

    name: str
    title: str
    quick: bool
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    """Remarks beside the explanations of deviations."""
    seconds: float = 0.0
    """Of all its cells, whenever they ran."""
    cells: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)

    def footnotes(self) -> list[str]:
        """The explanation of every deviation, numbered as they are marked, then the remarks."""
        explained = [entry.explanation() for entry in self.entries if entry.differs]
        return [f"[{number}] {text}" for number, text in enumerate(explained, 1)] + list(self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "table": self.name,
            "title": self.title,
            "quick": self.quick,
            "entries": [entry.to_dict() for entry in self.entries],
            "footnotes": self.footnotes(),
            "seconds": self.seconds,
            "cells": self.cells,
            **self.facts,
        }


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Standard deviation over mean; None for fewer than two values."""
    return float(np.std(values, ddof=1) / np.mean(values)) if len(values) > 1 else None


def _near(ours: float | None, other: float | None, slack: float) -> bool:
    if ours is None or other is None:
        return True
    return abs(ours - other) <= max(CLOSE * abs(other), slack) and math.isfinite(ours)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
