"""Figures of a curve, from plain records as ``estimate --format json`` writes them; needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from rankprobe.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = Mapping[str, Any]

SIGNAL, LIMIT, GUIDE = "#0072B2", "#D55E00", "0.45"
"""Colours that differ for colour-blind readers and in print."""

SCORE = 1.96
"""Error bars of 95 %."""

_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.0,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


def require_matplotlib() -> None:
    """Raise :class:`MissingDependencyError` unless matplotlib can be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "figures need matplotlib; install it with: pip install 'rankprobe[plot]'"
        ) from None


def save_curve(
    records: Sequence[Record], path: str | PathLike[str], kind: str, names: Sequence[str] | None = None
) -> None:
    """Draw one row a record: excess risk against rank on the left, the spectrum with its noise edge right.

    Parameters
    ----------
    records : results with a ``curve`` (``Result.to_dict()``, or a result of the JSON output).
    path, kind : where to, and ``png``, ``pdf`` or ``svg``.
    names : a title for each row.
    """
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # No pyplot: the caller's backend and open figures are not touched.
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.75, 2.5 * len(records)), layout="constrained")
        axes = figure.subplots(len(records), 2, squeeze=False)
        for (left, right), record in zip(axes, records, strict=True):
            _curve(left, record)
            _spectrum(right, record)
        for (left, _), name in zip(axes, names or [], strict=False):
            left.set_title(name, loc="left", parse_math=False)
        figure.savefig(path, format=kind)


def _curve(axes: Axes, record: Record) -> None:
    curve = record["curve"]
    points = curve["points"]
    above = [point for point in points if point["excess"] > SCORE * point["standard_error"]]
    zero = [point for point in points if point not in above and point["standard_error"] > 0]
    if above:
        axes.set_yscale("log")
    axes.errorbar(
        [point["rank"] for point in above],
        [point["excess"] for point in above],
        [SCORE * point["standard_error"] for point in above],
        fmt="o-",
        color=SIGNAL,
        markersize=3.5,
        capsize=2,
        label="excess risk, 95 % bars",
    )
    if zero:
        axes.plot(
            [point["rank"] for point in zero],
            [max(point["excess"], 0.0) + SCORE * point["standard_error"] for point in zero],
            "v",
            color=SIGNAL,
            markerfacecolor="white",
            markersize=4.5,
            label="zero within its bar (upper end)",
        )
    axes.axhline(curve["floor"], color=GUIDE, linestyle=":", label="noise")
    if record["tolerance"]:
        axes.axhline(record["tolerance"], color=LIMIT, linestyle="--", label="tolerance")
    axes.axvline(record["rank"], color="0.8", linewidth=0.6, zorder=0)
    axes.annotate(
        f"rank {record['rank']}",
        (record["rank"], 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(2, -1),
        textcoords="offset points",
        va="top",
        color=GUIDE,
    )
    _ranks(axes, 0, points[-1]["rank"])
    axes.set_xlabel("rank r")
    axes.set_ylabel("excess risk per sequence")
    # A falling curve leaves this corner free.
    axes.legend(loc="lower left" if above else "best", fontsize=7)


def _spectrum(axes: Axes, record: Record) -> None:
    values = record["curve"]["singular_values"]
    kept = record["rank"]
    if values and values[-1] > 0 and values[0] > 20 * values[-1]:
        axes.set_yscale("log")
    numbers = list(range(1, len(values) + 1))
    axes.plot(numbers[:kept], values[:kept], "o", color=SIGNAL, markersize=3.5, label="kernel")
    if values[kept:]:
        axes.plot(
            numbers[kept:],
            values[kept:],
            "o",
            color=SIGNAL,
            markerfacecolor="white",
            markersize=3.5,
            label="beyond the rank",
        )
    if record["noise_edge"] is not None:
        axes.axhline(record["noise_edge"], color=LIMIT, linestyle="--", label="noise edge")
    _ranks(axes, 1, len(values))
    axes.set_xlabel("index")
    axes.set_ylabel("singular value of K")
    axes.legend(loc="lower left" if axes.get_yscale() == "log" else "best", fontsize=7)


def _ranks(axes: Axes, first: int, last: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(first - 0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
