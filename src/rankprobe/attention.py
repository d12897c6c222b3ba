"""The class of maps: A = link(scale · L + mask), Y = A X V, and the derivatives of its mixer.

Every part that needs attention — teachers, solver, estimators, students — goes through this file; a new
link or mask is added here and nowhere else. Functions accept any array library of the array API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rankprobe.arrays import array_namespace

Array = Any
"""An array of any library that follows the array API (numpy, torch)."""

Link = Literal["softmax", "linear"]


@dataclass(frozen=True)
class Attention:
    """An attention map up to its logits: how they become a mixer, and what each query may see.

    Parameters
    ----------
    link : ``softmax`` over the visible keys of a row, or ``linear`` (the logits are the mixer).
    causal : a query sees only keys at its own position and before.
    """

    link: Link = "softmax"
    causal: bool = False

    def visible(self, like: Array, tokens: int, mask: Array | None = None) -> Array | None:
        """Which keys (last axis) each query (second to last) may see; None when all may.

        ``mask`` [n, T] is true at real tokens; a padded query sees nothing. ``like`` gives the array
        library and device. Returns a boolean array [n or 1, T, T].
        """
        xp = array_namespace(like)
        seen = None
        if self.causal:
            seen = xp.tril(xp.ones((1, tokens, tokens), dtype=xp.int8, device=like.device)) > 0
        if mask is not None:
            pairs = mask[:, :, None] & mask[:, None, :]
            seen = pairs if seen is None else seen & pairs
        return seen

    def mixer(self, logits: Array, visible: Array | None = None) -> Array:
        """A from logits [n, T, T]; rows that see no key are zero."""
        xp = array_namespace(logits)
        if self.link == "linear":
            return logits if visible is None else xp.where(visible, logits, xp.zeros_like(logits))
        if visible is not None:
            # A finite floor, not -inf: a row without any visible key must not become inf - inf.
            logits = xp.where(visible, logits, xp.full_like(logits, xp.finfo(logits.dtype).min / 4))
        weights = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
        if visible is not None:
            weights = xp.where(visible, weights, xp.zeros_like(weights))
        total = xp.sum(weights, axis=-1, keepdims=True)
        if visible is not None:
            total = xp.where(total > 0, total, xp.ones_like(total))
        return weights / total

    def push(self, A: Array, logits: Array, visible: Array | None = None) -> Array:
        """δA for a change of the logits (both [n, T, T]): softmax A∘(δL − rowsum(A∘δL)), linear δL."""
        xp = array_namespace(A)
        if self.link == "linear":
            return self.mixer(logits, visible)
        weighted = A * logits
        return weighted - A * xp.sum(weighted, axis=-1, keepdims=True)

    def pull(self, A: Array, gradient: Array, visible: Array | None = None) -> Array:
        """Adjoint of :meth:`push` at A; it is its own adjoint, row by row, for both links."""
        return self.push(A, gradient, visible)
