"""Levenberg–Marquardt over kernels of bounded rank, with the value map projected out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.solver.conjugate_gradients import conjugate_gradients
from rankprobe.solver.curvature import Curvature
from rankprobe.solver.kernel import Kernel, Tangent
from rankprobe.solver.linearization import Linearization
from rankprobe.solver.problem import Problem
from rankprobe.solver.value_map import ValueMap

TIGHT = 1e-2
"""Relative residual of the inner solve that ends a fit."""


@dataclass(frozen=True)
class Settings:
    """How hard to try.

    ridge : penalty of the value map at the start, relative to the mean eigenvalue of ZᵀZ. Attention is
        near uniform at first and leaves V badly determined; the penalty falls by ``ridge_fall`` a step to
        ``last_ridge``.
    damping : first λ, in units of the mean curvature.
    outer, inner : most Gauss–Newton steps; most conjugate-gradient iterations a step.
    decrement : stop when the predicted gain is below this many units of noise variance: the parameters
        are then within √decrement standard errors of the optimum, all together.
    floor : stop when ‖R‖² is below this share of ‖Y‖² (rounding).
    stall : stop when a step gains less than this share of the loss (0: never for that reason).
    tight : end with one tight inner solve, for the weakest directions of a kernel fitted whole.
    """

    ridge: float = 1e-2
    ridge_fall: float = 10.0
    last_ridge: float = 1e-8
    damping: float = 1.0
    outer: int = 40
    inner: int = 60
    decrement: float = 1e-2
    floor: float = 1e-14
    stall: float = 0.0
    tight: bool = False


@dataclass(frozen=True, eq=False)
class Fit:
    """A kernel fitted to a problem, with the model around it."""

    lin: Linearization
    curvature: Curvature
    converged: bool
    steps: int
    products: int

    @property
    def kernel(self) -> Kernel:
        return self.lin.kernel

    @property
    def rss(self) -> float:
        """‖Y − A X V‖² over all real tokens."""
        return self.lin.rss


@dataclass(frozen=True, eq=False)
class _Move:
    """A step tried at one length: the point it reaches, and actual over predicted gain."""

    lin: Linearization
    length: float
    gain: float


@dataclass(eq=False)
class _Search:
    """Shortens a step until the loss agrees with the model: one forward pass a try, no new solve."""

    lin: Linearization
    step: Tangent
    slope: float
    bend: float
    values: ValueMap
    tries: list[_Move] = field(default_factory=list)

    def best(self) -> _Move | None:
        """The lowest point found, or None if no length lowers the loss."""
        length = 1.0
        for _ in range(6):
            trial = Linearization(
                self.lin.problem, self.lin.kernel.moved(self.step.times(length)), self.values, self.lin.ridge
            )
            predicted = length * self.slope - length**2 * self.bend
            gain = (self.lin.loss - trial.loss) / predicted if predicted > 0 else -1.0
            self.tries.append(_Move(trial, length, gain))
            better = min(self.tries, key=lambda move: move.lin.loss)
            if gain > 0.6 or (
                len(self.tries) > 1 and better.lin.loss < self.lin.loss and better is not self.tries[-1]
            ):
                break
            # Minimiser of the parabola through the old loss, its slope and the new loss.
            curve = (trial.loss - self.lin.loss + length * self.slope) / length**2
            shorter = self.slope / (2 * curve) if curve > 0 else 0.5 * length
            length = min(max(shorter, 0.1 * length), 0.5 * length)
        return better if better.lin.loss < self.lin.loss else None


def fit(
    problem: Problem,
    start: Kernel,
    values: ValueMap,
    rng: np.random.Generator,
    settings: Settings | None = None,
    report: Callable[[str], None] | None = None,
) -> Fit:
    """Minimise ‖Y − A(K) X V‖² over kernels of rank at most ``start.rank``.

    Parameters
    ----------
    start : first kernel; its subspaces matter even where its values are zero.
    values : :class:`FittedValueMap` (V unknown) or :class:`KnownValueMap`.
    report : called with one line a step, for logs.
    """
    settings = settings or Settings()
    xp = array_namespace(problem.outputs)
    total = float(xp.sum(problem.outputs * problem.outputs))
    lin = Linearization(problem, start, values, settings.ridge)
    curvature = Curvature(lin, rng)
    if start.rank == 0:
        lin = Linearization(problem, start, values, settings.last_ridge)
        return Fit(lin, curvature, True, 0, 0)
    # λ: damping in units of μ, the mean curvature.
    lam, products, converged, steps = settings.damping, 0, False, 0
    forcing, previous, closing = 0.2, math.inf, False
    while steps < settings.outer and lam < 1e10:
        steps += 1
        damping = lam * curvature.mean + 1e-300
        gradient = lin.gradient()
        solution = conjugate_gradients(
            lambda v, lin=lin, damping=damping: lin.normal(v).plus(damping, v),  # type: ignore[misc]
            lambda g, lin=lin, c=curvature, damping=damping: c.solve(lin.kernel, g, damping),  # type: ignore[misc]
            gradient,
            forcing,
            settings.inner * (5 if closing else 1),
        )
        step = solution.x
        products += solution.iterations
        slope = 2 * step.dot(gradient)
        bend = slope / 2 - step.dot(solution.residual) - damping * step.dot(step)
        noise = lin.rss / problem.equations
        decided = slope - bend < settings.decrement * noise
        move = _Search(lin, step, slope, bend, values).best()
        if move is None:
            # No length of the step helps: at the rounding of the loss that is convergence.
            if decided or slope - bend < 1e-10 * lin.loss:
                converged = True
                break
            lam = max(10 * lam, 1e-6)
            continue
        # Inexact Newton: solve as well as the model has lately been worth.
        forcing = min(0.2, max(TIGHT, 0.5 * math.sqrt(max(slope - bend, 0.0) / previous)))
        previous = max(slope - bend, 1e-300)
        gained = lin.loss - move.lin.loss
        # Scaling K against V is free for a linear mixer, where the ridge lets the model promise too much.
        decided = decided or (move.length == 1.0 and gained < 0.1 * settings.decrement * noise)
        stalled = gained < settings.stall * lin.loss
        lin = move.lin
        if report is not None:
            report(
                f"step {steps}: residual {lin.rss / total:.3e} of ‖Y‖², λ {lam:.1e}, length {move.length:.2f}"
            )
        if move.length < 1.0:
            lam *= min(1.0 / move.length, 10.0)
        elif move.gain > 0.75:
            lam /= 5.0
        if lin.ridge > settings.last_ridge:
            lin = Linearization(
                problem, lin.kernel, values, max(lin.ridge / settings.ridge_fall, settings.last_ridge)
            )
        elif stalled or lin.rss < settings.floor * total or (decided and (closing or not settings.tight)):
            converged = True
            break
        closing = decided
        if closing:
            # A loose solve leaves the weakest directions, where noise is largest, unfinished: look again.
            forcing = TIGHT
        curvature = Curvature(lin, rng)
    return Fit(lin, curvature, converged, steps, products)
