"""Names with a ``*``, which stands for any text without a slash: many datasets under one name."""

from __future__ import annotations

import re
from typing import Any

import h5py

from rankprobe.data._open import children, locate
from rankprobe.data._paths import join
from rankprobe.errors import DataError

OWN = ("teacher", "estimates", "recovery")
"""Groups this package writes: never a pair."""

_MAX_MEMBERS = 1_000_000


def matching(file: Any, pattern: str, label: str, *, allow_external: bool) -> dict[tuple[str, ...], str]:
    """Paths of the absolute ``pattern`` in natural order, by what each ``*`` stands for.

    A ``*`` is any text without a slash. What this package wrote itself is left out.
    """
    found: list[tuple[tuple[str, ...], str]] = [((), "/")]
    for part in [part for part in pattern.split("/") if part]:
        if "*" not in part:
            found = [(stars, join(at, part)) for stars, at in found]
            continue
        names = re.compile("(.+)".join(map(re.escape, part.split("*"))), re.DOTALL)
        grown = []
        for stars, at in found:
            group = locate(file, at, label, allow_external=allow_external)
            if group is None or not isinstance(group.obj, h5py.Group):
                continue
            for name in children(group.obj, f"{label}::{at}", _MAX_MEMBERS):
                hit = names.fullmatch(name)
                if hit and not (at == "/" and name in OWN):
                    grown.append(((*stars, *hit.groups()), join(at, name)))
        if len(grown) >= _MAX_MEMBERS:
            raise DataError(f"{label}::{pattern}: matches more than {_MAX_MEMBERS} names; join them first")
        found = grown
    there = [one for one in found if locate(file, one[1], label, allow_external=allow_external) is not None]
    return dict(sorted(there, key=lambda one: natural(one[1])))


def filled(pattern: str, stars: tuple[str, ...]) -> str:
    """The pattern with its ``*`` replaced in turn."""
    pieces = pattern.split("*")
    return pieces[0] + "".join(star + piece for star, piece in zip(stars, pieces[1:], strict=True))


def natural(name: str) -> list[tuple[int, int, str]]:
    """Key that sorts numbers in names by their value: 2 before 10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name)]
