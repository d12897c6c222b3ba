"""Kernel inversion by joint least squares, V unknown or known: from sequences to a decided rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rankprobe import spectra
from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.decision.edge import NoiseEdge, deviation
from rankprobe.decision.ladder import Ladder
from rankprobe.decision.noise import degrees_of_freedom, evened, noise_sigma
from rankprobe.decision.score import score_for_more
from rankprobe.decision.structure import Structure, structure
from rankprobe.decision.verdict import Verdict
from rankprobe.estimators.model import ROUNDING, Kind, Model, Sample
from rankprobe.estimators.result import Status
from rankprobe.estimators.source import Sampler
from rankprobe.solver import Fit, FittedValueMap, Kernel, KnownValueMap, Problem, Settings, ValueMap, fit
from rankprobe.solver.start import first_kernel

FULL_LIMIT = 160
"""Widest features for which the kernel is fitted whole; its noise edge needs all p_q p_k directions."""

EQUATIONS_PER_PARAMETER = 12
"""Size of the first sample, in observations per unknown."""

ENERGY_TARGET = 0.005
"""The sample grows until the standard error of the energy rank is below this, or the data end."""


CONFIRM = 3
"""A rank is confirmed on this many times the sequences that decided it, where there are as many."""

CONFIRMED = 3.0
"""Standard score of what the residual of the confirming fit may still ask for."""

EVENINGS = 5
"""Most times that the noise of the outputs is evened before a decision."""

SINGLE = 1e-6
"""Share of the squares of Y above which what a fit leaves is far from the rounding of single precision."""

PATIENCE = 4
"""Growth of the sample after which a fit that does not settle is asked whether it leaves noise at all."""

WARM = Settings(ridge=1e-8, damping=1e-3, outer=15, decrement=0.05)
"""A fit that starts next to its answer."""


@dataclass(frozen=True, eq=False)
class Task:
    """What to invert: data, kind of map, and what is known.

    value_map : V [d, d_v] if known. scale : factor of the logits divided out of the printed kernel.
    """

    sampler: Sampler
    kind: Kind
    causal: bool
    bias: bool
    scale: float
    residual: bool = False
    value_map: Array | None = None
    max_rank: int | None = None
    most_sequences: int | None = None
    report: Callable[[str], None] | None = None

    @property
    def sequences(self) -> int:
        available = self.sampler.source.sequences
        return available if self.most_sequences is None else min(available, self.most_sequences)


@dataclass(frozen=True, eq=False)
class Inversion:
    """A decided fit: ``fit`` has rank ``verdict.rank``; singular values are in token units."""

    model: Model
    fit: Fit
    verdict: Verdict
    parametrization: str
    kernel: Kernel
    noise_edge: float | None
    sigma: float
    energy_error: float
    """Standard error of the energy rank."""
    r2_heldout: float | None
    heldout_ratio: float | None
    """Held-out over training noise variance: about 1 where the fit is right."""
    sequences: int
    converged: bool
    rounded: bool
    """Whether the noise found is no larger than the rounding of the stored numbers can make it."""
    structure: Structure
    """Whether what the fit leaves is noise."""
    signal: float
    """Standard score of what the inputs explain of the outputs at all, whatever the kernel."""


@dataclass(frozen=True, eq=False)
class Refusal:
    """Why no kernel was fitted; ``rank`` is 0 where none is needed, None where none can be told."""

    status: Status
    message: str
    rank: int | None = None


def invert(task: Task) -> Inversion | Refusal:
    """Fit and decide, or say why the data cannot determine a kernel at all."""
    if task.sequences < 2:
        return Refusal(
            Status.NOT_IDENTIFIABLE, "a single sequence does not determine a kernel; it takes more"
        )
    source = task.sampler.source
    probe = task.sampler.take(min(task.sequences, 256))
    model = Model.of(task.kind, task.causal, task.bias, probe, source.storage_dtype, task.residual)
    p_q, p_k, p_v = model.query.dimension, model.key.dimension, model.value.dimension
    if p_q == 0 or p_k == 0:
        return Refusal(
            Status.NOT_IDENTIFIABLE,
            "tokens do not move within a sequence: no key can be told from another, whatever the kernel",
        )
    copies = probe.sequences - probe.distinct()
    if copies:
        return Refusal(
            Status.NOT_IDENTIFIABLE,
            f"{copies} of {probe.sequences} sequences are copies of others, which tell nothing new; "
            "keep one of each",
        )
    if probe.variation() <= 1e-24 * probe.size():
        return Refusal(
            Status.DEGENERATE, "Y is the same at every token: rank 0 fits, no kernel can be seen", 0
        )
    unknown_values = (int(task.value_map is None) + int(task.residual)) * p_v * source.value_dim
    rows = probe.rows / probe.sequences
    full = p_q * p_k + unknown_values
    if max(p_q, p_k) <= FULL_LIMIT:
        freedom = probe.attention_freedom(task.causal, source.value_dim) / probe.sequences
        need = math.ceil(max(1.2 * full / (rows * source.value_dim), 1.5 * p_q * p_k / max(freedom, 1e-9)))
        if freedom == 0 and task.kind == "softmax":
            return Refusal(
                Status.NOT_IDENTIFIABLE, "every query sees one key: no kernel can make a difference"
            )
        if task.sequences < max(need, 2):
            return _too_few(task.sequences, full, max(need, 2))
        first = math.ceil(EQUATIONS_PER_PARAMETER * full / (rows * source.value_dim))
        return _whole(task, model, max(first, 4 * need))
    return _factored(task, model, rows)


def _too_few(sequences: int, unknowns: int, need: int) -> Refusal:
    return Refusal(
        Status.NOT_IDENTIFIABLE,
        f"{sequences} sequences are too few for {unknowns} unknowns; at least {need} are needed",
    )


def values_of(task: Task, model: Model) -> ValueMap:
    """The value map of a task, known or to be fitted, in the features and outputs of ``model``."""
    if task.value_map is None:
        return FittedValueMap()
    xp = array_namespace(task.value_map)
    # Known V acts on the tokens themselves, written in the whitened features: x V = f (Tᵀ V) where x = T f.
    dual = model.value.dual()
    W = dual[: task.sampler.source.dim, :].T @ task.value_map
    if model.even is not None:
        W = W @ model.even
    like = {"dtype": W.dtype, "device": W.device}
    p_v, width = model.value.dimension, int(W.shape[1])
    # Free beside W: the bias of the values, and all of what Y is linear in without being mixed. The rows of a
    # linear mixer do not sum to one: the bias of its values and that of the outputs differ.
    extra = p_v if model.residual else int(model.bias and model.kind != "softmax")
    constant = dual[-1:, :].T if model.bias else xp.zeros((p_v, 0), **like)
    count = int(constant.shape[1])
    if count + extra == 0:
        return KnownValueMap(W)
    free = xp.concat(
        [
            xp.concat([constant, xp.zeros((p_v, extra), **like)], axis=1),
            xp.concat([xp.zeros((extra, count), **like), xp.eye(extra, **like)], axis=1),
        ],
        axis=0,
    )
    return KnownValueMap(xp.concat([W, xp.zeros((extra, width), **like)], axis=0), free)


def _whole(task: Task, model: Model, first: int) -> Inversion:
    """The full kernel and its noise edge decide the rank; a refit at that rank, on more, confirms it."""
    rng = np.random.default_rng(task.sampler.seed)
    values = values_of(task, model)
    count, start, evenings = min(task.sequences, first), None, 0
    settings = Settings(ridge_fall=100.0, tight=True)
    xp = array_namespace(model.value.whiten)
    dtype = xp.float32
    while True:
        problem = model.problem(task.sampler.take(count), dtype)
        whole = fit(
            problem,
            start or first_kernel(problem, values, FULL_LIMIT, rng),
            values,
            rng,
            settings,
            task.report,
        )
        if dtype == xp.float32 and whole.rss < SINGLE * _squares(problem):
            dtype = xp.float64
            start, settings = whole.kernel.astype(dtype), replace(WARM, tight=True)
            continue
        even = evened(whole) if whole.converged and evenings < EVENINGS else None
        if even is not None:
            # What noise in other columns hid shows only now, so the noise is looked at again.
            evenings += 1
            model = replace(model, even=even if model.even is None else model.even @ even)
            values, start, settings = values_of(task, model), whole.kernel, replace(WARM, tight=True)
            continue
        edge = NoiseEdge(whole, rng)
        verdict = edge.decide()
        start, settings = whole.kernel, replace(WARM, tight=True)
        open_ = not (verdict.settled and whole.converged)
        if task.max_rank is not None and verdict.rank > task.max_rank:
            verdict = Verdict(
                task.max_rank, edge.spectrum.rank, f"{verdict.reason}; looked no further than {task.max_rank}"
            )
        # What attention of this kind cannot fit, it does not fit on more sequences either.
        if open_ and count < task.sequences and not (count >= PATIENCE * first and structure(whole).found):
            count = min(task.sequences, 2 * count)
            if not whole.converged:
                # A fit lost on few sequences leads the next astray.
                start, settings = None, Settings(ridge_fall=100.0, tight=True)
            continue
        size = count
        if not open_:
            size = min(task.sequences, _confirming(model, whole, verdict.rank, count))
        problem = problem if size == count else model.problem(task.sampler.take(size), dtype)
        final = fit(problem, whole.kernel.truncated(verdict.rank), values, rng, WARM, task.report)
        more = score_for_more(final, rng)
        if more <= CONFIRMED or size == count:
            break
        count = size
    if more > CONFIRMED and verdict.settled:
        verdict = replace(
            verdict,
            upper=edge.spectrum.rank,
            reason=f"{verdict.reason}; yet the residual asks for more, by {more:.1f} standard deviations",
        )
    limit = edge.printed(verdict.rank, lambda M: _matrix_in_tokens(model, M)) * unit_of(
        task, model, final.lin.W
    )
    # Rank not counted yet shows in what a smaller rank leaves: whether that is noise, the whole kernel tells.
    tested = structure(final if verdict.settled else whole)
    heldout = _heldout_of_whole(task, model, final, values, size, rng)
    # Short of rank by order, a fit may wander; what is claimed rests on the whole kernel.
    short = verdict.rank == task.max_rank and not verdict.settled
    converged = whole.converged and (final.converged or short)
    return _decided(task, model, final, verdict, "full", limit, heldout, size, converged, tested)


def _squares(problem: Problem) -> float:
    xp = array_namespace(problem.outputs)
    return float(xp.sum(problem.outputs * problem.outputs, dtype=xp.float64))


def _confirming(model: Model, whole: Fit, rank: int, count: int) -> int:
    """Sequences for the refit that confirms a rank found on ``count`` and gives its spectrum."""
    if rank == 0:
        return 16 * CONFIRM * count
    error = _energy_error(model, whole, rank)
    return math.ceil(count * min(max(CONFIRM, (error / ENERGY_TARGET) ** 2), 16.0))


def _matrix_in_tokens(model: Model, matrix: Array) -> Array:
    return model.query.to_tokens(model.key.to_tokens(matrix.T).T)


def _energy_error(model: Model, fitted: Fit, rank: int) -> float:
    """Standard error of the energy rank of the ``rank`` leading values of a fit, to first order in noise."""
    if rank < 2:
        return 0.0
    tokens = model.in_tokens(fitted.kernel.truncated(rank))
    xp = array_namespace(tokens.left)
    like = {"dtype": tokens.left.dtype, "device": tokens.left.device}
    slope = xp.asarray(spectra.energy_rank_gradient(np.asarray(tokens.values, dtype=float)), **like)
    left = model.query.to_tokens(xp.eye(model.query.dimension, **like)).T @ tokens.left
    right = model.key.to_tokens(xp.eye(model.key.dimension, **like)).T @ tokens.right
    functional = (left * slope) @ right.T
    return deviation(fitted, xp.astype(functional, fitted.kernel.left.dtype))


def _heldout_of_whole(
    task: Task, model: Model, final: Fit, values: ValueMap, count: int, rng: np.random.Generator
) -> tuple[Fit, Sample]:
    """A fit and sequences it has not seen: fresh ones if there are, else an eighth left out of a refit."""
    fresh = min(task.sequences - count, max(32, count // 4))
    if fresh >= min(32, max(1, count // 8)):
        return final, task.sampler.take(count + fresh).part(count, count + fresh)
    left_out = max(1, count // 8)
    sample = task.sampler.take(count)
    problem = model.problem(sample.part(0, count - left_out), final.kernel.left.dtype)
    fewer = fit(problem, final.kernel, values, rng, WARM)
    return fewer, sample.part(count - left_out, count)


def _factored(task: Task, model: Model, rows: float) -> Inversion | Refusal:
    """K of bounded rank where the full kernel has too many unknowns: over-parameterize, then refit down."""
    source = task.sampler.source
    rng = np.random.default_rng(task.sampler.seed)
    values = values_of(task, model)
    p_q, p_k = model.query.dimension, model.key.dimension
    # A trained head is as wide as its output; a quarter more leaves room to see that it is not wider.
    top = min(p_q, p_k, task.max_rank or max(16, math.ceil(1.25 * source.value_dim)))
    unknowns = top * (p_q + p_k - top) + model.value.dimension * source.value_dim
    heldout = max(1, min(task.sequences // 16, 256))
    wanted = math.ceil(EQUATIONS_PER_PARAMETER * unknowns / (rows * source.value_dim))
    count = min(task.sequences - heldout, wanted)
    if count * rows * source.value_dim < 2 * unknowns:
        return _too_few(
            task.sequences, unknowns, math.ceil(2 * unknowns / (rows * source.value_dim)) + heldout
        )
    sample = task.sampler.take(count + heldout)
    xp = array_namespace(sample.X)
    problem = model.problem(sample.part(0, count), xp.float32)
    over = fit(
        problem,
        first_kernel(problem, values, top, rng),
        values,
        rng,
        Settings(outer=40, floor=3e-6, stall=0.02),
        task.report,
    )
    settings = replace(WARM, outer=12, floor=3e-10, stall=0.05)
    ladder = Ladder(over, lambda start: fit(problem, start, values, rng, settings, task.report))
    verdict = ladder.decide()
    final = ladder.fits.get(verdict.rank, over)
    held = sample.part(count, count + heldout)
    # Short of rank by order, a fit leaves structure that says nothing of the kind of map.
    short = verdict.rank == top == task.max_rank
    tested = Structure({}, 0) if short else structure(final if verdict.settled else over)
    return _decided(
        task, model, final, verdict, "factored", None, (final, held), count, final.converged, tested
    )


def unit_of(task: Task, model: Model, W: Array) -> float:
    """Factor from fitted kernel to printed one: logit scale, and ‖V‖_F² = d_v where only K·V is seen."""
    unit = 1.0 / task.scale
    if model.kind != "softmax" and task.value_map is None:
        xp = array_namespace(W)
        V = (model.value.whiten @ W[: model.value.dimension, :])[: task.sampler.source.dim, :]
        if model.even is not None:
            V = xp.linalg.solve(model.even, V.T).T
        unit *= float(xp.linalg.matrix_norm(V)) / math.sqrt(task.sampler.source.value_dim)
    return unit


def _decided(
    task: Task,
    model: Model,
    final: Fit,
    verdict: Verdict,
    parametrization: str,
    edge: float | None,
    heldout: tuple[Fit, Sample],
    count: int,
    converged: bool,
    tested: Structure,
) -> Inversion:
    kernel = model.in_tokens(final.kernel)
    kernel = replace(kernel, values=kernel.values * unit_of(task, model, final.lin.W))
    sigma = noise_sigma(final)
    error = _energy_error(model, final, final.kernel.rank)
    seen, sample = heldout
    r2, ratio = None, None
    variation = sample.variation()
    residual = float(np.sum(model.squared_errors(seen, sample)))
    if variation > 0:
        r2 = 1.0 - residual / variation
    entries = sample.rows * int(sample.Y.shape[2])
    if seen.rss > 0 and entries:
        ratio = residual / entries / noise_sigma(seen) ** 2
    return Inversion(
        model,
        final,
        verdict,
        parametrization,
        kernel,
        edge,
        sigma,
        error,
        r2,
        ratio,
        count,
        converged,
        sigma
        < 8
        * ROUNDING.get(task.sampler.source.storage_dtype, 0.0)
        * math.sqrt(sample.size() / max(entries, 1)),
        tested,
        _signal(final),
    )


def _signal(final: Fit) -> float:
    """Standard score of the F statistic of the value map: does the mixed input explain the output at all."""
    problem = final.lin.problem
    xp = array_namespace(problem.outputs)
    columns = xp.sum(problem.outputs, axis=(0, 1)) / max(problem.rows, 1)
    total = float(xp.sum(problem.outputs * problem.outputs)) - problem.rows * float(xp.sum(columns * columns))
    used = max(degrees_of_freedom(final) - int(problem.outputs.shape[2]), 1)
    free = max(problem.equations - degrees_of_freedom(final), 1)
    noise = final.rss / free
    if noise <= 0:
        return math.inf if total > 0 else 0.0
    return ((total - final.rss) / noise - used) / math.sqrt(2 * used * (1 + used / free))
