"""Typed reading of the few manifest fields that the farm decides on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def least_scored(manifest: Mapping[str, Any]) -> int:
    """Returns how many samples a data set needs to be scored: a loss that is part of the model covers a whole
    (micro-)batch.
    """
    terms = manifest.get("terms", ())
    kinds = {str(manifest.get("loss")), *(str(term.get("kind")) for term in terms if isinstance(term, dict))}
    batch, parts = manifest.get("batch"), manifest.get("micro_batches", 1)
    is_known = isinstance(batch, int) and isinstance(parts, int) and parts > 0
    return batch // parts if "graph" in kinds and is_known else 1


PRECISIONS: Mapping[str, str] = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i8": "int8"}
"""Element types that a step computes with, in people's words, by the manifest's word."""
_FROZEN: Mapping[tuple[str, str], str] = {
    ("int8", ""): ", frozen int8",
    ("int4", ""): ", frozen int4",
    ("int8", "int8"): ", frozen int8 multiplied as such",
}
"""Suffixes of the precision, by the kind of frozen weights and of products with them."""
EVERY_PRECISION = tuple(base + beside for base in PRECISIONS.values() for beside in ("", *_FROZEN.values()))


def precision(manifest: Mapping[str, Any]) -> str:
    """Returns the precision that the manifest names, or else the element type of the model's first output."""
    outputs = manifest.get("outputs")
    first = outputs[0] if isinstance(outputs, list) and outputs and isinstance(outputs[0], dict) else {}
    dtype = str(manifest.get("precision") or first.get("dtype") or "")
    frozen = manifest.get("frozen")
    frozen_format = frozen if isinstance(frozen, dict) else {}
    return PRECISIONS.get(dtype, dtype) + _FROZEN.get(
        (str(frozen_format.get("kind", "")), str(frozen_format.get("products", ""))), ""
    )


def required_features(manifest: Mapping[str, Any]) -> frozenset[str]:
    """Returns the CPU features that a device must report."""
    return frozenset(map(str, manifest.get("required_features", ())))


def is_tuning(manifest: Mapping[str, Any]) -> bool:
    """Whether the bundle measures schedules instead of training."""
    return manifest.get("kind") == "tuning"


def trial_choices(manifest: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Returns the schedules that a tuning bundle offers, by kernel signature."""
    return {str(row["kernel"]): tuple(map(str, row["choices"])) for row in manifest.get("trials", ())}
