"""``rankprobe ladder``: which architecture still solves a fixed-operator target, and which does not."""

# No annotations as strings here: Typer would evaluate those of a command three times a start.
import platform
import shlex
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from rankprobe.cli.exit_codes import ExitCode
from rankprobe.cli.inputs import opened
from rankprobe.cli.options import DebugOption, FormatOption, environment
from rankprobe.cli.output import Column, Record, Sink
from rankprobe.cli.progress import Meter
from rankprobe.cli.training import (
    DeviceOption,
    OptimizerOption,
    PatienceOption,
    SeedsOption,
    StepsOption,
    ThreadsOption,
    at_least,
    threads,
)

COLUMNS = (
    Column("rung"),
    Column("student"),
    Column("rank", right=True),
    Column("excess", right=True),
    Column("excess_worst", right=True, unless="same"),
    Column("explained", right=True, show=lambda value: f"{value:.4f}"),
    Column("solves"),
    Column("steps", right=True, rank=2),
    Column("seconds", right=True, rank=1),
    Column("breaks", unless="table"),
)
"""A row is the best student of one architecture; ``breaks`` is the answer, the same in all."""


def ladder(
    context: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="HDF5 file of (X, Y) to climb on.",
            show_default="a fixed-operator target, made from the options",
        ),
    ] = None,
    rank: Annotated[int, typer.Option("--rank", "-r", help="Rank of the students, and of the target.")] = 3,
    tokens: Annotated[int, typer.Option("--tokens", "-T", help="Tokens of a sequence of the target.")] = 12,
    dim: Annotated[int, typer.Option("--dim", "-d", help="Features of a token of the target.")] = 10,
    sequences: Annotated[int, typer.Option("--sequences", "-n", help="Number of sequences.")] = 3000,
    noise: Annotated[float, typer.Option(help="Standard deviation of the target's noise.")] = 0.05,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the target, or of the sample.")] = 0,
    seeds: SeedsOption = 1,
    optimizer: OptimizerOption = "adam",
    steps: StepsOption = None,
    patience: PatienceOption = None,
    device: DeviceOption = "cpu",
    threads_: ThreadsOption = None,
    format_: FormatOption = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the rung that breaks.")] = False,
    debug: DebugOption = False,
) -> int:
    """Train the ladder of architectures on one target and name the rung where it breaks.

    B0 fixed operator, B1 linear QK, B1c linear with a full kernel, B2 softmax QK, B3 a softmax block with
    residual, LayerNorm and feed-forward layer. The target is Y = A X V + E with one A [T, T] for all
    sequences, unless a file is given.

    \b
    Examples:
      rankprobe ladder
      rankprobe ladder --optimizer lbfgs --format json
      rankprobe ladder --rank 4 --seeds 3 t.h5
    """
    env = environment(context)
    at_least(seeds=(seeds, 1), rank=(rank, 1), seed=(seed, 0), steps=(steps, 1), sequences=(sequences, 1))
    sink = Sink(
        env,
        COLUMNS,
        format_=format_,
        quiet="breaks" if quiet else None,
        rows=_rows,
        notes=lambda record: [record["message"]],
    )
    with threads(threads_) as used, sink:
        import torch

        import rankprobe
        from rankprobe.training import Schedule, climb, prepare

        schedule = Schedule.of(optimizer, steps, patience, adam_steps=1500)
        if file is None:
            target = rankprobe.make_teacher("fixed_operator", rank, tokens, dim, noise=noise, seed=seed)
            X, Y = next(iter(target.blocks(sequences, sequences)))[:2]
            # The paper scales every student's scores by 1/√d.
            pairs = prepare(
                X, Y, attention="fixed_operator", bias=False, scale=dim**-0.5, sigma=noise, seed=seed
            )
        else:
            with opened(env, file, {}) as read:
                pairs = prepare(read, attention="auto", bias=False, sequences=sequences, seed=seed)
        with Meter(env, file or "fixed operator") as meter:
            found = climb(pairs, rank, schedule, seeds=range(seeds), device=device, progress=meter)
        facts: dict[str, Any] = {
            "file": file,
            "command": shlex.join(["rankprobe", *env.argv]),
            "threads": used,
            "seed": seed,
            "versions": {
                "rankprobe": rankprobe.__version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
        }
        sink.add({**found.to_dict(), **facts})
    return ExitCode.OK


def _rows(record: Record) -> Iterator[Record]:
    for rung in record["rungs"]:
        yield {**rung, "breaks": record["breaks"]}
