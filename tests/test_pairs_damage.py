"""Files that cannot be used: one line that names the place, the cause and a remedy; nothing read wrong."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rankprobe.data import open_pairs
from rankprobe.errors import DataError, MissingDependencyError, UsageError

ONES = np.ones((8, 4, 3))
RAGGED = np.empty(8, dtype=object)
RAGGED[:] = [np.ones(length, dtype=np.float32) for length in range(8)]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return make(tmp_path / "good.h5", X=ONES, Y=ONES)


def make(path: Path, /, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file.create_dataset(name, **(value if isinstance(value, dict) else {"data": value}))
    return path


def refusal(path: object, kind: type[Exception] = DataError, /, **options: Any) -> str:
    """What opening and reading all of the pair says; always one line that starts with the file."""
    with pytest.raises(kind) as caught, open_pairs(str(path), **options) as pairs:
        list(pairs.blocks())
    line = str(caught.value)
    assert "\n" not in line
    if kind is DataError:
        assert line.startswith(str(path).split("::")[0])
    return line


@pytest.mark.parametrize(
    "content,says",
    [
        (b"", "an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "a Git LFS pointer"),
        (b"/annex/objects/SHA256E-s1--00", "a git-annex pointer"),
        (b"\x93NUMPY\x01\x00v\x00{'descr'", "a .npy array"),
        (b"\x80\x04\x95\x00\x00", "a pickle, which is never loaded"),
        (b"\x1f\x8b\x08\x00\x00", "gzip-compressed"),
        (b"(\xb5/\xfd\x04", "zstd-compressed"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"a,b\n1,2\n", "text"),
        (b"\0" * 5000, "only zero bytes"),
        (bytes(range(128, 256)) * 9, "no format known here"),
        (b'\x02\0\0\0\0\0\0\0{"__metadata__":{}}', "a safetensors file"),
        (b"\x89HDF\r\n", "no format known here"),
    ],
)
def test_what_is_not_hdf5_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(content)
    assert f"a.h5: is not HDF5: it looks like {says}" in refusal(path)


def test_a_renamed_npz_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", b"")
    assert "it looks like a zip archive (.npz" in refusal(path)


def test_missing_directory_and_special_files(tmp_path: Path, good: Path) -> None:
    assert refusal(tmp_path / "no.h5").endswith("no.h5: no such file; check the path")
    assert "no such file" in refusal(good / "below")
    assert "is a directory; name a file" in refusal(tmp_path)
    assert "is not a regular file" in refusal("/dev/null")
    assert "no such file" in refusal(f"{tmp_path}/no.h5::/g")


@pytest.mark.parametrize("size", [96, 800, 2000])
def test_truncated(good: Path, size: int) -> None:
    whole = good.read_bytes()
    good.write_bytes(whole[:size])
    assert f"is truncated: {size} of {len(whole)} bytes are there; copy it again" in refusal(good)


def test_damaged_header(good: Path) -> None:
    broken = bytearray(good.read_bytes())
    broken[40:48] = b"\xff" * 8
    good.write_bytes(broken)
    line = refusal(good)
    assert "is damaged" in line or "is truncated" in line


def test_a_live_writer_is_waited_for(good: Path) -> None:
    code = f"import h5py, sys; file = h5py.File({str(good)!r}, 'r+'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None and writer.stdin is not None and writer.stdout.readline()
        assert "is locked by a process that writes it; wait" in refusal(good)
        writer.stdin.close()
    with open_pairs(good) as pairs:
        assert pairs.sequences == 8


def test_a_crashed_writer_has_left_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "swmr.h5"
    with h5py.File(tmp_path / "live.h5", "w", libver="latest") as file:
        file["X"] = file["Y"] = ONES
        file.flush()
        path.write_bytes((tmp_path / "live.h5").read_bytes())
    assert "is marked as open for writing" in refusal(path)


def test_no_permission(good: Path) -> None:
    good.chmod(0)
    try:
        good.read_bytes()
    except PermissionError:
        assert "cannot be read (Permission denied)" in refusal(good)


def test_no_such_names(tmp_path: Path, good: Path) -> None:
    path = make(tmp_path / "a.h5", hidden=ONES, out=ONES, **{"g/X": ONES, "g/Y": ONES})
    assert f"{path}::/hiden: no such dataset; did you mean /hidden?" in refusal(path, x="hiden", y="out")
    assert f"{path}::/G: no such group; did you mean /g?" in refusal(f"{path}::/G")
    assert f"{path}::/g/X: is a dataset; the part after :: names a group" in refusal(f"{path}::/g/X")
    assert f"{path}::/g: is a group, not a dataset" in refusal(path, x="g", y="out")
    assert f"{good}::/v: no such dataset; there are /X, /Y" in refusal(good, v="v")
    assert "::/mask2: no such dataset" in refusal(good, mask="mask2")


@pytest.mark.parametrize(
    "datasets,says",
    [
        (
            {"hidden_states": ONES, "attn_out": ONES, "attention_mask": np.ones((8, 4))},
            "try --x hidden_states --y attn_out --mask attention_mask (by name and shape; ",
        ),
        ({"inputs": ONES, "outputs": ONES}, "try --x inputs --y outputs"),
        ({"x": ONES, "y": ONES}, "try --x x --y y"),
        ({"X": ONES, "y": ONES}, "/Y: no such dataset; try --y y"),
        ({"l0/X": ONES, "l0/Y": ONES}, "try {path}::/l0"),
        (
            {"l0/in": ONES, "l0/z": ONES, "l1/in": ONES, "l1/z": ONES},
            "try {path}::/l0 --x in --y z (one of 2 groups that hold pairs)",
        ),
        ({"in/l0": ONES, "out/l0": ONES}, "try --x in/l0 --y out/l0"),
        ({"x": ONES.reshape(32, 3), "y": ONES.reshape(32, 3)}, "try --x x --y y --tokens T"),
        ({"a": ONES, "b": ONES}, "try --x a --y b (by shape alone; check which is the input"),
        ({"a": ONES, "b": ONES, "c": ONES}, "there are /a, /b, /c; name the pair with --x and --y"),
        ({"n": 3}, "there are /n"),
        ({}, "it holds no datasets"),
    ],
)
def test_foreign_names_are_proposed_not_guessed(tmp_path: Path, datasets: dict[str, Any], says: str) -> None:
    path = make(tmp_path / "a.h5", **datasets)
    assert says.format(path=path) in refusal(path)


@pytest.mark.parametrize(
    "x,y,options,says",
    [
        (
            (8, 4, 3),
            (7, 4, 3),
            {},
            "/Y: shape [7, 4, 3] does not fit {0}::/X [8, 4, 3]: 7 against 8 sequences",
        ),
        ((8, 4, 3), (8, 5, 3), {}, "/Y: shape [8, 5, 3] does not fit {0}::/X [8, 4, 3]: 5 against 4 tokens"),
        ((8, 4, 3), (8, 2, 5, 3), {}, "2 or 5 against 4 tokens"),
        ((8, 4, 3), (8, 4), {}, "/Y: shape [8, 4] does not fit"),
        ((8, 4, 3), (8,), {}, "/Y: shape [8] is not [n, T, d_v] or [n, H, T, d_h]"),
        ((8, 4), (8, 4), {}, "/X: shape [8, 4] is flattened or one sequence; pass --tokens"),
        ((8, 4), (8, 4), {"tokens": 3}, "/X: 8 tokens are no multiple of 3"),
        ((8, 4, 3), (8, 4, 3), {"tokens": 3}, "/X: shape [8, 4, 3] has 4 tokens a sequence; drop --tokens 3"),
        ((8, 4, 3, 2), (8, 4, 3), {}, "/X: shape [8, 4, 3, 2] is not [n, T, d]"),
        ((8, 4, 3), (8, 4, 3), {"heads": 2}, "/Y: shape [8, 4, 3]: 3 features do not split into --heads 2"),
        ((8, 4, 3), (8, 2, 4, 3), {"heads": 3}, "has 2 heads; drop --heads 3"),
        ((0, 4, 3), (0, 4, 3), {}, "/X: is empty, its shape is [0, 4, 3]"),
        ((8, 0, 3), (8, 0, 3), {}, "/X: is empty, its shape is [8, 0, 3]"),
        ((8, 4, 3), (8, 4, 0), {}, "/Y: is empty, its shape is [8, 4, 0]"),
        ((), (), {}, "/X: shape [] is not [n, T, d]"),
    ],
)
def test_shapes_that_disagree(tmp_path: Path, x: Any, y: Any, options: dict[str, Any], says: str) -> None:
    path = make(tmp_path / "a.h5", X=np.ones(x), Y=np.ones(y))
    assert says.format(path) in refusal(path, **options)


def test_masks_and_value_maps_that_do_not_fit(tmp_path: Path) -> None:
    def line(**extra: Any) -> str:
        return refusal(make(tmp_path / "a.h5", X=ONES, Y=ONES[:, :, :2], **extra))

    assert "/mask: shape [8, 3] is not [n, T] = [8, 4]" in line(mask=np.ones((8, 3)))
    assert "/mask: shape [32] is not" not in line(mask=np.full(32, 2))
    assert "/mask: holds -1, a mask holds 1 at real tokens and 0 at padding" in line(mask=np.full((8, 4), -1))
    assert "/V: shape [4, 2] is not [d, d_v] = [3, 2]" in line(V=np.ones((4, 2)))
    assert "/V: shape [2, 3] is not [d, d_v] = [3, 2]; it looks transposed" in line(V=np.ones((2, 3)))


@pytest.mark.parametrize(
    "values,says",
    [
        (ONES.astype(complex), "holds complex numbers, not real numbers; store the real part"),
        (ONES.astype([("a", "f4"), ("b", "f4")]), "holds compound records"),
        (ONES.astype("S3"), "holds strings"),
        (ONES.astype("V3"), "holds opaque elements of 3 bytes"),
        (h5py.Empty("f4"), "is an empty (null) dataset"),
        (
            {"data": RAGGED, "dtype": h5py.vlen_dtype(np.float32)},
            "holds rows of varying length; pass --dim with the number of features of a token in X",
        ),
    ],
)
def test_types_that_are_no_numbers(tmp_path: Path, values: Any, says: str) -> None:
    path = make(tmp_path / "a.h5", X=values, Y=ONES)
    assert f"{path}::/X: {says}" in refusal(path)


def test_options_that_make_no_sense(good: Path) -> None:
    assert "--tokens 0: must be at least 1" in refusal(good, UsageError, tokens=0)
    assert "--heads -1: must be at least 1" in refusal(good, UsageError, heads=-1)
    assert "--nan drop: must be error or skip" in refusal(good, UsageError, nan="drop")
    assert "--dtype int: must be bfloat16 or integer" in refusal(good, UsageError, dtype="int")
    assert "/X: is float64, not two-byte integers; drop --dtype" in refusal(good, dtype="bfloat16")


def test_declared_but_never_written(tmp_path: Path) -> None:
    path = make(tmp_path / "a.h5", X={"shape": (8, 4, 3), "dtype": "f4"}, Y=ONES)
    assert f"{path}::/X: was declared but never written" in refusal(path)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_unwritten_chunks(tmp_path: Path, compression: str | None) -> None:
    path = make(
        tmp_path / "a.h5",
        X=ONES,
        Y={"shape": (8, 4, 3), "dtype": "f4", "chunks": (2, 4, 3), "compression": compression},
    )
    assert "/Y: 4 of 4 chunks were never written" in refusal(path)
    with h5py.File(path, "r+") as file:
        file["Y"][:4] = 1
        file["Y"][6:] = 1
    assert "/Y: 1 of 4 chunks were never written (first at row 4)" in refusal(path)


def test_a_small_file_that_declares_terabytes(tmp_path: Path) -> None:
    huge = {"shape": (1 << 33, 16, 32), "dtype": "f8"}
    for index, chunks in enumerate((None, (1 << 10, 16, 32), (1, 16, 32))):
        path = make(tmp_path / f"{index}.h5", X={**huge, "chunks": chunks}, Y={**huge, "chunks": chunks})
        assert path.stat().st_size < 10_000
        assert "never written" in refusal(path)


def test_a_hole_that_declares_terabytes(tmp_path: Path) -> None:
    """Space allotted early and never written: the file system keeps no byte of it, HDF5 reads zeros."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in (b"X", b"Y"):
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            space = h5py.h5s.create_simple((1 << 30, 16, 8))
            h5py.h5d.create(file.id, name, h5py.h5t.NATIVE_DOUBLE, space, plist)
    assert path.stat().st_blocks * 512 < 1 << 20
    assert "/X: declares 1099511627776 bytes where the file has a hole; run the job" in refusal(path)


