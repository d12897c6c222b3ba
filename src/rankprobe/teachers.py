"""Synthetic tasks whose rank is known: a teacher map, its inputs, its noise.

Three maps, all through :class:`rankprobe.attention.Attention`, with E ~ N(0, noise²):

    fixed_operator   Y = A X V + E             A* [T, T] of the given rank (the paper's surrogate, eq. 5)
    linear_qk        Y = (s X K Xᵀ) X V + E
    softmax_qk       Y = softmax(s X K Xᵀ) X V + E

The defaults are the paper's attention-native cell (its Tables 3 and 4): T = 16, d = 32, s = 1/√d, noise .05,
K = U diag(λ) Uᵀ, V Gaussian/√d, tokens N(0, I). A sequence depends on the seed and on its own index only:
neither the block size nor the number of sequences asked for changes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from rankprobe.attention import Attention
from rankprobe.errors import UsageError

Kind = Literal["fixed_operator", "linear_qk", "softmax_qk"]
Spectrum = Literal["sharp", "power", "flat"]
Kernel = Literal["symmetric", "asymmetric", "traceless"]
Inputs = Literal["gaussian", "anisotropic", "layernorm", "constant-feature", "low-rank"]
Padding = Literal["none", "left", "right"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Block = tuple[Floats, Floats] | tuple[Floats, Floats, Bools]

ATTENTION_OF: dict[Kind, str] = {
    "fixed_operator": "fixed_operator",
    "linear_qk": "linear",
    "softmax_qk": "softmax",
}
"""The file attribute ``attention`` of each kind."""

# Branches of the seed tree. The numbers are part of the data: changing one changes every file.
_MAPS, _VALUES, _TOKEN_LAW, _TOKENS, _NOISE, _LENGTHS = range(6)

_GROUP_FLOATS = 1 << 20
"""Sequences are drawn in groups of at most this many token entries (8 MiB), whatever the block size."""


def spectrum_values(spectrum: Spectrum, rank: int) -> Floats:
    """λ [rank], largest first: sharp 2 − (i−1)/(r−1) (2 when r = 1), power 1/i, flat 1."""
    i = np.arange(1, rank + 1, dtype=np.float64)
    if spectrum == "sharp":
        return 2.0 - (i - 1.0) / max(rank - 1, 1)
    if spectrum == "power":
        return 1.0 / i
    return np.ones(rank)


@dataclass(frozen=True, eq=False)
class Teacher:
    """A map of known rank and the law of its inputs; made by :func:`make_teacher`.

    ``maps`` [H, d, d] holds the kernels K (``fixed_operator``: the operators A* [H, T, T]), ``values``
    [H, d, d_v] the value maps; H = 1 when ``heads`` is None. The scale is not folded into K.
    """

    kind: Kind
    rank: int
    tokens: int
    dim: int
    value_dim: int
    spectrum: Spectrum
    kernel: Kernel
    scale: float
    inputs: Inputs
    causal: bool
    heads: int | None
    padding: Padding
    noise: float
    seed: int
    maps: Floats
    values: Floats
    law: TokenLaw

    @property
    def K(self) -> Floats:
        """The kernel [d, d] ([H, d, d] with heads); for ``fixed_operator`` the operator A* [T, T]."""
        return self.maps if self.heads is not None else self.maps[0]

    @property
    def V(self) -> Floats:
        """The value map [d, d_v] ([H, d, d_v] with heads)."""
        return self.values if self.heads is not None else self.values[0]

    def attributes(self) -> dict[str, Any]:
        """Root attributes of a pair file: what whoever recorded (X, Y) would know about the layer."""
        facts: dict[str, Any] = {
            "attention": ATTENTION_OF[self.kind],
            "causal": self.causal,
            "noise_sigma": self.noise,
        }
        if self.kind != "fixed_operator":
            facts["scale"] = self.scale
        return facts

    def truth(self) -> dict[str, Any]:
        """What is kept under ``/teacher``: arrays and plain values, enough to make the teacher again."""
        return {
            "A" if self.kind == "fixed_operator" else "K": self.K,
            "V": self.V,
            "spectrum": spectrum_values(self.spectrum, self.rank),
            "visible_spectrum": self.visible_spectrum(),
            "kind": self.kind,
            "rank": self.rank,
            "spectrum_kind": self.spectrum,
            "kernel": self.kernel,
            "scale": self.scale,
            "inputs": self.inputs,
            "causal": self.causal,
            "padding": self.padding,
            "noise_sigma": self.noise,
            "seed": self.seed,
        }

    def visible_spectrum(self) -> Floats:
        """Singular values of P_q K P_k [r] ([H, r]): the part of K that this law of tokens can show.

        P_q projects on the range of the tokens' second moment, P_k on the directions in which the keys of
        one sequence move (softmax) or on the same range (linear). With Gaussian tokens it is the spectrum.
        """
        seen = self.maps
        if self.kind != "fixed_operator":
            softmax = self.kind == "softmax_qk"
            seen = self.law.queries() @ self.maps @ self.law.keys(centred=softmax)
            if softmax and self.tokens == 1:  # a softmax over one key is 1, whatever the kernel
                seen = np.zeros_like(seen)
        values = np.asarray(np.linalg.svd(seen, compute_uv=False), dtype=np.float64)[:, : self.rank]
        return values if self.heads is not None else values[0]

    def blocks(self, sequences: int, block: int | None = None) -> Iterator[Block]:
        """Yield (X, Y), or (X, Y, mask) with padding, for sequences 0, 1, … in blocks of ``block``.

        X [m, T, d], Y [m, T, d_v] ([m, H, T, d_v] with heads), float64; mask [m, T] is true at real tokens,
        and padded rows of X and Y are zero. The values do not depend on ``block``.
        """
        if sequences < 1 or (block is not None and block < 1):
            raise UsageError("sequences and block must be at least 1")
        group = max(1, min(64, _GROUP_FLOATS // (self.tokens * self.dim)))
        wanted = group if block is None else block
        held: list[tuple[npt.NDArray[Any], ...]] = []
        count = 0
        for index in range(-(-sequences // group)):
            # Always the whole group, cut afterwards: a shorter file is a prefix of a longer one.
            drawn = self._group(index, group)
            part = tuple(array[: sequences - index * group] for array in drawn)
            held.append(part)
            count += len(part[0])
            last = (index + 1) * group >= sequences
            while count >= wanted or (last and count):
                whole = tuple(np.concatenate(arrays) for arrays in zip(*held, strict=True))
                yield tuple(array[:wanted] for array in whole)  # type: ignore[misc]
                rest = tuple(array[wanted:] for array in whole)
                count = len(rest[0])
                held = [rest] if count else []

    def _group(self, index: int, size: int) -> tuple[npt.NDArray[Any], ...]:
        """Group ``index`` of ``size`` sequences: (X, Y) or (X, Y, mask)."""
        X = self.law.draw(_generator(self.seed, _TOKENS, index), (size, self.tokens))
        noise = _generator(self.seed, _NOISE, index).standard_normal(
            (size, len(self.maps), self.tokens, self.value_dim)
        )
        mask = None
        if self.padding != "none":
            shortest = min(2, self.tokens)
            lengths = _generator(self.seed, _LENGTHS, index).integers(
                shortest, self.tokens, size=size, endpoint=True
            )
            mask = np.arange(self.tokens) < lengths[:, None]
            X = X * mask[:, :, None]
        Y = np.stack([self._clean(h, X, mask) for h in range(len(self.maps))], axis=1)
        Y += self.noise * noise
        if self.heads is None:
            Y = Y[:, 0]
        if mask is None:
            return X, Y
        Y = Y * (mask[:, :, None] if self.heads is None else mask[:, None, :, None])
        if self.padding == "left":
            # The same sequences, moved to the end, so that both sides can be compared token by token.
            order = (np.arange(self.tokens) + lengths[:, None]) % self.tokens
            rows = np.arange(size)[:, None]
            mask, X = mask[rows, order], X[rows, order]
            Y = Y[rows, order] if self.heads is None else np.moveaxis(Y, 2, 1)[rows, order].swapaxes(1, 2)
        return X, Y, mask

    def _clean(self, head: int, X: Floats, mask: Bools | None) -> Floats:
        """A X V of one head, without noise [m, T, d_v]."""
        B = X @ self.values[head]
        if self.kind == "fixed_operator":
            return np.asarray(self.maps[head] @ B)
        link: Literal["softmax", "linear"] = "softmax" if self.kind == "softmax_qk" else "linear"
        attention = Attention(link=link, causal=self.causal)
        logits = self.scale * (X @ self.maps[head]) @ X.swapaxes(1, 2)
        A = attention.mixer(logits, attention.visible(logits, self.tokens, mask))
        return np.asarray(A @ B)


@dataclass(frozen=True, eq=False)
class TokenLaw:
    """The law of one token and the directions in which it can move.

    ``basis`` [k, d] maps k independent normals to a token (None: the identity); ``gain`` and ``bias`` [d] are
    the affine part of a LayerNorm; ``constant`` makes the last feature 1.
    """

    dim: int
    basis: Floats | None = None
    gain: Floats | None = None
    bias: Floats | None = None
    constant: bool = False

    def draw(self, generator: np.random.Generator, shape: tuple[int, int]) -> Floats:
        """Tokens [*shape, d]."""
        k = self.dim if self.basis is None else len(self.basis)
        tokens = generator.standard_normal((*shape, k))
        if self.basis is not None:
            tokens = tokens @ self.basis
        if self.gain is not None and self.bias is not None:
            tokens -= tokens.mean(axis=-1, keepdims=True)
            tokens /= tokens.std(axis=-1, keepdims=True)
            tokens = self.gain * tokens + self.bias
        if self.constant:
            tokens[..., -1] = 1.0
        return tokens

    def queries(self) -> Floats:
        """Projection [d, d] on the range of E[x xᵀ]."""
        if self.basis is None or len(self.basis) == self.dim:
            return np.eye(self.dim)
        q, _ = np.linalg.qr(self.basis.T)
        return np.asarray(q @ q.T)

    def keys(self, *, centred: bool) -> Floats:
        """Projection [d, d] on the range of E[x xᵀ] or, ``centred``, of the within-sequence covariance."""
        projection = self.queries()
        if centred and self.gain is not None:
            # x·(1/gain) is the same number for every token: a LayerNorm's output has a constant direction.
            still = (1.0 / self.gain) / np.linalg.norm(1.0 / self.gain)
            projection = projection - np.outer(still, still)
        if centred and self.constant:
            projection = projection.copy()
            projection[-1, -1] = 0.0
        return projection


def make_teacher(
    kind: Kind = "softmax_qk",
    rank: int = 4,
    tokens: int = 16,
    dim: int = 32,
    value_dim: int | None = None,
    *,
    spectrum: Spectrum = "sharp",
    kernel: Kernel = "symmetric",
    scale: float | None = None,
    inputs: Inputs = "gaussian",
    causal: bool = False,
    heads: int | None = None,
    padding: Padding = "none",
    noise: float = 0.05,
    seed: int = 0,
) -> Teacher:
    """Draw a teacher.

    Parameters
    ----------
    kind : the map; see the module's first lines.
    rank : rank of K (of A* for ``fixed_operator``); 0 gives K = 0.
    tokens, dim, value_dim : T, d and d_v (default: d).
    spectrum : singular values of K, see :func:`spectrum_values`.
    kernel : ``symmetric`` U diag(λ) Uᵀ; ``asymmetric`` U diag(λ) Wᵀ, U and W independent; ``traceless``
        U diag(λ) Wᵀ with Σ λ_i u_iᵀw_i = 0: W ⟂ U where 2r ≤ d (every power of K is traceless too), else W
        is U with its columns moved on by one. All three have exactly the singular values λ.
    scale : s, a positive factor on the logits (default 1/√d); ``fixed_operator`` has none.
    inputs : ``gaussian`` N(0, I); ``anisotropic`` N(0, C), eigenvalues of C ∝ 1/i with mean 1;
        ``layernorm`` LayerNorm of N(0, I) with a random gain and bias; ``constant-feature`` N(0, I) with the
        last feature 1; ``low-rank`` N(0, I) on a random subspace of ⌈d/2⌉ dimensions.
    causal : a query sees only its own position and earlier ones.
    heads : H maps over the same X, each with its own K and V; None: one map and no axis for heads.
    padding : each sequence gets a random length in 2..T; the rest is padding on that side, and blocks carry
        a mask. Left and right hold the same sequences.
    noise : σ, the standard deviation of each entry of E.
    seed : a non-negative integer.

    Raises
    ------
    UsageError : a value out of range, or a combination that has no meaning.
    """
    width = dim if value_dim is None else value_dim
    order = tokens if kind == "fixed_operator" else dim
    for name, value, allowed in (
        ("teacher", kind, Kind),
        ("spectrum", spectrum, Spectrum),
        ("kernel", kernel, Kernel),
        ("inputs", inputs, Inputs),
        ("padding", padding, Padding),
    ):
        if value not in get_args(allowed):
            raise UsageError(f"{name} {value!r} is unknown; choose one of {', '.join(get_args(allowed))}")
    for name, size in (("tokens", tokens), ("dim", dim), ("value dim", width), ("heads", heads or 1)):
        if size < 1:
            raise UsageError(f"{name} must be at least 1, not {size}")
    if heads == 0:
        raise UsageError("heads must be at least 1, not 0")
    if not 0 <= rank <= order:
        side = "T" if kind == "fixed_operator" else "d"
        raise UsageError(
            f"rank {rank} does not fit a {order} × {order} map; choose 0 ≤ rank ≤ {side} = {order}"
        )
    if kernel == "traceless" and rank == order == 1:
        raise UsageError("no 1 × 1 map of rank 1 is traceless; raise the dimension or choose another kernel")
    if inputs in ("layernorm", "constant-feature") and dim < 2:
        raise UsageError(f"{inputs} tokens need at least 2 features, not {dim}")
    if not (math.isfinite(noise) and noise >= 0):
        raise UsageError(f"noise must be a finite number ≥ 0, not {noise}")
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise UsageError(f"scale must be a finite number > 0, not {scale}")
    if seed < 0:
        raise UsageError(f"seed must be ≥ 0, not {seed}")
    if kind == "fixed_operator" and (causal or padding != "none" or scale is not None):
        raise UsageError(
            "a fixed operator acts on positions and has no logits: causal, padding and scale do not apply"
        )

    λ = spectrum_values(spectrum, rank)
    maps = np.empty((heads or 1, order, order))
    values = np.empty((heads or 1, dim, width))
    for h in range(heads or 1):
        maps[h] = _kernel(_generator(seed, _MAPS, h), order, λ, kernel)
        values[h] = _generator(seed, _VALUES, h).standard_normal((dim, width)) / math.sqrt(dim)
    return Teacher(
        kind=kind,
        rank=rank,
        tokens=tokens,
        dim=dim,
        value_dim=width,
        spectrum=spectrum,
        kernel=kernel,
        scale=1.0 if kind == "fixed_operator" else 1.0 / math.sqrt(dim) if scale is None else scale,
        inputs=inputs,
        causal=causal,
        heads=heads,
        padding=padding,
        noise=noise,
        seed=seed,
        maps=maps,
        values=values,
        law=_token_law(inputs, dim, _generator(seed, _TOKEN_LAW)),
    )


def _generator(seed: int, *branch: int) -> np.random.Generator:
    """The generator at one branch of the seed tree (what SeedSequence.spawn would hand out there)."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=branch))


