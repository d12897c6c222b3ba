"""Virtual datasets: is every value mapped, and every source there? HDF5 reads what is missing as zeros."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py

from rankprobe.data._open import children, locate, open_file
from rankprobe.errors import DataError

_MAX_DEPTH = 8
_MAX_PATCHES = 4096
"""Mappings that are no whole rows; HDF5 takes quadratic time to unite them."""

Check = Callable[..., None]
"""Raises unless a source is stored: its dataset, the open file that holds it, its label, and the trail."""

Slab = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Start, stride, count and block of a selection."""


Trail = tuple[int, set[tuple[str, str]]]
"""How many virtual datasets led here, and the sources (file, path) found to be stored."""


def check_virtual(dset: Any, file: Any, label: str, allowed: bool, trail: Trail, check: Check) -> None:
    """Raise :class:`DataError` unless all of ``dset`` is mapped, and to datasets that ``check`` accepts.

    ``allowed``: sources may lie in other files.
    """
    depth, passed = trail
    if depth > _MAX_DEPTH:
        raise DataError(f"{label}: is a virtual dataset over virtual datasets, too deep; write it plainly")
    plist = dset.id.get_create_plist()
    slabs: list[Slab] = []
    for i in range(plist.get_virtual_count()):
        name, path = plist.get_virtual_filename(i), plist.get_virtual_dsetname(i)
        if name != "." and not allowed:
            raise DataError(
                f"{label}: is virtual, its data lie in {name}; pass --allow-external if you trust the file"
            )
        slab = _slab(plist.get_virtual_vspace(i), dset.shape, label)
        slabs.append(slab)
        many = "%b" in (name + path).replace("%%", "")
        sources = _numbered(dset, file, name, path, slab, label) if many else [(_filled(name), _filled(path))]
        size = math.prod(slab[3]) * (1 if many else math.prod(slab[2]))
        for one, inner in sources:
            where = inner if one == "." else f"{one}::{inner}"
            with _source_file(dset, file, one) as other:
                found = None if other is None else locate(other, inner, label, allow_external=allowed)
                if found is None or not isinstance(found.obj, h5py.Dataset):
                    raise DataError(f"{label}: its virtual source {where} is not there; fetch it")
                shape = found.obj.shape or ()
                if not _enough(shape, plist.get_virtual_srcspace(i), size):
                    raise DataError(
                        f"{label}: its virtual source {where} has shape {list(shape)}, less than is mapped; "
                        "write it again"
                    )
                key = (found.obj.file.filename, found.path)
                if key not in passed:
                    check(found.obj, other, f"{label} from {where}", trail=(depth + 1, passed))
                    passed.add(key)
    total, mapped = math.prod(dset.shape), _covered(slabs, dset.shape, label)
    if mapped < total:
        raise DataError(f"{label}: its virtual sources cover {mapped} of {total} values; write it plainly")


