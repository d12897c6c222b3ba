"""``rankprobe schema``: the JSON Schema of what ``estimate`` writes.

Built from the result type itself and the descriptions below, so that a new field cannot be forgotten; a copy
lies in ``docs/estimate.schema.json``, where a change shows in review.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any

import typer

from rankprobe.cli.options import DebugOption, environment
from rankprobe.cli.output import SCHEMA_VERSION

_ESTIMATE = {
    "estimator": "Name of the estimator.",
    "solver": "Solver behind it: gauss-newton or paper.",
    "status": "How far the rank may be trusted; only identified and lower_bound may be acted on.",
    "message": "The status in words: cause and remedy.",
    "rank": "The estimated rank of the kernel; null when the data do not give one.",
    "rank_interval": "Smallest and largest rank the data allow at the stated confidence.",
    "confidence": "Confidence of the interval, between 0 and 1.",
    "energy_rank": "exp of the entropy of the squared singular values, cut and shrunk at the noise edge.",
    "energy_rank_interval": "Interval of the energy rank at the stated confidence, noise of the rank aside.",
    "energy_rank_data": "The same measure of the data-weighted kernel C_q^(1/2) K C_k^(1/2).",
    "effective_rank": "exp of the entropy of the singular values, cut and shrunk at the noise edge.",
    "stable_rank": "Squared Frobenius norm over squared spectral norm, cut and shrunk at the noise edge.",
    "singular_values": "Singular values of the kernel, largest first; the scale is divided out.",
    "singular_values_data": "Singular values of the data-weighted kernel, largest first.",
    "noise_edge": "Singular values above it are not noise.",
    "noise_sigma": "Estimated standard deviation of the noise on an entry of Y.",
    "r2_heldout": "Share of the variance of Y explained on sequences the fit did not see.",
    "sequences_used": "Number of sequences the answer rests on.",
    "attention": "Link of the map: softmax, linear or fixed_operator; given, or decided from the data.",
    "causal": "Whether a token sees only itself and earlier ones; given, or decided from the data.",
    "bias": "Whether query, key and value biases were fitted.",
    "residual": "Whether a linear map of the token itself (a skip connection) was fitted beside attention.",
    "kernel": "How the kernel was fitted: full, factored, grown from rank 0, or none.",
    "visible_dimensions": "Directions in which queries and keys move: p_q and p_k; K is seen in no others.",
    "starts": "Fits at this rank that reached the same least residual, and all tried, if several were.",
    "sequences_wanted": "About how many sequences would settle a lower bound, at this noise.",
    "curve": "Excess risk of every rank (--curve); null when not asked for or not usable.",
    "tolerance": "Excess risk allowed by --tolerance, in the units of the curve.",
    "rank_at_tolerance": "Least rank whose excess risk is at most the tolerance.",
    "rank_at_tolerance_interval": "Smallest and largest such rank that the error bars (95 %) allow.",
}

_CURVE = {
    "points": "One entry a rank, from 0.",
    "floor": "Squared error a sequence, summed over T times d_v, that noise leaves.",
    "explainable": "Variance of Y beyond the floor, a sequence.",
    "singular_values": "Singular values of the kernel of the largest rank: signal, then noise.",
    "heldout": "fresh: sequences never seen; left-out: by the refits; cross-fit: each left out of one refit.",
    "sequences_fitted": "Number of sequences the refits saw.",
    "sequences_heldout": "Number of sequences the errors of others were counted on.",
    "rank": "Rank of the kernel.",
    "excess": "Least squared error a sequence beyond the floor.",
    "standard_error": "Standard error of the excess.",
    "parameters": "Degrees of freedom r(p_q + p_k - r) of a kernel of this rank.",
    "explained": "Share of the explainable variance that this rank explains.",
    "kl_bound": "Bound on the mean KL divergence of rows of A when the logits are cut to this rank.",
}

_RECORD: dict[str, tuple[dict[str, Any], str]] = {
    "file": ({"type": "string"}, "The file as named on the command line; - is standard input."),
    "head": (
        {"type": ["integer", "null"], "minimum": 0},
        "Index of the head; null without an axis for heads.",
    ),
    "command": ({"type": "string"}, "The command line, quoted for a shell."),
    "threads": ({"type": "integer", "minimum": 1}, "Threads of the linear algebra."),
}


def build() -> dict[str, Any]:
    """The schema (JSON Schema 2020-12) of the document that ``--format json`` writes.

    ``#/$defs/result`` describes one of its results, and one line of ``--format jsonl``. Fields may be added
    within a schema version, so objects are open.
    """
    from rankprobe.estimators.result import Estimate

    answer = {
        name: {**_type(hint), "description": _ESTIMATE[name]} for name, hint in _hints(Estimate).items()
    }
    extra = {name: {**kind, "description": text} for name, (kind, text) in _RECORD.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rankprobe estimate",
        "type": "object",
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "results": {"type": "array", "items": {"$ref": "#/$defs/result"}},
        },
        "required": ["schema_version", "results"],
        "$defs": {
            "estimate": {
                "description": "The answer of one estimator on one head.",
                "type": "object",
                "properties": answer,
                "required": list(answer),
            },
            "result": {
                "description": "All answers on one head; the first estimator's fields are also its own.",
                "type": "object",
                "properties": {
                    **extra,
                    "estimates": {
                        "description": "Every estimator's answer, by its name.",
                        "type": "object",
                        "additionalProperties": {"$ref": "#/$defs/estimate"},
                    },
                },
                "required": [*extra, "estimates"],
                "allOf": [{"$ref": "#/$defs/estimate"}],
            },
        },
    }


def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _type(hint: Any) -> dict[str, Any]:
    """JSON Schema of one field's type hint."""
    from enum import Enum

    if isinstance(hint, types.UnionType):
        inner = _type(next(kind for kind in typing.get_args(hint) if kind is not types.NoneType))
        return {**inner, "type": [inner["type"], "null"]}
    if typing.get_origin(hint) is tuple:
        items = typing.get_args(hint)
        if items[-1] is Ellipsis:
            item = _type(items[0])
            # A singular value that is not finite has no number in JSON.
            return {"type": "array", "items": {"type": ["number", "null"]} if items[0] is float else item}
        size = len(items)
        return {"type": "array", "items": _type(items[0]), "minItems": size, "maxItems": size}
    if dataclasses.is_dataclass(hint):
        fields = {name: {**_type(kind), "description": _CURVE[name]} for name, kind in _hints(hint).items()}
        return {"type": "object", "properties": fields, "required": list(fields)}
    if issubclass(hint, Enum):
        return {"type": "string", "enum": [str(member) for member in hint]}
    return {"type": {bool: "boolean", int: "integer", float: "number", str: "string"}[hint]}


def schema(context: typer.Context, debug: DebugOption = False) -> None:
    """Print the JSON Schema of estimate's JSON output.

    \b
    Example:
      rankprobe schema > estimate.schema.json
    """
    environment(context).write(text())


def text() -> str:
    """The schema as it is printed and checked in."""
    return json.dumps(build(), indent=2) + "\n"
