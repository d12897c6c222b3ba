"""``rankprobe sweep``: trained students of every rank, and where the noise floor is reached."""

# No annotations as strings here: Typer would evaluate those of a command three times a start.
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from rankprobe.cli.answer import label
from rankprobe.cli.exit_codes import ExitCode, worst
from rankprobe.cli.inputs import heads_of, opened
from rankprobe.cli.options import (
    DebugOption,
    DimOption,
    ExternalOption,
    FormatOption,
    HeadsOption,
    MaskOption,
    NanOption,
    QuietOption,
    StoredOption,
    TokensOption,
    XOption,
    YOption,
    environment,
    parse_heads,
)
from rankprobe.cli.output import Column, Record, Sink, short
from rankprobe.cli.progress import Meter
from rankprobe.cli.training import (
    AttentionOption,
    BiasOption,
    CausalOption,
    CheckpointOption,
    DeviceOption,
    FileArgument,
    HeadOption,
    HoldoutOption,
    InitOption,
    OptimizerOption,
    PatienceOption,
    RestartOption,
    ScaleOption,
    SeedOption,
    SeedsOption,
    SequencesOption,
    StepsOption,
    ThreadsOption,
    WhitenOption,
    at_least,
    checkpoint_of,
    provenance,
    resumable,
    saved_estimate,
    threads,
)
from rankprobe.errors import UsageError

COLUMNS = (
    Column("file"),
    Column("head", right=True, unless="empty"),
    Column("rank", right=True),
    Column("excess", right=True),
    Column("standard_error", right=True, rank=2),
    Column("excess_worst", right=True, rank=4),
    Column("curve_excess", right=True, unless="empty"),
    Column("curve_standard_error", right=True, rank=3, unless="empty"),
    Column("deficiency_bound", right=True, rank=5, unless="empty"),
    Column("achieved"),
    Column("effective_rank", right=True, rank=1),
    Column("energy_rank", right=True, rank=6),
    Column("loss", right=True, rank=7),
    Column("loss_heldout", right=True, rank=7, unless="empty"),
    Column("steps", right=True, rank=8),
    Column("seconds", right=True, rank=1),
    Column("transition", right=True, unless="table"),
)
"""A row is the best student of one rank; ``transition`` is the answer, the same in all."""


def sweep(
    context: typer.Context,
    file: FileArgument,
    x: XOption = None,
    y: YOption = None,
    mask: MaskOption = None,
    tokens: TokensOption = None,
    heads: HeadsOption = None,
    dim: DimOption = None,
    dtype: StoredOption = None,
    nan: NanOption = "error",
    allow_external: ExternalOption = False,
    head: HeadOption = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks",
            "-r",
            metavar="LIST",
            help="Ranks, as in 1-8,16.",
            show_default="1 to twice the estimate",
        ),
    ] = None,
    curve: Annotated[
        bool,
        typer.Option(
            "--curve", help="Set the curve of the estimate beside the students (saved, else made now)."
        ),
    ] = False,
    attention: AttentionOption = "auto",
    causal: CausalOption = None,
    bias: BiasOption = True,
    scale: ScaleOption = None,
    init: InitOption = 1.0,
    seeds: SeedsOption = 1,
    optimizer: OptimizerOption = "adam",
    steps: StepsOption = None,
    patience: PatienceOption = None,
    whiten: WhitenOption = False,
    device: DeviceOption = "cpu",
    sequences: SequencesOption = None,
    holdout: HoldoutOption = 0.0,
    checkpoint: CheckpointOption = None,
    restart: RestartOption = False,
    seed: SeedOption = 0,
    threads_: ThreadsOption = None,
    format_: FormatOption = "auto",
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Train a student of every rank and find the rank from which on the noise floor is reached.

    Excess is squared error a sequence beyond the floor σ²Td_v: positive below the true rank (deficiency),
    about zero from it on (achievability). Where the file does not note σ, the floor is what the largest rank
    leaves. With --curve the same excess from refits alone, without training, stands beside it.

    \b
    Examples:
      rankprobe sweep t.h5
      rankprobe sweep --ranks 1-8 --seeds 3 --curve --format json t.h5
      rankprobe sweep --head 4 --ranks 4,8,16 --whiten --holdout 0.2 --optimizer lbfgs layer2.h5
    """
    env = environment(context)
    at_least(seeds=(seeds, 1), seed=(seed, 0), steps=(steps, 1))
    opening = {
        "x": x, "y": y, "mask": mask, "tokens": tokens, "heads": heads, "dim": dim, "dtype": dtype,
        "nan": nan, "allow_external": allow_external,
    }  # fmt: skip
    wanted = _ranks(ranks)
    codes: list[ExitCode] = []
    sink = Sink(
        env,
        COLUMNS,
        format_=format_,
        quiet="rank" if quiet else None,
        rows=_rows,
        notes=lambda one: [_note(one)],
    )
    with threads(threads_) as used, sink, opened(env, file, opening) as pairs:
        import rankprobe
        from rankprobe.training import Schedule, prepare
        from rankprobe.training import sweep as trained

        schedule = Schedule.of(optimizer, steps, patience, adam_steps=1500)
        for each in heads_of(pairs, parse_heads(head), file):
            at = checkpoint_of(file, each, "sweep", checkpoint)
            prepared = prepare(
                pairs, head=each, attention=attention, causal="auto" if causal is None else causal, bias=bias,
                scale=scale, sequences=sequences, holdout=holdout, seed=seed,
            )  # fmt: skip
            with resumable(env, at), Meter(env, label(file, each)) as meter:
                estimate = None
                if curve or not wanted:
                    estimate = saved_estimate(file, each, curve=curve) or rankprobe.estimate(
                        pairs, head=each, attention=prepared.kind, causal=prepared.causal, bias=bias,
                        scale=prepared.scale, seed=seed, curve=curve, progress=meter,
                    ).to_dict()  # fmt: skip
                found = trained(
                    prepared,
                    wanted or _up_to_twice(estimate, label(file, each)),
                    schedule,
                    init=init,
                    seeds=range(seeds),
                    whiten=whiten,
                    device=device,
                    estimate=estimate,
                    checkpoint=at,
                    restart=restart,
                    progress=meter,
                )
                record = {**found.to_dict(), **provenance(env, file, each, pairs, used), "seed": seed}
                sink.add(record)
            codes.append(ExitCode.UNUSABLE if found.rank is None else ExitCode.OK)
            if quiet and codes[-1]:
                env.note(_note(record))
    return worst(codes)


def _ranks(text: str | None) -> list[int]:
    """Ranks of ``1-8,16``; [] for None."""
    try:
        found = parse_heads(text) or []
    except UsageError:
        found = [0]
    if 0 in found:
        raise UsageError(f"--ranks {text!r} is no list of ranks; write for example 1-8,16")
    return found


def _up_to_twice(estimate: dict[str, Any] | None, where: str) -> range:
    rank = (estimate or {}).get("rank")
    if rank is None:
        raise UsageError(f"{where}: the estimate gives no rank to sweep around; pass --ranks, as in 1-8")
    return range(1, 2 * max(int(rank), 1) + 1)


def _rows(record: Record) -> Iterator[Record]:
    for point in record["points"]:
        yield {"file": record["file"], "head": record["head"], **point, "transition": record["rank"]}


def _note(record: Record) -> str:
    told = f"transition at rank {short(record['rank'])}: {record['message']}"
    return f"{label(record['file'], record['head'])}: {told}"
