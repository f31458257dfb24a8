"""A cell's arithmetic on vectors of a kernel; every result is computed once."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.tir import scalar_math
from compiler.codegen.tir.tir import Block, Value, literal
from compiler.element_types import SCRATCH


@dataclass(frozen=True)
class VectorArithmetic:
    """Writes to a block; see `compiler.kernels.cells.Arithmetic`."""

    block: Block
    width: int

    def add(self, x: Value, y: Value) -> Value:
        return self.block.let(x + y, "sum")

    def sub(self, x: Value, y: Value) -> Value:
        return self.block.let(x - y, "difference")

    def mul(self, x: Value, y: Value) -> Value:
        return self.block.let(x * y, "product")

    def rest(self, x: Value) -> Value:
        return self.block.let(literal(1.0, SCRATCH.tir, self.width) - x, "rest")

    def sigmoid(self, x: Value) -> Value:
        return self.block.let(scalar_math.sigmoid(self.block, x), "sigmoid")

    def tanh(self, x: Value) -> Value:
        return self.block.let(scalar_math.tanh(self.block, x), "tanh")

    def relu(self, x: Value) -> Value:
        return self.where_positive(x, x)

    def where_positive(self, x: Value, y: Value) -> Value:
        zero = literal(0.0, SCRATCH.tir, self.width)
        return self.block.let(tirx.Select(tirx.LE(x, zero), zero, y), "part")
