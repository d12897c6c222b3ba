"""From the name a user gives to the field it names: in this file, in another, or a series of datasets."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py

from rankprobe.data._fields import Field
from rankprobe.data._names import items
from rankprobe.data._open import Located, locate, near, open_file
from rankprobe.data._paths import join, split_path
from rankprobe.data._patterns import filled, matching
from rankprobe.data._series import Series, Varying, open_field, varies
from rankprobe.data._storage import check_stored
from rankprobe.data._values import stored
from rankprobe.errors import DataError


class Opener:
    """Opens the datasets of one pair, in the group ``prefix`` of the open ``file``, called ``label``.

    Files named beside it stay open as long as ``stack``.
    """

    def __init__(
        self, file: Any, label: str, prefix: str, dtype: str | None, allow_external: bool, stack: ExitStack
    ) -> None:
        self._file, self._label, self._prefix = file, label, prefix
        self._dtype, self._external, self._stack = dtype, allow_external, stack

    def field(
        self,
        name: str | None,
        default: str,
        *,
        dim: int | None = None,
        beside: Field | None = None,
        numbers: bool = True,
    ) -> Field | None:
        """What ``name`` stands for; None when it is None and there is no ``default``.

        ``dim`` is the width of rows of varying length, ``beside`` the X whose sequences they must match.
        ``numbers`` is False for a mask, whose 16-bit integers are no bfloat16.

        Raises
        ------
        DataError
            there is no such dataset, or it cannot be used (see :func:`check_stored`, :func:`stored`).
        """
        dtype = self._dtype if numbers else "integer"
        file, label, at = self._file, self._label, join(self._prefix, name or default)
        found = locate(file, at, label, allow_external=self._external)
        if found is None and name is not None and "::" in name:
            other, path = split_path(name)
            if Path(other).exists():
                file, label, at = self._stack.enter_context(open_file(other)), other, path
                found = locate(file, at, label, allow_external=self._external)
        if found is None and name is not None and "*" in at:
            return self._series(file, label, at, dtype, beside)
        if found is None:
            if name is None:
                return None
            others = [item.path for item in items(file, "/", label)]
            nor = f", nor a file {split_path(name)[0]}" if "::" in name and file is self._file else ""
            raise DataError(f"{label}::{at}: no such dataset{nor}{near(at, others)}")
        shown = f"{label}::{at}"
        if isinstance(found.obj, h5py.Dataset) and varies(found.obj) and beside is not None:
            return self._varying(found, file, shown, dtype, beside)
        return open_field(found, file, shown, dtype, dim, allow_external=self._external)

    def _varying(self, found: Located, file: Any, shown: str, dtype: str | None, beside: Field) -> Field:
        if len(beside.shape) != 3:
            raise DataError(
                f"{shown}: holds rows of varying length and {beside.label} does not; name matching ones"
            )
        check_stored(found.obj, file, shown, allow_external=self._external)
        return Varying.beside(found, shown, stored(found.obj, shown, dtype), beside.extents(1))

    def _series(self, file: Any, label: str, pattern: str, dtype: str | None, beside: Field | None) -> Field:
        members = matching(file, pattern, label, allow_external=self._external)
        if not members:
            others = [item.path for item in items(file, "/", label)]
            raise DataError(f"{label}::{pattern}: matches no dataset{near(pattern, others)}")
        single: bool | None = None
        if beside is not None:
            if not isinstance(beside, Series):
                raise DataError(
                    f"{label}::{pattern}: is a series of datasets and {beside.label} is none; "
                    "name both with a * or neither"
                )
            lonely = sorted(members.keys() ^ beside.members.keys())
            if lonely:
                here, there = pattern, beside.pattern
                lacks, has = (there, here) if lonely[0] in members else (here, there)
                raise DataError(
                    f"{label}::{filled(lacks, lonely[0])}: is not there beside {filled(has, lonely[0])} "
                    f"(one of {len(lonely)}); finish the job that writes it, or narrow the pattern"
                )
            members = {stars: members[stars] for stars in beside.members}
            single = beside.single
        return Series(file, label, pattern, members, dtype, single=single, allow_external=self._external)
