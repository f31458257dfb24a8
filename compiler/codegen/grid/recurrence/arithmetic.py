"""A cell's arithmetic on one item's numbers; every result is computed once."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.grid.functions import DEVICE, number
from compiler.codegen.tir.tir import Block, Value


@dataclass(frozen=True)
class ItemArithmetic:
    """Writes to a block; see `compiler.kernels.cells.Arithmetic`."""

    block: Block

    def add(self, x: Value, y: Value) -> Value:
        return self.block.let(x + y, "sum")

    def sub(self, x: Value, y: Value) -> Value:
        return self.block.let(x - y, "difference")

    def mul(self, x: Value, y: Value) -> Value:
        return self.block.let(x * y, "product")

    def rest(self, x: Value) -> Value:
        return self.block.let(number(1.0) - x, "rest")

    def sigmoid(self, x: Value) -> Value:
        return self.block.let(DEVICE.unary["sigmoid"](self.block, x), "sigmoid")

    def tanh(self, x: Value) -> Value:
        return self.block.let(DEVICE.unary["tanh"](self.block, x), "tanh")

    def relu(self, x: Value) -> Value:
        return self.where_positive(x, x)

    def where_positive(self, x: Value, y: Value) -> Value:
        return self.block.let(tirx.Select(tirx.LE(x, number(0.0)), number(0.0), y), "part")
