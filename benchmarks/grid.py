#!/usr/bin/env python3
"""The paper's grid: teachers of two links, r* ∈ {1, 2, 3, 4, 6, 8}, seeds 0–4, n = 3000; V unknown.

Symmetric kernels are the paper's own; asymmetric and traceless ones (r* ≥ 2) are added. For every cell the
estimate of rankprobe from the file alone, and the realized mixer's energy rank beside its closed form; for
symmetric kernels also the paper's estimators, V known and unknown (its Table 4).

The closed form: exchangeable tokens give E[A] = aI + b11ᵀ, whose squared singular values are (a + Tb)² once
and a² T − 1 times; a and b are computed from the teacher. It follows the trace of K, not its rank.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _report import heading, source, table

import rankprobe
from rankprobe.cli.main import main as command_line
from rankprobe.data import open_pairs

TEACHERS = ("linear_qk", "softmax_qk")
KERNELS = ("symmetric", "asymmetric", "traceless")
RANKS = (1, 2, 3, 4, 6, 8)
TOLERANCE = 0.02

Cell = dict[str, Any]


def main() -> int:
    options = parser().parse_args()
    wanted = list(grid(options))
    done = {key(cell): cell for cell in finished(options.cells)}
    with options.cells.open("a") as file:
        if file.tell():
            file.write("\n")  # after half a line of a run that was stopped
        for place in wanted:
            if key(place) in done:
                continue
            cell = {**place, **measure(place)}
            done[key(place)] = cell
            file.write(json.dumps(cell) + "\n")
            file.flush()
            print(" ".join(map(str, key(place))), cell["rank"], file=sys.stderr)
    cells = [done[key(place)] for place in wanted]
    print(heading("scipy"))
    right = report(cells)
    return 0 if right else 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="The paper's grid, V unknown, and the paper's own estimators.")
    made.add_argument("--cells", type=Path, default=Path("grid.jsonl"), metavar="FILE", help="finished cells")
    made.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    made.add_argument("--ranks", nargs="+", type=int, default=list(RANKS))
    made.add_argument("--seeds", type=int, default=5, help="seeds 0 to N − 1 (default: 5)")
    made.add_argument("--sequences", type=int, default=3000)
    made.add_argument("--no-paper", action="store_true", help="leave out the paper's estimators")
    return made


def grid(options: argparse.Namespace) -> Iterator[Cell]:
    code = source()
    for kernel in options.kernels:
        for teacher in TEACHERS:
            for rank in options.ranks:
                for seed in range(options.seeds):
                    if kernel == "traceless" and rank < 2:
                        continue
                    yield {
                        "kernel": kernel,
                        "teacher": teacher,
                        "true_rank": rank,
                        "seed": seed,
                        "sequences": options.sequences,
                        "with_paper": kernel == "symmetric" and not options.no_paper,
                        "source": code,
                    }


def key(cell: Cell) -> tuple[Any, ...]:
    names = ("kernel", "teacher", "true_rank", "seed", "sequences", "with_paper", "source")
    return tuple(cell[name] for name in names)


def finished(path: Path) -> list[Cell]:
    if not path.exists():
        return []
    cells = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # an empty line, or half a one
            cells.append(json.loads(line))
    # A "+" is source code that no commit holds: two such cells need not be of the same.
    return [cell for cell in cells if not cell["source"].endswith("+")]


def measure(place: Cell) -> Cell:
    """All estimators on the file of one cell."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.h5"
        arguments = {
            "teacher": place["teacher"],
            "rank": place["true_rank"],
            "kernel": place["kernel"],
            "sequences": place["sequences"],
            "seed": place["seed"],
            "output": path,
        }
        line = [str(part) for name, value in arguments.items() for part in (f"--{name}", value)]
        with contextlib.redirect_stderr(io.StringIO()) as notes:
            if command_line(["generate", *line]) != 0:
                raise RuntimeError(notes.getvalue())
        with open_pairs(path) as pairs:
            start = time.perf_counter()
            # The mixer is read off the same fit, at no cost worth naming.
            result = rankprobe.estimate(pairs, estimators=("v-unknown", "realized-mixer"))
            seconds = time.perf_counter() - start
            truth = pairs.teacher()
            X, _, _ = pairs.read(slice(None))
        paper: dict[str, Any] = {}
        if place["with_paper"]:
            with open_pairs(path, v="/teacher/V") as pairs:
                known = rankprobe.estimate(pairs, estimators=("v-known", "v-unknown"), solver="paper")
            paper = known.to_dict()["estimates"]
    assert truth is not None
    main = result.to_dict()
    return {
        **{name: main[name] for name in ("rank", "rank_interval", "status", "energy_rank", "sequences_used")},
        "seconds": seconds,
        "true_energy_rank": energy_rank(truth["spectrum"]),
        "mixer": result.estimates["realized-mixer"].energy_rank,
        "mixer_closed_form": closed_form(place["teacher"], truth, X),
        "paper": {
            name: {"rank": one["rank"], "energy_rank": one["energy_rank"]} for name, one in paper.items()
        },
    }


def energy_rank(singular_values: Any) -> float:
    """exp H(σ²/Σσ²)."""
    p = np.square(singular_values) / np.square(singular_values).sum()
    p = p[p > 0]
    return float(np.exp(-(p * np.log(p)).sum()))


