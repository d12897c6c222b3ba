"""Goodness of fit where the noise level is unknown: is what a fit leaves noise, or does it follow the tokens?

Noise is independent from token to token and of every token. Each test below has mean zero (or less, for the
parameters fitted) under that, whatever the distribution of the noise, and is scored by its own spread over
sequences, so that neither unequal nor correlated columns of Y count against a fit:

within : residuals of two tokens of a sequence are alike, more so for like tokens or for neighbours.
own, previous : the residual is linear in the token itself, in the token before.
magnitude : the residual follows |ŷ|, column by column: outputs passed a nonlinearity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.decision.noise import degrees_of_freedom
from rankprobe.solver import Fit
from rankprobe.solver.linearization import Block
from rankprobe.solver.parallel import map_blocks
from rankprobe.solver.problem import apply, contract, swap

Floats = npt.NDArray[np.float64]

MOST = 256
"""Sequences tested: what a misfit leaves is far above the limit on fewer."""

AMPLE = 8
"""Equations a parameter from which sums over sequences are tested: fewer make residuals alike."""

LEAST = 6
"""Sequences below which a spread over sequences says nothing."""


@dataclass(frozen=True)
class Structure:
    """Standard scores of the tests by name; none where there are too few sequences."""

    scores: dict[str, float]
    sequences: int

    @property
    def limit(self) -> float:
        """Score that noise does not reach (about once in a million), with few sequences' heavier tail."""
        return 6.5 * (1.0 + 9.0 / max(self.sequences, 1))

    @property
    def worst(self) -> str | None:
        """The test that fails most."""
        return max(self.scores, key=lambda name: self.scores[name]) if self.scores else None

    @property
    def found(self) -> bool:
        return self.worst is not None and self.scores[self.worst] > self.limit


def structure(fit: Fit) -> Structure:
    """All tests on the residual of ``fit``."""
    blocks: list[Block] = []
    for block in fit.lin.blocks:
        if sum(int(each.residual.shape[0]) for each in blocks) >= MOST:
            break
        blocks.append(block)
    sequences = sum(int(block.residual.shape[0]) for block in blocks)
    if sequences < LEAST or fit.rss <= 0:
        return Structure({}, sequences)
    turn = _even_columns(blocks)
    xp = array_namespace(turn)
    scores: dict[str, float] = {}

    def within(block: Block) -> tuple[Floats, ...]:
        R = xp.astype(block.residual, xp.float64) @ turn
        F = xp.astype(block.problem.value, xp.float64)
        length = int(R.shape[1])
        apart = 1.0 - xp.eye(length, dtype=R.dtype, device=R.device)
        products = (R @ swap(R)) * apart
        likeness = F @ swap(F)
        near = xp.eye(length, k=1, dtype=R.dtype, device=R.device)
        sums = (products, products * likeness, products * near)
        return tuple(np.asarray(xp.sum(each, axis=(1, 2)), dtype=float) for each in sums)

    for name, values in zip(
        ("together", "alike", "neighbours"), zip(*map_blocks(within, blocks), strict=True), strict=True
    ):
        scores[name] = mean_score(np.concatenate(values))
    regressors: dict[str, Callable[[Block], Array]] = {"own": _own, "previous": _previous}
    if fit.lin.problem.equations >= AMPLE * degrees_of_freedom(fit):
        for name, of in regressors.items():
            scores[name] = pair_score(_contributions(blocks, of, turn))
    scores["magnitude"] = pair_score(np.concatenate(map_blocks(_magnitude, blocks)))
    return Structure({name: score for name, score in scores.items() if math.isfinite(score)}, sequences)


def _own(block: Block) -> Array:
    return block.problem.value


def _previous(block: Block) -> Array:
    xp = array_namespace(block.residual)
    F = block.problem.value
    return xp.concat([0.0 * F[:, :1, :], F[:, :-1, :]], axis=1)


def _magnitude(block: Block) -> Floats:
    """Σ_t r |ŷ − mean ŷ| of each sequence, [m, d_v], with |ŷ| centred over the block."""
    xp = array_namespace(block.residual)
    fitted = block.problem.outputs - block.residual
    size = xp.abs(fitted - xp.mean(fitted, axis=(0, 1), keepdims=True))
    size = size - xp.mean(size, axis=(0, 1), keepdims=True)
    return np.asarray(xp.sum(size * block.residual, axis=1), dtype=float)


def _even_columns(blocks: list[Block]) -> Array:
    """[d_v, d_v] that makes the columns of the residual uncorrelated and alike in size."""
    xp = array_namespace(blocks[0].residual)
    parts = [xp.astype(block.residual, xp.float64) for block in blocks]
    moment = reduce(_add, map(contract, parts, parts))
    eigenvalues, vectors = xp.linalg.eigh(moment)
    floor = 1e-12 * float(eigenvalues[-1]) + 1e-300
    return vectors / xp.sqrt(xp.clip(eigenvalues, floor, None))


def _contributions(blocks: list[Block], of: Callable[[Block], Array], turn: Array) -> Floats:
    """Each sequence's share of Φᵀ R, [m, q d_v], for regressors Φ less what the value map explains."""
    xp = array_namespace(turn)

    def exact(array: Array) -> Array:
        return xp.astype(array, xp.float64)

    features = map_blocks(lambda block: exact(of(block)), blocks)
    if blocks[0].basis is not None:
        bases = map_blocks(lambda block: exact(block.basis), blocks)
        gram = reduce(_add, map(contract, bases, bases))
        # Directions that the value map does not see have no column in the basis.
        tiny = 1e-10 * xp.eye(gram.shape[0], dtype=gram.dtype, device=gram.device)
        weights = xp.linalg.solve(gram + tiny, reduce(_add, map(contract, bases, features)))
        features = [f - apply(basis, weights) for f, basis in zip(features, bases, strict=True)]
    moment = reduce(_add, map(contract, features, features))
    eigenvalues, vectors = xp.linalg.eigh(moment)
    scale = sum(float(xp.sum(block.problem.value**2)) for block in blocks) / int(eigenvalues.shape[0])
    keep = eigenvalues > 1e-6 * scale
    if not bool(xp.any(keep)):
        return np.zeros((0, 1))
    even = vectors[:, keep] / xp.sqrt(eigenvalues[keep])
    shares = [
        swap(apply(f, even)) @ (exact(block.residual) @ turn)
        for f, block in zip(features, blocks, strict=True)
    ]
    return np.concatenate([np.asarray(share, dtype=float).reshape(share.shape[0], -1) for share in shares])


def mean_score(values: Floats) -> float:
    """Student's t of a mean over sequences."""
    deviation = float(np.std(values, ddof=1))
    return float(np.mean(values)) * math.sqrt(len(values)) / deviation if deviation > 0 else math.nan


def pair_score(shares: Floats) -> float:
    """Whether shares [m, q] of independent sequences point one way: Σ_{i≠j}⟨g_i, g_j⟩ over its deviation."""
    products = shares @ shares.T
    np.fill_diagonal(products, 0.0)
    deviation = math.sqrt(2.0 * float(np.sum(products**2)))
    return float(np.sum(products)) / deviation if deviation > 0 else math.nan


def _add(left: Array, right: Array) -> Array:
    return left + right
