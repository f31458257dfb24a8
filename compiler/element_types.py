"""The element types of tensors: one table that every stage asks.

`f32` is the only real type that kernels compute in. `f16` and `bf16` may lie between kernels, which widen what they
read and round what they write; files and the runtime do not hold them, and refuse them by name. `i8` is in what frozen
weights may lie: whole numbers that kernels widen like halves and that nothing writes; a bundle's own file holds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from compiler.errors import BuildError

DType = Literal["f32", "i64", "i32", "bool", "f16", "bf16", "i8"]


@dataclass(frozen=True)
class ElementType:
    """The properties of an element type that the stages need."""

    name: DType
    item_bytes: int
    numpy: np.dtype[np.generic]
    """The NumPy type in which an array holds it. NumPy has no bfloat16: two bytes that nothing can compute with by
    accident.
    """
    label: str
    """The name that people and NumPy use."""
    onnx: int
    """`TensorProto.DataType`."""
    tir: str
    """The type in which TIR stores it; a bool is a byte, a bfloat16 its bits."""
    is_real: bool
    sums_in: DType
    """The type in which sums and products of it are accumulated."""
    is_emitted: bool
    """Kernels compute in it, files and the runtime hold it."""

    @property
    def is_half(self) -> bool:
        """Whether kernels compute in `sums_in` with what they read of it, and round what they write."""
        return self.is_real and self.name != self.sums_in

    @property
    def sum(self) -> ElementType:
        """The type that its sums are accumulated in."""
        return ELEMENT_TYPES[self.sums_in]

    @property
    def tir_value(self) -> str:
        """Returns the type that TIR computes with: a bool, where a byte is stored; f32, where a half is."""
        return "bool" if self.name == "bool" else self.sum.tir if self.is_half else self.tir

    @property
    def lowest(self) -> float:
        """Returns the number that no element is below: where a maximum starts."""
        return -math.inf if self.is_real else -(2 ** (8 * self.item_bytes - 1))

    @property
    def c_name(self) -> str:
        """The runtime's enumerator (`pf_dtype` in `pockfarm_step.h`)."""
        return f"PF_{self.name.upper()}"


ELEMENT_TYPES: Mapping[str, ElementType] = MappingProxyType(
    {
        row.name: row
        for row in (
            ElementType("f32", 4, np.dtype("f4"), "float32", 1, "float32", True, "f32", True),
            ElementType("i64", 8, np.dtype("i8"), "int64", 7, "int64", False, "i64", True),
            ElementType("i32", 4, np.dtype("i4"), "int32", 6, "int32", False, "i32", True),
            ElementType("bool", 1, np.dtype("?"), "bool", 9, "uint8", False, "i32", True),
            ElementType("f16", 2, np.dtype("f2"), "float16", 10, "float16", True, "f32", False),
            ElementType("bf16", 2, np.dtype("V2"), "bfloat16", 16, "uint16", True, "f32", False),
            ElementType("i8", 1, np.dtype("i1"), "int8", 3, "int8", True, "f32", False),
        )
    }
)

EMITTED = tuple(row for row in ELEMENT_TYPES.values() if row.is_emitted)
REAL = tuple(row.name for row in EMITTED if row.is_real)
NUMERIC = tuple(row.name for row in EMITTED if row.name != "bool")
"""Emitted types that can be added and compared."""
SCRATCH = ELEMENT_TYPES["f32"]
"""The element type of kernels' workspaces: partial sums, in the type that everything real is accumulated in."""


def higher(x: DType, y: DType) -> DType:
    """The type of an expression over both: real before whole before bool, then the larger."""
    return max(x, y, key=promotion)


def promotion(dtype: DType) -> tuple[bool, bool, int]:
    """Grows with what a type can hold."""
    row = ELEMENT_TYPES[dtype]
    return row.is_real, row.name != "bool", row.item_bytes


def emitted_of_onnx(code: int) -> ElementType | None:
    """The emitted type with this ONNX code, or None."""
    return next((row for row in EMITTED if row.onnx == code), None)


def emitted_of_numpy(dtype: np.dtype[Any]) -> ElementType | None:
    """The emitted type that arrays of `dtype` hold, or None."""
    return next((row for row in EMITTED if row.numpy == dtype), None)


def holds_reals(array: NDArray[Any]) -> bool:
    """Whether the array's elements are of an emitted real type, as parameters are."""
    row = emitted_of_numpy(array.dtype)
    return row is not None and row.is_real


def require_emitted(dtype: str, where: str = "") -> None:
    """Raises: BuildError if kernels and files cannot hold elements of this type."""
    if not ELEMENT_TYPES[dtype].is_emitted:
        supported = ", ".join(row.name for row in EMITTED)
        raise BuildError(
            f"no kernel is emitted for elements of type {dtype} ({ELEMENT_TYPES[dtype].label}); "
            f"kernels hold {supported}",
            where=where,
            hint="build the step in f32",
        )
