"""What a file holds and how to read pairs from it; nothing is assumed, damaged parts are told, not raised."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

import h5py

from rankprobe.data._attributes import read_attributes
from rankprobe.data._names import Item, items, no_group, walk
from rankprobe.data._open import children, detail, locate, open_file
from rankprobe.data._pairs import open_pairs
from rankprobe.data._paths import join, split_path, spooled
from rankprobe.data._proposals import Proposal, noted_in, propose, propose_beside
from rankprobe.data._storage import check_stored, filters, layout
from rankprobe.data._values import row_type, stored
from rankprobe.errors import DataError, RankprobeError

_RESULTS = ("/estimates", "/recovery")
_MAX_LISTED = 10_000
_MAX_PAIRS = 32


@dataclass(frozen=True)
class DatasetDescription:
    """One dataset: ``storage`` is contiguous, chunked, compact, virtual or external; ``problem`` says why
    its values cannot be used, ``role`` what it is in the first proposal that names it (X, Y, mask, V)."""

    path: str
    shape: tuple[int, ...] | None
    dtype: str
    storage: str
    chunks: tuple[int, ...] | None
    filters: tuple[str, ...]
    stored_bytes: int
    attributes: dict[str, Any]
    role: str | None
    flags: tuple[str, ...]
    """The words that name it on the command line; empty where the name is the default."""
    problem: str | None


@dataclass(frozen=True)
class PairDescription:
    """A pair that can be read: where, with which flags, why, and its sizes when it opens."""

    proposal: Proposal
    sequences: int | None
    tokens: int | None
    dim: int | None
    value_dim: int | None
    heads: int | None
    problem: str | None
    """Why it does not open as proposed."""


@dataclass(frozen=True)
class SavedResult:
    """A result under ``/estimates`` or ``/recovery``: of what, what it says, when it was saved (ISO, UTC).

    ``estimator`` is the student of a recovery, ``status`` its verdict.
    """

    path: str
    file: str | None
    head: int | None
    estimator: str | None
    rank: int | None
    status: str | None
    saved: str | None


@dataclass(frozen=True)
class FileDescription:
    """All of it. ``runs`` are the groups of saved results, whose datasets are not listed; ``problems`` are
    links that are not followed and objects that cannot be opened."""

    path: str
    size: int
    attributes: dict[str, Any]
    datasets: tuple[DatasetDescription, ...]
    groups: tuple[tuple[str, dict[str, Any]], ...]
    pairs: tuple[PairDescription, ...]
    runs: tuple[str, ...]
    estimates: tuple[SavedResult, ...]
    recoveries: tuple[SavedResult, ...]
    problems: tuple[str, ...]
    truncated: bool
    """Whether the file holds more objects or pairs than are listed."""


def describe(
    path: str | os.PathLike[str],
    *,
    beside: Sequence[str] = (),
    allow_external: bool = False,
    stream: BinaryIO | None = None,
) -> FileDescription:
    """List datasets and groups of ``FILE`` or ``FILE::/group`` and propose how to read pairs from them.

    Where it holds no pair, Y is looked for in the files ``beside`` it.

    Raises :class:`DataError` only when the file or the group cannot be opened at all.
    """
    label, prefix = split_path(path)
    with ExitStack() as stack:
        real = stack.enter_context(spooled(stream)) if stream is not None else label
        file = stack.enter_context(open_file(real, label))
        root = locate(file, prefix, label, allow_external=allow_external)
        if root is None:
            raise no_group(file, label, prefix)
        objects = list(walk(file, prefix, label, _MAX_LISTED, _RESULTS, allow_external))
        candidates = list(_candidates(objects))
        proposals = propose(label, candidates, noted_in(file, label))
        if not proposals and prefix == "/":
            proposals = [
                way
                for other in beside
                for way in propose_beside(label, candidates, other, _items(other), noted_in(file, label))
            ]
        pairs = [_pair(way, real, label, allow_external) for way in proposals[:_MAX_PAIRS]]
        roles = _roles([pair.proposal for pair in pairs])
        runs = tuple(_runs(file, label)) if prefix == "/" else ()
        return FileDescription(
            path=label,
            size=Path(real).stat().st_size,
            attributes=read_attributes(root.obj),
            datasets=tuple(
                _dataset(obj, at, file, label, roles, allow_external)
                for at, obj in objects
                if isinstance(obj, h5py.Dataset)
            ),
            groups=tuple(
                (at, read_attributes(obj))
                for at, obj in objects
                if isinstance(obj, h5py.Group) and at != prefix
            ),
            pairs=tuple(pairs),
            runs=runs,
            estimates=tuple(_saved(file, label, runs, "estimates", "estimator", "status")),
            recoveries=tuple(_saved(file, label, runs, "recovery", "student", "verdict")),
            problems=tuple(str(obj) for _, obj in objects if isinstance(obj, DataError)),
            truncated=len(objects) >= _MAX_LISTED or len(proposals) > _MAX_PAIRS,
        )


def _runs(file: Any, label: str) -> Iterator[str]:
    for path in _RESULTS:
        try:
            found = locate(file, path, label)
            if found is not None and isinstance(found.obj, h5py.Group):
                yield from sorted(join(path, name) for name in children(found.obj, label))
        except DataError:
            continue  # a file whose results are damaged still holds its pairs


def _saved(
    file: Any, label: str, runs: tuple[str, ...], home: str, estimator: str, status: str
) -> Iterator[SavedResult]:
    """The results of the runs under ``home``; ``estimator`` and ``status`` name the attributes with them."""
    names = {"estimator": estimator, "status": status}
    for run in runs:
        if not run.startswith(f"/{home}/"):
            continue
        for path, obj in walk(file, run, label, _MAX_LISTED):
            if isinstance(obj, h5py.Group) and path != run:
                noted = read_attributes(obj)
                values = (noted.get(names.get(each.name, each.name)) for each in fields(SavedResult)[1:])
                yield SavedResult(path, *values)


def _candidates(objects: list[tuple[str, Any]]) -> Iterator[Item]:
    for path, obj in objects:
        if isinstance(obj, h5py.Dataset):
            item = Item.of(path, obj)
            if item is not None:
                yield item


def _items(path: str) -> list[Item]:
    """The datasets of another file; none where it cannot be read."""
    try:
        with open_file(path) as file:
            return items(file, "/", path)
    except DataError:
        return []


def _pair(proposal: Proposal, real: str, label: str, allow_external: bool) -> PairDescription:
    """The proposal tried: opening reads no values. ``--allow-external`` is added only where it is needed."""
    if proposal.asks:
        return PairDescription(proposal, None, None, None, None, None, problem=None)
    options: dict[str, Any] = dict(proposal.options)
    for name in {"tokens", "dim", "heads"} & options.keys():
        options[name] = int(options[name])
    target = real + proposal.target[len(label) :]
    problem: str | None = None
    for outside in (False, True) if allow_external else (False,):
        way = proposal
        if outside:
            way = replace(proposal, options=(*proposal.options, ("allow-external", None)))
        try:
            with open_pairs(target, allow_external=outside, **options) as pairs:
                sizes = (pairs.sequences, pairs.tokens, pairs.dim, pairs.value_dim, pairs.heads)
                return PairDescription(way, *sizes, problem=None)
        except RankprobeError as error:
            problem = str(error).replace(real, label, 1)
    return PairDescription(proposal, None, None, None, None, None, problem)


def _roles(proposals: list[Proposal]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Role and flags of each dataset that a proposal names, by path."""
    out: dict[str, tuple[str, tuple[str, ...]]] = {}
    for proposal in proposals:
        flags = dict(proposal.options)
        for role, item in (("X", proposal.x), ("Y", proposal.y), ("mask", proposal.mask), ("V", proposal.v)):
            if item is None:
                continue
            name = role.lower()
            # The flags that are about the whole pair stand with X.
            keys = {"X": (name, "tokens", "dim", "dtype"), "Y": (name, "heads")}.get(role, (name,))
            words = [word for key in keys if (value := flags.get(key)) for word in (f"--{key}", value)]
            for path in item.members:
                out.setdefault(path, (role, tuple(words)))
    return out


