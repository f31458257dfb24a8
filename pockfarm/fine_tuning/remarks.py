"""What is odd about the data of a fine-tuning: by the rule of farm and `pockfarm exec`, in the caller's own words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from device_agents.wire import data_fit
from pockfarm.fine_tuning.data import Arrays
from pockfarm.preflight import seen_of
from pockfarm.values import CompileWarning, Dataset

ON_FARM: Mapping[str, str] = {"data": "dataset", "validation_data": "validation_dataset"}
"""What a farm calls a data set, by the argument that named it."""


def of_arrays(sets: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Iterator[CompileWarning]:
    """Of data that fit the step; `sets` by the names of arguments."""
    inputs, labels = data_fit.inputs_of(manifest), data_fit.labels_of(manifest)
    for which, arrays in sets.items():
        seen = {name: seen_of(array) for name, array in arrays.items()}
        for one in data_fit.remarks(seen, inputs, labels, batch=int(manifest.get("batch", 0))):
            yield CompileWarning(one.code, f"{which}.{one.array}".rstrip("."), one.message, one.hint)


def of_farm(told: tuple[CompileWarning, ...], given: Mapping[str, Any]) -> Iterator[CompileWarning]:
    """What the farm said of data sets that lay there: nobody else has seen them. `given`: by the names of arguments."""
    for warning in told:
        for which, where in ON_FARM.items():
            if isinstance(given.get(which), Dataset) and warning.where.split(".")[0] == where:
                yield CompileWarning(warning.code, which + warning.where[len(where) :], warning.message, warning.hint)
