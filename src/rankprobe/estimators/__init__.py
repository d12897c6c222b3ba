"""Estimators of the query-key rank: one facade, one result type."""

from __future__ import annotations

from typing import Any

__all__ = ["estimate"]


def __getattr__(name: str) -> Any:
    # The facade loads numpy; the result type beside it must not.
    if name == "estimate":
        from rankprobe.estimators.facade import estimate

        return estimate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
