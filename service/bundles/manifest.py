"""Typed reading of the few manifest fields that the farm decides on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

LABELS = "y"
"""The array of labels of a data set, unless a bundle names others."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One data input of the training binary; `batch_axis` holds the samples, and is None if it has none."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    batch_axis: int | None = 0

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(extent for axis, extent in enumerate(self.shape) if axis != self.batch_axis)


def model_inputs(manifest: Mapping[str, Any]) -> tuple[InputSpec, ...]:
    """The model's inputs, in its order."""
    return tuple(_spec(entry) for entry in manifest.get("inputs", ()))


def label_inputs(manifest: Mapping[str, Any]) -> tuple[InputSpec, ...]:
    """What each array of labels must look like, by its name in a data set: one tensor is the array `y`."""
    entry = manifest.get("labels")
    if isinstance(entry, dict):
        return (replace(_spec(entry), name=LABELS),)
    return tuple(map(_spec, entry)) if isinstance(entry, list) else ()


def least_scored(manifest: Mapping[str, Any]) -> int:
    """Samples that a data set needs to be scored: a loss of the model's own is of a whole (micro-)batch."""
    terms = manifest.get("terms", ())
    kinds = {str(manifest.get("loss")), *(str(one.get("kind")) for one in terms if isinstance(one, dict))}
    batch, parts = manifest.get("batch"), manifest.get("micro_batches", 1)
    is_known = isinstance(batch, int) and isinstance(parts, int) and parts > 0
    return batch // parts if "graph" in kinds and is_known else 1


def required_features(manifest: Mapping[str, Any]) -> frozenset[str]:
    """CPU features that a device must report."""
    return frozenset(map(str, manifest.get("required_features", ())))


def is_tuning(manifest: Mapping[str, Any]) -> bool:
    """Whether the bundle measures schedules instead of training."""
    return manifest.get("kind") == "tuning"


def trial_choices(manifest: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The schedules that a tuning bundle offers, by kernel signature."""
    return {str(row["kernel"]): tuple(map(str, row["choices"])) for row in manifest.get("trials", ())}


def _spec(entry: Mapping[str, Any]) -> InputSpec:
    axis = entry.get("batch_axis", 0)
    shape = tuple(int(extent) for extent in entry["shape"])
    return InputSpec(str(entry["name"]), str(entry["dtype"]), shape, None if axis is None else int(axis))
