#!/usr/bin/env python3
"""The excess risk at rank r* − 1 from ``--curve``, without training, against students trained at that rank.

Cells of the paper's grid: both teachers, r* ∈ {2, 4, 8}, n = 3000. A student has W_Q, W_K ∈ R^{d×r} and V
free, the teacher's link and scale; Adam as in the paper (learning rate 1e-2, full batch, 1500 steps), then
L-BFGS in float64 until 50 iterations lower the loss by less than 1e-6 of it; the best of several random
starts counts. Its excess risk is the paper's: squared error a sequence on what it was trained on less σ²Td,
and beside it the same on as many fresh sequences. The claim: the curve is within 10 % of the student, and
zero within its error bar (95 % for all cells together) at r*.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from _report import heading, source, table

import rankprobe

TEACHERS = ("softmax_qk", "linear_qk")
PAPER = {
    "softmax_qk": {2: 1.95, 3: 2.63, 4: 2.32, 6: 2.51, 8: 2.53},
    "linear_qk": {2: 438.78, 3: 578.38, 4: 455.23, 6: 446.90, 8: 436.34},
}
"""Table 3, excess at r* − 1."""

CLOSE = 0.10
LEARNING_RATE, ROUND, SETTLED = 1e-2, 50, 1e-6

Cell = dict[str, Any]


def main() -> int:
    options = parser().parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    wanted = list(jobs(options))
    done = {key(job): job for job in finished(options.cells)}
    with options.cells.open("a") as file:
        if file.tell():
            file.write("\n")  # after half a line of a run that was stopped
        for job in wanted:
            if key(job) in done:
                continue
            measured = {**job, **(estimate(job) if job["restart"] is None else train(job))}
            done[key(job)] = measured
            file.write(json.dumps(measured) + "\n")
            file.flush()
            print(*key(job)[:3], job["restart"], f"{measured['excess']:.4f}", file=sys.stderr)
    print(heading("scipy", "torch"))
    return 0 if report([done[key(job)] for job in wanted], options) else 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="Excess risk from the curve against trained students.")
    made.add_argument("--cells", type=Path, default=Path("curve.jsonl"), metavar="FILE", help="finished jobs")
    made.add_argument("--teachers", nargs="+", choices=TEACHERS, default=list(TEACHERS))
    made.add_argument("--ranks", nargs="+", type=int, default=[2, 4, 8])
    made.add_argument("--seeds", type=int, default=1, help="seeds 0 to N − 1 (default: 1)")
    made.add_argument("--restarts", type=int, default=3, help="students a cell (default: 3)")
    made.add_argument("--sequences", type=int, default=3000)
    made.add_argument("--tokens", type=int, default=16)
    made.add_argument("--dim", type=int, default=32)
    made.add_argument("--steps", type=int, default=1500, help="steps of Adam (default: 1500)")
    made.add_argument("--rounds", type=int, default=40, help="most rounds of L-BFGS (default: 40)")
    made.add_argument("--threads", type=int, help="threads of the students (default: all cores)")
    return made


def jobs(options: argparse.Namespace) -> Iterator[Cell]:
    """The curve of every cell, and its students; students depend on the teachers' code alone."""
    for teacher in options.teachers:
        for rank in options.ranks:
            for seed in range(options.seeds):
                cell = {"teacher": teacher, "true_rank": rank, "seed": seed}
                cell |= {name: getattr(options, name) for name in ("sequences", "tokens", "dim")}
                yield {**cell, "restart": None, "steps": None, "rounds": None, "source": source()}
                for restart in range(options.restarts):
                    student = {"restart": restart, "steps": options.steps, "rounds": options.rounds}
                    yield {**cell, **student, "source": source("src/rankprobe/teachers.py")}


def key(job: Cell) -> tuple[Any, ...]:
    names = ("teacher", "true_rank", "seed", "sequences", "tokens", "dim", "restart", "steps", "rounds")
    return tuple(job[name] for name in (*names, "source"))


def finished(path: Path) -> list[Cell]:
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # an empty line, or half a one
            found.append(json.loads(line))
    # A "+" is source code that no commit holds: two such jobs need not be of the same.
    return [job for job in found if not job["source"].endswith("+")]


def data(job: Cell, sequences: int) -> tuple[rankprobe.Teacher, Any, Any]:
    teacher = rankprobe.make_teacher(
        job["teacher"], job["true_rank"], job["tokens"], job["dim"], job["dim"], seed=job["seed"]
    )
    X, Y = next(iter(teacher.blocks(sequences, sequences)))[:2]
    return teacher, X, Y


