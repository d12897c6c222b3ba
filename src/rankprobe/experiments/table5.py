"""Table 5: three spectra of the same rank; what the excess at r* − 1 weighs, and what training recovers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from rankprobe import spectra
from rankprobe.experiments.table import Cell, Entry, Result, mean
from rankprobe.experiments.tasks import Progress, best, recovery, refit, seeds, settings, students
from rankprobe.teachers import Spectrum, spectrum_values

TITLE = "Spectra: sharp, power law and flat, linear teacher, T = 10, d = 12, r* = 4"

TRUE = 4
PAPER: dict[Spectrum, tuple[float, float, float, float]] = {
    "sharp": (3.57, 244.48, 0.001, 3.57),
    "power": (2.43, 15.63, -0.002, 2.44),
    "flat": (4.00, 171.31, -0.002, 4.00),
}
"""Teacher R̃, excess at r* − 1, excess at r*, recovered R̃."""

PARTS = {"students": students, "recovery": recovery, "refit": refit}


def cells(quick: bool) -> list[Cell]:
    out = []
    for spectrum in get_args(Spectrum):
        base = {"teacher": "linear_qk", "rank": TRUE, "tokens": 10, "dim": 12, "spectrum": spectrum}
        for seed in seeds(quick):
            for part in PARTS:
                ranks = {"ranks": [TRUE - 1, TRUE]} if part == "students" else {}
                out.append({**base, **settings(quick), "seed": seed, "part": part, **ranks})
    return out


def run(cell: Cell, progress: Progress = None) -> Result:
    return PARTS[cell["part"]](cell, progress)


def entries(done: Sequence[tuple[Cell, Result]]) -> list[Entry]:
    out: list[Entry] = []
    below: dict[str, float] = {}
    for spectrum, (teacher, excess, reached, recovered) in PAPER.items():
        here = [pair for pair in done if pair[0]["spectrum"] == spectrum]
        of = {part: [result for cell, result in here if cell["part"] == part] for part in PARTS}
        exact = spectra.energy_rank(spectrum_values(spectrum, TRUE))
        at = {
            rank: tuple(result["excess"][str(rank)] for result in of["students"]) for rank in (TRUE - 1, TRUE)
        }
        below[spectrum] = mean(at[TRUE - 1])
        found = [
            best(value, refitted["excess"].get(str(TRUE - 1)))
            for value, refitted in zip(at[TRUE - 1], of["refit"], strict=True)
        ]
        energies = tuple(result["energy_rank"] for result in of["recovery"])
        out += [
            Entry(spectrum, "teacher R̃", exact, teacher, exact, "closed form"),
            Entry(
                spectrum,
                "excess at r*−1",
                below[spectrum],
                excess,
                mean([value for value in found if value is not None]),
                "best found (students, and refits without training)",
                at[TRUE - 1],
            ),
            Entry(spectrum, "excess at r*", mean(at[TRUE]), reached, 0.0, "closed form", at[TRUE]),
            Entry(spectrum, "recovered R̃", mean(energies), recovered, exact, "teacher's", energies),
            Entry(
                spectrum,
                "R̃, data alone",
                mean([result["energy_rank"] for result in of["refit"]]),
                None,
                exact,
                "teacher's",
            ),
        ]
    ratio = below["power"] / below["sharp"]
    published = PAPER["power"][1] / PAPER["sharp"][1]
    out.append(
        Entry("power over sharp", "excess at r*−1", ratio, published, 1 / 16, "λ₄² of both, without refit")
    )
    return out
