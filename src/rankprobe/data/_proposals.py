"""Which datasets of a foreign file may be the pair, and the flags that say so. Proposed, never assumed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rankprobe.data._attributes import read_attributes
from rankprobe.data._names import Item, items, plain_name
from rankprobe.data._open import locate, near
from rankprobe.data._paths import join
from rankprobe.data._patterns import OWN
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

_DIMS = ("dim", "d_model", "hidden_size", "n_features", "features", "d", "n_embd", "width")
_HEADS = ("heads", "num_heads", "n_heads", "num_attention_heads", "n_head", "h")

Noted = Callable[[Item, tuple[str, ...], int], int | None]
"""The positive number noted for a dataset by an attribute of one of these names; it divides the last."""

_PART, _UNKNOWN = 100, 1000
"""Scores of a name that holds a known one, and of one that does not."""

_MAX_UNKNOWN = 64


@dataclass(frozen=True)
class Proposal:
    """A way to read a pair: ``FILE[::/group]``, the datasets in their roles, the flags, and why.

    ``asks`` is set where a number is the user's to fill in: what ``--tokens T`` or ``--dim D`` stands for.
    """

    target: str
    x: Item
    y: Item
    mask: Item | None
    v: Item | None
    options: tuple[tuple[str, str | None], ...]
    """Flags without their dashes, with their value (None: a switch)."""
    reason: str
    asks: str | None = None

    @property
    def items(self) -> tuple[Item, ...]:
        """All that have a role."""
        return tuple(item for item in (self.x, self.y, self.mask, self.v) if item is not None)

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


def fits(x: tuple[int, ...], y: tuple[int, ...]) -> bool:
    """Whether two shapes may be X and Y of one pair (3-D both, heads on Y, both flattened, or rows)."""
    if len(x) == 1:
        return x == y
    if len(x) == 2:
        return len(y) in (2, 3) and x[0] == y[0]
    if len(x) != 3 or len(y) not in (3, 4) or x[0] != y[0]:
        return False
    return x[1] in y[1:-1]


def propose(label: str, found: list[Item], noted: Noted) -> list[Proposal]:
    """Ways to read pairs from the datasets of a file, those that need no flag first."""
    found = [item for item in found if item.path.split("/")[1] not in OWN]
    out = [
        replace(way, reason=f"{way.reason}; {'one dataset a sequence' if single else 'batches'}")
        for single in (True, False)
        for way in _ways(label, list(_series(found, single)), noted)
        if len(way.x.shape) == 3 and "name" in way.reason
    ]
    taken = {path for way in out for item in way.items for path in item.members}
    out += _ways(label, [item for item in found if item.path not in taken], noted)
    return sorted(out, key=lambda proposal: len(proposal.options) > 0)


def propose_beside(
    label: str, found: list[Item], other: str, others: list[Item], noted: Noted
) -> list[Proposal]:
    """The pair with X in one file and Y in another."""
    named = {item.path: replace(item, name=item.path.strip("/")) for item in found}
    pair = _pair([*named.values(), *others])
    if pair is None or pair[0].path not in named or pair[1] not in others or "name" not in pair[2]:
        return []
    x, y, why = pair
    y = replace(y, name=f"{other}::{y.path}")
    return [_proposal(label, "/", x, y, why, list(named.values()), noted)]


def _series(found: list[Item], single: bool) -> Iterator[Item]:
    """Datasets whose names differ in one place as one item each, of the shape they have together.

    That place is a group (``*/X``) or a number at the end of a name (``x_*``). ``single``: a dataset is one
    sequence; otherwise it is a batch. Numbered layers are no series, and batches are only what is called so.
    """
    alike: dict[tuple[str, str], list[Item]] = {}
    for item in found:
        folder, _, group = item.folder.rpartition("/")
        stem = re.sub(r"\d+(?=\D*$)", "*", item.name)
        for at, name, star in ((folder, f"*/{item.name}", group), (item.folder, stem, item.name)):
            layer = re.search(r"layer|block|head|^[lh]_?\d", star.lower())
            batch = re.search(r"batch|shard|part|chunk|piece|rank", star.lower())
            if star and "*" in name and not layer and (single or batch):
                alike.setdefault((at or "/", name), []).append(item)
    for (at, name), items_ in alike.items():
        first = items_[0]
        same = {(one.kind, one.itemsize, one.varies, len(one.shape), one.shape[-1:]) for one in items_}
        mask = "mask" in plain_name(name)
        if len(items_) < 2 or not first.shape or first.varies or (len(same) > 1 and not mask):
            continue
        inner = [one.shape if single else one.shape[1:] for one in items_]
        if len({len(one) for one in inner}) > 1:
            continue
        count = len(items_) if single else sum(one.shape[0] for one in items_)
        shape = (count, *(max(sizes) for sizes in zip(*inner, strict=True)))
        paths = tuple(one.path for one in items_)
        yield replace(first, path=join(at, name), name=name, shape=shape, members=paths)


def _ways(label: str, found: list[Item], noted: Noted) -> list[Proposal]:
    """Pairs within a folder, then those of two folders."""
    folders: dict[str, list[Item]] = {}
    for item in found:
        folders.setdefault(item.folder, []).append(item)
    out = []
    for folder, members in folders.items():
        pair = _pair(members)
        if pair is not None:
            out.append(_proposal(label, folder, *pair, members, noted))
    taken = {item.path for way in out for item in way.items}
    rest = {
        folder: [item for item in members if item.path not in taken] for folder, members in folders.items()
    }
    return out + _across(label, rest, noted)


def _across(label: str, folders: dict[str, list[Item]], noted: Noted) -> list[Proposal]:
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
            out.append(_proposal(label, parent, *pair, members, noted))
    return out


def no_pair(file: Any, label: str, prefix: str, name: str) -> DataError:
    """No X or no Y: with the flags or the group that would read a pair, when one is in sight."""
    below = items(file, prefix, label)
    ways = propose(label, below, noted_in(file, label))
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
    return DataError(
        f"{label}::{at}: no such dataset{near(at, others)}; name the pair with --x and --y "
        "(OTHER.h5::/Y where it lies in another file)"
    )


def noted_in(file: Any, label: str) -> Noted:
    """Reads numbers from attributes of a dataset or of a group above it."""

    def noted(item: Item, names: tuple[str, ...], whole: int) -> int | None:
        parts = item.members[0].split("/")
        for path in ("/".join(parts[:count]) or "/" for count in range(len(parts), 0, -1)):
            try:
                found = locate(file, path, label)
            except DataError:
                continue
            given = (
                {plain_name(name): value for name, value in read_attributes(found.obj).items()}
                if found
                else {}
            )
            for name in names:
                value = given.get(name)
                if isinstance(value, int) and value > 0 and whole % value == 0:
                    return value
        return None

    return noted


def _rank(name: str, names: tuple[str, ...]) -> int:
    plain = plain_name(name)
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
        if item.numeric and min(item.shape, default=0) > 0 and "mask" not in plain_name(item.name)
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
    noted: Noted,
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
        mask = next((one for one in members if "mask" in plain_name(one.name) and _mask_fits(one, x)), None)
        if mask is not None:
            options.append(("mask", mask.name))
            notes.append(f"{mask.name} looks like the padding mask (true = real token)")
    if v is None:
        maps = (one for one in members if plain_name(one.name) in _V_NAMES and len(one.shape) == 2)
        v = next((one for one in maps if one.shape[0] == x.shape[-1]), None)
        if v is not None:
            options.append(("v", v.name))
    asks = None
    if x.varies:
        dim = noted(x, _DIMS, 0)
        options.append(("dim", str(dim or "D")))
        notes.append(f"rows of varying length{'' if dim else ': D is yours to say'}")
        asks = None if dim else "D, the features of a token"
    elif len(x.shape) == 2:
        beside = mask.shape[1] if mask is not None and len(mask.shape) == 2 else None
        length = beside or noted(x, _LENGTHS, x.shape[0])
        options.append(("tokens", str(length or "T")))
        notes.append(f"flattened to [n*T, d]{f' with T = {length}' if length else ': T is yours to say'}")
        asks = None if length else "T, the tokens of a sequence"
    if len(y.shape) == (2 if len(x.shape) == 2 else 3):
        heads = noted(y, _HEADS, y.shape[-1])
        if heads is not None and heads > 1:
            options.append(("heads", str(heads)))
            notes.append(f"{heads} heads side by side in Y, as an attribute says")
    if any(item.kind in "iu" and item.itemsize == 2 for item in (x, y)):
        options.append(("dtype", "bfloat16"))
        notes.append("16-bit integers are taken for bfloat16 bits; --dtype integer if they are numbers")
    target = label if folder == "/" else f"{label}::{folder}"
    return Proposal(target, x, y, mask, v, tuple(options), "; ".join(notes), asks)


def _mask_fits(mask: Item, x: Item) -> bool:
    if len(x.shape) == 3:
        return mask.shape == x.shape[:2]
    return mask.shape == x.shape[:1] or (len(mask.shape) == 2 and mask.shape[0] * mask.shape[1] == x.shape[0])
