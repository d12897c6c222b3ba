"""Virtual datasets: read where all is mapped and there, refused where HDF5 would read zeros or less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rankprobe.data import describe, open_pairs
from rankprobe.errors import DataError

X = np.random.default_rng(2).standard_normal((9, 4, 3))
UNLIMITED = h5py.h5s.UNLIMITED


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def numbered(path: str, file: str, name: str, block: int = 3) -> str:
    """A file whose X is virtual: block j of it lies in the source with j in place of %b. Y is plain."""
    with h5py.File(path, "a") as out:
        out["Y"] = X
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        rest = X.shape[1:]
        where = h5py.h5s.create_simple((0, *rest), (UNLIMITED, *rest))
        where.select_hyperslab((0, 0, 0), (UNLIMITED, 1, 1), (block, *rest), (block, *rest))
        plist.set_virtual(where, file.encode(), name.encode(), h5py.h5s.create_simple((block, *rest)))
        space = h5py.h5s.create_simple((0, *rest), (UNLIMITED, *rest))
        h5py.h5d.create(out.id, b"X", h5py.h5t.NATIVE_DOUBLE, space, plist)
    return path


def mapped(path: str, *pieces: tuple[slice, slice], source: Any = X) -> str:
    """A file whose X is virtual over /x of the same file: (rows of X, rows of /x). Y is plain."""
    with h5py.File(path, "w") as file:
        file["Y"], file["x"] = X, source
        layout = h5py.VirtualLayout(X.shape, X.dtype)
        for rows, of in pieces:
            layout[rows] = h5py.VirtualSource(".", "x", X.shape)[of]
        file.create_virtual_dataset("X", layout)
    return path


def refusal(path: str, **options: Any) -> str:
    with pytest.raises(DataError) as caught, open_pairs(path, **options) as pairs:
        list(pairs.blocks())
    return str(caught.value)


def read(path: str, **options: Any) -> Any:
    with open_pairs(path, **options) as pairs:
        return pairs.read(slice(None))[0]


def test_a_numbered_series_of_files() -> None:
    for number in range(3):
        with h5py.File(f"part-{number}.h5", "w") as file:
            file["x"] = X[3 * number : 3 * number + 3]
    path = numbered("a.h5", "part-%b.h5", "/x")
    assert "/X: is virtual, its data lie in part-%b.h5; pass --allow-external" in refusal(path)
    assert np.array_equal(read(path, allow_external=True), X)
    Path("part-1.h5").rename("gone")
    line = refusal(path, allow_external=True)
    assert "a.h5::/X: its virtual source part-1.h5::/x is not there, but number 2 is; fetch it" in line
    (problem,) = [one.problem for one in describe(path, allow_external=True).datasets if one.path == "/X"]
    assert problem is not None and "part-1.h5::/x is not there" in problem
    Path("gone").rename("part-1.h5")
    Path("part-2.h5").unlink()  # how many there were is written nowhere, but Y has more sequences
    assert "9 against 6 sequences" in refusal(path, allow_external=True)
    Path("part-0.h5").unlink()
    assert "part-0.h5::/x is not there, but number 1 is" in refusal(path, allow_external=True)


def test_a_numbered_series_in_the_file() -> None:
    with h5py.File("a.h5", "w") as file:
        for number in range(3):
            file[f"parts/x{number}"] = X[3 * number : 3 * number + 3]
    path = numbered("a.h5", ".", "/parts/x%b")
    assert np.array_equal(read(path), X)
    with h5py.File(path, "a") as file:
        del file["parts/x1"]
    assert "its virtual source /parts/x1 is not there, but number 2 is" in refusal(path)


def test_numbered_files_mapped_one_by_one() -> None:
    layout = h5py.VirtualLayout(X.shape, X.dtype)
    for number in range(3):
        with h5py.File(f"100%-{number}.h5", "w") as file:
            file["x"] = X[3 * number : 3 * number + 3]
        layout[3 * number : 3 * number + 3] = h5py.VirtualSource(f"100%%-{number}.h5", "x", (3, 4, 3))
    with h5py.File("a.h5", "w") as file:
        file["Y"] = X
        file.create_virtual_dataset("X", layout)
    assert np.array_equal(read("a.h5", allow_external=True), X)
    Path("100%-1.h5").unlink()
    assert "its virtual source 100%-1.h5::x is not there; fetch it" in refusal("a.h5", allow_external=True)


def test_pieces_of_any_order_and_shape() -> None:
    assert np.array_equal(read(mapped("a.h5", (slice(5, 9), slice(0, 4)), (slice(0, 5), slice(4, 9)))),
                          np.concatenate([X[4:], X[:4]]))  # fmt: skip
    assert np.array_equal(read(mapped("b.h5", (slice(0, 9, 2), slice(0, 5)), (slice(1, 9, 2), slice(5, 9)))),
                          X[[0, 5, 1, 6, 2, 7, 3, 8, 4]])  # fmt: skip


def test_pieces_that_overlap_do_not_make_up_for_a_gap() -> None:
    path = mapped("a.h5", (slice(0, 6), slice(0, 6)), (slice(3, 6), slice(3, 6)))
    assert "a.h5::/X: its virtual sources cover 72 of 108 values; write it plainly" in refusal(path)
    path = mapped("b.h5", (slice(0, 9, 2), slice(0, 5)), (slice(0, 4), slice(0, 4)))
    assert "/X: its virtual sources cover 84 of 108 values" in refusal(path)


def test_a_source_shorter_than_what_is_mapped() -> None:
    path = mapped("a.h5", (slice(0, 9), slice(0, 9)), source=X[:5])
    assert "its virtual source x has shape [5, 4, 3], less than is mapped" in refusal(path)
    path = mapped("b.h5", (slice(0, 9), slice(0, 9)), source=X[:, :, 0])
    assert "its virtual source x has shape [9, 4], less than is mapped" in refusal(path)


def test_an_external_link_among_the_sources_needs_leave() -> None:
    with h5py.File("o.h5", "w") as file:
        file["x"] = X
    path = mapped("a.h5", (slice(0, 9), slice(0, 9)))
    with h5py.File(path, "a") as file:
        del file["x"]
        file["x"] = h5py.ExternalLink("o.h5", "/x")
    assert "is an external link to o.h5::/x; pass --allow-external" in refusal(path)
    assert np.array_equal(read(path, allow_external=True), X)


def test_virtual_over_virtual_ends() -> None:
    """Ten mappings a level to the level below: a hundred million ways down, and a circle."""
    with h5py.File("a.h5", "w") as file:
        file["Y"], file["x0"] = X[:, :1, :1], X[:, :1, :1]
        for level in range(1, 8):
            layout = h5py.VirtualLayout((9, 1, 1), X.dtype)
            for row in range(9):
                layout[row : row + 1] = h5py.VirtualSource(".", f"x{level - 1}", (9, 1, 1))[row : row + 1]
            file.create_virtual_dataset(f"x{level}", layout)
        layout = h5py.VirtualLayout((9, 1, 1), X.dtype)
        layout[...] = h5py.VirtualSource(".", "round", (9, 1, 1))
        file.create_virtual_dataset("round", layout)
    assert np.array_equal(read("a.h5", x="x7"), X[:, :1, :1])
    assert "virtual dataset over virtual datasets, too deep" in refusal("a.h5", x="round")