def _slab(space: Any, shape: tuple[int, ...], label: str) -> Slab:
    """A selection in the virtual dataset, with as many blocks as there are where it is unlimited."""
    if space.get_select_type() == h5py.h5s.SEL_ALL:
        ones = (1,) * len(shape)
        return (0,) * len(shape), ones, ones, shape
    if space.get_select_type() != h5py.h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        raise DataError(f"{label}: is a virtual dataset of scattered pieces; write it plainly")
    start, stride, count, block = map(list, space.get_regular_hyperslab())
    for axis, size in enumerate(shape):
        if block[axis] == h5py.h5s.UNLIMITED:
            block[axis] = max(0, size - start[axis])
        elif count[axis] == h5py.h5s.UNLIMITED:
            count[axis] = max(0, (size - start[axis] - block[axis]) // stride[axis] + 1)
    return tuple(start), tuple(stride), tuple(count), tuple(block)


def _covered(slabs: list[Slab], shape: tuple[int, ...], label: str) -> int:
    """Elements of the virtual dataset that at least one mapping covers."""
    space = h5py.h5s.create_simple(shape)
    space.select_none()
    rows, patches = [], []
    for slab in slabs:
        start, stride, count, block = slab
        if 0 in count or 0 in block:
            continue
        # Mappings of whole rows, as nearly all are, unite by sorting.
        whole = all(b == size for b, size in zip(block[1:], shape[1:], strict=True))
        if whole and (count[0] == 1 or stride[0] == block[0]):
            rows.append((start[0], start[0] + count[0] * block[0]))
        else:
            patches.append(slab)
    if len(patches) > _MAX_PATCHES:
        raise DataError(f"{label}: is a virtual dataset of {len(patches)} pieces; write it plainly")
    for start, stride, count, block in patches:
        space.select_hyperslab(start, count, stride, block, h5py.h5s.SELECT_OR)
    edge = 0
    for first, last in sorted(rows):
        if last > edge:
            corner, size = max(first, edge), last - max(first, edge)
            space.select_hyperslab(
                (corner, *(0,) * (len(shape) - 1)), (size, *shape[1:]), op=h5py.h5s.SELECT_OR
            )
            edge = last
    return int(space.get_select_npoints())


def _numbered(
    dset: Any, file: Any, name: str, path: str, slab: Slab, label: str
) -> Iterator[tuple[str, str]]:
    """The sources (file, path) of a mapping to one a block, whose number stands for ``%b`` in their names.

    HDF5 ends such a dataset before the first source that is missing, however many follow.
    """
    count = math.prod(slab[2])
    for number in range(count):
        yield _filled(name, number), _filled(path, number)
    later = [number for number in _numbers(dset, file, name, path, label) if number > count]
    if later:
        where = _filled(path, count) if name == "." else f"{_filled(name, count)}::{_filled(path, count)}"
        raise DataError(
            f"{label}: its virtual source {where} is not there, but number {min(later)} is; fetch it"
        )


def _filled(name: str, number: int = 0) -> str:
    """``%b`` replaced by the number, and ``%%``, which stands for a percent sign."""
    return "%".join(part.replace("%b", str(number)) for part in name.split("%%"))


def _numbers(dset: Any, file: Any, name: str, path: str, label: str) -> Iterator[int]:
    """Numbers of all sources there are, in the folder or in the group of the source names."""
    if "%b" in name:
        folder = (Path(dset.file.filename).parent / name).parent
        pattern, names = Path(name).name, [one.name for one in folder.iterdir()] if folder.is_dir() else []
    elif name == ".":
        above, _, pattern = path.rpartition("/")
        group = locate(file, above, label)
        names = children(group.obj, label) if group and isinstance(group.obj, h5py.Group) else []
    else:
        return
    wanted = re.compile(r"(\d+)".join(re.escape(part) for part in pattern.split("%b")))
    for one in names:
        found = wanted.fullmatch(one)
        if found:
            yield int(found[1])


@contextlib.contextmanager
def _source_file(dset: Any, file: Any, name: str) -> Iterator[Any]:
    """The open file ``name`` where HDF5 looks for it, beside that of ``dset`` or here; None if it is gone."""
    if name == ".":
        yield file
        return
    folder = Path(dset.file.filename).parent
    source = next((at for at in (folder / name, Path(name)) if at.is_file()), None)
    if source is None:
        yield None
        return
    with open_file(str(source)) as other:
        yield other


def _enough(have: tuple[int, ...], space: Any, size: int) -> bool:
    """Whether a source of this shape holds all that is selected of it, ``size`` elements."""
    if space.get_select_type() == h5py.h5s.SEL_ALL:
        # Its extent is not stored: all of the source is as much as the selection it is mapped to.
        return math.prod(have) >= size
    if space.get_select_type() != h5py.h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        last = space.get_select_bounds()[1]
        return len(last) == len(have) and all(at < size for at, size in zip(last, have, strict=True))
    selected = space.get_regular_hyperslab()
    if len(selected[0]) != len(have):
        return False
    for extent, start, stride, count, block in zip(have, *selected, strict=True):
        # What is unlimited is as long as its source.
        if h5py.h5s.UNLIMITED not in (count, block) and start + (count - 1) * stride + block > extent:
            return False
    return True
