#!/usr/bin/env python3
"""Calibration: how often an answer is right, wrong, or withheld, over data sizes, noise, ranks and links.

Cells: n ∈ {14, 20, 50, 300} sequences, σ ∈ {.05, .5}, r* ∈ {0, 1, 3, 8}, both links, kernels symmetric and
asymmetric in turn; T = 16, d = 32, V unknown. Wrong: identified with another integer. Over: a rank above r*,
identified or as a bound. Covered: r* in the interval, where one is given. Energy: the teacher's energy rank
in its interval, where r* > 1 was identified (at r* = 1 it is 1).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from _report import heading, source, table

import rankprobe
from rankprobe.spectra import energy_rank

SIZES, NOISES, RANKS, LINKS = (14, 20, 50, 300), (0.05, 0.5), (0, 1, 3, 8), ("softmax", "linear")
KERNELS = "symmetric", "asymmetric"

Cell = tuple[int, float, int, str, str]


def cells() -> Iterator[Cell]:
    """Every n, σ and r*; links and kernels in turn, so that each meets each."""
    for a, n in enumerate(SIZES):
        for b, noise in enumerate(NOISES):
            for c, rank in enumerate(RANKS):
                yield n, noise, rank, LINKS[(a + b + c) % 2], KERNELS[(a // 2 + b + c // 2) % 2]


def measure(job: tuple[Cell, int]) -> dict[str, Any]:
    (n, noise, rank, link, kernel), seed = job
    teacher = rankprobe.make_teacher(f"{link}_qk", rank, 16, 32, 32, kernel=kernel, noise=noise, seed=seed)
    X, Y = next(iter(teacher.blocks(n, n)))[:2]
    began = time.perf_counter()
    answer = rankprobe.estimate(X, Y, attention=link, causal=False, scale=teacher.scale)
    return {
        "cell": [n, noise, rank, link, kernel],
        "seed": seed,
        "status": str(answer.status),
        "rank": answer.rank,
        "interval": answer.rank_interval,
        "energy_rank": answer.energy_rank,
        "energy_interval": answer.energy_rank_interval,
        "energy_true": energy_rank(teacher.visible_spectrum()),
        "seconds": time.perf_counter() - began,
        "source": source(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="runs a cell (default: 100)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--finished", type=Path, default=Path(__file__).with_suffix(".jsonl"), metavar="FILE")
    options = parser.parse_args()
    current = source()
    done: dict[tuple[Any, ...], dict[str, Any]] = {}
    if options.finished.exists():
        for line in options.finished.read_text().splitlines():
            run = json.loads(line) if line.endswith("}") else {}
            if run.get("source") == current:
                done[(*run["cell"], run["seed"])] = run
    jobs = [(cell, seed) for seed in range(options.runs) for cell in cells() if (*cell, seed) not in done]
    with options.finished.open("a") as file, ProcessPoolExecutor(options.processes) as pool:
        for count, run in enumerate(pool.map(measure, jobs, chunksize=4), 1):
            done[(*run["cell"], run["seed"])] = run
            file.write(json.dumps(run) + "\n")
            if count % 64 == 0:
                file.flush()
                print(f"{count} of {len(jobs)}", file=sys.stderr)
    print(heading("scipy"))
    return report([run for run in done.values() if run["seed"] < options.runs])


def report(runs: list[dict[str, Any]]) -> int:
    by_cell: dict[Cell, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        by_cell[tuple(run["cell"])].append(run)
    rows, worst = [], 0
    total: dict[str, int] = defaultdict(int)
    for cell in cells():
        group = by_cell[cell]
        count: dict[str, int] = defaultdict(int)
        for run in group:
            count["runs"] += 1
            count[run["status"]] += 1
            identified = run["status"] == "identified"
            count["right"] += identified and run["rank"] == cell[2]
            count["wrong"] += identified and run["rank"] != cell[2]
            usable = run["status"] in ("identified", "lower_bound")
            count["over"] += usable and run["rank"] > cell[2]
            if usable:
                count["given"] += 1
                count["covered"] += run["interval"][0] <= cell[2] <= run["interval"][1]
            if identified and run["rank"] == cell[2] > 1:
                count["energies"] += 1
                low, high = run["energy_interval"]
                count["energy"] += low <= run["energy_true"] <= high
        for name, value in count.items():
            total[name] += value
        worst = max(worst, count["wrong"])
        seconds = sum(run["seconds"] for run in group) / max(len(group), 1)
        rows.append([*_row(" ".join(map(str, cell)), count), f"{seconds:.2f}"])
    rows.append([*_row("all", total), ""])
    names = [
        "n sigma r* link kernel",
        "runs",
        "right",
        "wrong",
        "over",
        "bound",
        "withheld",
        "covered",
        "energy",
        "s",
    ]
    print(table(names, rows))
    print(f"\nidentified and wrong: {total['wrong']} of {total['runs']}; most in a cell: {worst}")
    return 0 if total["wrong"] <= 0.01 * total["runs"] and worst <= 3 else 1


def _row(name: str, count: dict[str, int]) -> list[str]:
    withheld = count["runs"] - count["identified"] - count["lower_bound"]
    covered = f"{count['covered']}/{count['given']}"
    cells = [count["runs"], count["right"], count["wrong"], count["over"], count["lower_bound"], withheld]
    return [name, *map(str, cells), covered, f"{count['energy']}/{count['energies']}"]


if __name__ == "__main__":
    sys.exit(main())
