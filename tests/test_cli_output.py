"""The sink alone: strict JSON, whole TSV, tables that fit."""

from __future__ import annotations

import enum
import json
import math
from typing import Any

import numpy as np
import pytest

from rankprobe.cli.output import full, short, strict


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "value,expected",
    [
        (math.nan, None),
        (math.inf, None),
        (-math.inf, None),
        (np.float64("nan"), None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([1.0, math.nan]), [1.0, None]),
        ((1, 2), [1, 2]),
        ({"a": {1: math.nan}}, {"a": {"1": None}}),
        (Colour.RED, "red"),
        ("σ", "σ"),
        ("\udcff.h5", "?.h5"),
        (0.1 + 0.2, 0.30000000000000004),
        (5e-324, 5e-324),
    ],
)
def test_strict_values(value: Any, expected: Any) -> None:
    assert strict(value) == expected
    assert json.loads(json.dumps(strict(value), allow_nan=False)) == expected


def test_what_json_cannot_hold_is_an_error_not_a_string() -> None:
    for value in (object(), b"bytes", 1j):
        with pytest.raises(TypeError):
            strict(value)


@pytest.mark.parametrize(
    "value,cell",
    [
        (None, ""),
        (math.nan, ""),
        (True, "true"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e-300, "1e-300"),
        ([4, 4], "[4, 4]"),
        ("a\tb\nc\\", "a\\tb\\nc\\\\"),
        ("\x1b[31mred\x9b", "\\x1b[31mred\\x9b"),
        (12, "12"),
    ],
)
def test_tsv_cells(value: Any, cell: str) -> None:
    assert full(value) == cell


def test_table_cells() -> None:
    assert [short(value) for value in (None, math.nan, True, 3.14159, 1e-9, "x")] == [
        *("–", "–", "yes", "3.142", "1e-09", "x")
    ]
