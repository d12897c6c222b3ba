"""Quick fits that compare kinds of map by what they leave of sequences they have not seen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rankprobe.decision.excess import Floats
from rankprobe.estimators.model import Kind, Model, Sample
from rankprobe.estimators.source import Sampler
from rankprobe.solver import Fit, FittedValueMap, Kernel, Settings, fit
from rankprobe.solver.start import first_kernel

TRIAL_RANK = 12
"""Rank of the trial fits: enough to tell kinds apart, cheap where tokens are wide."""

SLIGHTLY = 1.1
"""Kinds that leave errors within this factor may be the same to the data."""

QUICK = Settings(outer=12, inner=30, stall=0.02, last_ridge=1e-6)


@dataclass(frozen=True, eq=False)
class Trial:
    """A kind of map fitted quickly to ``train``; ``error`` is the share of the variance of ``test`` left."""

    model: Model
    fit: Fit
    train: Sample
    test: Sample

    @classmethod
    def of(
        cls,
        sampler: Sampler,
        kind: Kind,
        causal: bool,
        bias: bool,
        residual: bool = False,
        part: int = 1,
        rank: int | None = None,
        least: int = 128,
    ) -> Trial:
        """On some hundred sequences of ``sampler``, and only the first d_v / ``part`` columns of Y."""
        source = sampler.source
        rows, width = source.tokens, source.value_dim // part
        unknowns = 2 * TRIAL_RANK * (source.dim + 1) + (source.dim + 1) * width
        count = int(np.clip(6 * unknowns // (rows * width), least, 512))
        held = min(max(1, source.sequences // 4), max(16, count // 3))
        count = min(count, source.sequences - held)
        sample = sampler.take(count + held)
        sample = replace(sample, Y=sample.Y[:, :, :width])
        train, test = sample.part(0, count), sample.part(count, count + held)
        model = Model.of(kind, causal, bias, train, source.storage_dtype, residual)
        if rank is None:
            rank = TRIAL_RANK if source.dim > 64 else source.dim + 1
        return cls.fitted(model, train, test, sampler.seed, rank)

    @classmethod
    def fitted(
        cls, model: Model, train: Sample, test: Sample, seed: int, rank: int, start: Kernel | None = None
    ) -> Trial:
        """A fit of rank at most ``rank`` to ``train``, from ``start`` if one is given."""
        problem, values, rng = model.problem(train), FittedValueMap(), np.random.default_rng(seed)
        if start is None:
            start = first_kernel(problem, values, rank, rng)
        done = fit(problem, start, values, rng, QUICK)
        return cls(model, done, train, test)

    @property
    def error(self) -> float:
        variation = self.test.variation()
        return float(np.sum(self.errors)) / variation if variation > 0 else 0.0

    @cached_property
    def errors(self) -> Floats:
        """Squared error of each unseen sequence."""
        return self.model.squared_errors(self.fit, self.test)

    def as_good_as(self, other: Trial) -> bool:
        """Whether chance alone may make the difference to ``other``, on the same sequences, and it is slight.

        Few sequences make much look like chance.
        """
        difference = self.errors - other.errors
        if self.error > SLIGHTLY * other.error:
            return False
        return float(np.mean(difference)) <= 3.0 * float(np.std(difference)) / math.sqrt(len(difference))
