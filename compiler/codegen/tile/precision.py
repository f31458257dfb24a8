"""The forms in which a machine holds a contraction's numbers: in bytes, in vectors, in cache lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compiler.element_types import ELEMENT_TYPES, DType
from compiler.targets import CpuTarget

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
    line_bytes: int

    @staticmethod
    def of(dtype: DType, target: CpuTarget) -> Precision:
        """Returns the precision of tensors of `dtype` on a target."""
        row = ELEMENT_TYPES[dtype]
        sum_bytes = ELEMENT_TYPES[row.sums_in].item_bytes
        return Precision(row.item_bytes, sum_bytes, target.vector_bits // 8, LINE_BYTES)

    @property
    def lanes(self) -> int:
        """Stored elements in one vector register."""
        return self.vector_bytes // self.item_bytes

    @property
    def sum_lanes(self) -> int:
        """Sums in one vector register."""
        return self.vector_bytes // self.sum_bytes

    @property
    def sum_size(self) -> int:
        """Stored elements in whose room one sum fits; 1: sums may wait where results are written."""
        return self.sum_bytes // self.item_bytes

    @property
    def line(self) -> int:
        """Stored elements in a cache line."""
        return self.line_bytes // self.item_bytes

    def odd_lines(self, count: int) -> int:
        """Returns at least `count`, as an odd number of cache lines: rows that far apart do not fall on the same cache
        set.
        """
        return (-(-count // self.line) | 1) * self.line

    def aligned(self, count: int) -> int:
        """Returns at least `count`, rounded up so that sums may begin behind them."""
        return -(-count // self.sum_size) * self.sum_size


def loop_precision(dtypes: Iterable[DType], target: CpuTarget) -> Precision:
    """Returns how a loop without reuse holds its operands: as the widest real type computed in among them, else as f32.

    Whole numbers and bools come along, as many at a time.
    """
    real = [ELEMENT_TYPES[dtype].sums_in for dtype in dtypes if ELEMENT_TYPES[dtype].is_real]
    return Precision.of(max(real, key=lambda dtype: ELEMENT_TYPES[dtype].item_bytes, default="f32"), target)
