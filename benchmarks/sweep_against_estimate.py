#!/usr/bin/env python3
"""The whole command ``rankprobe estimate FILE`` against a rank sweep of trained students, on the same file.

The sweep is the one of the paper's Table 3: for r = 1 … 2r*, a student W_Q, W_K ∈ R^{d×r} with its value
map V free, the teacher's link and scale, Adam with learning rate 1e-2, full batch, 1500 steps. Its time is
that of the steps alone: starting Python, importing torch and reading the file are not counted. The command's
time is all of it, from the start of the process to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from _report import heading, table

from rankprobe.data import open_pairs

LEARNING_RATE = 1e-2


@dataclass
class Task:
    """What a student is trained on."""

    X: torch.Tensor
    Y: torch.Tensor
    softmax: bool
    scale: float
    floor: float
    """σ²·T·d_v: the squared error of a sequence that noise alone leaves."""


def main() -> int:
    options = parser().parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    measured = min(options.steps_measured or options.steps, options.steps)
    print(heading("scipy", "torch"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.h5"
        generate = ["--teacher", options.teacher, "--rank", options.rank, "-n", options.sequences]
        command("generate", *generate, "--seed", options.seed, "-o", path)
        print(f"{options.teacher}, r* = {options.rank}, n = {options.sequences}, seed {options.seed}\n")

        threads = ["--threads", options.threads] if options.threads else []
        seconds, answer = [], {}
        for _ in range(options.repeats):
            start = time.perf_counter()
            answer = json.loads(command("estimate", path, "--format", "json", *threads))["results"][0]
            seconds.append(time.perf_counter() - start)
        estimate = statistics.median(seconds)
        print("rankprobe estimate FILE --format json, the whole process")
        print(f"  rank {answer['rank']}, interval {answer['rank_interval']}, {answer['status']}")
        runs = ", ".join(f"{one:.2f}" for one in seconds)
        print(f"  seconds {runs}; median {estimate:.2f}; {answer['threads']} threads\n", flush=True)

        task = load(path)
    print(f"students, {options.steps} steps of Adam each; {torch.get_num_threads()} threads")
    rows, total = [], 0.0
    for rank in range(1, 2 * options.rank + 1):
        spent, loss = train(task, rank, measured, options.seed)
        spent *= options.steps / measured
        total += spent
        risk = f"{loss - task.floor:.4f}" if measured == options.steps else "-"
        rows.append([f"r = {rank}", f"{spent:.1f}", risk])
        print(f"  r = {rank} done", file=sys.stderr)
    print(table(["student", "seconds", "excess risk"], rows))
    if measured < options.steps:
        print(
            f"EXTRAPOLATED: only {measured} of {options.steps} steps of each student were run; "
            "their time was multiplied, and no excess risk is known"
        )
    print(f"\nsweep {total:.1f} s, command {estimate:.2f} s: ratio {total / estimate:.0f}")
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="rankprobe estimate against a sweep of trained students.")
    made.add_argument("--teacher", choices=("softmax_qk", "linear_qk"), default="softmax_qk")
    made.add_argument("--rank", type=int, default=4, help="r* (default: 4); students of rank 1 to 2r*")
    made.add_argument("--sequences", type=int, default=3000)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--steps", type=int, default=1500, help="steps of a student (default: 1500)")
    made.add_argument(
        "--steps-measured", type=int, metavar="N", help="run N steps of each and extrapolate (default: all)"
    )
    made.add_argument("--repeats", type=int, default=5, help="runs of the command (default: 5)")
    made.add_argument("--threads", type=int, help="threads of both sides (default: all cores)")
    return made


def command(*arguments: object) -> str:
    """Standard output of ``rankprobe ARGUMENTS``."""
    line = [sys.executable, "-m", "rankprobe", *map(str, arguments)]
    # As after an installation, which compiles the modules once.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, env=kept).stdout


def load(path: Path) -> Task:
    with open_pairs(path) as pairs:
        X, Y, _ = pairs.read(slice(None))
        facts = pairs.attributes
    return Task(
        X=torch.from_numpy(X).float(),
        Y=torch.from_numpy(Y).float(),
        softmax=facts["attention"] == "softmax",
        scale=facts["scale"],
        floor=facts["noise_sigma"] ** 2 * Y.shape[1] * Y.shape[2],
    )


def train(task: Task, rank: int, steps: int, seed: int) -> tuple[float, float]:
    """Seconds that ``steps`` steps of one student took, and its squared error per sequence after them."""
    generator = torch.Generator().manual_seed(seed)
    d, d_v = task.X.shape[2], task.Y.shape[2]
    W_Q, W_K, V = (
        (torch.randn(d, width, generator=generator) / d**0.5).requires_grad_() for width in (rank, rank, d_v)
    )
    optimizer = torch.optim.Adam([W_Q, W_K, V], lr=LEARNING_RATE)

    def error() -> torch.Tensor:
        logits = (task.X @ (task.scale * W_Q)) @ (task.X @ W_K).mT
        mixer = torch.softmax(logits, dim=-1) if task.softmax else logits
        return (mixer @ (task.X @ V) - task.Y).square().sum(dim=(1, 2)).mean()

    start = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        error().backward()
        optimizer.step()
    spent = time.perf_counter() - start
    with torch.no_grad():
        return spent, float(error())


if __name__ == "__main__":
    sys.exit(main())
