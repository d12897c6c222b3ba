"""``rankprobe estimate``: the rank of every head in the files given."""

# No annotations as strings here: Typer would evaluate those of a command three times a start.
import contextlib
import shlex
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rankprobe.cli import answer
from rankprobe.cli import curve as view
from rankprobe.cli.environment import ClosedOutputError, Environment
from rankprobe.cli.exit_codes import ExitCode, worst
from rankprobe.cli.failures import report
from rankprobe.cli.inputs import heads_of, held_threads, is_stdin, opened
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
    VOption,
    XOption,
    YOption,
    environment,
    parse_heads,
    parse_size,
)
from rankprobe.cli.output import Format, Record, Sink
from rankprobe.cli.progress import Meter
from rankprobe.errors import DataError, UsageError

SolverName = Literal["gauss-newton", "paper"]
AttentionName = Literal["auto", "softmax", "linear", "fixed_operator"]


class EstimatorName(StrEnum):  # a list option cannot be of a Literal
    """Names of the estimators, and ``all`` that the file allows."""

    V_UNKNOWN = "v-unknown"
    V_KNOWN = "v-known"
    REALIZED_MIXER = "realized-mixer"
    ALL = "all"


def estimate(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="HDF5 files of (X, Y); FILE::/group reads from that group, - reads standard input.",
        ),
    ],
    x: XOption = None,
    y: YOption = None,
    v: VOption = None,
    mask: MaskOption = None,
    tokens: TokensOption = None,
    heads: HeadsOption = None,
    dim: DimOption = None,
    dtype: StoredOption = None,
    nan: NanOption = "error",
    allow_external: ExternalOption = False,
    head: Annotated[
        str | None, typer.Option("--head", metavar="LIST", show_default="all", help="Heads, as in 0,3-5.")
    ] = None,
    estimator: Annotated[
        list[EstimatorName] | None,
        typer.Option(
            "--estimator",
            show_default="v-unknown",
            help="May be given several times; the first is the answer.",
        ),
    ] = None,
    solver: Annotated[
        SolverName, typer.Option(help="The joint Gauss-Newton solver, or the entropic-bound paper's own.")
    ] = "gauss-newton",
    attention: Annotated[
        AttentionName,
        typer.Option(
            help="Link of the map; auto: from the file's attributes, else decided on held-out data."
        ),
    ] = "auto",
    causal: Annotated[
        bool | None,
        typer.Option(
            "--causal/--no-causal", show_default="auto", help="Whether tokens see only earlier ones."
        ),
    ] = None,
    bias: Annotated[
        bool, typer.Option("--bias/--no-bias", help="Fit query, key and value biases too.")
    ] = True,
    residual: Annotated[
        bool,
        typer.Option("--residual/--no-residual", help="Y also holds the token itself, as after a skip."),
    ] = False,
    scale: Annotated[
        float | None,
        typer.Option(help="Factor on the scores, divided out of K.", show_default="the file's, else 1"),
    ] = None,
    max_rank: Annotated[
        int | None, typer.Option("--max-rank", help="Look no further than this rank.")
    ] = None,
    curve: Annotated[
        bool,
        typer.Option("--curve", help="Give the excess risk of every rank up to a little past the answer."),
    ] = False,
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="E",
            help="Give the least rank with excess risk (squared error a sequence beyond noise) at most E; "
            "with a percent sign E is a share of the variance that can be explained. Implies --curve.",
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot", metavar="FILE", help="Draw the curve and the spectrum (png, pdf, svg). Implies --curve."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of subsamples, splits and probes.")] = 0,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Memory budget for data, as in 512M or 2G.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Threads of the linear algebra.", show_default="all cores")
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Append the results to each file, under /estimates.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the results to this HDF5 file instead."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Let -o and --plot replace an existing file.")
    ] = False,
    format_: FormatOption = "auto",
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Estimate the query-key rank of attention heads from files.

    X holds the tokens [n, T, d], Y the attention outputs [n, T, d_v], or [n, H, T, d_h] for H heads. Each
    head of each file gives one result. A file that cannot be used is reported and the others go on; the exit
    code is then the first of 1, 5, 2, 3, 4 that occurred.

    \b
    Examples:
      rankprobe estimate t.h5
      rankprobe estimate --head 0,3-5 --format json layer2.h5
      rankprobe estimate acts.h5::/l3 --x hidden_states --y attn_out --mask attention_mask
      rankprobe estimate runs.h5 --x 'seq_*/hidden' --y 'seq_*/attn_out'
      rankprobe generate -o - | rankprobe estimate - -q
      rankprobe estimate --estimator all --v /teacher/V t.h5
      rankprobe estimate --tolerance 1% --plot curve.pdf t.h5
    """
    env = environment(context)
    options: dict[str, Any] = {
        "estimators": tuple(dict.fromkeys(map(str, estimator or [EstimatorName.V_UNKNOWN]))),
        "solver": solver,
        "attention": attention,
        "causal": "auto" if causal is None else causal,
        "bias": bias,
        "residual": residual,
        "scale": scale,
        "max_rank": max_rank,
        "curve": curve or tolerance is not None or plot is not None,
        "tolerance": tolerance,
        "seed": seed,
        "memory": parse_size(memory),
    }
    opening = {
        "x": x,
        "y": y,
        "v": v,
        "mask": mask,
        "tokens": tokens,
        "heads": heads,
        "dim": dim,
        "dtype": dtype,
        "nan": nan,
        "allow_external": allow_external,
    }
    wanted = parse_heads(head)
    for name, value, least in (("threads", threads, 1), ("max-rank", max_rank, 0), ("seed", seed, 0)):
        if value is not None and value < least:
            raise UsageError(f"--{name} must be at least {least}, not {value}")
    _check(env, files, save=save, output=output, force=force)
    if tolerance is not None:
        from rankprobe.estimators.tolerance import Tolerance

        Tolerance.of(tolerance)  # refused now, not once a file
    if plot is not None:
        view.check_figure(plot, force=force)

    from rankprobe.estimators.result import Status

    codes: list[ExitCode] = []
    run: str | None = None
    drawn: list[Record] = []
    sink = _sink(env, format_, quiet, curve=options["curve"], tolerance=tolerance)
    with sink, held_threads(threads) as used:
        for file in files:
            records: list[Record] = []
            for record in _estimate_file(env, file, opening, wanted, options, used, codes):
                sink.add(record)
                if record is None:
                    continue
                records.append(record)
                if not Status(record["status"]).usable:
                    codes.append(ExitCode.UNUSABLE)
                    if quiet:
                        env.note(answer.reason(record))
            drawn += records if plot is not None else []
            if records and (save or output is not None):
                from rankprobe.data import save_results

                # File by file, so that what an interrupt costs is one file's results.
                with _reported(env, codes):
                    if output is None:
                        save_results(file, records)
                    else:
                        run = save_results(output, records, run=run, replace=force and run is None)
    if plot is not None:
        with _reported(env, codes):
            if not view.save_figure(plot, drawn, force=force):
                env.note(f"{plot}: not written, as no answer has a curve")
    return worst(codes)


def _sink(env: Environment, format_: Format, quiet: bool, *, curve: bool, tolerance: str | None) -> Sink:
    """Where answers go: a row an estimator, or with a curve a row a rank; quiet prints what was asked for."""
    value = None
    if quiet:
        value = "rank" if tolerance is None else "rank_at_tolerance"
    shown = view if curve else answer
    return Sink(
        env,
        shown.COLUMNS,
        format_=format_,
        quiet=value,
        rows=shown.rows,
        panel=shown.panel,
        notes=answer.notes,
    )


@contextlib.contextmanager
def _reported(env: Environment, codes: list[ExitCode]) -> Iterator[None]:
    """Report an error here and go on: the next file may be sound."""
    try:
        yield
    except ClosedOutputError:
        raise
    except Exception as error:
        codes.append(report(env, error))


def _check(
    env: Environment,
    files: list[str],
    *,
    save: bool,
    output: str | None,
    force: bool,
) -> None:
    """Refuse what cannot end well before any work is done."""
    stdin = [file for file in files if is_stdin(file)]
    if len(stdin) > 1:
        raise UsageError("standard input can be read once only; name - once")
    if stdin and save:
        raise UsageError("--save cannot append to standard input; pass -o FILE")
    if save and output is not None:
        raise UsageError("--save and -o exclude each other; pass one of them")
    if output == "-":
        raise UsageError("-o names an HDF5 file; what goes to standard output is chosen with --format")
    if output is not None:
        target = Path(output)
        if any(not is_stdin(file) and Path(file).exists() and _same(target, Path(file)) for file in files):
            raise UsageError(f"-o {output} is an input file; pass --save to append to it")
        if target.exists() and not force:
            raise DataError(f"{output}: exists; pass --force to replace it")


def _same(one: Path, other: Path) -> bool:
    return one.exists() and one.samefile(other)


def _estimate_file(
    env: Environment,
    file: str,
    opening: Mapping[str, Any],
    wanted: list[int] | None,
    options: Mapping[str, Any],
    threads: int,
    codes: list[ExitCode],
) -> Iterator[Record | None]:
    """One record a head of ``file``; None for each that an error, which is reported, leaves without."""
    import rankprobe

    left = 1 if wanted is None else len(wanted)
    with _reported(env, codes), opened(env, file, opening) as pairs:
        heads = heads_of(pairs, wanted, file)
        left = len(heads)
        for head in heads:
            with Meter(env, answer.label(file, head)) as meter:
                result = rankprobe.estimate(pairs, head=head, progress=meter, **options)
            left -= 1
            yield {
                **result.to_dict(),
                "file": file,
                "head": head,
                "command": shlex.join(["rankprobe", *env.argv]),
                "threads": threads,
            }
    yield from [None] * left
