"""Remarks on the data of a fine-tuning: by the rules of the farm and `pockfarm exec`, in the caller's own words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from device_agents.wire import data_fit
from pockfarm.fine_tuning.data import Arrays
from pockfarm.local.preflight import seen_of
from pockfarm.values import CompileWarning, Dataset

ON_FARM: Mapping[str, str] = {"data": "dataset", "validation_data": "validation_dataset"}
"""The farm's name of a data set, by the argument that named it."""


def of_arrays(sets: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Iterator[CompileWarning]:
    """Yields remarks on data that fit the step; `sets` by the names of arguments."""
    inputs, labels = data_fit.inputs_of(manifest), data_fit.labels_of(manifest)
    for which, arrays in sets.items():
        described = {name: seen_of(array) for name, array in arrays.items()}
        for remark in data_fit.remarks(described, inputs, labels, batch=int(manifest.get("batch", 0))):
            yield CompileWarning(remark.code, f"{which}.{remark.array}".rstrip("."), remark.message, remark.hint)


def of_farm(warnings: tuple[CompileWarning, ...], data_sets: Mapping[str, Any]) -> Iterator[CompileWarning]:
    """Yields the farm's remarks on data sets that it already had: nothing else has read them. `data_sets`: by the names
    of arguments.
    """
    for warning in warnings:
        for which, where in ON_FARM.items():
            if isinstance(data_sets.get(which), Dataset) and warning.where.split(".")[0] == where:
                yield CompileWarning(warning.code, which + warning.where[len(where) :], warning.message, warning.hint)
