"""The facts about a data set's arrays, without NumPy: the API process has no other use for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LABELS = "y"
"""`device_agents.wire.data_fit.LABELS`. The child that reads an npz has no other use for the agents' protocol, which
takes as long to import as NumPy."""
ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "bool": 1,
}
"""Bytes per element, by the element types that a data set may have."""


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An array: NumPy's dtype name and shape; the first extent is samples. Holds the findings about its elements too,
    if they were read.
    """

    dtype: str
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    is_whole: bool | None = None

    @property
    def size_bytes(self) -> int:
        """Unpacked."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def to_json(self) -> dict[str, Any]:
        """Returns the same as plain data."""
        plain = {"dtype": self.dtype, "shape": list(self.shape)}
        read = {"low": self.low, "high": self.high, "is_whole": self.is_whole}
        return plain | {name: value for name, value in read.items() if value is not None}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ArrayInfo:
        """Reads the output of `to_json`."""
        return cls(
            str(value["dtype"]), tuple(value["shape"]), value.get("low"), value.get("high"), value.get("is_whole")
        )


def samples_of(arrays: Mapping[str, ArrayInfo]) -> int:
    """Returns how many samples there are. An array with one row holds the same value for every sample."""
    return max(info.shape[0] for info in arrays.values())
