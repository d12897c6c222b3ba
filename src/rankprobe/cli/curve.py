"""``rankprobe estimate --curve``: its rows, its panel, and the figure of ``--plot``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rankprobe.cli.answer import label
from rankprobe.cli.output import Column, Record, short
from rankprobe.errors import DataError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS = (
    Column("file"),
    Column("head", right=True, unless="empty"),
    Column("estimator", unless="same"),
    Column("rank", right=True),
    Column("excess", right=True),
    Column("standard_error", right=True),
    Column("parameters", right=True, rank=1),
    Column(
        "explained", right=True, rank=2, show=lambda value: short(None) if value is None else f"{value:.6f}"
    ),
    Column("kl_bound", right=True, rank=3, unless="empty"),
    Column("decided", rank=4),
    Column("rank_at_tolerance", right=True, rank=5, unless="empty"),
    Column("status", rank=6),
    Column("message", unless="table"),
)
"""Columns of table and TSV with a curve; a row is one rank of one estimator's curve on one head."""

FIGURES = (".png", ".pdf", ".svg")


def rows(record: Record) -> Iterator[Record]:
    """One row a rank; one without numbers where there is no curve."""
    for name, answer in record["estimates"].items():
        common = {
            "file": record["file"],
            "head": record["head"],
            "estimator": name,
            "status": answer["status"],
            "message": answer["message"],
            "rank_at_tolerance": answer["rank_at_tolerance"],
        }
        if answer["curve"] is None:
            yield common
            continue
        for point in answer["curve"]["points"]:
            yield {**common, **point, "decided": point["rank"] == answer["rank"]}


def panel(record: Record) -> RenderableType:
    """What a terminal shows below the curve of a single result."""
    from rich.panel import Panel

    lines = [str(record["message"])] if record["message"] else []
    curve = record["curve"]
    if curve is not None:
        counted = f"{curve['sequences_heldout']} sequences the refits have not seen ({curve['heldout']})"
        lines.append(f"noise  {curve['floor']:.4g} a sequence, counted on {counted}")
    if record["rank_at_tolerance"] is not None:
        low, high = record["rank_at_tolerance_interval"]
        least = f"{record['rank_at_tolerance']}, 95 % interval [{low}, {high}]"
        lines.append(f"excess ≤ {record['tolerance']:.4g}  least rank {least}")
    return Panel("\n".join(lines), title=str(record["status"]), title_align="left", expand=False)


def check_figure(path: str, *, force: bool) -> None:
    """Refuse a figure that could not be written, before any work is done."""
    from rankprobe.figures import require_matplotlib

    if Path(path).suffix.lower() not in FIGURES:
        raise UsageError(f"--plot {path}: the name must end in {', '.join(FIGURES[:-1])} or {FIGURES[-1]}")
    if not force and Path(path).exists():
        raise DataError(f"{path}: exists; pass --force to replace it")
    require_matplotlib()


def save_figure(path: str, records: Sequence[Record], *, force: bool) -> bool:
    """Draw all curves of ``records`` into one file (the old one or the new one, whole); False without any."""
    from rankprobe.data import replacing
    from rankprobe.figures import save_curve

    drawn = [record for record in records if record["curve"] is not None]
    if not drawn:
        return False
    names = [label(record["file"], record["head"]) for record in drawn]
    with replacing(path, force=force) as temporary:
        save_curve(drawn, temporary, Path(path).suffix[1:].lower(), names if len(drawn) > 1 else None)
    return True
