"""What ``rankprobe estimate`` shows of an answer: its row and its panel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rankprobe.cli.output import Column, Record, short

if TYPE_CHECKING:
    from rich.console import RenderableType


def interval(value: Any) -> str:
    return f"[{value[0]}, {value[1]}]" if value else short(None)


def _fit(value: Any) -> str:
    return short(value) if value is None else f"{value:.6f}"


COLUMNS = (
    Column("file"),
    Column("head", right=True, unless="empty"),
    Column("estimator", unless="same"),
    Column("rank", right=True),
    Column("interval", show=interval),
    Column("status"),
    Column("energy_rank", right=True, rank=3),
    Column("energy_rank_data", right=True, rank=6),
    Column("r2_heldout", right=True, rank=4, show=_fit),
    Column("noise_sigma", right=True, rank=7),
    Column("attention", rank=5),
    Column("causal", rank=8),
    Column("sequences_used", right=True, rank=9),
    Column("message", unless="table"),
)
"""Columns of table and TSV; a row is one estimator's answer on one head."""


def rows(record: Record) -> Iterator[Record]:
    """One row an estimator."""
    for name, answer in record["estimates"].items():
        yield {
            **answer,
            "file": record["file"],
            "head": record["head"],
            "estimator": name,
            "interval": answer["rank_interval"],
        }


def label(file: str, head: int | None) -> str:
    """The head as messages name it."""
    return file if head is None else f"{file}, head {head}"


def reason(record: Record) -> str:
    """Why the answer of ``record`` is what it is, in one line."""
    return f"{label(record['file'], record['head'])}: {record['status']}: {record['message']}"


def notes(record: Record) -> Iterator[str]:
    """What a table of several answers says beneath: the reason of each that is not identified."""
    for name, answer in record["estimates"].items():
        if answer["status"] != "identified":
            who = f"{record['file']}, {name}" if len(record["estimates"]) > 1 else record["file"]
            yield reason({**answer, "file": who, "head": record["head"]})


def panel(record: Record) -> RenderableType:
    """What a terminal shows below the table for a single result."""
    from rich.panel import Panel

    values = record["singular_values"]
    lines = [str(record["message"])] if record["message"] else []
    if values:
        more = f" … ({len(values)} in all)" if len(values) > 10 else ""
        lines.append("singular values  " + "  ".join(f"{value:.4g}" for value in values[:10]) + more)
    if record["noise_edge"] is not None:
        lines.append(f"noise edge       {record['noise_edge']:.4g}")
    return Panel("\n".join(lines), title=str(record["status"]), title_align="left", expand=False)
