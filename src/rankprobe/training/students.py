"""Students: attention maps with trainable parts, several trained side by side as one stack of tensors.

    B0   A X V,                        A = P Qᵀ on positions     (fixed operator)
    B1   (X P)(X Q)ᵀ X V                                         (linear QK)
    B1c  X K Xᵀ X V,                   K full
    B2   softmax((X P)(X Q)ᵀ) X V                                (softmax QK)
    B3   B2 on normalised tokens, with residual, LayerNorm, feed-forward layer and a read-out

One forward pass serves them all: features of queries, keys and values (tokens, or one-hot positions), a
kernel P Qᵀ or K on them, and :class:`rankprobe.attention.Attention` in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rankprobe.estimators.model import Kind
from rankprobe.solver import Problem

HIDDEN = 4
"""Width of the feed-forward layer in units of the token's."""


@dataclass(frozen=True)
class Architecture:
    """One rung of the ladder.

    kind : whose features and link it uses.
    factored : the kernel is P Qᵀ of bounded rank; else K is full and its rank free.
    wrapped : the map sits in a block with residual, LayerNorm and feed-forward layer.
    """

    name: str
    title: str
    kind: Kind
    factored: bool = True
    wrapped: bool = False


RUNGS = (
    Architecture("B0", "fixed operator", "fixed_operator"),
    Architecture("B1", "linear QK", "linear"),
    Architecture("B1c", "full kernel", "linear", factored=False),
    Architecture("B2", "softmax QK", "softmax"),
    Architecture("B3", "softmax block", "softmax", wrapped=True),
)
"""The paper's ladder (its Table 2), in order."""

STUDENT_OF: dict[Kind, Architecture] = {"fixed_operator": RUNGS[0], "linear": RUNGS[1], "softmax": RUNGS[3]}
"""The student of the same kind as the map behind the data."""


@dataclass(frozen=True)
class Member:
    """One student of a stack: its rank, the seed of its first weights, and their scale.

    P and Q start as init · N(0, 1)/√p for p features (the paper's small initialization has init = .3), a
    value map as N(0, 1)/√p.
    """

    rank: int
    seed: int = 0
    init: float = 1.0


class Students:
    """A stack of students of one architecture on one data set; they share nothing but the pass.

    Every parameter has the member as its first axis. Members may differ in rank: columns of P and Q beyond a
    member's rank start at zero in both, where their gradient is zero, so they stay there.

    Parameters
    ----------
    example : a block of the data, for the sizes of features and outputs.
    """

    def __init__(
        self,
        architecture: Architecture,
        members: Sequence[Member],
        example: Problem,
        scale: float = 1.0,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.architecture, self.members, self.scale = architecture, tuple(members), scale
        drawn = [_draw(architecture, member, example) for member in members]
        width = max(member.rank for member in members)
        self.parameters: dict[str, Tensor] = {}
        for name in drawn[0]:
            parts = [part[name] for part in drawn]
            if architecture.factored and name in ("P", "Q"):
                parts = [_widened(part, width) for part in parts]
            stacked = torch.from_numpy(np.stack(parts)).to(device=device, dtype=dtype)
            self.parameters[name] = stacked.requires_grad_()

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Set all parameters."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(values[name])

    def kernels(self) -> Tensor:
        """P Qᵀ or K of every member, [members, p_q, p_k], in the coordinates trained in."""
        with torch.no_grad():
            P = self.parameters["P"]
            return P @ self.parameters["Q"].mT if self.architecture.factored else P.clone()

    def errors(self, block: Problem) -> Tensor:
        """‖y − ŷ‖² of each sequence, [members, n]."""
        residual: Tensor = self.outputs(block) - block.outputs
        if block.padding is not None:
            residual = residual * block.padding[:, :, None]
        return residual.square().sum(dim=(2, 3))

    def outputs(self, block: Problem) -> Tensor:
        """Ŷ [members, n, T, d_v]."""
        w = self.parameters
        query, key, value = block.query, block.key, block.value
        if self.architecture.wrapped:
            query = key = value = _normalised(value, w["gain"], w["shift"])
        left = _apply(query, self.scale * w["P"])
        right = _apply(key, w["Q"]) if self.architecture.factored else key
        mixed: Tensor = block.attention.mixer(left @ right.mT, block.visible) @ _apply(value, w["V"])
        if block.covariates is not None:
            mixed = mixed + _apply(block.covariates, w["offset"])
        if not self.architecture.wrapped:
            return mixed
        mixed = mixed + block.value
        inside = _apply(_normalised(mixed, w["gain2"], w["shift2"]), w["up"]) + w["up_shift"]
        return _apply(mixed + _apply(functional.gelu(inside), w["down"]) + w["down_shift"], w["out"])


def _apply(features: Tensor, weights: Tensor) -> Tensor:
    """Features [n, T, p], or [members, n, T, p] each its own, times weights [members, p, r]."""
    n, tokens, width = features.shape[-3:]
    rows = features.reshape(*features.shape[:-3], n * tokens, width)
    return (rows @ weights).reshape(len(weights), n, tokens, weights.shape[2])


def _normalised(features: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """LayerNorm; gain and shift [members, 1, 1, p]."""
    return functional.layer_norm(features, features.shape[-1:]) * gain + shift


def _draw(architecture: Architecture, member: Member, example: Problem) -> dict[str, np.ndarray]:
    """First weights of one member; they depend on its seed and rank, not on its company."""
    rng = np.random.default_rng(np.random.SeedSequence(member.seed, spawn_key=(member.rank,)))
    p_q, p_k, p_v = (int(part.shape[2]) for part in (example.query, example.key, example.value))
    d_v = int(example.outputs.shape[2])

    def gaussian(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return np.asarray(scale / rows**0.5 * rng.standard_normal((rows, columns)))

    if architecture.wrapped:
        p_q = p_k = p_v
    if architecture.factored:
        first = {"P": gaussian(p_q, member.rank, member.init), "Q": gaussian(p_k, member.rank, member.init)}
    else:
        first = {"P": gaussian(p_q, p_k, member.init**2)}
    first["V"] = gaussian(p_v, p_v if architecture.wrapped else d_v)
    if example.covariates is not None:
        first["offset"] = np.zeros((int(example.covariates.shape[2]), d_v))
    if architecture.wrapped:
        hidden = HIDDEN * p_v
        for name in ("gain", "gain2"):
            first[name] = np.ones((1, 1, p_v))
        for name, width in (("shift", p_v), ("shift2", p_v), ("up_shift", hidden), ("down_shift", p_v)):
            first[name] = np.zeros((1, 1, width))
        first |= {"up": gaussian(p_v, hidden), "down": gaussian(hidden, p_v), "out": gaussian(p_v, d_v)}
    return first


def _widened(factor: np.ndarray, width: int) -> np.ndarray:
    return np.pad(factor, ((0, 0), (0, width - factor.shape[1])))
