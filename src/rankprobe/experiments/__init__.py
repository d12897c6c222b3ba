"""The paper's tables, rebuilt: its values and ours side by side, cell by cell into a file to resume from.

``reproduce`` runs one table; a table is a module ``table<n>`` that names its cells, runs one, and makes rows
of their results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankprobe.experiments.run import reproduce

__all__ = ["reproduce"]


def __getattr__(name: str) -> Any:
    if name == "reproduce":
        from rankprobe.experiments import run
        from rankprobe.training import require_torch

        require_torch()
        return run.reproduce
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