def estimate(job: Cell) -> Cell:
    """The curve at r* − 1 and r*."""
    teacher, X, Y = data(job, job["sequences"])
    link = job["teacher"].removesuffix("_qk")
    began = time.perf_counter()
    answer = rankprobe.estimate(X, Y, attention=link, causal=False, scale=teacher.scale, curve=True)
    seconds = time.perf_counter() - began
    points = answer.curve.points if answer.curve is not None else ()
    if len(points) <= job["true_rank"]:
        return {
            "rank": answer.rank,
            "excess": float("nan"),
            "error": None,
            "at_rank": None,
            "seconds": seconds,
        }
    below, at = points[job["true_rank"] - 1], points[job["true_rank"]]
    return {
        "rank": answer.rank,
        "excess": below.excess,
        "error": below.standard_error,
        "at_rank": [at.excess, at.standard_error],
        "seconds": seconds,
    }


def train(job: Cell) -> Cell:
    """A student of rank r* − 1, on the sequences of the curve and on as many fresh ones."""
    n, d, rank = job["sequences"], job["dim"], job["true_rank"] - 1
    teacher, X, Y = data(job, 2 * n)
    floor = teacher.noise**2 * job["tokens"] * d
    generator = torch.Generator().manual_seed(1000 * job["seed"] + job["restart"])
    first = [torch.randn(d, width, generator=generator) / d**0.5 for width in (rank, rank, d)]

    def error(parts: list[torch.Tensor], tokens: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        W_Q, W_K, V = parts
        logits = (tokens @ (teacher.scale * W_Q)) @ (tokens @ W_K).mT
        mixer = torch.softmax(logits, dim=-1) if job["teacher"] == "softmax_qk" else logits
        return (mixer @ (tokens @ V) - outputs).square().sum(dim=(1, 2)).mean()

    began = time.perf_counter()
    tokens, outputs = (torch.from_numpy(array[:n]).float() for array in (X, Y))
    parts = [part.requires_grad_() for part in first]
    adam = torch.optim.Adam(parts, lr=LEARNING_RATE)
    for _ in range(job["steps"]):
        adam.zero_grad()
        error(parts, tokens, outputs).backward()
        adam.step()
    tokens, outputs = (torch.from_numpy(array[:n]) for array in (X, Y))
    parts = [part.detach().double().requires_grad_() for part in parts]
    after_adam = loss = float(error(parts, tokens, outputs).detach())
    newton = torch.optim.LBFGS(
        parts, max_iter=ROUND, tolerance_grad=0.0, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        newton.zero_grad()
        value = error(parts, tokens, outputs)
        value.backward()
        return value

    settled = False
    for _ in range(job["rounds"]):
        newton.step(closure)
        with torch.no_grad():
            before, loss = loss, float(error(parts, tokens, outputs))
        if before - loss < SETTLED * loss:
            settled = True
            break
    with torch.no_grad():
        fresh = float(error(parts, torch.from_numpy(X[n:]), torch.from_numpy(Y[n:])))
    return {
        "excess": loss - floor,
        "after_adam": after_adam - floor,
        "fresh": fresh - floor,
        "settled": settled,
        "seconds": time.perf_counter() - began,
    }


def report(done: list[Cell], options: argparse.Namespace) -> bool:
    """Print the table; True when every cell holds the claim."""
    rows, all_right = [], True
    places = [job for job in done if job["restart"] is None]
    # 95 % for all cells together.
    score = NormalDist().inv_cdf(1.0 - 0.025 / len(places))
    for curve in places:
        same = ("teacher", "true_rank", "seed")
        students = [
            job
            for job in done
            if job["restart"] is not None and all(job[name] == curve[name] for name in same)
        ]
        best = min(students, key=lambda job: job["excess"])
        apart = curve["excess"] / best["excess"] - 1.0
        at, bar = curve["at_rank"] or (float("nan"), 0.0)
        right = abs(apart) <= CLOSE and abs(at) <= score * bar
        all_right &= bool(right)
        theirs = (options.tokens, options.dim) == (16, 32)
        paper = PAPER[curve["teacher"]].get(curve["true_rank"]) if theirs else None
        rows.append(
            [
                f"{curve['teacher']} r* = {curve['true_rank']}",
                str(curve["seed"]),
                f"{curve['excess']:.3f}",
                f"{curve['error'] or np.nan:.3f}",
                f"{best['excess']:.3f}",
                f"{best['fresh']:.3f}",
                f"{100 * apart:+.1f} %",
                f"{max(job['excess'] for job in students):.3f}",
                f"{sum(job['settled'] for job in students)}/{len(students)}",
                "-" if paper is None else f"{paper:.2f}",
                f"{at:.5f}",
                f"{bar:.5f}",
                f"{curve['seconds']:.1f}",
                f"{sum(job['seconds'] for job in students):.0f}",
            ]
        )
    header = ["teacher", "seed", "curve", "± 1 SE", "student", "fresh", "apart", "worst start", "settled"]
    header += ["paper", "at r*", "± 1 SE", "curve s", "students s"]
    print(f"Excess risk at r* − 1, n = {options.sequences}; students: best of {options.restarts} starts.")
    print("The paper's figures are of its own draws of teachers.\n")
    print(table(header, rows))
    return all_right


if __name__ == "__main__":
    sys.exit(main())
