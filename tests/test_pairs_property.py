"""Any valid pair gives the same estimate in any layout; any invalid one is refused with a remedy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import rankprobe
from cli_support import run

TOLD = {"attention": "softmax", "causal": False}
KINDS = ["float64", "float32", "float16", ">f8", ">f4", "bfloat16", "uint16"]


@contextmanager
def file_of(datasets: dict[str, Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        with h5py.File(path, "w") as file:
            for name, value in datasets.items():
                file.create_dataset(name, **(value if isinstance(value, dict) else {"data": value}))
        yield path


def pair(seed: int, n: int, T: int, d: int, heads: int, ragged: bool) -> tuple[Any, Any, Any]:
    """X [n, T, d], Y [n, H, T, 3] of softmax attention of rank 1, and lengths [n], of which one is T."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, T, d))
    lengths = rng.integers(T - 1, T + 1, n) if ragged else np.full(n, T)
    lengths[0] = T
    real = np.arange(T) < lengths[:, None]
    Y = []
    for _ in range(heads):
        scores = (X @ rng.standard_normal(d))[:, :, None] * (X @ rng.standard_normal(d))[:, None, :]
        weights = np.exp(np.clip(scores, -9, 9)) * real[:, None, :]
        noise = 0.01 * rng.standard_normal((n, T, 3))
        Y.append(weights / weights.sum(2, keepdims=True) @ X @ rng.standard_normal((d, 3)) + noise)
    return X, np.stack(Y, axis=1), lengths


def encode(values: Any, kind: str) -> Any:
    if kind in ("bfloat16", "uint16"):
        return values.astype(ml_dtypes.bfloat16).view("V2" if kind == "bfloat16" else "u2")
    return values.astype(kind)


def decoded(values: Any, kind: str) -> Any:
    return values.astype(ml_dtypes.bfloat16 if kind in ("bfloat16", "uint16") else kind).astype(float)


def rows(values: list[Any]) -> dict[str, Any]:
    data = np.empty(len(values), dtype=object)
    data[:] = [np.ascontiguousarray(one).ravel() for one in values]
    return {"data": data, "dtype": h5py.vlen_dtype(values[0].dtype)}


def axes(Y: Any, order: str) -> Any:
    """Y [..., H, T, d_h] with its heads as the layout wants them."""
    if order == "before":
        return Y
    after = np.moveaxis(Y, -3, -2)
    return after if order == "after" else after.reshape(*after.shape[:-2], -1)


