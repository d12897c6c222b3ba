"""Which datasets of a foreign file may be the pair, and the flags that say so. Proposed, never assumed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import h5py

from rankprobe.data._open import children, locate
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

_MAX_OBJECTS = 10_000
_MAX_DEPTH = 32


@dataclass(frozen=True)
class Item:
    """A dataset as a candidate: absolute path, shape and the numpy kind letter of its elements."""

    path: str
    shape: tuple[int, ...]
    kind: str
    itemsize: int

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def folder(self) -> str:
        return self.path.rsplit("/", 1)[0] or "/"

    @property
    def numeric(self) -> bool:
        """Whether it may hold tokens (opaque two-byte elements are bfloat16)."""
        return self.kind in "fiu" or (self.kind == "V" and self.itemsize == 2)


@dataclass(frozen=True)
class Proposal:
    """A way to read a pair from a file: ``FILE[::/group]``, the flags to add, and why."""

    target: str
    flags: tuple[str, ...]
    reason: str

    @property
    def command(self) -> str:
        """The line to type."""
        return shlex.join(["rankprobe", "estimate", self.target, *self.flags])


def walk(file: Any, prefix: str, label: str, limit: int = _MAX_OBJECTS) -> Iterator[tuple[str, Any]]:
    """(path, object) of everything below ``prefix`` through hard and soft links inside the file.

    An object that cannot be opened yields its :class:`DataError`. Each object is given once.
    """
    seen: set[Any] = set()
    todo = [(prefix, 0)]
    count = 0
    while todo and count < limit:
        path, depth = todo.pop()
        try:
            found = locate(file, path, label)
        except DataError as error:
            count += 1
            yield path, error
            continue
        if found is None:
            continue
        info = h5py.h5o.get_info(found.obj.id if hasattr(found.obj, "id") else found.obj)
        if (info.fileno, info.addr) in seen:
            continue
        seen.add((info.fileno, info.addr))
        count += 1
        yield path, found.obj
        if isinstance(found.obj, h5py.Group) and depth < _MAX_DEPTH:
            try:
                names = [name for name, _ in children(found.obj, limit)]
            except (OSError, RuntimeError, ValueError) as error:
                yield path, DataError(f"{label}::{path}: its members cannot be listed ({error})")
                continue
            todo.extend((join(path, name), depth + 1) for name in reversed(names))


def items(file: Any, prefix: str, label: str, limit: int = _MAX_OBJECTS) -> list[Item]:
    """The datasets below ``prefix`` that have a shape; damaged ones are left out."""
    out = []
    for path, obj in walk(file, prefix, label, limit):
        if isinstance(obj, h5py.Dataset):
            try:
                shape, dtype = obj.shape, obj.dtype
            except (OSError, RuntimeError, ValueError, TypeError):
                continue
            if shape is not None:
                out.append(Item(path, tuple(shape), dtype.kind, dtype.itemsize))
    return out


def fits(x: tuple[int, ...], y: tuple[int, ...]) -> bool:
    """Whether two shapes may be X and Y of one pair (3-D both, heads on Y, or both flattened)."""
    if len(x) == 2:
        return len(y) in (2, 3) and x[0] == y[0]
    if len(x) != 3 or len(y) not in (3, 4) or x[0] != y[0]:
        return False
    return x[1] in y[1:-1]


def propose(label: str, found: list[Item], prefix: str = "/", lengths: Any = None) -> list[Proposal]:
    """Ways to read pairs, the likeliest first; ``found`` are the datasets below ``prefix``.

    ``lengths`` gives, for a folder, a sequence length noted in its attributes, or None.
    """
    folders: dict[str, list[Item]] = {}
    for item in found:
        folders.setdefault(item.folder, []).append(item)
    out = []
    for folder, members in folders.items():
        if folder.split("/")[1] in ("teacher", "estimates", "recovery"):
            continue
        target = label if folder == "/" else f"{label}::{folder}"
        pair = _pair(members)
        if pair is not None:
            length = lengths(folder) if lengths else None
            flags, reason = _flags(*pair, members, length)
            out.append(Proposal(target, flags, reason))
    return sorted(out, key=lambda proposal: len(proposal.flags) > 0)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _rank(name: str, names: tuple[str, ...]) -> int:
    plain = _plain(name)
    if plain in names:
        return names.index(plain)
    # A hook's name often ends in the part that tells: "blocks.3.hook_z", "layer3_attn_out".
    ends = [at for at, known in enumerate(names) if len(known) > 1 and plain.endswith("_" + known)]
    return 100 + ends[0] if ends else 1000


def _pair(members: list[Item]) -> tuple[Item, Item, str] | None:
    """Likeliest (X, Y) of one folder and why."""
    numeric = [item for item in members if item.numeric and min(item.shape, default=0) > 0]
    best: tuple[int, Item, Item] | None = None
    for x in numeric:
        for y in numeric:
            if x is y or not fits(x.shape, y.shape):
                continue
            score = _rank(x.name, _X_NAMES) + _rank(y.name, _Y_NAMES)
            if "mask" in _plain(x.name) or "mask" in _plain(y.name):
                continue
            if best is None or score < best[0]:
                best = (score, x, y)
    if best is None:
        return None
    score, x, y = best
    if score < 1000:
        return x, y, "by name and shape"
    if score < 2000:
        return x, y, "by one name and shape; check which is which"
    return (x, y, "by shape alone; check which is the input") if len(numeric) == 2 else None


def _flags(
    x: Item, y: Item, why: str, members: list[Item], length: int | None
) -> tuple[tuple[str, ...], str]:
    flags: list[str] = []
    notes = [why]
    names = {item.name for item in members}
    if x.name != "X":
        flags += ["--x", x.name]
    if y.name != "Y":
        flags += ["--y", y.name]
    if (x.name, y.name) == ("X", "Y"):
        notes = ["datasets X and Y"]
    flat = len(x.shape) == 2
    if "mask" not in names:
        masks = [item for item in members if "mask" in _plain(item.name)]
        right = [item for item in masks if _mask_fits(item, x)]
        if right:
            flags += ["--mask", right[0].name]
            notes.append(f"{right[0].name} looks like the padding mask (true = real token)")
            if flat and length is None and len(right[0].shape) == 2:
                length = right[0].shape[1]
    if "V" not in names:
        maps = [item for item in members if _plain(item.name) in _V_NAMES and item.shape[:1] == x.shape[-1:]]
        if maps and len(maps[0].shape) == 2:
            flags += ["--v", maps[0].name]
    if flat:
        flags += ["--tokens", str(length) if length else "T"]
        notes.append(
            f"flattened to [n*T, d] with T = {length}"
            if length
            else "flattened to [n*T, d]: T is yours to say"
        )
    if any(item.kind in "iu" and item.itemsize == 2 for item in (x, y)):
        flags += ["--dtype", "bfloat16"]
        notes.append("16-bit integers are taken for bfloat16 bits; --dtype integer if they are numbers")
    return tuple(flags), "; ".join(notes)


def _mask_fits(mask: Item, x: Item) -> bool:
    if len(x.shape) == 3:
        return mask.shape == x.shape[:2]
    return mask.shape == x.shape[:1] or (len(mask.shape) == 2 and mask.shape[0] * mask.shape[1] == x.shape[0])
