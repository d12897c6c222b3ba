"""Students trained by gradient descent on the same (X, Y): what training recovers, beside the estimate.

Needs PyTorch (extra ``train``), which is loaded when something is trained and not before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankprobe.errors import MissingDependencyError

if TYPE_CHECKING:
    from rankprobe.training.data import prepare
    from rankprobe.training.ladder import climb
    from rankprobe.training.optimize import Schedule
    from rankprobe.training.rank_sweep import sweep
    from rankprobe.training.recovery import recover

__all__ = ["Schedule", "climb", "prepare", "recover", "require_torch", "sweep"]

_HOMES = {
    "Schedule": "optimize",
    "climb": "ladder",
    "prepare": "data",
    "recover": "recovery",
    "sweep": "rank_sweep",
}


def require_torch() -> None:
    """Raise :class:`MissingDependencyError` unless PyTorch can be imported."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "training needs PyTorch; install it with: pip install 'rankprobe[train]'"
        ) from None


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_torch()
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