def _kernel(generator: np.random.Generator, order: int, λ: Floats, kernel: Kernel) -> Floats:
    """A map [order, order] with singular values λ; see :func:`make_teacher` for the three kinds."""
    rank = len(λ)
    if kernel == "symmetric":
        U = _orthonormal(generator, order, rank)
        return np.asarray((U * λ) @ U.T)
    if kernel == "asymmetric":
        U, W = _orthonormal(generator, order, rank), _orthonormal(generator, order, rank)
        return np.asarray((U * λ) @ W.T)
    if 2 * rank <= order:
        both = _orthonormal(generator, order, 2 * rank)
        return np.asarray((both[:, :rank] * λ) @ both[:, rank:].T)
    U = _orthonormal(generator, order, rank)
    return np.asarray((U * λ) @ np.roll(U, 1, axis=1).T)


def _orthonormal(generator: np.random.Generator, rows: int, columns: int) -> Floats:
    """Uniformly distributed orthonormal columns [rows, columns]."""
    q, r = np.linalg.qr(generator.standard_normal((rows, columns)))
    # QR alone leaves the signs to the library; this makes the draw Haar and the same everywhere.
    return np.asarray(q * np.where(np.diagonal(r) < 0, -1.0, 1.0))


def _token_law(inputs: Inputs, dim: int, generator: np.random.Generator) -> TokenLaw:
    if inputs == "anisotropic":
        variances = 1.0 / np.arange(1, dim + 1)
        variances *= dim / variances.sum()
        return TokenLaw(dim, basis=np.sqrt(variances)[:, None] * _orthonormal(generator, dim, dim).T)
    if inputs == "low-rank":
        return TokenLaw(dim, basis=_orthonormal(generator, dim, -(-dim // 2)).T.copy())
    if inputs == "layernorm":
        gain = generator.uniform(0.5, 1.5, dim)
        return TokenLaw(dim, gain=gain, bias=0.2 * generator.standard_normal(dim))
    return TokenLaw(dim, constant=inputs == "constant-feature")
