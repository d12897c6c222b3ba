"""Estimators of the query-key rank: one facade, one result type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankprobe.estimators.facade import estimate

__all__ = ["estimate"]


def __getattr__(name: str) -> Any:
    # The facade loads numpy; the result type beside it must not.
    if name == "estimate":
        from rankprobe.estimators import facade

        return facade.estimate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
