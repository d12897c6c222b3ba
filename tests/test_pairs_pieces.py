"""Pairs in pieces: a dataset for each sequence or batch, rows of varying length, X and Y in two files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from cli_support import FakeEstimator, estimator, run  # noqa: F401  a fixture
from rankprobe.data import open_pairs
from rankprobe.errors import DataError, UsageError

N, T, D, DV, H = 11, 5, 6, 3, 2
RNG = np.random.default_rng(5)
X = RNG.standard_normal((N, T, D))
Y = RNG.standard_normal((N, T, DV))
HEADS = RNG.standard_normal((N, H, T, DV))
LENGTHS = RNG.integers(1, T + 1, N)
LENGTHS[3] = T
REAL = np.arange(T) < LENGTHS[:, None]
ROWS = np.array([0, 2, 3, 10])


def make(path: Path, /, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file.create_dataset(name, **(value if isinstance(value, dict) else {"data": value}))
    return path


def rows(values: list[Any], kind: Any = np.float64) -> dict[str, Any]:
    """Options of a dataset whose elements are these rows."""
    data = np.empty(len(values), dtype=object)
    data[:] = [np.ascontiguousarray(one, dtype=kind).ravel() for one in values]
    return {"data": data, "dtype": h5py.vlen_dtype(kind)}


def cut(values: Any, i: int, axis: int = 0) -> Any:
    return np.take(values[i], range(LENGTHS[i]), axis)


def each(pattern: str, values: list[Any]) -> dict[str, Any]:
    return {pattern.replace("*", f"{i:04d}"): one for i, one in enumerate(values)}


def check(path: Path, head: int | None, want: Any, real: Any = REAL, /, **options: Any) -> None:
    """The pair is X and ``want`` [n, T, d_v] at the real tokens, however it is read."""
    with open_pairs(path, **options) as pairs:
        assert (pairs.sequences, pairs.tokens, pairs.dim, pairs.value_dim) == (N, T, D, DV)
        for chosen in (slice(None), slice(2, 7), ROWS, ROWS[::-1], [4], []):
            at = chosen if isinstance(chosen, slice) else np.asarray(chosen, dtype=int)
            x, y, mask = pairs.read(chosen, head)
            assert np.array_equal(np.ones_like(real)[at] if mask is None else mask, real[at])
            assert np.array_equal(x, np.where(real[..., None], X, 0)[at])
            assert np.array_equal(y, np.where(real[..., None], want, 0)[at])
        parts = list(pairs.blocks(1000, head))
        assert np.array_equal(np.concatenate([x for x, _, _ in parts]), np.where(real[..., None], X, 0))


GROUPS: dict[str, tuple[dict[str, Any], str, str, int | None]] = {
    "a group a sequence": (
        each("seq_*/X", [cut(X, i) for i in range(N)]) | each("seq_*/Y", [cut(Y, i) for i in range(N)]),
        "*/X", "*/Y", None,
    ),
    "heads before tokens": (
        each("s*/x", [cut(X, i) for i in range(N)])
        | each("s*/z", [cut(HEADS, i, axis=1) for i in range(N)]),
        "s*/x", "s*/z", 1,
    ),
    "heads after tokens": (
        each("s*/x", [cut(X, i) for i in range(N)])
        | each("s*/z", [np.swapaxes(cut(HEADS, i, axis=1), 0, 1) for i in range(N)]),
        "*/x", "*/z", 1,
    ),
    "a dataset a sequence": (
        each("x_*", [cut(X, i) for i in range(N)]) | each("y_*", [cut(Y, i) for i in range(N)]),
        "x_*", "y_*", None,
    ),
    "a folder for each side": (
        each("inputs/seq*", [cut(X, i) for i in range(N)])
        | each("outputs/seq*", [cut(Y, i) for i in range(N)]),
        "inputs/seq*", "outputs/seq*", None,
    ),
    "with other things between": (
        each("s*/x", [cut(X, i) for i in range(N)])
        | each("s*/y", [cut(Y, i) for i in range(N)])
        | {"meta/names": np.ones(3), "estimates/x": np.ones(2), "s-config": np.ones(2)},
        "*/x", "*/y", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_a_dataset_for_each_sequence(tmp_path: Path, name: str) -> None:
    datasets, x, y, head = GROUPS[name]
    path = make(tmp_path / "a.h5", **datasets)
    check(path, head, Y if head is None else HEADS[:, head], x=x, y=y)


def test_heads_side_by_side_in_each_sequence(tmp_path: Path) -> None:
    merged = np.swapaxes(HEADS, 1, 2).reshape(N, T, H * DV)
    datasets = each("*/x", [cut(X, i) for i in range(N)]) | each("*/y", [cut(merged, i) for i in range(N)])
    check(make(tmp_path / "a.h5", **datasets), 1, HEADS[:, 1], x="*/x", y="*/y", heads=H)


def test_batches_of_different_length(tmp_path: Path) -> None:
    """Batch b holds sequences of T - b tokens; the numbers in the names are not padded with zeros."""
    real = np.ones((N, T), dtype=bool)
    datasets = {}
    for b, at in enumerate(np.array_split(np.arange(N), [3, 8])):
        real[at, T - b :] = False
        datasets[f"b{b + 8}/x"] = {"data": X[at, : T - b], "compression": "gzip"}  # b8, b9, b10
        datasets[f"b{b + 8}/y"] = HEADS[at, :, : T - b]
    check(make(tmp_path / "a.h5", **datasets), 0, HEADS[:, 0], real, x="*/x", y="*/y")


def test_a_mask_beside_each_sequence(tmp_path: Path) -> None:
    real = REAL & (np.arange(T) > 0)
    datasets = (
        each("s*/x", [cut(X, i) for i in range(N)])
        | each("s*/y", [cut(Y, i) for i in range(N)])
        | each("s*/m", [real[i, : LENGTHS[i]].astype(np.int8) for i in range(N)])
    )
    check(make(tmp_path / "a.h5", **datasets), None, Y, real, x="*/x", y="*/y", mask="*/m")


@pytest.mark.parametrize("kind", [np.float64, ">f8"])
def test_rows_of_varying_length(tmp_path: Path, kind: Any) -> None:
    x = rows([cut(X, i) for i in range(N)], kind)
    path = make(tmp_path / "a.h5", X=x, Y=rows([cut(Y, i) for i in range(N)], kind))
    check(path, None, Y, dim=D)
    merged = [np.swapaxes(cut(HEADS, i, axis=1), 0, 1) for i in range(N)]
    check(make(tmp_path / "b.h5", X=x, Y=rows(merged, kind)), 1, HEADS[:, 1], dim=D, heads=H)


@pytest.mark.parametrize(
    "storage",
    [
        {"chunks": (4,)},
        {"chunks": (4,), "compression": "gzip"},
        {"chunks": (3,), "compression": "gzip", "shuffle": True},
        {"chunks": (16,), "maxshape": (None,), "shuffle": True},
    ],
)
def test_rows_in_chunks(tmp_path: Path, storage: dict[str, Any]) -> None:
    x, y = rows([cut(X, i) for i in range(N)]), rows([cut(Y, i) for i in range(N)])
    check(make(tmp_path / "a.h5", X={**x, **storage}, Y=y), None, Y, dim=D)


def test_rows_that_claim_more_than_the_file_holds(tmp_path: Path) -> None:
    """HDF5 would give room for four billion numbers first."""
    path = make(tmp_path / "a.h5", X=rows(list(X)), Y=rows(list(Y)))
    with h5py.File(path) as file:
        at = file["X"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[at + 16 : at + 20] = b"\xff" * 4
    path.write_bytes(content)
    line = refusal(path, dim=D)
    assert f"{path}::/X: row 1 claims 4294967295 numbers, more than the file holds" in line
    lzf = make(tmp_path / "b.h5", X={**rows(list(X)), "compression": "lzf"}, Y=rows(list(Y)))
    assert "/X: holds rows of varying length stored in a way not known here" in refusal(lzf, dim=D)


def test_empty_sequences_are_all_padding(tmp_path: Path) -> None:
    lengths = [2, 0, 1]
    x, y = [X[i, :size] for i, size in enumerate(lengths)], [Y[i, :size] for i, size in enumerate(lengths)]
    for path, options in (
        (make(tmp_path / "a.h5", X=rows(x), Y=rows(y)), {"dim": D}),
        (make(tmp_path / "b.h5", **each("*/x", x), **each("*/y", y)), {"x": "*/x", "y": "*/y"}),
    ):
        with open_pairs(path, **options) as pairs:
            _, got, mask = pairs.read(slice(None))
            assert any("1 of 3 sequences are empty (first 1); were they written?" in n for n in pairs.notes)
        assert mask is not None and mask.tolist() == [[True, True], [False, False], [True, False]]
        assert np.array_equal(got[2, 0], Y[2, 0]) and not got[~mask].any()


def test_bfloat16_in_pieces(tmp_path: Path) -> None:
    bits = (X.astype("f4").view("u4") >> 16).astype("u2")
    want = (bits.astype("u4") << 16).view("f4").astype(float)
    opaque = make(tmp_path / "a.h5", **each("*/x", list(bits.view("V2"))), **each("*/y", list(Y)))
    numbers = make(tmp_path / "b.h5", **each("*/x", list(bits)), **each("*/y", list(Y)))
    varying = make(tmp_path / "c.h5", X=rows(list(bits), "u2"), Y=rows(list(Y)))
    for path, options in (
        (opaque, {"x": "*/x", "y": "*/y"}),
        (numbers, {"x": "*/x", "y": "*/y", "dtype": "bfloat16"}),
        (varying, {"dim": D, "dtype": "bfloat16"}),
    ):
        with open_pairs(path, **options) as pairs:
            assert pairs.x_dtype == "bfloat16" and np.array_equal(pairs.read(ROWS)[0], want[ROWS])
    for path, options in ((numbers, {"x": "*/x", "y": "*/y"}), (varying, {"dim": D})):
        with pytest.raises(DataError, match="holds 16-bit integers, which may be the bits of bfloat16"):
            open_pairs(path, **options)


def test_nan_is_placed_in_its_own_dataset(tmp_path: Path) -> None:
    broken = X.copy()
    broken[4, 1, 2] = np.nan
    path = make(tmp_path / "a.h5", **each("s*/x", list(broken)), **each("s*/y", list(Y)))
    with open_pairs(path, x="*/x", y="*/y") as pairs, pytest.raises(DataError) as caught:
        pairs.read(slice(None))
    assert f"{path}::/s0004/x: 1 of 330 values are NaN (first at [1, 2])" in str(caught.value)


def test_an_exact_name_is_no_pattern(tmp_path: Path) -> None:
    path = make(tmp_path / "a.h5", **{"a*": X, "ab": X[:1], "b*": Y})
    check(path, None, Y, np.ones((N, T), dtype=bool), x="a*", y="b*")


def refusal(path: Path, /, **options: Any) -> str:
    with pytest.raises(DataError) as caught, open_pairs(path, **options) as pairs:
        list(pairs.blocks())
    return str(caught.value)


def test_pieces_that_do_not_belong_together(tmp_path: Path) -> None:
    star = {"x": "*/x", "y": "*/y"}
    xs, ys = each("s*/x", [cut(X, i) for i in range(N)]), each("s*/y", [cut(Y, i) for i in range(N)])
    path = tmp_path / "a.h5"
    lacking = {name: value for name, value in ys.items() if name != "s0007/y"}
    line = refusal(make(path, **xs, **lacking), **star)
    assert f"{path}::/s0007/y: is not there beside /s0007/x (one of 1); finish the job" in line
    line = refusal(make(path, **xs, **{**ys, "s0003/y": Y[3, :2]}), **star)
    assert f"{path}::/s0003/y: sequence 3 has 2 tokens here and 5 in {path}::/*/x" in line
    line = refusal(make(path, **{**xs, "s0003/x": X[3, :, :4]}, **ys), **star)
    assert f"{path}::/s0003/x: sequence 3 is 4 wide where others are 6" in line
    line = refusal(make(path, **{**xs, "s0003/x": X[3].astype("f2")}, **ys), **star)
    assert f"{path}::/s0003/x: is float16 [5, 6], unlike /s0000/x" in line
    line = refusal(make(path, **xs, **{**ys, "s0003/y": {"shape": (5, 3), "dtype": "f8"}}), **star)
    assert f"{path}::/s0003/y: was declared but never written" in line
    assert "/*/z: matches no dataset; did you mean" in refusal(make(path, **xs, z=Y), x="*/z", y="*/y")
    assert "name both with a * or neither" in refusal(make(path, **ys, X=X), y="*/y")
    with h5py.File(path, "a") as file:
        file["s0000/x"] = h5py.ExternalLink("other.h5", "/X")
    assert f"{path}::/s0000/x: is an external link to other.h5::/X; pass --allow-external" in refusal(
        path, **star
    )


def test_rows_that_do_not_belong_together(tmp_path: Path) -> None:
    x, y = [cut(X, i) for i in range(N)], [cut(Y, i) for i in range(N)]
    path = make(tmp_path / "a.h5", X=rows(x), Y=rows(y))
    assert f"{path}::/X: holds rows of varying length; pass --dim" in refusal(path)
    assert f"{path}::/X: row 0 holds {LENGTHS[0] * D} numbers, which are no multiple of 7 fea" in refusal(
        path, dim=7
    )
    assert "/Y: its rows do not hold as many tokens as those of X" in refusal(path, dim=1)
    assert "/Y: its rows do not hold as many" in refusal(make(path, X=rows(x), Y=rows(y[1:])), dim=D)
    assert "/Y: shape [11, 5, 3] does not fit" not in refusal(make(path, X=rows(x), Y=Y), dim=D)
    assert "/X: has 6 features a token; drop --dim 5" in refusal(make(path, X=X, Y=Y), dim=5)
    with pytest.raises(UsageError, match="--dim 0: must be at least 1"):
        open_pairs(path, dim=0)


def test_x_and_y_in_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("x.h5"), hidden=X)
    make(Path("y.h5"), **{"l3/out": Y, "m": REAL})
    everything = np.ones((N, T), dtype=bool)
    check(Path("x.h5"), None, Y, everything, x="hidden", y="y.h5::l3/out")
    check(Path("x.h5"), None, Y, REAL, x="hidden", y="y.h5::/l3/out", mask="y.h5::m")
    with open_pairs("x.h5", x="hidden", y="y.h5::/l3/out") as pairs:
        assert (pairs.x_name, pairs.y_name) == ("/hidden", "y.h5::/l3/out")
    make(Path("xs.h5"), **each("s*/x", list(X)))
    make(Path("ys.h5"), **each("s*/y", list(Y)))
    check(Path("xs.h5"), None, Y, everything, x="*/x", y="ys.h5::*/y")
    assert "y.h5::/l3/ou: no such dataset; did you mean /l3/out?" in refusal(
        Path("x.h5"), x="hidden", y="y.h5::l3/ou"
    )
    assert "x.h5::/z.h5::/Y: no such dataset, nor a file z.h5; there are /hidden" in refusal(
        Path("x.h5"), x="hidden", y="z.h5::/Y"
    )
    Path("t.h5").write_text("text")
    assert refusal(Path("x.h5"), x="hidden", y="t.h5::/Y").startswith("t.h5: is not HDF5")
    line = refusal(Path("x.h5"), x="hidden")
    assert line.endswith("name the pair with --x and --y (OTHER.h5::/Y where it lies in another file)")


def test_a_name_with_colons_is_found_before_another_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("a"), Y=Y * 2)
    path = make(tmp_path / "b.h5", X=X, **{"a::/Y": Y})
    check(path, None, Y, np.ones((N, T), dtype=bool), y="a::/Y")


def test_external_links_in_the_other_file_need_leave_too(tmp_path: Path) -> None:
    outside = make(tmp_path / "o.h5", Y=Y)
    other = make(tmp_path / "y.h5")
    with h5py.File(other, "a") as file:
        file["Y"] = h5py.ExternalLink(str(outside), "/Y")
    path = make(tmp_path / "x.h5", X=X)
    assert f"{other}::/Y: is an external link to" in refusal(path, y=f"{other}::/Y")
    check(path, None, Y, np.ones((N, T), dtype=bool), y=f"{other}::/Y", allow_external=True)


def test_the_command_line_takes_pieces(tmp_path: Path, estimator: FakeEstimator) -> None:  # noqa: F811
    split = make(tmp_path / "a.h5", **each("s*/x", list(X)), **each("s*/y", list(Y)))
    varying = make(tmp_path / "b.h5", X=rows(list(X)), Y=rows(list(Y)))
    apart = make(tmp_path / "c.h5", X=X), make(tmp_path / "d.h5", Y=Y)
    for arguments in (
        (split, "--x", "s*/x", "--y", "s*/y"),
        (varying, "--dim", D),
        (apart[0], "--y", f"{apart[1]}::Y"),
    ):
        ran = run("estimate", "-q", *arguments)
        assert (ran.code, ran.out) == (0, "4\n"), ran.err
        pairs = estimator.calls[-1]["pairs"]
        assert (pairs.sequences, pairs.tokens, pairs.dim, pairs.value_dim) == (N, T, D, DV)
    ran = run("estimate", "-q", varying)
    assert ran.code == 3 and "pass --dim with the number of features" in ran.err
