"""The paper's own estimators (its Table 4), kept so that the table can be rebuilt, failures included.

V known: A = Y (X V)⁺, logits by the logarithm of the clipped A, rows centred, K by linear least squares.
V unknown: alternating minimisation over (K, V), plain and with singular-value shrinkage on K. Both take
the logarithm of noise: for softmax the numerical rank counts it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankprobe import spectra
from rankprobe.attention import Attention
from rankprobe.estimators.inversion import Task
from rankprobe.estimators.model import Sample
from rankprobe.estimators.result import Estimate, Status
from rankprobe.tokens import centred_keys

Floats = npt.NDArray[np.float64]

CLIP = 1e-6
"""Recovered attention below this is set to it before the logarithm."""

TOLERANCE = 1e-2
"""Singular values below this share of the largest do not count towards the numerical rank."""

ROUNDS = 20
"""Alternations over (K, V)."""


def paper_estimates(task: Task, names: list[str], value_map: Floats | None) -> dict[str, Estimate]:
    """The paper's answer for each name; v-unknown comes plain and, beside it, with shrinkage."""
    sample = task.sampler.take(task.sequences)
    sample = Sample(np.asarray(sample.X), np.asarray(sample.Y), sample.mask)
    inversion = _ScoreInversion(task, sample)
    answers: dict[str, Estimate] = {}
    for name in names:
        if name == "v-unknown":
            answers[name] = _answer(task, name, _alternate(task, sample, inversion, shrink=False)[0], sample)
            shrunk = _alternate(task, sample, inversion, shrink=True)[0]
            answers["v-unknown-shrunk"] = _answer(task, "v-unknown-shrunk", shrunk, sample)
        elif name == "v-known" and value_map is not None:
            scores = _scores(task, _recovered_mixer(task, sample, np.asarray(value_map)))
            answers[name] = _answer(task, name, inversion.kernel(scores), sample)
        elif name == "realized-mixer":
            V = value_map if value_map is not None else _alternate(task, sample, inversion, shrink=False)[1]
            mixer = np.mean(_recovered_mixer(task, sample, np.asarray(V)), axis=0)
            answers[name] = _answer(task, name, mixer, sample)
    return answers


def _recovered_mixer(task: Task, sample: Sample, V: Floats) -> Floats:
    """A = Y (X V)⁺ for each sequence, [n, T, T]."""
    A: Floats = sample.Y @ np.linalg.pinv(sample.X @ V)
    return np.asarray(np.tril(A)) if task.causal else A


def _scores(task: Task, A: Floats) -> Floats:
    """Logits from a recovered mixer; for softmax log of the clipped entries, rows centred."""
    if task.kind != "softmax":
        return A
    logits = np.log(np.clip(A, CLIP, None))
    if task.causal:
        seen = np.tril(np.ones(A.shape[1:]))
        mean = np.sum(logits * seen, axis=2, keepdims=True) / np.sum(seen, axis=1)[:, None]
        return np.asarray((logits - mean) * seen)
    return np.asarray(logits - np.mean(logits, axis=2, keepdims=True))


class _ScoreInversion:
    """K [d, d] minimising Σ ‖scores − X K Xᵀ‖² (keys centred for softmax): least squares on d² unknowns.

    The design depends on the tokens alone, so its normal matrix is decomposed once for all alternations.
    """

    def __init__(self, task: Task, sample: Sample) -> None:
        self.X = sample.X
        self.keys = centred_keys(self.X, sample.mask) if task.kind == "softmax" else self.X
        n, _, d = self.X.shape
        queries = (np.swapaxes(self.X, 1, 2) @ self.X).reshape(n, d * d)
        seen = (np.swapaxes(self.keys, 1, 2) @ self.keys).reshape(n, d * d)
        gram = (queries.T @ seen).reshape(d, d, d, d).transpose(0, 2, 1, 3).reshape(d * d, d * d)
        self.eigenvalues, self.vectors = np.linalg.eigh((gram + gram.T) / 2)

    def kernel(self, scores: Floats) -> Floats:
        d = self.X.shape[2]
        right = np.sum(np.swapaxes(self.X, 1, 2) @ scores @ self.keys, axis=0).ravel()
        keep = self.eigenvalues > 1e-12 * self.eigenvalues[-1]
        basis = self.vectors[:, keep]
        return np.reshape(basis @ ((basis.T @ right) / self.eigenvalues[keep]), (d, d))


def _alternate(task: Task, sample: Sample, inversion: _ScoreInversion, shrink: bool) -> tuple[Floats, Floats]:
    """K [d, d] and V [d, d_v] after :data:`ROUNDS` alternations, from the identity mixer."""
    X, Y = sample.X, sample.Y
    n, length, d = X.shape
    attention = Attention("softmax" if task.kind == "softmax" else "linear", task.causal)
    visible = attention.visible(X, length, sample.mask)
    A: Floats = np.broadcast_to(np.eye(length), (n, length, length))
    K, V = np.zeros((d, d)), np.zeros((d, Y.shape[2]))
    for _ in range(ROUNDS):
        V = np.linalg.lstsq((A @ X).reshape(-1, d), Y.reshape(-1, Y.shape[2]), rcond=1e-10)[0]
        K = inversion.kernel(_scores(task, _recovered_mixer(task, sample, V)))
        if shrink:
            K = _shrunk(K)
        A = attention.mixer(X @ K @ np.swapaxes(X, 1, 2), visible)
    return K, V


def _shrunk(K: Floats) -> Floats:
    """K with its singular values lowered by their median: the bulk is taken for noise."""
    left, values, right = np.linalg.svd(K)
    return np.asarray((left * np.maximum(values - np.median(values), 0.0)) @ right)


def _answer(task: Task, name: str, found: Floats, sample: Sample) -> Estimate:
    scale = task.scale if name != "realized-mixer" else 1.0
    values = np.linalg.svd(found, compute_uv=False) / scale
    finite = bool(np.all(np.isfinite(values)))
    spectrum = tuple(float(value) for value in values) if finite else ()
    return Estimate(
        estimator=name,
        solver="paper",
        status=Status.NOT_IDENTIFIABLE,
        message="the paper's estimator tests nothing: it counts values above 1 % of the largest, noise too",
        rank=spectra.numerical_rank(values, TOLERANCE) if finite else None,
        rank_interval=None,
        confidence=None,
        energy_rank=spectra.energy_rank(spectrum) if finite else None,
        energy_rank_interval=None,
        energy_rank_data=None,
        effective_rank=spectra.effective_rank(spectrum) if finite else None,
        stable_rank=spectra.stable_rank(spectrum) if finite else None,
        singular_values=spectrum,
        singular_values_data=(),
        noise_edge=None,
        noise_sigma=None,
        r2_heldout=None,
        sequences_used=sample.sequences,
        attention=task.kind,
        causal=task.causal,
        bias=False,
        residual=False,
        kernel="full",
    )
