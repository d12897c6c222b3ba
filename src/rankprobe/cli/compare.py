"""``rankprobe compare``: teacher, estimates and recoveries of one file in one table."""

# No annotations as strings here: Typer would evaluate those of a command three times a start.
from collections.abc import Iterator
from typing import Any

import typer

from rankprobe.cli.answer import interval
from rankprobe.cli.exit_codes import ExitCode
from rankprobe.cli.inputs import opened
from rankprobe.cli.options import (
    DebugOption,
    ExternalOption,
    FormatOption,
    QuietOption,
    environment,
)
from rankprobe.cli.output import Column, Record, Sink
from rankprobe.cli.training import FileArgument
from rankprobe.errors import DataError

COLUMNS = (
    Column("source"),
    Column("name"),
    Column("head", right=True, unless="empty"),
    Column("rank", right=True),
    Column("rank_interval", show=interval),
    Column("effective_rank", right=True, rank=1),
    Column("energy_rank", right=True),
    Column("stable_rank", right=True, rank=2),
    Column("noise_sigma", right=True, rank=4, unless="empty"),
    Column("loss", right=True, rank=5, unless="empty"),
    Column("status"),
    Column("seconds", right=True, rank=3, unless="empty"),
)
"""A row is one source of a rank: the truth, an estimate, a student."""


def compare(
    context: typer.Context,
    file: FileArgument,
    allow_external: ExternalOption = False,
    format_: FormatOption = "auto",
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Set the teacher of a file, its saved estimates and its saved recoveries side by side.

    Measures of estimates and students are of the spectrum above the noise edge. Estimates are saved by
    estimate --save, recoveries by train-recover --save; the teacher is what generate keeps under /teacher.

    \b
    Examples:
      rankprobe compare t.h5
      rankprobe compare --format tsv t.h5
    """
    from rankprobe.data import read_results, split_path

    env = environment(context)
    with opened(env, file, {"allow_external": allow_external}) as pairs:
        truth = pairs.teacher()
    group = split_path(file)[1]
    rows = list(_teacher(truth)) if truth is not None else []
    if file != "-":
        rows += [row for record in read_results(file) if _here(record, group) for row in _estimates(record)]
        kept = read_results(file, home="recovery")
        rows += [row for record in kept if _here(record, group) for row in _recoveries(record)]
    if not rows:
        raise DataError(f"{file}: holds no teacher, estimate or recovery; run estimate --save first")
    with Sink(env, COLUMNS, format_=format_, quiet="rank" if quiet else None) as sink:
        for row in rows:
            sink.add(row)
    return ExitCode.OK


def _here(record: Record, group: str) -> bool:
    """Whether a saved result is of the pair that was named."""
    from rankprobe.data import split_path

    return split_path(str(record.get("file")))[1] == group


def _teacher(truth: Record) -> Iterator[Record]:
    """One row a head of the teacher: its part that the tokens can show."""
    import numpy as np

    from rankprobe import spectra

    spectra_of = np.atleast_2d(
        np.asarray(truth.get("visible_spectrum", truth.get("spectrum", ())), dtype=float)
    )
    heads = range(len(spectra_of)) if np.ndim(truth.get("visible_spectrum", ())) == 2 else [None]
    for head, values in zip(heads, spectra_of, strict=True):
        rank = spectra.numerical_rank(values, 1e-9)
        yield {
            "source": "teacher",
            "name": truth.get("kind"),
            "head": head,
            "rank": rank,
            "effective_rank": spectra.effective_rank(values),
            "energy_rank": spectra.energy_rank(values),
            "stable_rank": spectra.stable_rank(values),
            "noise_sigma": truth.get("noise_sigma"),
            "status": "truth",
        }


def _estimates(record: dict[str, Any]) -> Iterator[Record]:
    names = ("rank", "rank_interval", "effective_rank", "energy_rank", "stable_rank", "noise_sigma", "status")
    for name, answer in record.get("estimates", {}).items():
        yield {
            "source": "estimate",
            "name": name if answer.get("solver") == "gauss-newton" else f"{name} ({answer.get('solver')})",
            "head": record.get("head"),
            **{each: answer.get(each) for each in names},
        }


def _recoveries(record: dict[str, Any]) -> Iterator[Record]:
    for student in record.get("students", ()):
        cut = student.get("rank") is not None
        upper = [student["rank"], student["rank_upper"]] if cut else None
        yield {
            "source": "recovery",
            "name": f"{record.get('student')} {record.get('optimizer')}, seed {student.get('seed')}",
            "head": record.get("head"),
            "rank": student.get("rank"),
            "rank_interval": upper,
            "effective_rank": student.get("effective_rank_cut" if cut else "effective_rank"),
            "energy_rank": student.get("energy_rank_cut" if cut else "energy_rank"),
            "stable_rank": student.get("stable_rank"),
            "loss": student.get("loss"),
            "status": record.get("verdict"),
            "seconds": student.get("seconds"),
        }
