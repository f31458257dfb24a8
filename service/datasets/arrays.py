"""What is known of a data set's arrays, without NumPy: the API process has no other use for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LABELS = "y"
ITEM_BYTES = {"float32": 4, "float64": 8, "int64": 8, "int32": 4, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2,
              "bool": 1}  # fmt: skip
"""Of the element types that a data set may have."""


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """One array: NumPy's dtype name and shape; the first extent is samples."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Unpacked."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ArrayInfo:
        """What `to_json` made."""
        return cls(value["dtype"], tuple(value["shape"]))


def samples_of(arrays: Mapping[str, ArrayInfo]) -> int:
    """How many samples there are: what is the same for every sample has one."""
    return max(info.shape[0] for info in arrays.values())