def layout(draw: Any, X: Any, Y: Any, lengths: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Datasets that hold the pair in some layout, and the options that read them."""
    n, T, d = X.shape
    H = Y.shape[1]
    order = draw(st.sampled_from(["before", "after", "merged"] if H != T else ["before", "merged"]))
    options: dict[str, Any] = {"heads": H} if order == "merged" else {}
    real = np.arange(T) < lengths[:, None]
    way = draw(st.sampled_from(["plain", "flat", "series", "batches", "rows"]))
    if way == "rows" and X.dtype.kind == "V":
        way = "series"  # h5py has no rows of opaque elements
    if way in ("series", "rows"):
        xs = [X[i, : lengths[i]] for i in range(n)]
        ys = [axes(Y[i, :, : lengths[i]], order) for i in range(n)]
        if way == "rows" and order != "before":
            return {"X": rows(xs), "Y": rows(ys)}, {"dim": d, "heads": H}
        names = draw(st.sampled_from([("seq_{:03d}/x", "seq_{:03d}/y"), ("in/{}", "out/{}"), ("x{}", "y{}")]))
        datasets = {names[0].format(i): one for i, one in enumerate(xs)}
        datasets |= {names[1].format(i): one for i, one in enumerate(ys)}
        x, y = (name.replace("{:03d}", "*").replace("{}", "*") for name in names)
        return datasets, {**options, "x": x, "y": y}
    mask = real.astype(draw(st.sampled_from(["bool", "i1", "i8"])))
    if X.dtype.kind == "f":
        X = np.where(real[..., None], X, X.dtype.type(np.nan))
        Y = np.where(real[:, None, :, None], Y, Y.dtype.type(np.nan))
    if way == "batches":
        cuts = np.split(np.arange(n), sorted(draw(st.sets(st.integers(1, n - 1), max_size=3))))
        datasets = {}
        for i, at in enumerate(cuts):
            datasets |= {f"b{i}/x": X[at], f"b{i}/y": axes(Y[at], order), f"b{i}/m": mask[at]}
        return datasets, {**options, "x": "*/x", "y": "*/y", "mask": "*/m"}
    y = axes(Y, order)
    if way == "flat":
        y = axes(Y, order if order != "before" else "after").reshape(
            n * T, *((H,) if order != "merged" else ()), -1
        )
        X, mask, options = X.reshape(n * T, d), mask.ravel(), {**options, "tokens": T}
    names = draw(st.sampled_from([("X", "Y", "mask"), ("hidden states", "a::b", "ü")]))
    chunks: dict[str, Any] = draw(
        st.sampled_from([{}, {"chunks": True, "compression": "gzip"}, {"chunks": True, "compression": "lzf"}])
    )
    datasets = {name: {"data": value, **chunks} for name, value in zip(names, (X, y, mask), strict=True)}
    return datasets, {**options, "x": names[0], "y": names[1], "mask": names[2]}


@settings(max_examples=20)
@given(st.data())
def test_any_layout_gives_the_same_estimate(data: st.DataObject) -> None:
    draw = data.draw
    n, T, d = draw(st.integers(20, 60)), draw(st.integers(3, 6)), draw(st.integers(2, 4))
    H, kind = draw(st.integers(1, 3)), draw(st.sampled_from(KINDS))
    X, Y, lengths = pair(draw(st.integers(0, 99)), n, T, d, H, draw(st.booleans()))
    datasets, options = layout(draw, encode(X, kind), encode(Y, kind), lengths)
    if kind == "uint16":
        options["dtype"] = "bfloat16"
    head = draw(st.integers(0, H - 1))
    real = np.arange(T) < lengths[:, None]
    x = np.where(real[..., None], decoded(X, kind), 0)
    y = np.where(real[..., None], decoded(Y[:, head], kind), 0)
    with file_of(datasets) as path, rankprobe.open_pairs(path, **options) as pairs:
        assert (pairs.sequences, pairs.tokens, pairs.dim, pairs.value_dim, pairs.heads) == (n, T, d, 3, H)
        got = pairs.read(slice(None), head)
        assert np.array_equal(got[0], x) and np.array_equal(got[1], y)
        assert np.array_equal(real if got[2] is None else got[2], real)
        answer = rankprobe.estimate(pairs, head=head, **TOLD)
    with file_of({"X": encode(X, kind), "Y": encode(Y, kind), "mask": real}) as path:
        plain = {"dtype": "bfloat16"} if kind == "uint16" else {}
        with rankprobe.open_pairs(path, **plain) as pairs:
            want = rankprobe.estimate(pairs, head=head, **TOLD)
    assert (answer.rank, answer.status) == (want.rank, want.status)
    assert np.allclose(answer.singular_values, want.singular_values, rtol=1e-3)


def _replaced(name: str, value: Callable[[Any], Any]) -> Callable[[Path, Any], None]:
    def spoil(path: Path, _: Any) -> None:
        with h5py.File(path, "a") as file:
            values = file[name][...]
            del file[name]
            made = value(values)
            if made is not None:
                file.create_dataset(name, **(made if isinstance(made, dict) else {"data": made}))

    return spoil


def _bytes(change: Callable[[bytes, Any], bytes]) -> Callable[[Path, Any], None]:
    return lambda path, draw: path.write_bytes(change(path.read_bytes(), draw)) and None


def _with(values: Any, value: float) -> Any:
    out = values.copy()
    out.flat[out.size // 2] = value
    return out


SPOILED: dict[str, Callable[[Path, Any], None]] = {
    "gone": _replaced("Y", lambda _: None),
    "fewer sequences": _replaced("Y", lambda y: y[1:]),
    "fewer tokens": _replaced("X", lambda x: x[:, 1:]),
    "no axis": _replaced("X", lambda x: x[:, 0]),
    "one axis": _replaced("Y", lambda y: y.ravel()),
    "NaN": _replaced("X", lambda x: _with(x, np.nan)),
    "infinite": _replaced("Y", lambda y: _with(y, -np.inf)),
    "complex": _replaced("X", lambda x: x.astype(complex)),
    "strings": _replaced("Y", lambda y: y.astype("S8")),
    "16 bits": _replaced("X", lambda x: x.astype("f2").view("i2")),
    "opaque": _replaced("X", lambda x: x.view("V8")),
    "records": _replaced("X", lambda x: x.view([("re", "f4"), ("im", "f4")])),
    "empty": _replaced("Y", lambda y: y[:0]),
    "null": _replaced("Y", lambda _: h5py.Empty("f8")),
    "unwritten": _replaced("X", lambda x: {"shape": x.shape, "dtype": "f8"}),
    "unwritten chunks": _replaced("X", lambda x: {"shape": x.shape, "dtype": "f8", "chunks": (1, 1, 1)}),
    "terabytes": _replaced("X", lambda x: {"shape": (1 << 40, 4, 4), "dtype": "f8", "chunks": (1, 4, 4)}),
    "huge": _replaced("X", lambda x: x * 1e300),
    "tiny": _replaced("Y", lambda y: y * 1e-300),
    "truncated": _bytes(lambda content, draw: content[: draw(st.integers(0, len(content) - 1))]),
    "text": _bytes(lambda content, draw: draw(st.text(min_size=1)).encode()),
    "zeros": _bytes(lambda content, draw: bytes(draw(st.integers(0, 3000)))),
}  # fmt: skip
OPTIONS = [
    ("--x", "x"), ("--y", "/nowhere"), ("--mask", "m"), ("--v", "W"), ("--tokens", "7"), ("--tokens", "0"),
    ("--heads", "2"), ("--heads", "-1"), ("--dim", "9"), ("--dtype", "bfloat16"), ("--dtype", "f4"),
    ("--nan", "drop"), ("--head", "0"), ("--head", "x"), ("--x", "*/X"), ("--y", "o.h5::/Y"), ("--no",),
]  # fmt: skip


def refused(path: Path, *arguments: str) -> None:
    ran = run("estimate", "-q", path, *arguments)
    assert ran.code in (2, 3), ran
    lines = ran.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("rankprobe: error: ") and "internal" not in lines[0], (
        ran.err
    )
    assert "; " in lines[0] or "must be" in lines[0], ran.err  # what comes after is the remedy


@settings(max_examples=80)
@given(st.sampled_from(sorted(SPOILED)), st.integers(0, 99), st.data())
def test_any_invalid_pair_is_refused_with_a_remedy(kind: str, seed: int, data: st.DataObject) -> None:
    X, Y, _ = pair(seed, data.draw(st.integers(2, 6)), data.draw(st.integers(2, 5)), 3, 1, False)
    with file_of({"X": X, "Y": Y[:, 0]}) as path:
        SPOILED[kind](path, data.draw)
        before = path.read_bytes()
        refused(path)
        assert path.read_bytes() == before


@settings(max_examples=30)
@given(st.sampled_from(OPTIONS), st.integers(0, 99))
def test_any_option_that_does_not_fit_is_refused_with_a_remedy(option: tuple[str, ...], seed: int) -> None:
    X, Y, _ = pair(seed, 5, 4, 3, 1, False)
    with file_of({"X": X, "Y": Y[:, 0]}) as path:
        refused(path, *option)
