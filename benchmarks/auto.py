#!/usr/bin/env python3
"""Link and mask told from (X, Y) alone: files of both links, causal and not, five shapes, five seeds.

Each is a generated file without its attributes. Right is the map and the rank; "cannot tell" counts apart.
Then maps that nothing tells apart: uniform attention (linear of rank 1 too), and outputs of noise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
from _report import heading, table

import rankprobe
from rankprobe.data import open_pairs, write_pairs

SHAPES = ((300, 16, 16, 2), (400, 12, 24, 4), (300, 24, 16, 3), (600, 8, 16, 2), (500, 16, 32, 6))
"""Sequences, tokens, d = d_v, r*."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--noise", type=float, default=0.05)
    options = parser.parse_args()
    print(heading())
    rows, right, files = [], 0, 0
    for (n, tokens, dim, rank), link, causal in product(SHAPES, ("softmax", "linear"), (False, True)):
        found: Counter[str] = Counter()
        for seed in range(options.seeds):
            teacher = rankprobe.make_teacher(
                f"{link}_qk", rank, tokens, dim, dim, noise=options.noise, causal=causal, seed=seed
            )
            answer = ask(*next(iter(teacher.blocks(n, n)))[:2])
            if "cannot tell" in answer.message:
                found["cannot tell"] += 1
            elif (answer.attention, answer.causal) != (link, causal):
                found["wrong map"] += 1
            else:
                found[
                    "right rank" if answer.rank == rank else f"right map, {answer.status} {answer.rank}"
                ] += 1
                right += 1
            files += 1
        name = f"{link}{', causal' if causal else ''}"
        outcomes = ", ".join(f"{count} {what}" for what, count in found.items())
        rows.append([name, str(n), str(tokens), str(dim), str(rank), outcomes])
    print(table(["map", "n", "T", "d", "r*", "outcome"], rows))
    print(f"\nlink and mask right in {right} of {files} files\n")
    guessed = 0
    for seed in range(options.seeds):
        teacher = rankprobe.make_teacher("softmax_qk", 0, 16, 16, 16, noise=options.noise, seed=seed)
        X, Y = next(iter(teacher.blocks(300, 300)))[:2]
        noise = np.random.default_rng(seed).standard_normal(Y.shape)
        for name, outputs in (("uniform", Y), ("noise", noise)):
            answer = ask(X, outputs)
            guessed += answer.rank not in (None, 0)
            print(f"{name}, seed {seed}: {answer.status}: {answer.message}")
    return 0 if right == files and not guessed else 1


def ask(X: np.ndarray, Y: np.ndarray) -> rankprobe.Result:
    """The answer for a file that says nothing but X and Y."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.h5"
        n, tokens, dim = X.shape
        write_pairs(path, [(X, Y)], sequences=n, tokens=tokens, dim=dim, value_dim=Y.shape[2])
        with open_pairs(path) as pairs:
            return rankprobe.estimate(pairs)


if __name__ == "__main__":
    sys.exit(main())
