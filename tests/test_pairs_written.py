"""Writing: the whole file or none, whatever happens on the way."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rankprobe.data import open_pairs, read_results, save_results, write_pairs
from rankprobe.errors import DataError, UsageError

ONES = np.ones((4, 3, 2))
SIZES = {"sequences": 4, "tokens": 3, "dim": 2, "value_dim": 2}


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_an_existing_file_needs_force(tmp_path: Path) -> None:
    path = tmp_path / "p.h5"
    path.write_text("mine")
    path.chmod(0o640)
    with pytest.raises(DataError, match=r"p.h5: exists; pass --force to replace it"):
        write_pairs(path, iter([(ONES, ONES)]), **SIZES)
    assert path.read_text() == "mine"
    write_pairs(path, iter([(ONES, ONES)]), **SIZES, force=True)
    assert path.stat().st_mode & 0o777 == 0o640
    with open_pairs(path) as pairs:
        assert pairs.sequences == 4


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_pairs(tmp_path / "p.h5", iter([(ONES, ONES)]), **SIZES)
    assert (tmp_path / "p.h5").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real.h5").touch()
    (tmp_path / "link.h5").symlink_to("real.h5")
    write_pairs(tmp_path / "link.h5", iter([(ONES, ONES)]), **SIZES, force=True)
    assert (tmp_path / "link.h5").is_symlink() and (tmp_path / "real.h5").stat().st_size > 0


def test_what_a_killed_process_left_is_removed_a_day_later(tmp_path: Path) -> None:
    long_ago = time.time() - 2 * 86_400
    for name in (".p[1].h5.abcd_123.tmp", ".p[1].h5.young_12.tmp", ".q.h5.abcd_123.tmp", ".p[1].h5.mine.tmp"):
        (tmp_path / name).touch()
        if "young" not in name:
            os.utime(tmp_path / name, (long_ago, long_ago))
    write_pairs(tmp_path / "p[1].h5", iter([(ONES, ONES)]), **SIZES)
    left = {".p[1].h5.young_12.tmp", ".q.h5.abcd_123.tmp", ".p[1].h5.mine.tmp", "p[1].h5"}
    assert set(names(tmp_path)) == left


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_nothing_is_left_of_a_broken_run(tmp_path: Path, error: type[BaseException]) -> None:
    def blocks() -> Iterator[Any]:
        yield ONES[:2], ONES[:2]
        raise error("stop")

    with pytest.raises((error, DataError)):
        write_pairs(tmp_path / "p.h5", blocks(), **SIZES)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "blocks,says",
    [
        ([(ONES[:3], ONES[:3])], "3 of 4 sequences were given"),
        ([(ONES, ONES), (ONES, ONES)], "does not fit /X"),
        ([(ONES, ONES[:2])], "does not fit /Y"),
        ([(ONES, ONES, ONES[:, :, 0])], "a block holds 3 arrays, not X, Y"),
        ([(ONES * 1e5, ONES)], "::/X: 24 values overflow float16; write float32"),
    ],
)
def test_blocks_must_fit(tmp_path: Path, blocks: list[Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        write_pairs(tmp_path / "p.h5", iter(blocks), **SIZES, dtype="float16")
    assert names(tmp_path) == []


def test_unknown_dtypes_are_refused(tmp_path: Path) -> None:
    for dtype in ("int32", "float8", "complex64"):
        with pytest.raises(UsageError, match=f"dtype {dtype}: must be one of float16"):
            write_pairs(tmp_path / "p.h5", iter([]), **SIZES, dtype=dtype)


@pytest.mark.parametrize("where", ["missing/p.h5", ".", "/dev/null"])
def test_places_that_cannot_be_written(tmp_path: Path, where: str) -> None:
    with pytest.raises(DataError, match=r"(No such file|is a directory|is not a regular file)"):
        write_pairs(tmp_path / where, iter([(ONES, ONES)]), **SIZES, force=True)


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """A process's size limit fails writes as a full disk does; HDF5 then crashes when the process ends."""
    code = f"""
import numpy as np, sys
from rankprobe.data import write_pairs
from rankprobe.errors import DataError
B = np.ones((500, 16, 32))
try:
    write_pairs({str(tmp_path / "p.h5")!r}, ((B, B) for _ in range(8)), sequences=4000, tokens=16, dim=32,
                value_dim=32)
except DataError as error:
    print(error)
"""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=limit, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}/p.h5: cannot be written (") and done.stdout.count("\n") == 1
    assert names(tmp_path) == []


def test_progress_counts_sequences(tmp_path: Path) -> None:
    seen: list[int] = []
    halves = iter([(ONES[:3], ONES[:3]), (ONES[3:], ONES[3:])])
    write_pairs(tmp_path / "p.h5", halves, **SIZES, progress=seen.append)
    assert seen == [3, 1]


def test_chunks_run_along_the_sequences(tmp_path: Path) -> None:
    big = np.zeros((3000, 16, 32))
    write_pairs(
        tmp_path / "p.h5", iter([(big, big)]), sequences=3000, tokens=16, dim=32, value_dim=32, heads=None
    )
    with h5py.File(tmp_path / "p.h5") as file:
        chunks = file["X"].chunks
    assert chunks[1:] == (16, 32) and 256 << 10 <= np.prod(chunks) * 4 <= 1 << 20


def record(rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "status": "identified",
        "rank_interval": [rank, rank],
        "singular_values": [2.0, 1.0],
        "noise_edge": None,
        "r2": float("nan"),
        "estimates": {"v-unknown": {"rank": rank}},
    }


def clean(rank: int) -> dict[str, Any]:
    return {**record(rank), "r2": None}


def test_results_are_appended_beside_the_data(tmp_path: Path) -> None:
    path = tmp_path / "p.h5"
    write_pairs(path, iter([(ONES, ONES)]), **SIZES)
    path.chmod(0o604)
    with open_pairs(path) as pairs:  # as estimate --save does: the input is still open
        run = save_results(path, [record(4), record(5)])
        assert np.array_equal(pairs.read([1])[0], ONES[:1])
    assert save_results(f"{path}::/g", [record(6)], run="mine") == "mine"
    assert save_results(path, [record(7)], run="mine") == "mine"
    assert read_results(path) == [clean(4), clean(5), clean(6), clean(7)]
    assert read_results(path, "mine") == [clean(6), clean(7)] and run != "mine"
    assert path.stat().st_mode & 0o777 == 0o604 and names(tmp_path) == ["p.h5"]
    with h5py.File(path) as file:
        assert np.array_equal(file["X"], ONES) and np.array_equal(file["Y"], ONES)
        assert file[f"estimates/{run}/000000"].attrs["rank"] == 4
        assert list(file[f"estimates/{run}/000000/singular_values"]) == [2.0, 1.0]
    with pytest.raises(DataError, match="no such run; there are"):
        read_results(path, "other")


def test_results_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "r.h5"
    save_results(path, [record(4)])
    save_results(path, [record(5)])
    assert read_results(path) == [clean(4), clean(5)]
    save_results(path, [record(6)], replace=True)
    assert read_results(path) == [clean(6)]


@pytest.mark.parametrize("content", [b"", b"text", b"\x89HDF\r\n\x1a\n" + b"\0" * 90])
def test_results_never_replace_what_is_not_hdf5(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.h5"
    path.write_bytes(content)
    with pytest.raises(DataError, match=str(path)):
        save_results(path, [record(4)])
    assert path.read_bytes() == content and names(tmp_path) == ["p.h5"]


def test_a_live_writer_is_not_disturbed(tmp_path: Path) -> None:
    path = tmp_path / "p.h5"
    write_pairs(path, iter([(ONES, ONES)]), **SIZES)
    with (
        h5py.File(path, "r+", locking=True),
        pytest.raises(DataError, match="is locked by a process that writes it"),
    ):
        save_results(path, [record(4)])
    save_results(path, [record(4)])


SAVER = """
import sys
from rankprobe.data import save_results
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    save_results(sys.argv[1], [{"rank": number}])
"""


def saver(path: Path, count: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SAVER, str(path), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    return process.wait(60)


def test_processes_that_save_into_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "p.h5"
    write_pairs(path, iter([(ONES, ONES)]), **SIZES)
    both = [saver(path, 15), saver(path, 15)]
    for process in both:
        go(process)
    assert [finish(process) for process in both] == [0, 0]
    assert sorted(one["rank"] for one in read_results(path)) == sorted([*range(15), *range(15)])


def test_a_killed_save_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "p.h5"
    write_pairs(path, iter([(ONES, ONES)]), **SIZES)
    rng = np.random.default_rng(0)
    for _ in range(5):
        process = saver(path, 10_000)
        go(process)
        time.sleep(float(rng.uniform(0.005, 0.05)))
        process.kill()
        finish(process)
        with open_pairs(path) as pairs:
            assert np.array_equal(pairs.read(slice(None))[0], ONES)
        read_results(path)
