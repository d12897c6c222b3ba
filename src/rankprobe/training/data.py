"""What students are trained on: the estimators' own problem as tensors, in blocks that fit a cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rankprobe.attention import Array
from rankprobe.errors import DataError, UsageError
from rankprobe.estimators.choose import choose_maps
from rankprobe.estimators.model import Kind, Model, Sample
from rankprobe.estimators.source import Sampler, Source, source_of
from rankprobe.solver import Problem
from rankprobe.tokens import Whitening

BLOCK_TOKENS = {"cpu": 1 << 12}
"""Tokens a block: on a CPU what its cache holds; elsewhere as many as keep the device busy."""

MANY_TOKENS = 1 << 18


@dataclass(frozen=True)
class Pairs:
    """Sequences of one head, and what is known of the map behind them; made by :func:`prepare`.

    source, head, seed : where the sequences come from.
    quotient : the estimators' whitened coordinates, in which kernels are compared and printed.
    heldout : sequences kept from training, or None.
    scale : factor on the logits of every student; kernels are reported without it.
    sigma : standard deviation of the noise on an entry of Y as noted with the data, or None.
    """

    source: Source
    head: int | None
    seed: int
    sample: Sample
    heldout: Sample | None
    quotient: Model
    scale: float
    sigma: float | None

    @property
    def kind(self) -> Kind:
        return self.quotient.kind

    @property
    def causal(self) -> bool:
        return self.quotient.attention.causal

    @property
    def sequences_heldout(self) -> int:
        return 0 if self.heldout is None else self.heldout.sequences

    def of_kind(self, kind: Kind) -> Pairs:
        """The same sequences, taken for outputs of another kind of map, without biases."""
        causal = self.causal and kind != "fixed_operator"
        quotient = Model.of(kind, causal, False, self.sample, self.source.storage_dtype)
        return replace(self, quotient=quotient)

    def tokens(self) -> float:
        """Real tokens a sequence, on average."""
        return self.sample.rows / self.sample.sequences

    def floor(self, sigma: float) -> float:
        """σ² T d_v: squared error a sequence that noise alone leaves."""
        return sigma**2 * self.tokens() * int(self.sample.Y.shape[2])

    def variation(self) -> float:
        """Squared deviation of Y from its mean token, a sequence."""
        return self.sample.variation() / self.sample.sequences

    def coordinates(self, whiten: bool) -> Model:
        """The model whose features students see: whitened tokens, or the tokens as they are."""
        if whiten:
            return self.quotient
        model = self.quotient
        return replace(model, query=_plain(model.query), key=_plain(model.key), value=_plain(model.value))


def _plain(whitening: Whitening) -> Whitening:
    eye = np.eye(int(whitening.whiten.shape[0]))
    return Whitening(eye, eye, whitening.printed)


def prepare(
    X: Array | Source,
    Y: Array | None = None,
    *,
    mask: Array | None = None,
    head: int | None = None,
    attention: str = "auto",
    causal: bool | str = "auto",
    bias: bool = True,
    scale: float | None = None,
    sequences: int | None = None,
    holdout: float = 0.0,
    sigma: float | None = None,
    seed: int = 0,
) -> Pairs:
    """Read sequences as the estimators do: a seeded sample, kind and mask of the map, its quotient.

    Parameters
    ----------
    X, Y, mask, head, attention, causal, bias, scale, seed : as in :func:`rankprobe.estimate`.
    sequences : at most so many (default: all).
    holdout : share of them kept from training.
    sigma : noise on an entry of Y, where the data do not say.

    Raises
    ------
    UsageError, DataError : the call or the data cannot be used as they are.
    """
    source = source_of(X, Y, mask=mask)
    if not 0.0 <= holdout < 1.0:
        raise UsageError(f"the share held out must be at least 0 and below 1, not {holdout}")
    if sequences is not None and sequences < 1:
        raise UsageError(f"sequences must be at least 1, not {sequences}")
    sampler = Sampler(source, head, seed)
    (kind, is_causal), *_ = choose_maps(sampler, attention, causal, bias)[0]
    noted = source.attributes
    scale = float(noted.get("scale") or 1.0) if scale is None else scale
    if not (math.isfinite(scale) and scale > 0):
        raise UsageError(f"scale is {scale}; it must be positive")
    count = source.sequences if sequences is None else min(sequences, source.sequences)
    held = math.ceil(holdout * count)
    if count - held < 1:
        raise DataError(f"{count} sequences leave none to train on; hold out less")
    train = sampler.take(count - held)
    quotient = Model.of(kind, is_causal, bias, train, source.storage_dtype)
    if quotient.query.dimension == 0 or quotient.key.dimension == 0:
        raise DataError("tokens do not move within a sequence: no key can be told from another")
    if sigma is None:
        given = noted.get("noise_sigma")
        sigma = float(given) if isinstance(given, int | float) else None
    heldout = sampler.take(count).part(count - held, count) if held else None
    return Pairs(source, head, seed, train, heldout, quotient, scale, sigma)


def tensors(
    model: Model, sample: Sample, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> list[Problem]:
    """``sample`` in the features of ``model`` as blocks of tensors."""
    size = max(1, BLOCK_TOKENS.get(device, MANY_TOKENS) // int(sample.X.shape[1]))
    made = (model.problem(sample.part(start, start + size)) for start in range(0, sample.sequences, size))
    return [_moved(problem, lambda array: _tensor(array, device, dtype)) for problem in made]


def _moved(problem: Problem, move: Callable[[Any], Any]) -> Problem:
    """The problem with every array moved, those that are shared once."""
    seen: dict[int, Any] = {}
    names = ("query", "key", "value", "outputs", "visible", "covariates", "padding")
    for name in names:
        array = getattr(problem, name)
        if array is not None and id(array) not in seen:
            seen[id(array)] = move(array)
    moved: dict[str, Any] = {name: seen.get(id(getattr(problem, name))) for name in names}
    return replace(problem, **moved)


def _tensor(array: np.ndarray, device: str, dtype: torch.dtype) -> torch.Tensor:
    made = torch.from_numpy(np.ascontiguousarray(array))
    return made.to(device) if made.dtype == torch.bool else made.to(device=device, dtype=dtype)
