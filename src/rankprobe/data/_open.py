"""Opening HDF5 files from strangers: one place that turns HDF5's complaints into a line with a remedy.

Names are resolved link by link, because HDF5 itself follows an external link at any depth of a path: a
crafted file could otherwise read another file of the host.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

import h5py

from rankprobe.data._heaps import endless_heap
from rankprobe.data._paths import check_file, join
from rankprobe.errors import DataError

_MAX_LINKS = 64
"""Soft links followed in one name; more is a loop."""

_CACHE_BYTES = 8 << 20
_CACHE_SLOTS = 12_421


_QUICK = 64 << 20
"""Bytes of a file that are looked through in no time."""


def open_file(path: str, label: str | None = None) -> Any:
    """``h5py.File`` open for reading; ``label`` names it in messages (default: the path).

    Raises
    ------
    DataError
        missing, unreadable, not HDF5, truncated, damaged, or open in a writer.
    """
    label = label or path
    try:
        check_file(path)
        check_heaps(path, path, _QUICK)
        return h5py.File(path, "r", rdcc_nbytes=_CACHE_BYTES, rdcc_nslots=_CACHE_SLOTS)
    except DataError as error:
        # Only the temporary name of a spooled stream differs from its label.
        raise DataError(str(error).replace(path, label, 1)) from None
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"{label}: {_open_failure(error)}") from None


def check_heaps(path: str, label: str, most: int | None = None) -> None:
    """Raise :class:`DataError` where reading strings or rows of the file would never end.

    All of it is read for that, so that files of more than ``most`` bytes are let pass.
    """
    at = endless_heap(path, most)
    if at is not None:
        raise DataError(
            f"{label}: is damaged: its heap of strings and rows at byte {at} has no end; "
            "copy or write it again"
        )


def _open_failure(error: Exception) -> str:
    text = str(error)
    if isinstance(error, BlockingIOError) or "unable to lock file" in text:
        return "is locked by a process that writes it; wait until it has closed the file"
    if "already open for write" in text:
        return (
            "is marked as open for writing: a writer is still at work or crashed; "
            "wait for it, or clear the mark with `h5clear -s`"
        )
    found = re.search(r"truncated file: eof = (\d+), .*stored_eof = (\d+)", text)
    if found:
        return f"is truncated: {found[1]} of {found[2]} bytes are there; copy it again"
    return f"is damaged and cannot be opened ({detail(error)}); copy or write it again"


def detail(error: BaseException) -> str:
    """HDF5's own reason: the innermost parenthesis of its message, on one line."""
    # str() of a KeyError is the repr of its message.
    text = " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())
    found = re.search(r"\((.*)\)$", text)
    return (found[1] if found else text) or type(error).__name__


class Located:
    """An object found by name: the h5py object, its resolved path and the link that leads to it."""

    def __init__(self, obj: Any, path: str, parent: Any, name: str) -> None:
        self.obj = obj
        self.path = path
        self._parent = parent
        self._name = name

    def reopen(self, cache_bytes: int) -> Any:
        """The same dataset with a chunk cache of this size; the first handle is closed."""
        self.obj.id.close()
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(_CACHE_SLOTS, cache_bytes, 1.0)
        self.obj = h5py.Dataset(h5py.h5d.open(self._parent.id, encode(self._name), access))
        return self.obj


def encode(name: str) -> bytes:
    """Object name as HDF5 stores it."""
    return name.encode("utf-8", "surrogateescape")


def decode(name: bytes) -> str:
    """Object name as shown; bytes that are not UTF-8 survive the round trip."""
    return name.decode("utf-8", "surrogateescape")


def locate(file: Any, path: str, label: str, *, allow_external: bool = False) -> Located | None:
    """Object at the absolute ``path``, or None when no link of that name exists.

    Raises :class:`DataError` on an external link (unless allowed), a link loop, a link to nothing and
    an object that cannot be opened.
    """
    group, at = file, "/"
    parent, name = file, "/"
    todo = [part for part in path.split("/") if part not in ("", ".")]
    links, inside = 0, 0
    while todo:
        part = todo.pop(0)
        followed, inside = inside > 0, max(0, inside - 1)
        here = join(at, part)
        if not isinstance(group, h5py.Group):
            return None
        try:
            if not group.id.links.exists(encode(part)):
                if followed:
                    raise DataError(f"{label}::{path}: is a soft link to {here}, which is not there")
                return None
            kind = group.id.links.get_info(encode(part)).type
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise DataError(f"{label}::{here}: cannot be looked up ({detail(error)}); damaged?") from None
        if kind == h5py.h5l.TYPE_SOFT:
            links += 1
            if links > _MAX_LINKS:
                raise DataError(f"{label}::{path}: its soft links go in a circle; name the dataset itself")
            target = decode(group.id.links.get_val(encode(part)))
            steps = [step for step in target.split("/") if step not in ("", ".")]
            todo, inside = steps + todo, inside + len(steps)
            if target.startswith("/"):
                group, at = file, "/"
            continue
        if kind != h5py.h5l.TYPE_HARD and not allow_external:
            raise DataError(
                f"{label}::{here}: is an external link{_target(group, part)}; "
                "pass --allow-external if you trust the file"
            )
        parent, name, at = group, part, here
        group = _open_object(group, part, f"{label}::{here}")
    return Located(group, at, parent, name)


def _target(group: Any, name: str) -> str:
    try:
        file, path = group.id.links.get_val(encode(name))
        return f" to {decode(file)}::{decode(path)}"
    except (OSError, RuntimeError, ValueError, TypeError):
        return ""


def _open_object(group: Any, name: str, label: str) -> Any:
    try:
        opened = h5py.h5o.open(group.id, encode(name))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{label}: cannot be opened ({detail(error)}); is the file whole?") from None
    if isinstance(opened, h5py.h5g.GroupID):
        return h5py.Group(opened)
    if isinstance(opened, h5py.h5d.DatasetID):
        return h5py.Dataset(opened)
    return h5py.Datatype(opened)


def children(group: Any, label: str, limit: int = 100_000) -> list[str]:
    """Names of a group's links, nothing opened; raises :class:`DataError` when they cannot be listed."""
    names: list[str] = []

    def collect(name: bytes, *_: Any) -> bool | None:
        names.append(decode(name))
        return True if len(names) >= limit else None

    try:
        group.id.links.iterate(collect)
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"{label}: its members cannot be listed ({detail(error)}); damaged?") from None
    return names


def near(name: str, names: list[str]) -> str:
    """``; near: a, b`` or ``; there are: a, b``: what the user may have meant."""
    last = _last(name)
    close = [other for other in names if _last(other).lower() == last.lower()]
    if not close:
        similar = difflib.get_close_matches(last, {_last(other) for other in names}, 3, 0.6)
        close = [other for other in names if _last(other) in similar]
    if close:
        return f"; did you mean {' or '.join(close[:3])}?"
    if names:
        more = ", ..." if len(names) > 6 else ""
        return f"; there are {', '.join(names[:6])}{more}"
    return "; it holds no datasets"


def _last(path: str) -> str:
    return path.rsplit("/", 1)[-1]
