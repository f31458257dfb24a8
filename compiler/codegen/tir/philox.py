"""Philox4x32-10 as TIR, lane by lane; see `compiler.kernels.philox` for its meaning and source.

Words are u64 values below 2^32, so that products of two hold all their bits: TVM's products of whole numbers must not
overflow (LLVM's `nuw`, `nsw`).
"""

from __future__ import annotations

from tvm import tirx

from compiler.codegen.tir.tir import Block, Value, dtype, lanes_of, literal
from compiler.kernels.philox import BITS, KEY_STEPS, MULTIPLIERS, ROUNDS

_LOW = 0xFFFFFFFF


def philox(block: Block, op: str, counter: Value, key: Value) -> Value:
    """`philox` (64 bits), `philox0` or `philox1` (the upper 24 bits of a word), as i64."""
    low, high = _words(block, counter, key)
    if op == "philox":
        return _to_signed(tirx.bitwise_or(low, tirx.shift_left(high, _like(32, high))))
    word = low if op == "philox0" else high
    return _to_signed(tirx.shift_right(word, _like(32 - BITS, word)))


def _words(block: Block, counter: Value, key: Value) -> tuple[Value, Value]:
    """The first two words, computed once in a block for a counter and a key."""
    words: list[Value] = []

    def first() -> Value:
        words.extend(_rounds(block, counter, key))
        return words[0]

    low = block.once(("philox low", counter, key), first)
    return low, block.once(("philox high", counter, key), lambda: words[1])


def _rounds(block: Block, counter: Value, key: Value) -> tuple[Value, Value]:
    c0, c1 = _halves(block, counter)
    k0, k1 = _halves(block, key)
    c2 = c3 = _like(0, c0)
    for turn in range(ROUNDS):
        if turn:
            k0, k1 = (block.let(_low(k + _like(step, k)), "k") for k, step in zip((k0, k1), KEY_STEPS, strict=True))
        product, other = (
            block.let(tirx.Mul(c, _like(by, c)), "p") for c, by in zip((c0, c2), MULTIPLIERS, strict=True)
        )
        c0, c2 = (
            block.let(tirx.bitwise_xor(tirx.bitwise_xor(_high(half), c), k), "c")
            for half, c, k in ((other, c1, k0), (product, c3, k1))
        )
        c1, c3 = block.let(_low(other), "c"), block.let(_low(product), "c")
    return c0, c1


def _halves(block: Block, number: Value) -> tuple[Value, Value]:
    bits = block.let(tirx.Cast(dtype("uint64", lanes_of(number)), number), "bits")
    return block.let(_low(bits), "w"), block.let(_high(bits), "w")


def _like(value: int, x: Value) -> Value:
    return literal(value, "uint64", lanes_of(x))


def _low(x: Value) -> Value:
    return tirx.bitwise_and(x, _like(_LOW, x))


def _high(x: Value) -> Value:
    return tirx.shift_right(x, _like(32, x))


def _to_signed(x: Value) -> Value:
    return tirx.Cast(dtype("int64", lanes_of(x)), x)
