"""HDF5 attributes as plain Python values, whatever their writer made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

from rankprobe.data._open import decode, locate
from rankprobe.data._paths import join

_MAX_BYTES = 1 << 20
_MAX_COUNT = 10_000

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def read_attributes(obj: Any) -> dict[str, Any]:
    """Attributes of a group or dataset: bytes, 0-d and one-element arrays and Empty become str, int,
    float, bool or None; longer arrays become lists. What cannot be read is left out."""
    out: dict[str, Any] = {}
    names: list[bytes] = []

    def collect(name: bytes, *_: Any) -> bool | None:
        names.append(name)
        return True if len(names) >= _MAX_COUNT else None

    try:
        h5py.h5a.iterate(obj.id, collect)
    except (OSError, RuntimeError, ValueError):
        return out
    for name in names:
        try:
            handle = h5py.h5a.open(obj.id, name)
            declared = handle.get_space().get_simple_extent_npoints() * handle.get_type().get_size()
            if declared <= _MAX_BYTES:
                out[decode(name)] = plain(obj.attrs[decode(name)])
        except (OSError, RuntimeError, ValueError, TypeError, KeyError, OverflowError, UnicodeError):
            continue
    return out


def inherited(file: Any, prefix: str, label: str, allow_external: bool) -> dict[str, Any]:
    """Attributes of the root, overlaid by those of each group down to ``prefix``."""
    out = read_attributes(file)
    at = "/"
    for part in prefix.split("/"):
        at = join(at, part)
        found = locate(file, at, label, allow_external=allow_external)
        if found is not None and at != "/":
            out.update(read_attributes(found.obj))
    return out


def plain(value: Any) -> Any:
    """A JSON-like Python value of an attribute value."""
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").rstrip("\0")
    if isinstance(value, np.ndarray):
        if value.size == 1:
            return plain(value.reshape(-1)[0])
        return [plain(one) for one in value.tolist()]
    if isinstance(value, np.void):
        return plain(value.tobytes()) if value.dtype.names is None else str(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return str(value)


def settle(attributes: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The attributes the schema knows, in their types; a remark on each that means nothing, now None."""
    out, remarks = dict(attributes), []
    for name, (meaning, read, remedy) in _KNOWN.items():
        if out.get(name) is None:
            continue
        value = out[name]
        out[name] = read(value)
        if out[name] is None:
            remarks.append(f"attribute {name} is {value!r}, {meaning}, and is not used; {remedy}")
    if isinstance(out.get("attention"), str):
        out["attention"] = out["attention"].strip().lower()
    return out, remarks


def _number(value: Any, least: float) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if least <= number < math.inf else None


def _truth(value: Any) -> bool | None:
    return _TRUTH.get(str(value).strip().lower())


_KNOWN: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "causal": ("neither true nor false", _truth, "pass --causal or --no-causal"),
    "scale": ("no positive number", lambda value: _number(value, 5e-324), "pass --scale"),
    "noise_sigma": ("no number from 0 on", lambda value: _number(value, 0.0), "store it again"),
}
"""What a value must be, how it is read, and what to do where it is something else."""
