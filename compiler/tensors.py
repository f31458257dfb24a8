"""Arrays, and what is said of them: on both sides of training, and inside the compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from compiler.element_types import ELEMENT_TYPES, DType, ElementType

Array = NDArray[Any]
"""Element types are checked by `TensorType`, which mypy cannot see."""


@dataclass(frozen=True)
class TensorType:
    """Element type and static shape of one value."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def element(self) -> ElementType:
        """Returns its element type."""
        return ELEMENT_TYPES[self.dtype]

    @property
    def size(self) -> int:
        """Number of elements (1 for a scalar)."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def size_bytes(self) -> int:
        """Bytes of the contiguous tensor."""
        return self.size * self.element.item_bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"
