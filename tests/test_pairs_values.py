"""Values that strangers store: what can be read is estimated, what cannot is named with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import rankprobe
from cli_support import Ran, run
from rankprobe.errors import DataError, UsageError

N, T, D, DV = 120, 8, 6, 5
RNG = np.random.default_rng(0)
KERNEL = RNG.standard_normal((D, 2)) @ RNG.standard_normal((2, D)) / 2
VALUE = RNG.standard_normal((D, DV))
X = RNG.standard_normal((N, T, D))
NOISE = 1e-3 * RNG.standard_normal((N, T, DV))
TWICE = np.repeat(X, 2, axis=1)


def attend(tokens: Any, real: Any = None, noise: Any = NOISE) -> Any:
    """Softmax attention of rank 2 over the real tokens, noise added."""
    scores = tokens @ KERNEL @ np.swapaxes(tokens, 1, 2)
    if real is not None:
        scores = np.where(real[:, None, :], scores, -np.inf)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    return weights / weights.sum(2, keepdims=True) @ tokens @ VALUE + noise


Y = attend(X)


def estimate(path: Path, x: Any, y: Any, /, *arguments: object, **more: Any) -> Ran:
    with h5py.File(path, "w") as file:
        for name, value in {"X": x, "Y": y, **more}.items():
            file[name] = value
    return run("estimate", "-q", "--attention", "softmax", "--no-causal", path, *arguments)


@pytest.mark.parametrize(
    "x,y",
    [
        (X * 10.0 ** np.array([30, -30, 0, 0, 0, 0]), Y),
        (X, Y + np.array([100.0, -3.0, 0.0, 0.0, 0.0])),
        (np.concatenate([X, np.full((N, T, 1), 7.0)], axis=2), Y),
        (TWICE, attend(TWICE, noise=RNG.normal(0, 1e-3, (N, 2 * T, DV)))),
        (X, Y[:, :, :1]),
        (X.astype(">f4"), Y.astype(">f8")),
        (X * 1e20, Y * 1e-12),
    ],
    ids=[
        "features 1e30 and 1e-30",
        "an output bias",
        "a constant feature",
        "every token twice",
        "d_v = 1",
        "big-endian",
        "large and small",
    ],
)
def test_the_rank_is_found(tmp_path: Path, x: Any, y: Any) -> None:
    ran = estimate(tmp_path / "a.h5", x, y)
    assert (ran.code, ran.out, ran.err) == (0, "2\n", "")


@pytest.mark.parametrize(
    "x,y",
    [
        (X[:, :1], Y[:, :1]),
        (X[:1], Y[:1]),
        (X[:1, :1, :1], Y[:1, :1, :1]),
        (np.ones_like(X), Y),
        (np.zeros_like(X), np.zeros_like(Y)),
        (X[:, :, :1], Y),
        (X > 0, Y),
        (np.rint(3 * X).astype(np.int64), np.rint(3 * Y).astype(np.int8)),
    ],
    ids=["T = 1", "n = 1", "one number", "tokens equal", "zeros", "d = 1", "booleans", "integers"],
)
@pytest.mark.filterwarnings("error")
def test_what_says_nothing_is_answered_so(tmp_path: Path, x: Any, y: Any) -> None:
    ran = estimate(tmp_path / "a.h5", x, y)
    assert ran.code == 4 and ran.err.startswith(f"rankprobe: {tmp_path}/a.h5: ")
    assert ran.err.count("\n") == 1


def _at(values: Any, kind: Any, value: float) -> Any:
    out = values.astype(kind)
    out[3, 2, 1] = value
    return out


@pytest.mark.parametrize(
    "x,y,says",
    [
        (_at(X, "f8", np.nan), Y, "/X: 1 of 5760 values are NaN (first at [3, 2, 1]); pass --nan skip or"),
        (X, _at(Y, "f4", np.inf), "/Y: 1 of 4800 values are infinite (first at [3, 2, 1]); pass --nan"),
        (_at(X, "f2", np.inf), Y, "/X: 1 of 5760 values are infinite (first at [3, 2, 1]) (float16 ends"),
        (X * 1e200, Y, "/X: values reach ... beyond 1e+100, where squares overflow; divide them by"),
        (X, Y * 1e20, "/Y: values reach ... beyond 1e+15, where squares overflow; divide them by"),
        (X * 1e-310, Y, "/X: values reach ... below 1e-30, where float64 or its squares"),
        (X, (Y * 1e-42).astype("f4"), "/Y: values reach ... below 1e-15, where float32"),
        ((X * 1e-6).astype("f2"), Y, "/X: values reach ... below 6.1e-05, where float16"),
        (X.astype(complex), Y, "/X: holds complex numbers, not real numbers; store the real part"),
        (X[:0], Y[:0], "/X: is empty, its shape is [0, 8, 6]; name another dataset"),
        (X[:, :0], Y[:, :0], "/X: is empty, its shape is [120, 0, 6]; name another dataset"),
    ],
    ids=[
        "NaN", "infinite", "float16 overflow", "too large", "too large outputs", "denormal",
        "denormal float32", "denormal float16", "complex", "no sequences", "no tokens",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_used_is_named(tmp_path: Path, x: Any, y: Any, says: str) -> None:
    ran = estimate(tmp_path / "a.h5", x, y)
    assert (ran.code, ran.out, ran.err.count("\n")) == (3, "NA\n", 1)
    start, end = [*says.split(" ... "), ""][:2]
    assert ran.err.startswith(f"rankprobe: error: {tmp_path}/a.h5::{start}") and end in ran.err


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.bool_])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("garbage", [np.nan, 1e300])
def test_padding_is_never_seen(tmp_path: Path, side: str, kind: Any, garbage: float) -> None:
    """Each sequence has 5 to 8 tokens; what lies behind them is garbage."""
    real = np.arange(T) < np.random.default_rng(1).integers(5, T + 1, (N, 1))
    real = real if side == "right" else real[:, ::-1]
    x, y = np.where(real[..., None], X, garbage), np.where(real[..., None], attend(X, real), garbage)
    ran = estimate(tmp_path / "a.h5", x, y, mask=real.astype(kind))
    assert (ran.code, ran.out) == (0, "2\n")
    ran = estimate(tmp_path / "a.h5", x, y, "--mask", "attention_mask", attention_mask=real.astype(kind))
    assert (ran.code, ran.out) == (0, "2\n")
    if np.isnan(garbage):
        ran = estimate(tmp_path / "a.h5", x, y, "--nan", "skip")
        assert (ran.code, ran.out) == (0, "2\n")


def test_nan_tokens_are_left_out_as_query_and_as_key(tmp_path: Path) -> None:
    """In X or only in Y: the same answer as with a mask, from the command line, a path and arrays."""
    real = np.ones((N, T), dtype=bool)
    real[::2, 3] = real[1::3, 0] = False
    x, y = X.copy(), attend(X, real)
    x[::2, 3, 1], y[1::3, 0, 2] = np.nan, np.inf
    path = tmp_path / "a.h5"
    assert estimate(path, x, y, "--nan", "skip").out == "2\n"
    told = {"attention": "softmax", "causal": False}
    clean = np.where(real[..., None], X, 0.0), np.where(real[..., None], y, 0.0)
    want = rankprobe.estimate(*clean, mask=real, **told)
    assert want.rank == 2
    for given in ((path,), (str(path),), (x, y)):
        answer = rankprobe.estimate(*given, nan="skip", **told)
        assert answer.rank == 2
        assert np.allclose(answer.singular_values, want.singular_values, rtol=1e-6)
    for given in ((path,), (x, y)):
        with pytest.raises(DataError, match=r"X: .* (NaN|not finite)"):
            rankprobe.estimate(*given, **told)
    with rankprobe.open_pairs(path, nan="skip") as pairs:
        assert rankprobe.estimate(pairs, **told).rank == 2
        with pytest.raises(UsageError, match="pass nan='skip' to open_pairs"):
            rankprobe.estimate(pairs, nan="skip", **told)
    with pytest.raises(UsageError, match="nan='drop' must be error or skip"):
        rankprobe.estimate(x, y, nan="drop")  # type: ignore[arg-type]


def test_arrays_are_held_to_the_same_sizes(tmp_path: Path) -> None:
    for x, y, says in (
        (X * 1e200, Y, r"^X: values reach .*, beyond 1e\+100"),
        (X, Y * 1e-40, r"^Y: values reach no more than .*, below 1e-15"),
        (X.astype(np.float32) * np.float32(1e-42), Y, r"^X: values reach no more than .* where float32"),
    ):
        with pytest.raises(DataError, match=says):
            rankprobe.estimate(x, y)
    real = np.arange(T) < T - 1
    x = np.where(real[:, None], X, 1e300)
    mask = np.broadcast_to(real, (N, T))
    assert (
        rankprobe.estimate(x, attend(X, mask), mask=mask.copy(), attention="softmax", causal=False).rank == 2
    )


def test_a_mask_that_is_not_used_is_mentioned(tmp_path: Path) -> None:
    ran = estimate(tmp_path / "a.h5", X, Y, attention_mask=np.ones((N, T)))
    assert (ran.code, ran.out) == (0, "2\n")
    assert ran.err == (
        f"rankprobe: {tmp_path}/a.h5::/attention_mask: may be the padding mask and is not used; "
        "pass --mask /attention_mask if it is\n"
    )


@pytest.mark.parametrize(
    "name,value,says",
    [
        (
            "causal",
            "maybe",
            "attribute causal is 'maybe', neither true nor false, and is not used; pass --causal",
        ),
        ("causal", np.array([0, 1]), "attribute causal is [0, 1], neither true nor false"),
        ("scale", "x", "attribute scale is 'x', no positive number, and is not used; pass --scale"),
        ("scale", -1.0, "attribute scale is -1.0, no positive number"),
        ("scale", np.nan, "attribute scale is nan, no positive number"),
        ("scale", np.array([1.0, 2.0]), "attribute scale is [1.0, 2.0], no positive number"),
        ("noise_sigma", 1 + 2j, "attribute noise_sigma is '(1+2j)', no number from 0 on"),
        ("scale", h5py.Empty("f8"), None),
        ("causal", np.array([b"False"]), None),
        ("attention", np.array([b"Softmax"]), None),
    ],
)
def test_attributes_without_a_meaning_are_mentioned(tmp_path: Path, name: str, value: Any, says: Any) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["X"], file["Y"] = X, Y
        file.attrs.update({"attention": "softmax", "causal": False, name: value})
    ran = run("estimate", "-q", path)
    assert (ran.code, ran.out) == (0, "2\n")
    assert ran.err == "" if says is None else ran.err.startswith(f"rankprobe: {path}: {says}")


def test_an_unknown_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["X"], file["Y"], file.attrs["attention"] = X, Y, "banana"
    ran = run("estimate", "-q", path)
    assert ran.code == 3
    assert f"{path}: attribute attention is 'banana', no known link; pass --attention" in ran.err
