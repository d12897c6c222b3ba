"""Pair files: what is written is what is read, in every layout and type a stranger may choose."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest

from rankprobe.data import open_pairs, split_path, write_pairs
from rankprobe.errors import DataError, UsageError

N, T, D, DV, H = 37, 5, 6, 3, 4
RNG = np.random.default_rng(7)
X = RNG.standard_normal((N, T, D))
Y = RNG.standard_normal((N, T, DV))
HEADS = RNG.standard_normal((N, H, T, DV))
MASK = np.arange(T) < RNG.integers(2, T + 1, (N, 1))
ROWS = np.array([0, 1, 2, 7, 9, 10, 11, 20, 36])


@pytest.fixture
def store(tmp_path: Path) -> Callable[..., Path]:
    """Writes datasets by name (arrays, or dicts of create_dataset's options) into a new file."""
    counter = itertools.count()

    def make(**datasets: Any) -> Path:
        path = tmp_path / f"s{next(counter)}.h5"
        with h5py.File(path, "w") as file:
            for name, value in datasets.items():
                file.create_dataset(name, **(value if isinstance(value, dict) else {"data": value}))
        return path

    return make


def write(path: Path, block: int = 10, **options: Any) -> Path:
    y = HEADS if options.get("heads") else Y
    parts = (X, y, MASK) if options.get("mask") else (X, y)
    blocks = (tuple(part[at : at + block] for part in parts) for at in range(0, N, block))
    write_pairs(path, blocks, sequences=N, tokens=T, dim=D, value_dim=DV, **options)
    return path


@pytest.mark.parametrize(
    "dtype,step,stored",
    [
        ("float64", 0, "float64"),
        (">f4", 2**-24, "float32"),
        ("float32", 2**-24, "float32"),
        ("float16", 2**-11, "float16"),
        ("bfloat16", 2**-8, "bfloat16"),
    ],
)
def test_written_pairs_read_back_to_storage_precision(
    tmp_path: Path, dtype: str, step: float, stored: str
) -> None:
    path = write(tmp_path / "p.h5", dtype=dtype, attributes={"causal": True, "scale": 0.5, "model": None})
    with open_pairs(path) as pairs:
        assert (pairs.sequences, pairs.tokens, pairs.dim, pairs.value_dim, pairs.heads) == (N, T, D, DV, None)
        assert pairs.storage_dtype == stored
        assert pairs.attributes == {
            "encoding-type": "rankprobe-pair",
            "encoding-version": "1.0",
            "causal": True,
            "scale": 0.5,
        }
        x, y, mask = pairs.read(slice(None))
    assert x.dtype == y.dtype == np.float64 and mask is None
    assert np.all(np.abs(x - X) <= step * np.abs(X)) and np.all(np.abs(y - Y) <= step * np.abs(Y))


def test_heads_mask_value_map_and_teacher_survive(tmp_path: Path) -> None:
    V = RNG.standard_normal((H, D, DV))
    path = write(
        tmp_path / "p.h5",
        heads=H,
        mask=True,
        dtype="float64",
        value_map=V,
        teacher={"K": np.eye(2), "seed": 3, "kind": "softmax_qk", "absent": None},
    )
    with open_pairs(path) as pairs:
        assert pairs.heads == H and pairs.masked
        assert (pairs.x_name, pairs.y_name, pairs.v_name, pairs.mask_name) == ("/X", "/Y", "/V", "/mask")
        for head in range(H):
            x, y, mask = pairs.read(ROWS, head)
            assert mask is not None and np.array_equal(mask, MASK[ROWS])
            assert np.array_equal(x, np.where(mask[..., None], X[ROWS], 0))
            assert np.array_equal(y, np.where(mask[..., None], HEADS[ROWS, head], 0))
            assert np.array_equal(pairs.value_map(head), V[head])
        truth = pairs.teacher()
        assert truth is not None and truth["seed"] == 3 and truth["kind"] == "softmax_qk"
        assert np.array_equal(truth["K"], np.eye(2)) and set(truth) == {"K", "seed", "kind"}


def _bits(values: np.ndarray[Any, Any]) -> Any:
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "contiguous": ({"X": X, "Y": HEADS}, {}),
    "heads after tokens": ({"X": X, "Y": np.swapaxes(HEADS, 1, 2)}, {}),
    "heads side by side": (
        {"X": X, "Y": np.swapaxes(HEADS, 1, 2).reshape(N, T, H * DV)},
        {"heads": H},
    ),
    "flattened": (
        {"X": X.reshape(-1, D), "Y": np.swapaxes(HEADS, 1, 2).reshape(N * T, H, DV), "mask": MASK.ravel()},
        {"tokens": T},
    ),
    "flattened, heads side by side": (
        {"X": X.reshape(-1, D), "Y": np.swapaxes(HEADS, 1, 2).reshape(N * T, -1), "mask": MASK},
        {"tokens": T, "heads": H},
    ),
    "flattened inputs only": ({"X": X.reshape(-1, D), "Y": HEADS}, {"tokens": T}),
    "other names": ({"hidden": X, "out": HEADS}, {"x": "hidden", "y": "/out"}),
    "small odd chunks": (
        {"X": {"data": X, "chunks": (4, 2, 5)}, "Y": {"data": HEADS, "chunks": (3, 1, 5, 2)}},
        {},
    ),
    "chunks against the reading direction": (
        {"X": {"data": X, "chunks": (N, 1, 1)}, "Y": {"data": HEADS, "chunks": (N, 1, 1, 1)}},
        {},
    ),
    "one huge chunk": (
        {
            "X": {"data": X, "chunks": X.shape, "compression": "gzip"},
            "Y": {"data": HEADS, "chunks": HEADS.shape, "compression": "lzf"},
        },
        {},
    ),
    "filters": (
        {
            "X": {"data": X, "chunks": (8, T, D), "compression": "gzip", "shuffle": True, "fletcher32": True},
            "Y": {"data": HEADS, "chunks": (5, H, T, DV), "compression": "lzf"},
        },
        {},
    ),
    "mask of 1 and 0": ({"X": X, "Y": HEADS, "mask": MASK.astype(np.int64)}, {}),
    "mask named": ({"X": X, "Y": HEADS, "attention_mask": MASK.astype(np.int8)}, {"mask": "attention_mask"}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_same_pairs(store: Callable[..., Path], name: str) -> None:
    datasets, options = LAYOUTS[name]
    with open_pairs(store(**datasets), **options) as pairs:
        assert (pairs.sequences, pairs.tokens, pairs.dim, pairs.value_dim, pairs.heads) == (N, T, D, DV, H)
        keep = MASK[..., None] if pairs.mask_name else np.ones((N, T, 1), dtype=bool)
        for rows in (slice(None), slice(3, 20), slice(1, 30, 4), ROWS, ROWS[::-1], [5, 5, 2], []):
            at = rows if isinstance(rows, slice) else np.asarray(rows, dtype=int)
            x, y, mask = pairs.read(rows, 2)
            assert np.array_equal(x, np.where(keep, X, 0)[at])
            assert np.array_equal(y, np.where(keep, HEADS[:, 2], 0)[at])
            assert mask is None or np.array_equal(mask, MASK[at])
        for memory in (1, 1000, 3000, 1 << 20):
            for chosen in (None, slice(2, 33), ROWS):
                parts = list(pairs.blocks(memory, 1, chosen))
                at = slice(None) if chosen is None else chosen
                assert np.array_equal(np.concatenate([x for x, _, _ in parts]), np.where(keep, X, 0)[at])
                assert np.array_equal(
                    np.concatenate([y for _, y, _ in parts]), np.where(keep, HEADS[:, 1], 0)[at]
                )


@pytest.mark.parametrize(
    "dataset,attribute,option",
    [
        (_bits(X).view("V2"), True, None),
        (_bits(X).view("V2"), False, None),
        (_bits(X).view("V2"), False, "bfloat16"),
        (_bits(X), False, "bfloat16"),
        (_bits(X).astype(">u2"), False, "bfloat16"),
        (_bits(X).view(np.int16), True, "bfloat16"),
    ],
)
def test_bfloat16_in_its_disguises(
    store: Callable[..., Path], dataset: Any, attribute: bool, option: str | None
) -> None:
    path = store(X=dataset, Y=Y)
    if attribute:
        with h5py.File(path, "r+") as file:
            file["X"].attrs["dtype"] = "bfloat16"
    with open_pairs(path, dtype=option) as pairs:
        assert (pairs.x_dtype, pairs.y_dtype, pairs.storage_dtype) == ("bfloat16", "float64", "bfloat16")
        assert np.array_equal(pairs.read(ROWS)[0], X[ROWS].astype(ml_dtypes.bfloat16).astype(float))


def test_bfloat16_as_a_float_type_of_hdf5(tmp_path: Path) -> None:
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    path = tmp_path / "b.h5"
    with h5py.File(path, "w") as file:
        file["Y"] = Y
        made = h5py.h5d.create(file.id, b"X", kind, h5py.h5s.create_simple(X.shape))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, _bits(X), kind)
    with open_pairs(path) as pairs:
        assert pairs.x_dtype == "bfloat16"
        assert np.array_equal(pairs.read(ROWS)[0], X[ROWS].astype(ml_dtypes.bfloat16).astype(float))


def test_sixteen_bit_integers_are_never_guessed(store: Callable[..., Path]) -> None:
    path = store(X=_bits(np.ones((2, 3, 4))), Y=np.ones((2, 3, 4)))
    with pytest.raises(DataError, match=r"::/X: holds 16-bit integers.*--dtype bfloat16, or --dtype integer"):
        open_pairs(path)
    with open_pairs(path, dtype="bfloat16") as pairs:
        assert np.all(pairs.read(slice(None))[0] == 1)
    with open_pairs(path, dtype="integer") as pairs:
        assert np.all(pairs.read(slice(None))[0] == 16256)
        assert pairs.storage_dtype == "float64"
    with h5py.File(path, "r+") as file:
        file["X"].attrs["dtype"] = np.bytes_("torch.bfloat16")
    for dtype in ("integer", None):
        with pytest.raises(DataError, match=r"::/X: holds the bits of bfloat16.*; pass --dtype bfloat16"):
            open_pairs(path, dtype=dtype)
    with open_pairs(path, dtype="bfloat16") as pairs:
        assert np.all(pairs.read(slice(None))[0] == 1)


@pytest.mark.parametrize("dtype", ["int8", "uint8", ">i4", "int64", "bool"])
def test_integers_are_numbers(store: Callable[..., Path], dtype: str) -> None:
    whole = RNG.integers(0, 2, (4, 3, 2)).astype(dtype)
    with open_pairs(store(X=whole, Y=whole.astype(np.float16))) as pairs:
        x, y, _ = pairs.read(slice(None))
        assert np.array_equal(x, whole) and np.array_equal(y, whole)
        assert pairs.storage_dtype == "float16"


def test_prefix_and_attributes_of_the_groups_above(tmp_path: Path) -> None:
    path = tmp_path / "layers.h5"
    with h5py.File(path, "w") as file:
        file.attrs.update({"model": np.bytes_("m"), "layer": 0, "causal": "False", "scale": np.array([0.5])})
        group = file.create_group("a::b/layer 3 ü")
        group.attrs.update({"layer": np.int32(3), "noise_sigma": h5py.Empty("f4"), "attention": b"Softmax"})
        group["X"], group["Y"] = X, Y
    with open_pairs(f"{path}::/a::b/layer 3 ü") as pairs:
        assert pairs.attributes == {
            "model": "m",
            "layer": 3,
            "causal": False,
            "scale": 0.5,
            "noise_sigma": None,
            "attention": "softmax",
        }
        assert pairs.prefix == "/a::b/layer 3 ü" and pairs.label == f"{path}::/a::b/layer 3 ü"
        assert pairs.x_name == "/a::b/layer 3 ü/X"
        assert np.array_equal(pairs.read([4])[0], X[[4]])


def test_colons_in_a_file_name(tmp_path: Path) -> None:
    path = tmp_path / "a::b.h5"
    path.write_bytes(b"")
    assert split_path(path) == (str(path), "/")
    assert split_path(f"{path}::g//h/") == (str(path), "/g/h")
    assert split_path("nowhere.h5::/g") == ("nowhere.h5", "/g")
    assert split_path("-::/g") == ("-", "/g")
    assert split_path("-") == ("-", "/")


def test_soft_links_inside_the_file_are_followed(store: Callable[..., Path]) -> None:
    path = store(**{"deep/x": X, "deep/y": Y})
    with h5py.File(path, "r+") as file:
        file["g/here"] = h5py.SoftLink("/deep")
        file["X"], file["Y"] = h5py.SoftLink("/g/here/x"), h5py.SoftLink("deep/y")
    with open_pairs(path) as pairs:
        assert np.array_equal(pairs.read(ROWS)[1], Y[ROWS])


def test_a_virtual_dataset_inside_the_file(store: Callable[..., Path]) -> None:
    path = store(x=X, Y=Y)
    with h5py.File(path, "r+") as file:
        layout = h5py.VirtualLayout(X.shape, X.dtype)
        layout[...] = h5py.VirtualSource(".", "x", X.shape)
        file.create_virtual_dataset("X", layout)
    with open_pairs(path) as pairs:
        assert np.array_equal(pairs.read(ROWS)[0], X[ROWS])


def test_a_stream_is_read_like_a_file(tmp_path: Path) -> None:
    content = write(tmp_path / "p.h5", dtype="float64").read_bytes()
    with open_pairs("-", stream=io.BytesIO(content)) as pairs:
        assert np.array_equal(pairs.read(ROWS)[0], X[ROWS])
    with pytest.raises(DataError, match=r"^-::/nope: no such group"):
        open_pairs("-::/nope", stream=io.BytesIO(content))
    with pytest.raises(DataError, match=r"^-: is not HDF5: it looks like an empty file"):
        open_pairs("-", stream=io.BytesIO(b""))


def _with(values: np.ndarray[Any, Any], *places: tuple[tuple[int, ...], float]) -> np.ndarray[Any, Any]:
    out = values.copy()
    for at, value in places:
        out[at] = value
    return out


def test_nan_is_counted_placed_and_refused(store: Callable[..., Path]) -> None:
    path = store(X=X, Y=_with(HEADS, ((9, 1, 3, 2), np.nan), ((11, 1, 0, 0), np.nan), ((4, 0, 0, 0), np.inf)))
    with open_pairs(path) as pairs:
        for rows in (slice(5, 30), np.arange(8, 12)):
            count = len(range(*rows.indices(N))) if isinstance(rows, slice) else len(rows)
            with pytest.raises(DataError) as caught:
                pairs.read(rows, 1)
            assert str(caught.value) == (
                f"{path}::/Y: 2 of {count * T * DV} values read are NaN (first at [9, 1, 3, 2]); "
                "pass --nan skip or mask those tokens"
            )
        with pytest.raises(DataError, match=r"1 of 555 values are infinite \(first at \[4, 0, 0, 0\]\)"):
            pairs.read(slice(None), 0)
        assert np.array_equal(pairs.read(slice(None), 2)[1], HEADS[:, 2])


def test_nan_in_a_flattened_file_is_placed_in_the_file(store: Callable[..., Path]) -> None:
    path = store(X=_with(X.reshape(-1, D), ((3 * T + 2, 4), np.nan)), Y=Y.reshape(-1, DV))
    with open_pairs(path, tokens=T) as pairs, pytest.raises(DataError, match=r"first at \[17, 4\]"):
        pairs.read(slice(None))


def test_float16_overflow_is_named(store: Callable[..., Path]) -> None:
    path = store(X=_with(X.astype(np.float16), ((0, 0, 0), np.inf)), Y=Y)
    with open_pairs(path) as pairs, pytest.raises(DataError, match="float16 ends at 65504"):
        pairs.read(slice(None))


def test_nan_tokens_can_be_skipped(store: Callable[..., Path]) -> None:
    path = store(X=_with(X, ((2, 1, 0), np.nan)), Y=_with(Y, ((2, 3, 1), np.inf), ((5, 0, 0), np.nan)))
    with open_pairs(path, nan="skip") as pairs:
        x, y, mask = pairs.read(slice(None))
    want = np.ones((N, T), dtype=bool)
    want[[2, 2, 5], [1, 3, 0]] = False
    assert mask is not None and np.array_equal(mask, want)
    assert np.array_equal(x, np.where(want[..., None], X, 0))
    assert np.array_equal(y, np.where(want[..., None], Y, 0))


def test_garbage_behind_the_mask_is_never_seen(store: Callable[..., Path]) -> None:
    path = store(X=np.where(MASK[..., None], X, np.nan), Y=np.where(MASK[..., None], Y, np.inf), mask=MASK)
    with open_pairs(path) as pairs:
        x, y, mask = pairs.read(slice(None))
    assert mask is not None and np.array_equal(mask, MASK)
    assert np.array_equal(x, np.where(MASK[..., None], X, 0)) and np.all(y[~MASK] == 0)


def test_what_was_found_and_not_used_is_noted(store: Callable[..., Path]) -> None:
    path = store(X=X, Y=Y, attention_mask=MASK, mask_token=np.ones(3))
    with open_pairs(path) as pairs:
        assert pairs.notes == (
            f"{path}::/attention_mask: may be the padding mask and is not used; "
            "pass --mask /attention_mask if it is",
        )
    with open_pairs(path, mask="/attention_mask") as pairs:
        assert pairs.notes == ()
    with open_pairs(store(X=X, Y=np.ones((N, T, T, 2)))) as pairs:
        assert len(pairs.notes) == 1 and "its second axis is taken for heads" in pairs.notes[0]


def test_the_right_head_is_asked_for(store: Callable[..., Path]) -> None:
    with open_pairs(store(X=X, Y=HEADS)) as pairs:
        with pytest.raises(UsageError, match="holds 4 heads; choose with --head"):
            pairs.read(slice(0, 1))
        with pytest.raises(UsageError, match="no head 4; --head takes 0 to 3"):
            pairs.read(slice(0, 1), 4)
        with pytest.raises(UsageError, match="no row 37; rows run from 0 to 36"):
            pairs.read([37], 0)
    with open_pairs(store(X=X, Y=Y)) as pairs, pytest.raises(UsageError, match="drop --head 0"):
        pairs.read(slice(0, 1), 0)


@pytest.mark.parametrize(
    "shape,head", [((D, DV), None), ((D, DV), 1), ((H, D, DV), 1), ((D, H * DV), 1)], ids=str
)
def test_value_maps(store: Callable[..., Path], shape: tuple[int, ...], head: int | None) -> None:
    V = RNG.standard_normal(shape)
    with open_pairs(store(X=X, Y=Y if head is None else HEADS, w=V.astype(">f8")), v="w") as pairs:
        want = V[1] if len(shape) == 3 else V[:, DV : 2 * DV] if shape[1] == H * DV else V
        assert np.array_equal(pairs.value_map(head), want)


@pytest.mark.parametrize("chunks,filters", [((256, 2, 4), None), ((256, 2, 4), "lzf"), (None, None)])
def test_a_few_rows_of_many_are_read_alone(
    tmp_path: Path, chunks: tuple[int, ...] | None, filters: str | None
) -> None:
    """Bytes that reach the process, as the kernel counts them."""
    n = 200_000
    path = tmp_path / "many.h5"
    with h5py.File(path, "w") as file:
        for name in "XY":
            file.create_dataset(name, (n, 2, 4), np.float32, chunks=chunks, compression=filters)
            file[name][...] = RNG.standard_normal((n, 2, 4), dtype=np.float32)
        whole = file["X"][...]
    counter = Path("/proc/self/io")
    if not counter.exists():
        pytest.skip("no byte counter on this system")

    def reads() -> int:
        return int(counter.read_text().split()[1])

    rows = np.sort(RNG.choice(n, 100, replace=False))
    with open_pairs(path) as pairs:
        before = reads()
        x, _, _ = pairs.read(rows)
        took = reads() - before
    assert np.array_equal(x, whole[rows])
    # Decoding needs the chunks that hold the rows, at most 100 of 782 for X and for Y; plain rows need only
    # themselves, or where they are not chunked HDF5's 64 KiB around each.
    limit = 200 * 256 * 32 if filters else 400_000 if chunks else 200 * (64 << 10)
    assert took < 1.2 * limit


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, rankprobe.data; sys.exit(any(m in sys.modules for m in ('numpy', 'h5py')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("side", ["X", "Y"])
def test_what_was_rounded_before_it_was_stored_counts_as_rounded(
    store: Callable[..., Path], kind: Any, side: str
) -> None:
    coarse = {"X": X, "Y": HEADS}
    coarse[side] = coarse[side].astype(kind).astype(np.float32)
    for mask in ({}, {"mask": MASK}):
        if mask:
            coarse[side] = np.where(
                MASK[:, :, None] if side == "X" else MASK[:, None, :, None], coarse[side], 0.1
            )
        with open_pairs(store(**coarse, **mask)) as pairs:
            assert pairs.storage_dtype == np.dtype(kind).name
            assert (pairs.x_dtype, pairs.y_dtype) == tuple(coarse[name].dtype.name for name in "XY")
