"""rankprobe: the intrinsic query-key rank of attention, from inputs and outputs alone.

Names are loaded on first use, so that ``import rankprobe`` (and the command line's help) stays free of numpy,
scipy, h5py and torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankprobe.errors import DataError, MissingDependencyError, RankprobeError, UsageError

if TYPE_CHECKING:
    from rankprobe.data import open_pairs, write_pairs
    from rankprobe.estimators import estimate
    from rankprobe.estimators.result import Estimate, Result, Status
    from rankprobe.teachers import Teacher, make_teacher

__version__ = "0.1.0"

__all__ = [
    "DataError",
    "Estimate",
    "MissingDependencyError",
    "RankprobeError",
    "Result",
    "Status",
    "Teacher",
    "UsageError",
    "__version__",
    "estimate",
    "make_teacher",
    "open_pairs",
    "write_pairs",
]

_HOMES = {
    "Estimate": "rankprobe.estimators.result",
    "Result": "rankprobe.estimators.result",
    "Status": "rankprobe.estimators.result",
    "Teacher": "rankprobe.teachers",
    "estimate": "rankprobe.estimators",
    "make_teacher": "rankprobe.teachers",
    "open_pairs": "rankprobe.data",
    "write_pairs": "rankprobe.data",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
