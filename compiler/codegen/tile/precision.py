"""How a contraction's numbers are held on a machine: in bytes, in vectors, in cache lines."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.element_types import ELEMENT_TYPES, DType
from compiler.targets import Target

LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Precision:
    """Operands, outputs and copies of them as they are stored; sums as they are accumulated.

    Plans count workspaces in stored elements: a sum takes as many of them as `sum_size` says, and a vector of sums as
    many registers.
    """

    item_bytes: int
    sum_bytes: int
    vector_bytes: int

    @staticmethod
    def of(dtype: DType, target: Target) -> Precision:
        """Of tensors of `dtype` on a target."""
        row = ELEMENT_TYPES[dtype]
        return Precision(row.item_bytes, ELEMENT_TYPES[row.sums_in].item_bytes, target.vector_bits // 8)

    @property
    def lanes(self) -> int:
        """Stored elements in one vector register."""
        return self.vector_bytes // self.item_bytes

    @property
    def sum_size(self) -> int:
        """Stored elements in whose room one sum fits; 1: sums may wait where results are written."""
        return self.sum_bytes // self.item_bytes

    @property
    def line(self) -> int:
        """Stored elements in a cache line."""
        return LINE_BYTES // self.item_bytes

    def odd_lines(self, count: int) -> int:
        """At least `count`, as an odd number of cache lines: rows that far apart do not fall on the same cache set."""
        return (-(-count // self.line) | 1) * self.line

    def aligned(self, count: int) -> int:
        """At least `count`, so that sums may begin behind them."""
        return -(-count // self.sum_size) * self.sum_size
