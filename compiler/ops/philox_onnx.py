"""Philox4x32-10 in standard ONNX operators on i64; see `compiler.kernels.philox` for its meaning and source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.graph import Array
from compiler.kernels.philox import BITS, KEY_STEPS, MULTIPLIERS, ROUNDS
from compiler.ops.record import OnnxWriter

_I64, _U64 = 7, 13


@dataclass(frozen=True, slots=True)
class Philox:
    """Writes the nodes of a draw."""

    out: OnnxWriter

    def bits(self, counter: str, key: str, output: str) -> None:
        """Both words of a counter as one number of 64 bits."""
        low, high = self._words(counter, key)
        shifted = self.out.add("Mul", high, self._number(1 << 32))
        self.out.add("BitwiseOr", shifted, low, output=output)

    def top_bits(self, places: Array, key: str) -> tuple[str, str]:
        """The upper 24 bits of both words, for every place."""
        low, high = self._words(self.out.add("Constant", value=places), key)
        divisor = self._number(1 << (32 - BITS))
        return self.out.add("Div", low, divisor), self.out.add("Div", high, divisor)

    def _words(self, counter: str, key: str) -> tuple[str, str]:
        c0, c1 = self._low(counter), self._high(counter)
        k0, k1 = self._low(key), self._high(key)
        zero = self._number(0)
        c2 = c3 = zero
        for turn in range(ROUNDS):
            if turn:
                k0, k1 = (
                    self._low(self.out.add("Add", k, self._number(step)))
                    for k, step in zip((k0, k1), KEY_STEPS, strict=True)
                )
            product, other = (
                self.out.add("Mul", c, self._number(by)) for c, by in zip((c0, c2), MULTIPLIERS, strict=True)
            )
            c0, c2 = (
                self.out.add("BitwiseXor", self.out.add("BitwiseXor", self._high(half), c), k)
                for half, c, k in ((other, c1, k0), (product, c3, k1))
            )
            c1, c3 = self._low(other), self._low(product)
        return c0, c1

    def _number(self, value: int) -> str:
        return self.out.add("Constant", value=np.asarray(value, np.int64))

    def _low(self, value: str) -> str:
        return self.out.add("BitwiseAnd", value, self._number(0xFFFFFFFF))

    def _high(self, value: str) -> str:
        bits = self.out.add("Cast", value, to=_U64)
        half = self.out.add("Constant", value=np.asarray(32, np.uint64))
        return self.out.add("Cast", self.out.add("BitShift", bits, half, direction="RIGHT"), to=_I64)
