#!/usr/bin/env python3
"""The least data that gives the exact rank: softmax, V unknown, T = 16, d = 32, 20 seeds a point.

First in the number of sequences at σ = .05, beside the counting bound n T d_v ≥ r(2d − r) + d d_v and
the paper's n = 3000; then in σ at n = 300, beside the noise at which the last singular value meets the edge
of its noise, where a spectral outlier is lost.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from _report import heading, source, table

import rankprobe

T, D = 16, 32
RANKS = (1, 2, 3, 4, 6, 8)
SIZES = (8, 10, 12, 14, 17, 20)
NOISES = (0.5, 0.7, 1.0, 1.4, 2.0)
FEWEST, SIGMA, MANY = 19, 0.05, 300

Job = tuple[int, int, float, int]


def measure(job: Job) -> dict[str, Any]:
    rank, n, noise, seed = job
    teacher = rankprobe.make_teacher("softmax_qk", rank, T, D, D, noise=noise, seed=seed)
    X, Y = next(iter(teacher.blocks(n, n)))[:2]
    answer = rankprobe.estimate(X, Y, attention="softmax", causal=False, scale=teacher.scale)
    values = answer.singular_values
    return {
        "job": [*job],
        "rank": answer.rank,
        "status": str(answer.status),
        # How far the least counted value stands above the edge: at 1 it is lost.
        "margin": values[rank - 1] / answer.noise_edge if len(values) >= rank and answer.noise_edge else None,
        "source": source(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--part", choices=("sequences", "noise", "both"), default="both")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--finished", type=Path, default=Path(__file__).with_suffix(".jsonl"), metavar="FILE")
    options = parser.parse_args()
    current, done = source(), {}
    if options.finished.exists():
        for line in options.finished.read_text().splitlines():
            run = json.loads(line) if line.endswith("}") else {}
            if run.get("source") == current:
                done[tuple(run["job"])] = run
    points: list[tuple[int, int, float]] = []
    if options.part != "noise":
        points += [(rank, n, SIGMA) for rank in RANKS for n in SIZES]
    if options.part != "sequences":
        points += [(rank, MANY, noise) for rank in RANKS for noise in NOISES]
    jobs = [(*point, seed) for point in points for seed in range(options.seeds)]
    with options.finished.open("a") as file, ProcessPoolExecutor(options.processes) as pool:
        for run in pool.map(measure, [job for job in jobs if job not in done], chunksize=4):
            done[tuple(run["job"])] = run
            file.write(json.dumps(run) + "\n")
            file.flush()

    def right(rank: int, n: int, noise: float) -> tuple[int, int]:
        runs = [done[rank, n, noise, seed] for seed in range(options.seeds)]
        exact = [run for run in runs if run["rank"] == rank]
        return len(exact), sum(run["status"] == "identified" and run["rank"] != rank for run in runs)

    def cell(rank: int, n: int, noise: float) -> str:
        exact, wrong = right(rank, n, noise)
        return f"{exact}" + (f" ({wrong} wrong)" if wrong else "")

    needed = math.ceil(FEWEST / 20 * options.seeds)
    print(heading("scipy"))
    if options.part != "noise":
        print(f"\nExact rank in … of {options.seeds} seeds, σ = {SIGMA}\n")
        rows = []
        for rank in RANKS:
            enough = [n for n in SIZES if all(right(rank, m, SIGMA)[0] >= needed for m in SIZES if m >= n)]
            bound = math.ceil((rank * (2 * D - rank) + D * D) / (T * D))
            least = str(min(enough, default="–"))
            rows.append([str(rank), *(cell(rank, n, SIGMA) for n in SIZES), least, str(bound), "3000"])
        print(table(["r*", *(f"n={n}" for n in SIZES), "least n", "counting", "paper"], rows))
    if options.part != "sequences":
        print(f"\nExact rank in … of {options.seeds} seeds, n = {MANY}\n")
        rows = []
        for rank in RANKS:
            enough = [s for s in NOISES if all(right(rank, MANY, t)[0] >= needed for t in NOISES if t <= s)]
            margins = [done[rank, MANY, NOISES[0], seed]["margin"] for seed in range(options.seeds)]
            known = sorted(margin for margin in margins if margin)
            edge = f"{NOISES[0] * known[len(known) // 2]:.2g}" if known else "–"
            most = str(max(enough, default="–"))
            rows.append([str(rank), *(cell(rank, MANY, s) for s in NOISES), most, edge])
        print(table(["r*", *(f"σ={s:g}" for s in NOISES), "most σ", "σ at edge"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
