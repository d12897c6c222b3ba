"""Files that are either the old one or the new one, whole: temporary name, fsync, rename."""

from __future__ import annotations

import glob
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rankprobe.errors import DataError

_DAY = 86_400.0
"""Seconds."""


def reason(error: BaseException) -> str:
    """What the system said, without Python's dress."""
    text = error.strerror if isinstance(error, OSError) else None
    return text or str(error) or type(error).__name__


@contextmanager
def replacing(path: str, *, force: bool = False) -> Iterator[str]:
    """Path of an empty temporary file in the same folder, which becomes ``path`` at the end.

    An error or an interrupt removes it and leaves ``path`` as it was; what a killed process left is removed
    by the first write to ``path`` a day later. A symbolic link stays one: its target is replaced. Permission
    bits are those of the file replaced, or the usual ones.

    Raises
    ------
    DataError
        ``path`` exists (without ``force``) or is no regular file, its folder is missing or cannot be
        written, the disk is full.
    """
    target = Path(os.path.realpath(path))
    mode = _mode(target, path, force)
    _clear(target)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({reason(error)}); choose another folder") from None
    try:
        os.close(handle)
        yield name
        try:
            Path(name).chmod(mode)
            _sync(name)
            if force:
                Path(name).replace(target)
            else:
                _rename_new(name, target, path)
            _sync(target.parent)
        except OSError as error:
            raise DataError(
                f"{path}: cannot be written ({reason(error)}); free space or choose another"
            ) from None
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()


def _clear(target: Path) -> None:
    """Remove temporary files of ``target`` that nothing has written to for a day: their process is gone."""
    with suppress(OSError):
        for left in target.parent.glob(f".{glob.escape(target.name)}.{'?' * 8}.tmp"):
            if time.time() - left.lstat().st_mtime > _DAY:
                left.unlink()


def _mode(target: Path, path: str, force: bool) -> int:
    """Permission bits for the new file; raises when ``path`` must not be written."""
    try:
        found = target.lstat().st_mode
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({reason(error)}); check the path") from None
    if stat.S_ISDIR(found):
        raise DataError(f"{path}: is a directory; name a file in it")
    if not stat.S_ISREG(found):
        raise DataError(f"{path}: is not a regular file; write to - and redirect standard output")
    if not force:
        raise DataError(f"{path}: exists; pass --force to replace it")
    return stat.S_IMODE(found)


def _rename_new(name: str, target: Path, path: str) -> None:
    """Rename, unless another process has made ``target`` meanwhile."""
    try:
        os.link(name, target)
    except FileExistsError:
        raise DataError(f"{path}: exists; pass --force to replace it") from None
    except OSError:  # a file system without hard links
        Path(name).replace(target)


def _sync(path: str | Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not Path(path).is_dir():  # not every file system syncs folders
            raise
    finally:
        os.close(handle)
