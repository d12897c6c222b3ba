"""What objects a file holds, by name: walked, listed, and named in errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h5py

from rankprobe.data._open import children, detail, locate, near
from rankprobe.data._paths import join
from rankprobe.data._values import row_type
from rankprobe.errors import DataError

_MAX_OBJECTS = 10_000
_MAX_DEPTH = 32


@dataclass(frozen=True)
class Item:
    """A dataset as a candidate: absolute path, shape and the numpy kind letter of its elements.

    Or a series of datasets under one name with a ``*``, whose paths are ``members``.
    """

    path: str
    name: str
    """As a flag names it: relative to the group of the pair."""
    shape: tuple[int, ...]
    kind: str
    itemsize: int
    varies: bool = False
    """Whether the elements are rows of varying length; kind and size are those of the numbers in them."""
    members: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: str, dset: Any) -> Item | None:
        """Candidate of a dataset; None when it is damaged or has no shape."""
        try:
            shape, dtype = dset.shape, dset.dtype
        except (OSError, RuntimeError, ValueError, TypeError):
            return None
        if shape is None:
            return None
        rows = row_type(dtype)
        kind = dtype if rows is None else rows
        name = path.rsplit("/", 1)[-1]
        return cls(path, name, tuple(shape), kind.kind, kind.itemsize, rows is not None, (path,))

    @property
    def folder(self) -> str:
        return self.path.removesuffix(self.name).rstrip("/") or "/"

    @property
    def numeric(self) -> bool:
        """Whether it may hold tokens (opaque two-byte elements are bfloat16)."""
        numbers = self.kind in "fiu" or (self.kind == "V" and self.itemsize == 2)
        return numbers and self.varies == (len(self.shape) == 1)


def walk(
    file: Any,
    prefix: str,
    label: str,
    limit: int = _MAX_OBJECTS,
    skip: tuple[str, ...] = (),
    allow_external: bool = False,
) -> Iterator[tuple[str, Any]]:
    """(path, object) of everything below ``prefix`` through hard and soft links inside the file.

    An object that cannot be opened yields its :class:`DataError`. Each object is given once. Paths in
    ``skip`` are left out.
    """
    seen: set[Any] = set()
    todo = [(prefix, 0)]
    count = 0
    while todo and count < limit:
        path, depth = todo.pop()
        try:
            found = locate(file, path, label, allow_external=allow_external)
        except DataError as error:
            count += 1
            yield path, error
            continue
        if found is None:
            continue
        try:
            info = h5py.h5o.get_info(found.obj.id)
        except (OSError, RuntimeError, ValueError) as error:
            count += 1
            yield path, DataError(f"{label}::{path}: cannot be looked up ({detail(error)}); damaged?")
            continue
        if (info.fileno, info.addr) in seen:
            continue
        seen.add((info.fileno, info.addr))
        count += 1
        yield path, found.obj
        if isinstance(found.obj, h5py.Group) and depth < _MAX_DEPTH:
            try:
                names = children(found.obj, f"{label}::{path}", limit)
            except DataError as error:
                yield path, error
                continue
            below = [join(path, name) for name in reversed(names)]
            todo.extend((one, depth + 1) for one in below if one not in skip)


def items(file: Any, prefix: str, label: str, limit: int = _MAX_OBJECTS) -> list[Item]:
    """The datasets below ``prefix`` that have a shape; damaged ones are left out."""
    found = (
        Item.of(path, obj) for path, obj in walk(file, prefix, label, limit) if isinstance(obj, h5py.Dataset)
    )
    return [item for item in found if item is not None]


def masks_beside(file: Any, folder: str, label: str, shape: tuple[int, int]) -> Iterator[Item]:
    """Datasets directly in ``folder`` that are named like a mask and have its shape [n, T] or [n*T]."""
    found = locate(file, folder, label, allow_external=True)
    if found is None or not isinstance(found.obj, h5py.Group):
        return
    for name in children(found.obj, f"{label}::{folder}", _MAX_OBJECTS):
        if "mask" not in plain_name(name):
            continue
        at = join(folder, name)
        with suppress(DataError):  # a mask that cannot be opened is not one to propose
            member = locate(file, at, label)
            item = Item.of(at, member.obj) if member and isinstance(member.obj, h5py.Dataset) else None
            if item is not None and item.shape in (shape, (shape[0] * shape[1],)):
                yield item


def no_group(file: Any, label: str, prefix: str) -> DataError:
    """No group of that name: with the groups there are."""
    groups = [at for at, obj in walk(file, "/", label) if isinstance(obj, h5py.Group) and at != "/"]
    there = near(prefix, groups) if groups else "; the file has none: leave the part after :: out"
    return DataError(f"{label}::{prefix}: no such group{there}")


def plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
