"""Kernel inversion by joint least squares, V unknown or known: from sequences to a decided rank."""

from __future__ import annotations

import math

from rankprobe.estimators.inversion import EQUATIONS_PER_PARAMETER, ROOM, Inversion, Refusal, Task, too_few
from rankprobe.estimators.model import Model
from rankprobe.estimators.result import Status
from rankprobe.estimators.whole import invert_whole

FULL_LIMIT = 160
"""Widest features for which the kernel is fitted whole; its noise edge needs all p_q p_k directions."""

SPARE = 1.5
"""Numbers told of attention rows wanted for each entry of a kernel fitted whole."""

FEW = 8
"""Growth of the first sample up to which a kernel fitted whole but not decided is grown instead."""


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
    equations = rows * source.value_dim
    if max(p_q, p_k) <= FULL_LIMIT:
        freedom = probe.attention_freedom(task.causal, source.value_dim) / probe.sequences
        if freedom == 0 and task.kind == "softmax":
            return Refusal(
                Status.NOT_IDENTIFIABLE, "every query sees one key: no kernel can make a difference"
            )
        freedom = max(freedom, 1e-9)
        least = p_q + p_k - 1
        need = math.ceil(ROOM * max((least + unknown_values) / equations, least / freedom))
        full = p_q * p_k
        first = math.ceil(EQUATIONS_PER_PARAMETER * (full + unknown_values) / equations)
        if task.sequences < max(need, 2):
            return too_few(task.sequences, least + unknown_values, max(need, 2), first)
        if task.sequences < max(first, SPARE * full / freedom):
            return _grown(task, model)
        first = max(first, math.ceil(4 * SPARE * full / freedom))
        whole = invert_whole(task, model, first)
        if whole is None:
            return _grown(task, model)
        few = task.sequences <= FEW * first
        open_ = not whole.converged or (few and not whole.verdict.settled)
        if open_ and whole.sequences == task.sequences and not whole.structure.found:
            return _grown(task, model)
        return whole
    from rankprobe.estimators.factored import invert_factored

    return invert_factored(task, model, rows)


def _grown(task: Task, model: Model) -> Inversion:
    from rankprobe.estimators.grown import invert_grown

    return invert_grown(task, model)