def closed_form(teacher: str, truth: dict[str, Any], X: Any) -> float | None:
    """Energy rank of aI + b11ᵀ; None where it is 0."""
    tokens = X.shape[1]
    K = truth["scale"] * truth["K"]
    if teacher == "linear_qk":
        a, b = float(np.trace(K)), 0.0  # E[x_tᵀ K x_s] for tokens N(0, I)
    else:
        logits = X @ K @ X.swapaxes(1, 2)
        A = np.exp(logits - logits.max(axis=-1, keepdims=True))
        mean = (A / A.sum(axis=-1, keepdims=True)).mean(axis=0)
        b = float((mean.sum() - np.trace(mean)) / (tokens * (tokens - 1)))
        a = float(np.trace(mean) / tokens) - b
    if abs(a) < 1e-12 and abs(b) < 1e-12:
        return None
    return energy_rank([a + tokens * b, *[a] * (tokens - 1)])


def report(cells: list[Cell]) -> bool:
    """Print the tables; True when every cell of every kernel holds the claim."""
    all_right = True
    for kernel in dict.fromkeys(cell["kernel"] for cell in cells):
        mine = [cell for cell in cells if cell["kernel"] == kernel]
        right = sum(cell["rank"] == cell["true_rank"] for cell in mine)
        close = sum(deviation(cell) <= TOLERANCE for cell in mine)
        all_right &= right == close == len(mine)
        print(f"{kernel} kernels: {right} of {len(mine)} integers right, ", end="")
        print(f"{close} of {len(mine)} energy ranks within {TOLERANCE}\n")
        print(table(*estimates(mine)), end="\n\n")
    symmetric = [cell for cell in cells if cell["paper"]]
    if symmetric:
        print(
            "The paper's estimators on the symmetric files: numerical rank (least to most over the seeds) and"
        )
        print("energy rank (mean over the seeds)\n")
        print(table(*papers(symmetric)), end="\n\n")
    print("Realized mixer: energy rank of the mean mixer (mean over the seeds), its closed form, and how far")
    print("the two are apart on one file, at most\n")
    print(table(*mixers(cells)))
    return all_right


def deviation(cell: Cell) -> float:
    found = cell["energy_rank"]
    return float("inf") if found is None else abs(found - cell["true_energy_rank"])


def groups(cells: list[Cell], *names: str) -> Iterator[tuple[list[Any], list[Cell]]]:
    """Cells that agree in ``names``, in the order of the grid."""
    for values in dict.fromkeys(tuple(cell[name] for name in names) for cell in cells):
        yield list(values), [cell for cell in cells if tuple(cell[name] for name in names) == values]


def estimates(cells: list[Cell]) -> tuple[list[str], list[list[str]]]:
    header = ["teacher", "r*", "right", "[r*, r*]", "identified", "energy rank", "exact", "most off", "used"]
    rows = []
    for (teacher, rank), group in groups(cells, "teacher", "true_rank"):
        of = len(group)
        rows.append(
            [
                teacher,
                str(rank),
                f"{sum(cell['rank'] == rank for cell in group)}/{of}",
                f"{sum(cell['rank_interval'] == [rank, rank] for cell in group)}/{of}",
                f"{sum(cell['status'] == 'identified' for cell in group)}/{of}",
                mean(group, lambda cell: cell["energy_rank"]),
                f"{group[0]['true_energy_rank']:.3f}",
                f"{max(map(deviation, group)):.4f}",
                str(max(cell["sequences_used"] for cell in group)),
                f"{statistics.median(cell['seconds'] for cell in group):.2f}",
            ]
        )
    return [*header, "seconds"], rows


def papers(cells: list[Cell]) -> tuple[list[str], list[list[str]]]:
    names = list(dict.fromkeys(name for cell in cells for name in cell["paper"]))
    header = ["teacher", "r*", *(f"{name} {what}" for name in names for what in ("rank", "energy rank"))]
    rows = []
    for (teacher, rank), group in groups(cells, "teacher", "true_rank"):
        row = [teacher, str(rank)]
        for name in names:
            found = sorted({cell["paper"][name]["rank"] for cell in group} - {None})
            row.append("–".join(dict.fromkeys(map(str, (found[0], found[-1])))) if found else "-")
            row.append(mean(group, lambda cell, name=name: cell["paper"][name]["energy_rank"]))  # type: ignore[misc]
        rows.append(row)
    return header, rows


def mixers(cells: list[Cell]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for (kernel, teacher, rank), group in groups(cells, "kernel", "teacher", "true_rank"):
        pairs = [(cell["mixer"], cell["mixer_closed_form"]) for cell in group]
        apart = [abs(found - form) for found, form in pairs if found is not None and form is not None]
        rows.append(
            [
                f"{kernel} {teacher}",
                str(rank),
                mean(group, lambda cell: cell["mixer"]),
                mean(group, lambda cell: cell["mixer_closed_form"]),
                f"{max(apart):.3f}" if apart else "-",
            ]
        )
    return ["kernel and teacher", "r*", "realized mixer", "closed form", "most apart"], rows


def mean(cells: list[Cell], value: Callable[[Cell], float | None]) -> str:
    found = [one for one in map(value, cells) if one is not None]
    return f"{statistics.fmean(found):.3f}" if found else "-"


if __name__ == "__main__":
    sys.exit(main())
