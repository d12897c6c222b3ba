"""``rankprobe train-recover``: what training recovers from a file, beside the estimate."""

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
    check_save,
    checkpoint_of,
    provenance,
    resumable,
    saved_estimate,
    threads,
)

COLUMNS = (
    Column("file"),
    Column("head", right=True, unless="empty"),
    Column("source"),
    Column("rank", right=True),
    Column("effective_rank", right=True),
    Column("effective_rank_corrected", right=True, rank=5, unless="empty"),
    Column("effective_rank_cut", right=True, rank=2, unless="empty"),
    Column("energy_rank", right=True),
    Column("energy_rank_cut", right=True, rank=4, unless="empty"),
    Column("stable_rank", right=True, rank=6),
    Column("loss", right=True),
    Column("loss_over_floor", right=True, rank=1, unless="empty"),
    Column("loss_heldout", right=True, rank=3, unless="empty"),
    Column("steps", right=True, rank=7, unless="empty"),
    Column("stopped", rank=8, unless="empty"),
    Column("seconds", right=True, rank=2),
    Column("verdict", unless="table"),
    Column("message", unless="table"),
)
"""A row is one student; the last is the estimate."""


def train_recover(
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
    attention: AttentionOption = "auto",
    causal: CausalOption = None,
    bias: BiasOption = True,
    scale: ScaleOption = None,
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank", "-r", help="Rank that students may have.", show_default="d, over-parameterized"
        ),
    ] = None,
    init: InitOption = 0.3,
    seeds: SeedsOption = 3,
    optimizer: OptimizerOption = "adam",
    steps: StepsOption = None,
    patience: PatienceOption = None,
    whiten: WhitenOption = False,
    device: DeviceOption = "cpu",
    sequences: SequencesOption = None,
    holdout: HoldoutOption = 0.0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Make the estimate anew, although one is saved in the file.")
    ] = False,
    curve: Annotated[
        bool, typer.Option("--curve", help="Compare the loss with the estimate's curve at the same rank too.")
    ] = False,
    checkpoint: CheckpointOption = None,
    restart: RestartOption = False,
    seed: SeedOption = 0,
    threads_: ThreadsOption = None,
    save: Annotated[
        bool, typer.Option("--save", help="Append the results to the file, under /recovery.")
    ] = False,
    format_: FormatOption = "auto",
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Train over-parameterized students on a file and measure the kernel they learn.

    Students of the map's own kind start from small weights (Adam, learning rate 1e-2, 2500 full-batch steps
    unless the loss comes to rest). Their kernels are counted as the estimate counts: singular values above
    the noise simulated at the solution. The estimate beside them is the one saved in the file, else made now.

    \b
    Examples:
      rankprobe train-recover t.h5
      rankprobe train-recover --optimizer lbfgs --seeds 5 --save --format json t.h5
      rankprobe train-recover --head 4 --whiten --rank 16 --holdout 0.2 --curve layer2.h5
    """
    env = environment(context)
    at_least(seeds=(seeds, 1), rank=(rank, 1), seed=(seed, 0), steps=(steps, 1))
    check_save(file, save)
    opening = {
        "x": x, "y": y, "mask": mask, "tokens": tokens, "heads": heads, "dim": dim, "dtype": dtype,
        "nan": nan, "allow_external": allow_external,
    }  # fmt: skip
    codes: list[ExitCode] = []
    records: list[Record] = []
    sink = Sink(
        env,
        COLUMNS,
        format_=format_,
        quiet="rank" if quiet else None,
        rows=_rows,
        notes=lambda one: [note(one)],
    )
    with threads(threads_) as used, sink, opened(env, file, opening) as pairs:
        from rankprobe.training import Schedule, prepare, recover
        from rankprobe.training.recovery import Verdict

        schedule = Schedule.of(optimizer, steps, patience, adam_steps=2500)
        for each in heads_of(pairs, parse_heads(head), file):
            at = checkpoint_of(file, each, "train-recover", checkpoint)
            prepared = prepare(
                pairs, head=each, attention=attention, causal="auto" if causal is None else causal, bias=bias,
                scale=scale, sequences=sequences, holdout=holdout, seed=seed,
            )  # fmt: skip
            with resumable(env, at), Meter(env, label(file, each)) as meter:
                found = recover(
                    prepared,
                    schedule,
                    rank=rank,
                    init=init,
                    seeds=range(seeds),
                    whiten=whiten,
                    device=device,
                    estimate=None if fresh else saved_estimate(file, each, curve=curve),
                    curve=curve,
                    checkpoint=at,
                    restart=restart,
                    progress=meter,
                )
                record = {**found.to_dict(), **provenance(env, file, each, pairs, used), "seed": seed}
                sink.add(record)
                records.append(record)
                if save:
                    from rankprobe.data import save_results

                    save_results(file, [record], home="recovery")
            codes.append(ExitCode.OK if Verdict(found.verdict).usable else ExitCode.UNUSABLE)
            if quiet and codes[-1]:
                env.note(note(record))
    return worst(codes)


def _rows(record: Record) -> Iterator[Record]:
    common = {name: record[name] for name in ("file", "head", "verdict", "message")}
    for student in record["students"]:
        yield {**common, **student, "source": f"student {student['seed']}"}
    estimate: dict[str, Any] = dict(record["estimate"] or {})
    yield {
        **common,
        "source": "estimate",
        "rank": estimate.get("rank"),
        # The estimate's measures are of the spectrum cut at its noise edge.
        "effective_rank_cut": estimate.get("effective_rank"),
        "energy_rank_cut": estimate.get("energy_rank"),
        "stable_rank": estimate.get("stable_rank"),
        "loss": record["loss_at_rank"],
        "seconds": record["estimate_seconds"],
    }


def note(record: Record) -> str:
    """The verdict in one line."""
    spread = ""
    if record["effective_rank_cv"] is not None:
        mean = f"{short(record['effective_rank'])} ({record['effective_rank_cv']:.2%} over seeds)"
        spread = f"; effective rank {mean}"
    return f"{label(record['file'], record['head'])}: {record['verdict']}: {record['message']}{spread}"
