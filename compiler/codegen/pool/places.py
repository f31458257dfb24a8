"""Maxima with the places of the first of them, and the gradient that goes to those places.

The gradient asks for each position of x which of the windows that cover it have their place there: every position is
written once, in the order of the windows, so tasks may be rows, and windows may overlap.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tvm import tirx

from compiler.codegen.pool.loops import PoolLoops, area
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import Accumulators
from compiler.codegen.tir.scalar_math import is_nan
from compiler.codegen.tir.tir import Block, Buffer, Operands, Value
from compiler.kernels.alignment import ALIGNMENT_BYTES
from compiler.kernels.places import WORD_BYTES, words_of_sample
from compiler.kernels.spec import PoolSpec


def with_bytes(spec: PoolSpec, operands: Operands) -> Operands:
    """The operands with words as the bytes that they are."""
    if spec.kind == "max_places":
        return replace(operands, outputs=(operands.outputs[0], _bytes(spec, "out1")))
    if spec.kind == "places_grad":
        return replace(operands, inputs=(_bytes(spec, "in0"), *operands.inputs[1:]))
    return operands


def _bytes(spec: PoolSpec, name: str) -> Buffer:
    size = spec.n * words_of_sample((spec.oh, spec.ow), spec.c) * WORD_BYTES
    return tirx.decl_buffer((size,), "uint8", name=name, data_alignment=ALIGNMENT_BYTES)


class Places(PoolLoops):
    """The two kernels."""

    def all_maxima(self, body: Block) -> None:
        """Outputs and places; zeros in the bytes of a sample's last word that are no place."""
        spec = self.spec
        self.rows(body, spec.oh, spec.ow, self.maxima)
        sample_bytes, used = words_of_sample((spec.oh, spec.ow), spec.c) * WORD_BYTES, spec.oh * spec.ow * spec.c

        def clear(block: Block, n: Value) -> None:
            for place in range(used, sample_bytes):
                block.store(self.operands.outputs[1], n * sample_bytes + place, tir.literal(0, "uint8"))

        if used < sample_bytes:
            body.loop(spec.n, clear, name="n")

    def maxima(self, block: Block, n: Value, row: Value, column: Value, channel: Value, width: int) -> None:
        """Computes one vector of outputs, and their places."""
        best, place = block.local(width, self.stored, "best"), block.local(width, "int32", "place")
        rows, columns = self.window(block, row, 0), self.window(block, column, 1)
        block.store(best, 0, tir.literal(-math.inf, self.stored, width))
        block.store(place, 0, tir.broadcast(self._first_place(block, row, column, rows[0], columns[0]), width))

        def tap(inner: Block, h: Value, w: Value) -> None:
            value = inner.let(tir.load(self.operands.inputs[0], self.x(n, h, w, channel), width), "x")
            here = tir.broadcast(self._place(inner, row, column, h, w), width)
            is_higher = tirx.Or(tirx.LT(tir.load(best, 0, width), value), is_nan(value))
            inner.store(place, 0, tirx.Select(is_higher, here, tir.load(place, 0, width)))
            inner.store(best, 0, tirx.Select(is_higher, value, tir.load(best, 0, width)))

        area(block, rows, columns, tap, self._size())
        as_byte = tirx.Cast(tir.dtype("uint8", width), tir.load(place, 0, width))
        block.store(self.operands.outputs[1], self._byte(n, row, column, channel), as_byte)
        highest = block.let(tir.load(best, 0, width), "highest")
        self.store(block, (n, row, column, channel), highest, self.y(n, row, column, channel))

    def _place(self, block: Block, row: Value, column: Value, h: Value, w: Value) -> Value:
        """Which place of the window of an output a position of x is."""
        spec = self.spec
        down = h - (row * spec.strides[0] - spec.pads[0])
        right = w - (column * spec.strides[1] - spec.pads[1])
        return block.let(down * spec.kernel[1] + right, "here")

    def _first_place(self, block: Block, row: Value, column: Value, h: Value, w: Value) -> Value:
        """The place of a window's first position: of one that has none, a place all the same."""
        first = self._place(block, row, column, h, w)
        return block.let(tirx.min(first, self.spec.kernel[0] * self.spec.kernel[1] - 1), "first")

    def _size(self) -> tuple[int, int] | None:
        """The extents of all windows, where none reaches over the image's edge."""
        spec = self.spec
        ends = [(out - 1) * by + extent for out, by, extent in zip(self.out, spec.strides, spec.kernel, strict=True)]
        return spec.kernel if not any(spec.pads[:2]) and ends[0] <= spec.h and ends[1] <= spec.w else None

    def _covering_size(self) -> tuple[int, int] | None:
        """How many windows cover each position, where they lie side by side and leave nothing over."""
        spec = self.spec
        reached = tuple(out * extent for out, extent in zip(self.out, spec.kernel, strict=True))
        is_even = spec.kernel == spec.strides and not any(spec.pads[:2]) and reached == (spec.h, spec.w)
        return (1, 1) if is_even else None

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the output."""
        return self.spec.oh, self.spec.ow

    def _byte(self, n: Value, row: Value, column: Value, channel: Value) -> Value:
        spec = self.spec
        sample = words_of_sample((spec.oh, spec.ow), spec.c) * WORD_BYTES
        return n * sample + ((row * spec.ow + column) * spec.c + channel)

    def gradient(self, block: Block, n: Value, h: Value, w: Value, channel: Value, width: int) -> None:
        """Computes one vector of d_x: what the windows give whose place it is."""
        sums = Accumulators(block, "sum", self.summed, 1, width)

        def tap(inner: Block, row: Value, column: Value) -> None:
            raw = tir.load(self.operands.inputs[0], self._byte(n, row, column, channel), width)
            here = tir.broadcast(self._place(inner, row, column, h, w), width)
            is_here = tirx.EQ(tirx.Cast(tir.dtype("int32", width), raw), here)
            d_y = tir.load(self.operands.inputs[1], self.y(n, row, column, channel), width)
            contribution = tirx.Select(is_here, d_y, tir.literal(0.0, self.stored, width))
            sums.add(inner, 0, inner.let(contribution, "given"))

        area(block, self.covering(block, h, 0), self.covering(block, w, 1), tap, self._covering_size())
        self.store(block, (n, h, w, channel), block.let(sums.get(0), "d_x"), self.x(n, h, w, channel))