def _dataset(
    dset: Any,
    path: str,
    file: Any,
    label: str,
    roles: dict[str, tuple[str, tuple[str, ...]]],
    allow_external: bool,
) -> DatasetDescription:
    shown = f"{label}::{path}"
    role, flags = roles.get(path, (None, ()))
    problem = None
    try:
        check_stored(dset, file, shown, allow_external=allow_external)
    except RankprobeError as error:
        problem = str(error).removeprefix(f"{shown}: ")
    try:
        return DatasetDescription(
            path=path,
            shape=None if dset.shape is None else tuple(dset.shape),
            dtype=_dtype(dset, shown),
            storage=layout(dset),
            chunks=dset.chunks,
            filters=tuple(filters(dset)),
            stored_bytes=dset.id.get_storage_size(),
            attributes=read_attributes(dset),
            role=role,
            flags=flags,
            problem=problem,
        )
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        return DatasetDescription(
            path, None, "unknown", "unknown", None, (), 0, {}, None, (), problem or detail(error)
        )


def _dtype(dset: Any, label: str) -> str:
    """Element type as shown: float16, bfloat16, >f4, ...; other types by numpy's name."""
    try:
        kind = stored(dset, label, "integer")
    except DataError:
        return "string" if h5py.check_string_dtype(dset.dtype) is not None else str(dset.dtype)
    name = f"{kind.name} (big-endian)" if kind.raw.byteorder == ">" else kind.name
    return name if row_type(dset.dtype) is None else f"rows of {name}"
