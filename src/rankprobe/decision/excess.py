"""Excess risk from the errors of refits on sequences they saw and on sequences they did not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Errors:
    """Squared errors ‖Y − Ŷ‖² a sequence, one row a rank.

    seen [R, n] : of the refit on the sequences it was fitted to. heldout [R, m] : on others.
    same : the columns of both are the same sequences (each left out of one refit).
    """

    seen: Floats
    heldout: Floats
    same: bool

    def risk(self) -> Floats:
        """Least risk at each rank, [R].

        Fitting p parameters to N equations lowers the error seen by 1 − p/N and raises the other by as
        much, so neither is the risk of the best kernel and their difference grows with the rank. In
        Gaussian regression the factors are (1 − p/N) and 1/(1 − p/N): the geometric mean has neither. It
        takes no p, which for a kernel of more rank than needed is not the number of its parameters.
        """
        return np.asarray(np.sqrt(np.mean(self.seen, axis=1) * np.mean(self.heldout, axis=1)))

    def excess(self, reference: int) -> tuple[Floats, Floats]:
        """Risk of each rank less that of row ``reference``, and its standard error, [R] each.

        The error is that of paired differences: what makes one sequence harder than another under both
        refits cancels. Where few sequences make the correction for p/N large, its next order, the
        correction times the relative gap between both errors, is as uncertain.
        """
        risk = self.risk()
        differences = self._influence()
        differences = differences - differences[reference]
        count = differences.shape[1]
        spread = np.sum(differences**2, axis=1) * count / max(count - 1, 1)
        gap = np.mean(self.heldout, axis=1) - np.mean(self.seen, axis=1)
        correction = (gap - gap[reference]) / 2.0
        next_order = correction * gap / np.maximum(risk, 1e-300)
        return risk - risk[reference], np.sqrt(spread + next_order**2)

    def _influence(self) -> Floats:
        """How much each sequence moves the risks, [R, n + m] or [R, n]."""
        a, b = np.mean(self.seen, axis=1), np.mean(self.heldout, axis=1)
        usable = (a > 0) & (b > 0)
        ratio = np.sqrt(np.where(usable, b, 1.0) / np.where(usable, a, 1.0))[:, None]
        seen = 0.5 * ratio * (self.seen - a[:, None]) / self.seen.shape[1]
        heldout = 0.5 / ratio * (self.heldout - b[:, None]) / self.heldout.shape[1]
        return seen + heldout if self.same else np.concatenate([seen, heldout], axis=1)
