"""What a user typed: ``FILE``, ``FILE::/group`` or ``-``; and what a file that is not HDF5 looks like."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rankprobe.errors import DataError

_SIGNATURE = b"\x89HDF\r\n\x1a\n"

_LOOKS_LIKE = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
    (b"/annex/objects/", "a git-annex pointer, not the file itself; fetch it with `git annex get`"),
    (b"PK\x03\x04", "a zip archive (.npz or torch.save?); store its arrays as HDF5 datasets X and Y"),
    (b"\x93NUMPY", "a .npy array; store X and Y as datasets of one HDF5 file"),
    (b"\x1f\x8b", "gzip-compressed; decompress it first"),
    (b"(\xb5/\xfd", "zstd-compressed; decompress it first"),
    (b"CDF", "a classic netCDF file; convert it to HDF5 (nccopy -k nc4)"),
    (b"\x80\x02", "a pickle, which is never loaded; store its arrays as HDF5 datasets X and Y"),
    (b"\x80\x04", "a pickle, which is never loaded; store its arrays as HDF5 datasets X and Y"),
    (b"\x80\x05", "a pickle, which is never loaded; store its arrays as HDF5 datasets X and Y"),
    (b"PAR1", "a Parquet file; store X and Y as datasets of one HDF5 file"),
    (b"MATLAB 5.0", "a MATLAB 5 file; save it with -v7.3, which is HDF5"),
)


def split_path(path: str | os.PathLike[str]) -> tuple[str, str]:
    """``FILE::/group`` as (file, "/group"); without a prefix (file, "/").

    A ``::`` may also stand in a real file name: the shortest left part that exists is the file, and an
    existing file of the whole name wins. ``-`` counts as existing.
    """
    text = os.fspath(path)
    if "::" not in text or Path(text).exists():
        return text, "/"
    cuts = [at for at in range(len(text) - 1) if text.startswith("::", at)]
    for at in cuts:
        if text[:at] == "-" or (text[:at] and Path(text[:at]).exists()):
            return text[:at], _absolute(text[at + 2 :])
    at = next((at for at in cuts if text.startswith("::/", at)), cuts[-1])
    return text[:at], _absolute(text[at + 2 :])


def join(*names: str) -> str:
    """HDF5 path of a name below others; an absolute name stands for itself."""
    path = "/"
    for name in names:
        path = name if name.startswith("/") else f"{path}/{name}"
    return _absolute(path)


def _absolute(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def looks_like(path: str | os.PathLike[str]) -> str | None:
    """None when the file carries an HDF5 signature, else what it seems to be and what to do."""
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return "an empty file; the job that writes it has not got there, or its disk was full"
        # A user block may precede the signature: the format allows 0, 512, 1024, 2048, ...
        at = 0
        while at < size:
            file.seek(at)
            if file.read(8) == _SIGNATURE:
                return None
            at = max(512, 2 * at)
        file.seek(0)
        head = file.read(512)
    for magic, what in _LOOKS_LIKE:
        if head.startswith(magic):
            return what
    if not head.strip(b"\0"):
        return "only zero bytes; the job that wrote it crashed, or the copy is incomplete"
    if len(head) >= 10 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < size:
        return "a safetensors file; store its arrays as HDF5 datasets X and Y"
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:
            return "no format known here; pair files are HDF5 with datasets X and Y"
    if head.lstrip()[:1] == b"<":
        return "a web page (a failed download?); fetch the file itself"
    return "text; pair files are HDF5 with datasets X and Y"


def check_file(path: str) -> None:
    """Raise :class:`DataError` unless ``path`` is a readable regular file with an HDF5 signature."""
    try:
        mode = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: no such file; check the path") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({_reason(error)}); check the path") from None
    if stat.S_ISDIR(mode):
        raise DataError(f"{path}: is a directory; name a file, e.g. {path.rstrip('/')}/*.h5")
    if not stat.S_ISREG(mode):
        raise DataError(f"{path}: is not a regular file; pass - and redirect it to standard input")
    try:
        other = looks_like(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({_reason(error)}); check its permissions") from None
    if other is not None:
        raise DataError(f"{path}: is not HDF5: it looks like {other}")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextmanager
def spooled(stream: BinaryIO) -> Iterator[str]:
    """Path of a temporary file that holds all of ``stream``: HDF5 has to seek, a pipe cannot."""
    with tempfile.NamedTemporaryFile(prefix="rankprobe-", suffix=".h5") as copy:
        try:
            shutil.copyfileobj(stream, copy, 1 << 20)
            copy.flush()
        except OSError as error:
            raise DataError(
                f"-: cannot be spooled to {tempfile.gettempdir()} ({_reason(error)}); "
                "free space there or set TMPDIR"
            ) from None
        yield copy.name
