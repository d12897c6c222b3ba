"""Which datasets of a foreign file may be the pair, and the flags that say so. Proposed, never assumed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import h5py

from rankprobe.data._attributes import read_attributes
from rankprobe.data._open import children, detail, locate, near
from rankprobe.data._paths import join
from rankprobe.errors import DataError

_X_NAMES = (
    "x", "input", "inputs", "hidden_states", "hidden_state", "hidden", "attn_in", "attn_input",
    "attention_input", "attn_inputs", "resid_pre", "hook_resid_pre", "normalized", "hook_normalized",
    "ln_out", "tokens", "embeddings", "activations", "acts", "in", "src", "source", "features", "x_train",
)  # fmt: skip
_Y_NAMES = (
    "y", "output", "outputs", "attn_out", "attn_output", "attn_outputs", "attention_output",
    "attention_outputs", "head_out", "head_output", "head_outputs", "z", "hook_z", "hook_attn_out",
    "context", "context_layer", "out", "tgt", "target", "targets", "labels", "y_train",
)  # fmt: skip
_V_NAMES = ("v", "w_v", "wv", "value_map", "value_weight", "v_proj", "value")
_LENGTHS = ("tokens", "seq_len", "sequence_length", "seq_length", "length", "t", "n_tokens", "context_length")

_OWN = ("teacher", "estimates", "recovery")
"""Groups this package writes: never a pair."""

_PART, _UNKNOWN = 100, 1000
"""Scores of a name that holds a known one, and of one that does not."""

_MAX_UNKNOWN = 64
_MAX_OBJECTS = 10_000
_MAX_DEPTH = 32


@dataclass(frozen=True)
class Item:
    """A dataset as a candidate: absolute path, shape and the numpy kind letter of its elements."""

    path: str
    name: str
    """As a flag names it: relative to the group of the pair."""
    shape: tuple[int, ...]
    kind: str
    itemsize: int

    @classmethod
    def of(cls, path: str, dset: Any) -> Item | None:
        """Candidate of a dataset; None when it is damaged or has no shape."""
        try:
            shape, dtype = dset.shape, dset.dtype
        except (OSError, RuntimeError, ValueError, TypeError):
            return None
        if shape is None:
            return None
        return cls(path, path.rsplit("/", 1)[-1], tuple(shape), dtype.kind, dtype.itemsize)

    @property
    def folder(self) -> str:
        return self.path.rsplit("/", 1)[0] or "/"

    @property
    def numeric(self) -> bool:
        """Whether it may hold tokens (opaque two-byte elements are bfloat16)."""
        return self.kind in "fiu" or (self.kind == "V" and self.itemsize == 2)


@dataclass(frozen=True)
class Proposal:
    """A way to read a pair: ``FILE[::/group]``, the datasets in their roles, the flags, and why.

    ``needs_length`` is set where the tokens are flattened and nothing says how long a sequence is: the flag
    ``--tokens T`` is then the user's to fill in.
    """

    target: str
    x: Item
    y: Item
    mask: Item | None
    v: Item | None
    options: tuple[tuple[str, str | None], ...]
    """Flags without their dashes, with their value (None: a switch)."""
    reason: str
    needs_length: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """Words to add to ``rankprobe estimate FILE``."""
        return tuple(
            word for name, value in self.options for word in (f"--{name}", value) if word is not None
        )

    @property
    def arguments(self) -> str:
        """Target and flags as a shell takes them."""
        return shlex.join([self.target, *self.flags])

    @property
    def command(self) -> str:
        """The line to type."""
        return f"rankprobe estimate {self.arguments}"


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


def fits(x: tuple[int, ...], y: tuple[int, ...]) -> bool:
    """Whether two shapes may be X and Y of one pair (3-D both, heads on Y, or both flattened)."""
    if len(x) == 2:
        return len(y) in (2, 3) and x[0] == y[0]
    if len(x) != 3 or len(y) not in (3, 4) or x[0] != y[0]:
        return False
    return x[1] in y[1:-1]


def propose(label: str, found: list[Item], lengths: Callable[[Item], int | None]) -> list[Proposal]:
    """Ways to read pairs from the datasets of a file, those that need no flag first.

    ``lengths`` gives the sequence length that attributes note for a dataset, or None.
    """
    folders: dict[str, list[Item]] = {}
    for item in found:
        if item.path.split("/")[1] not in _OWN:
            folders.setdefault(item.folder, []).append(item)
    out = []
    for folder, members in folders.items():
        pair = _pair(members)
        if pair is not None:
            out.append(_proposal(label, folder, *pair, members, lengths))
    taken = {
        item.path for proposal in out for item in (proposal.x, proposal.y, proposal.mask, proposal.v) if item
    }
    rest = {
        folder: [item for item in members if item.path not in taken] for folder, members in folders.items()
    }
    out += _across(label, rest, lengths)
    return sorted(out, key=lambda proposal: len(proposal.options) > 0)


def _across(
    label: str, folders: dict[str, list[Item]], lengths: Callable[[Item], int | None]
) -> list[Proposal]:
    """Pairs like /inputs/layer_0 and /outputs/layer_0: told apart by the folder, matched by the name."""
    twins: dict[tuple[str, str], list[Item]] = {}
    for folder, members in folders.items():
        parent, _, own = folder.rpartition("/")
        if own:
            for item in members:
                twins.setdefault((parent or "/", item.name), []).append(
                    replace(item, name=f"{own}/{item.name}")
                )
    out = []
    for (parent, _), members in twins.items():
        pair = _pair(members)
        if pair is not None and "name" in pair[2]:
            out.append(_proposal(label, parent, *pair, members, lengths))
    return out


def masks_beside(file: Any, folder: str, label: str, shape: tuple[int, int]) -> Iterator[Item]:
    """Datasets directly in ``folder`` that are named like a mask and have its shape [n, T] or [n*T]."""
    found = locate(file, folder, label, allow_external=True)
    if found is None or not isinstance(found.obj, h5py.Group):
        return
    for name in children(found.obj, f"{label}::{folder}", _MAX_OBJECTS):
        if "mask" not in _plain(name):
            continue
        at = join(folder, name)
        with suppress(DataError):  # a mask that cannot be opened is not one to propose
            member = locate(file, at, label)
            item = Item.of(at, member.obj) if member and isinstance(member.obj, h5py.Dataset) else None
            if item is not None and item.shape in (shape, (shape[0] * shape[1],)):
                yield item


def no_pair(file: Any, label: str, prefix: str, name: str) -> DataError:
    """No X or no Y: with the flags or the group that would read a pair, when one is in sight."""
    below = items(file, prefix, label)
    ways = propose(label, below, noted_length(file, label))
    at = join(prefix, name)
    here = label if prefix == "/" else f"{label}::{prefix}"
    flagged = next((way for way in ways if way.target == here), None)
    if flagged is not None:
        return DataError(
            f"{label}::{at}: no such dataset; try {shlex.join(flagged.flags)} ({flagged.reason})"
        )
    if ways:
        more = f" (one of {len(ways)} groups that hold pairs)" if len(ways) > 1 else ""
        return DataError(f"{label}::{at}: no such dataset; try {ways[0].arguments}{more}")
    others = [item.path for item in below]
    return DataError(f"{label}::{at}: no such dataset{near(at, others)}; name the pair with --x and --y")


def noted_length(file: Any, label: str) -> Callable[[Item], int | None]:
    """Reads the sequence length from attributes of a dataset or of a group above it."""

    def length(item: Item) -> int | None:
        parts = item.path.split("/")
        for path in ("/".join(parts[:count]) or "/" for count in range(len(parts), 0, -1)):
            try:
                found = locate(file, path, label)
            except DataError:
                continue
            noted = (
                {_plain(name): value for name, value in read_attributes(found.obj).items()} if found else {}
            )
            for name in _LENGTHS:
                value = noted.get(name)
                if isinstance(value, int) and value > 0 and item.shape[0] % value == 0:
                    return value
        return None

    return length


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _rank(name: str, names: tuple[str, ...]) -> int:
    plain = _plain(name)
    if plain in names:
        return names.index(plain)
    # A hook's name often begins or ends with the part that tells: "blocks.3.hook_z", "inputs/layer_0".
    parts = [
        at
        for at, known in enumerate(names)
        if len(known) > 1 and (plain.endswith("_" + known) or plain.startswith(known + "_"))
    ]
    return _PART + parts[0] if parts else _UNKNOWN


def _pair(members: list[Item]) -> tuple[Item, Item, str] | None:
    """Likeliest (X, Y) of one folder and why."""
    numeric = [
        item
        for item in members
        if item.numeric and min(item.shape, default=0) > 0 and "mask" not in _plain(item.name)
    ]
    as_x = {item.path: _rank(item.name, _X_NAMES) for item in numeric}
    as_y = {item.path: _rank(item.name, _Y_NAMES) for item in numeric}
    known_x = [item for item in numeric if as_x[item.path] < _UNKNOWN]
    known_y = [item for item in numeric if as_y[item.path] < _UNKNOWN]
    few = numeric[:_MAX_UNKNOWN]
    best: tuple[int, Item, Item] | None = None
    for xs, ys in ((known_x, known_y), (known_x, few), (few, known_y)):
        for x in xs[:_MAX_UNKNOWN]:
            for y in ys[:_MAX_UNKNOWN]:
                score = as_x[x.path] + as_y[y.path]
                if x is not y and fits(x.shape, y.shape) and (best is None or score < best[0]):
                    best = (score, x, y)
        if best is not None:
            break
    if best is not None:
        score, x, y = best
        return (
            x,
            y,
            "by name and shape" if score < _UNKNOWN else "by one name and shape; check which is which",
        )
    if len(numeric) == 2 and fits(numeric[0].shape, numeric[1].shape):
        return *numeric, "by shape alone; check which is the input"  # type: ignore[return-value]
    return None


def _proposal(
    label: str,
    folder: str,
    x: Item,
    y: Item,
    why: str,
    members: list[Item],
    lengths: Callable[[Item], int | None],
) -> Proposal:
    options: list[tuple[str, str | None]] = []
    notes = [why]
    by_name = {item.name: item for item in members}
    for flag, item, default in (("x", x, "X"), ("y", y, "Y")):
        if item.name != default:
            options.append((flag, item.name))
    if not options:
        notes = ["datasets X and Y"]
    mask, v = by_name.get("mask"), by_name.get("V")
    if mask is None:
        mask = next((one for one in members if "mask" in _plain(one.name) and _mask_fits(one, x)), None)
        if mask is not None:
            options.append(("mask", mask.name))
            notes.append(f"{mask.name} looks like the padding mask (true = real token)")
    if v is None:
        maps = (one for one in members if _plain(one.name) in _V_NAMES and len(one.shape) == 2)
        v = next((one for one in maps if one.shape[0] == x.shape[-1]), None)
        if v is not None:
            options.append(("v", v.name))
    flat, length = len(x.shape) == 2, None
    if flat:
        length = mask.shape[1] if mask is not None and len(mask.shape) == 2 else lengths(x)
        options.append(("tokens", str(length or "T")))
        notes.append(f"flattened to [n*T, d]{f' with T = {length}' if length else ': T is yours to say'}")
    if any(item.kind in "iu" and item.itemsize == 2 for item in (x, y)):
        options.append(("dtype", "bfloat16"))
        notes.append("16-bit integers are taken for bfloat16 bits; --dtype integer if they are numbers")
    target = label if folder == "/" else f"{label}::{folder}"
    return Proposal(target, x, y, mask, v, tuple(options), "; ".join(notes), flat and not length)


def _mask_fits(mask: Item, x: Item) -> bool:
    if len(x.shape) == 3:
        return mask.shape == x.shape[:2]
    return mask.shape == x.shape[:1] or (len(mask.shape) == 2 and mask.shape[0] * mask.shape[1] == x.shape[0])