def test_a_forged_size(tmp_path: Path) -> None:
    """The shape in the header is raised by hand from 8 to 2^40 rows."""
    path = make(tmp_path / "a.h5", X=ONES, Y=ONES)
    content = path.read_bytes()
    shape = np.array([8, 4, 3], dtype="<u8").tobytes()
    assert shape in content
    path.write_bytes(content.replace(shape, np.array([1 << 40, 4, 3], dtype="<u8").tobytes()))
    assert "/X: cannot be opened (invalid dataset size" in refusal(path)


def test_a_chunk_that_cannot_be_so_small(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in "XY":
            made = file.create_dataset(
                name, (1 << 20, 16, 8), "f4", chunks=(1 << 20, 16, 8), compression="gzip"
            )
            made.id.write_direct_chunk((0, 0, 0), b"x\x9c\x03\x00\x00\x00\x00\x01")
    assert path.stat().st_size < 10_000
    assert "/X: declares 536870912 bytes but stores 8" in refusal(path)


def test_checksums_and_broken_chunks(tmp_path: Path) -> None:
    for name, options in (("f", {"fletcher32": True}), ("g", {"compression": "gzip"})):
        path = make(tmp_path / f"{name}.h5", X={"data": ONES, "chunks": (2, 4, 3), **options}, Y=ONES)
        with h5py.File(path) as file:
            at = file["X"].id.get_chunk_info(2).byte_offset
        content = bytearray(path.read_bytes())
        content[at : at + 8] = b"\xff" * 8
        path.write_bytes(content)
        line = refusal(path)
        assert f"{path}::/X: rows 0 to 7 cannot be decoded (" in line and "the file is damaged" in line


@pytest.mark.parametrize("size", [0, (1 << 64) - 16])
def test_a_heap_that_HDF5_would_never_leave(tmp_path: Path, size: int) -> None:
    """The free space at the end of the heap of an attribute is given no size, or one that leads back."""
    path = make(tmp_path / "a.h5", X=ONES, Y=ONES)
    with h5py.File(path, "r+") as file:
        file.attrs["model"] = "a string of varying length"
    content = bytearray(path.read_bytes())
    at = content.index(b"GCOL")
    first = 16 + 16 + -(-int.from_bytes(content[at + 24 : at + 32], "little") // 8) * 8
    assert content[at + first : at + first + 2] == b"\0\0"  # index 0: the free space
    content[at + first + 8 : at + first + 16] = size.to_bytes(8, "little")
    path.write_bytes(content)
    line = refusal(path)
    assert f"is damaged: its heap of strings and rows at byte {at} has no end" in line


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return make(tmp_path / "other.h5", X=ONES, Y=ONES, **{"g/X": ONES, "g/Y": ONES})


LINKS: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "the dataset": (lambda file: file.__setitem__("X", h5py.ExternalLink("other.h5", "X")), "", "/X"),
    "a group": (lambda file: file.__setitem__("g", h5py.ExternalLink("other.h5", "g")), "::/g", "/g"),
    "behind a soft link": (
        lambda file: (
            file.__setitem__("deep/e", h5py.ExternalLink("other.h5", "/")),
            file.__setitem__("s", h5py.SoftLink("/deep/e/g")),
        ),
        "::/s",
        "/deep/e",
    ),
}


@pytest.mark.parametrize("name", LINKS)
def test_external_links_are_followed_only_when_allowed(tmp_path: Path, outside: Path, name: str) -> None:
    link, group, at = LINKS[name]
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["Y"] = ONES
        link(file)
    line = refusal(f"{path}{group}")
    assert f"{path}::{at}: is an external link to other.h5::" in line and "--allow-external" in line
    with open_pairs(f"{path}{group}", allow_external=True) as pairs:
        assert np.array_equal(pairs.read(slice(None))[0], ONES)
    outside.unlink()
    assert f"{path}::{at}: cannot be opened" in refusal(f"{path}{group}", allow_external=True)


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    path = make(tmp_path / "a.h5", Y=ONES)
    with h5py.File(path, "r+") as file:
        file["X"] = h5py.SoftLink("/gone")
    assert f"{path}::/X: is a soft link to /gone, which is not there" in refusal(path)
    with h5py.File(path, "r+") as file:
        file["gone"] = h5py.SoftLink("/X")
    assert f"{path}::/X: its soft links go in a circle" in refusal(path)


def test_external_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").write_bytes(ONES.tobytes())
    path = make(
        tmp_path / "a.h5",
        X={"shape": ONES.shape, "dtype": "f8", "external": [("raw", 0, ONES.nbytes)]},
        Y=ONES,
    )
    line = refusal(path)
    assert f"{path}::/X: is stored in another file (raw)" in line and "--allow-external" in line
    with open_pairs(path, allow_external=True) as pairs:
        assert np.array_equal(pairs.read([3])[0], ONES[:1])
    (tmp_path / "raw").write_bytes(ONES.tobytes()[:-1])
    assert "/X: declares 768 bytes but raw holds 767" in refusal(path, allow_external=True)
    (tmp_path / "raw").unlink()
    assert "/X: is stored in raw, which is not there" in refusal(path, allow_external=True)


def test_virtual_datasets(tmp_path: Path, outside: Path) -> None:
    path = make(tmp_path / "a.h5", Y=ONES)
    with h5py.File(path, "r+") as file:
        layout = h5py.VirtualLayout(ONES.shape, ONES.dtype)
        layout[...] = h5py.VirtualSource("other.h5", "X", ONES.shape)
        file.create_virtual_dataset("X", layout, fillvalue=0)
        layout = h5py.VirtualLayout(ONES.shape, ONES.dtype)
        layout[:4] = h5py.VirtualSource(".", "Y", ONES.shape)[:4]
        file.create_virtual_dataset("half", layout)
        layout = h5py.VirtualLayout(ONES.shape, ONES.dtype)
        layout[...] = h5py.VirtualSource(".", "sneaky", ONES.shape)
        file.create_virtual_dataset("inner", layout)
        file["sneaky"] = h5py.ExternalLink("other.h5", "X")
    line = refusal(path)
    assert f"{path}::/X: is virtual, its data lie in other.h5; pass --allow-external" in line
    with open_pairs(path, allow_external=True) as pairs:
        assert np.array_equal(pairs.read([3])[0], ONES[:1])
    assert "/half: its virtual sources cover 48 of 96 values" in refusal(path, x="half")
    assert "is an external link" in refusal(path, x="inner")
    with h5py.File(outside, "r+") as file:
        del file["X"]
    assert "/X: its virtual source other.h5::X is not there" in refusal(path, allow_external=True)
    outside.unlink()
    assert "/X: its virtual source other.h5::X is not there" in refusal(path, allow_external=True)


def test_a_missing_filter_is_named_with_the_extra(tmp_path: Path) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    path = make(tmp_path / "z.h5", X={"data": ONES, "chunks": (2, 4, 3), **hdf5plugin.Zstd()}, Y=ONES)
    code = f"""
import sys
if sys.argv[1] == "without":
    sys.modules["hdf5plugin"] = None
from rankprobe.data import open_pairs
from rankprobe.errors import MissingDependencyError
try:
    with open_pairs({str(path)!r}) as pairs:
        print(pairs.read([0])[0].sum())
except MissingDependencyError as error:
    print(error)
"""

    def say(how: str) -> str:
        command = [sys.executable, "-c", code, how]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    assert say("with") == "12.0\n"
    assert say("without") == (
        f"{path}::/X: is compressed with zstd (HDF5 filter 32015), which is not installed; "
        "run: pip install 'rankprobe[filters]'\n"
    )


@pytest.mark.parametrize("command,code", [("estimate", 5), ("inspect", 0)])
def test_a_missing_filter_ends_the_command_with_its_own_code(tmp_path: Path, command: str, code: int) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    path = make(tmp_path / "z.h5", X={"data": ONES, "chunks": (2, 4, 3), **hdf5plugin.Blosc()}, Y=ONES)
    lines = [
        "import sys; sys.modules['hdf5plugin'] = None",
        "from rankprobe.cli.main import main",
        f"sys.exit(main([{command!r}, {str(path)!r}]))",
    ]
    ran = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == code
    told = ran.stderr if command == "estimate" else ran.stdout
    assert "is compressed with blosc (HDF5 filter 32001), which is not installed; run: pip install" in told


def test_a_filter_nobody_has(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["Y"] = ONES
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((8, 4, 3))
        plist.set_filter(32123, h5py.h5z.FLAG_OPTIONAL, ())
        made = h5py.h5d.create(
            file.id, b"X", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((8, 4, 3)), plist
        )
        made.write_direct_chunk((0, 0, 0), ONES.tobytes())
    line = refusal(path, MissingDependencyError)
    assert "/X: is compressed with filter 32123 (HDF5 filter 32123)" in line
