"""Scalar expressions (`compiler.kernels.expressions.Expr`) to TIR values, at the width of the operands they read.

Philox4x32-10 as TIR, lane by lane; see `compiler.kernels.philox` for its meaning and source.

Words are u64 values below 2^32, so that products of two hold all their bits: TVM's products of whole numbers must not
overflow (LLVM's `nuw`, `nsw`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tvm import tirx

from compiler.codegen.tir import remainders, scalar_math
from compiler.codegen.tir.iteration import Space, flatten_access
from compiler.codegen.tir.tir import (
    Block,
    Buffer,
    Point,
    Value,
    base,
    broadcast,
    dtype,
    index,
    lanes_of,
    literal,
    read,
)
from compiler.element_types import ELEMENT_TYPES, NUMERIC, REAL, promotion
from compiler.errors import InternalError
from compiler.kernels.access import Access
from compiler.kernels.expressions import Binary, Const, Expr, Index, Ref, Select, Stat, Unary
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


_REAL = frozenset(ELEMENT_TYPES[name].tir for name in REAL)
_RANK = {"bool": promotion("bool"), **{ELEMENT_TYPES[name].tir: promotion(name) for name in NUMERIC}}
_CASTS = {f"to_{name}": ELEMENT_TYPES[name].tir for name in NUMERIC}
_COMPARISONS: Mapping[str, Callable[[Value, Value], Value]] = {"lt": tirx.LT, "le": tirx.LE, "eq": tirx.EQ}
_ARITHMETIC: Mapping[str, Callable[[Value, Value], Value]] = {"add": tirx.Add, "sub": tirx.Sub, "mul": tirx.Mul}
_LOGIC: Mapping[str, Callable[[Value, Value], Value]] = {"and": tirx.And, "or": tirx.Or}


@dataclass(frozen=True)
class Functions:
    """The functions by which a kind of target computes what is not an operation of TIR's on f32, and writes a
    number.
    """

    unary: Mapping[str, Callable[[Block, Value], Value]]
    power: Callable[[Block, Value, Value], Value]
    rest: Callable[[Block, Value, Value], Value]
    """x - y trunc(x / y)."""
    literal: Callable[[float, str, int], Value]
    """A constant of an element type, in so many lanes."""


VECTORS = Functions(scalar_math.UNARY_F32, scalar_math.power, remainders.real_rest, literal)
"""A CPU's: polynomials that vectorise."""


class Evaluator:
    """Evaluates expressions at one point, each distinct operation once.

    `refs[k]` is the value of `Ref(k)`, `stats[s]` of `Stat(s)`; `point` is needed for `Index` only.
    A `Const` has no type of its own: it takes the type of what it is combined with, f32 when alone.
    """

    def __init__(
        self,
        block: Block,
        refs: Sequence[Value],
        *,
        stats: Sequence[Value] = (),
        point: Point | None = None,
        functions: Functions = VECTORS,
    ) -> None:
        self._functions = functions
        self._block = block
        self._refs = refs
        self._stats = stats
        self._point = point
        self._done: dict[int, Value | Const] = {}
        self._presets: dict[Expr, Callable[[], Value]] = {}

    def preset(self, expr: Expr, make: Callable[[], Value]) -> None:
        """Uses `make()` for every subexpression equal to `expr`, in place of computing it."""
        self._presets[expr] = make

    def value(self, expr: Expr, element: str = "float32") -> Value:
        """The TIR value of `expr`; a bare constant becomes an `element`."""
        return self._typed(self._visit(expr), element)

    def _typed(self, value: Value | Const, element: str) -> Value:
        return self._functions.literal(value.value, element, 1) if isinstance(value, Const) else value

    def _visit(self, expr: Expr) -> Value | Const:
        # Keyed by identity: an expression that fusion shares is a graph, and as a tree it may be very large.
        if id(expr) not in self._done:
            preset = self._presets.get(expr) if self._presets else None
            self._done[id(expr)] = self._compute(expr) if preset is None else self._block.let(preset(), "known")
        return self._done[id(expr)]

    def _compute(self, expr: Expr) -> Value | Const:
        match expr:
            case Const():
                return expr
            case Ref(operand):
                return self._refs[operand]
            case Stat(stage):
                return self._stats[stage]
            case Index(axis):
                return self._index(axis)
            case Unary(op, x):
                return self._unary(op, self._visit(x))
            case Binary(op, x, y):
                return self._binary(op, self._visit(x), self._visit(y))
            case Select(cond, then, other):
                return self._select(self._visit(cond), self._visit(then), self._visit(other))
        raise InternalError(f"no TIR for the expression {expr!r}")

    def _index(self, axis: int) -> Value:
        if self._point is None:
            raise InternalError(f"Index({axis}) outside an iteration")
        start = tirx.Cast("int64", self._point.axes[axis])
        if self._point.lanes == 1 or axis != self._point.vector_axis:
            return self._block.once(("index", self._point.axes[axis]), lambda: start)
        ramp = tirx.Ramp(start, tirx.IntImm("int64", 1), self._point.lanes)
        return self._block.once(("ramp", self._point.axes[axis], self._point.lanes), lambda: ramp)

    def _unary(self, op: str, x: Value | Const) -> Value:
        value = self._typed(x, "float32")
        return self._block.once((op, value), lambda: _apply_unary(self._block, op, value, self._functions))

    def _binary(self, op: str, x: Value | Const, y: Value | Const) -> Value:
        left, right = self._matched(x, y)
        compute = partial(_apply_binary, self._block, op, left, right, self._functions)
        return self._block.once((op, left, right), compute)

    def _select(self, cond: Value | Const, then: Value | Const, other: Value | Const) -> Value:
        condition = self._typed(cond, "bool")
        left, right = self._matched(then, other)
        lanes = max(lanes_of(condition), lanes_of(left))
        sides = (broadcast(condition, lanes), broadcast(left, lanes), broadcast(right, lanes))
        return self._block.once(("select", condition, left, right), lambda: tirx.Select(*sides))

    def _matched(self, x: Value | Const, y: Value | Const) -> tuple[Value, Value]:
        """Returns both operands with one element type (the higher of the two) and one width."""
        if isinstance(x, Const) and isinstance(y, Const):
            return self._typed(x, "float32"), self._typed(y, "float32")
        if isinstance(x, Const):
            return self._constant(x, y), y
        if isinstance(y, Const):
            return x, self._constant(y, x)
        element = max(base(x), base(y), key=_RANK.__getitem__)
        lanes = max(lanes_of(x), lanes_of(y))
        return self._widened(x, element, lanes), self._widened(y, element, lanes)

    def _constant(self, constant: Const, like: Value) -> Value:
        key = ("const", float(constant.value).hex(), base(like), lanes_of(like))
        return self._block.once(key, lambda: self._functions.literal(constant.value, base(like), lanes_of(like)))

    def _widened(self, value: Value, element: str, lanes: int) -> Value:
        if base(value) != element:
            value = self._block.once(("cast", element, value), lambda: cast(value, element))
        if lanes_of(value) == lanes:
            return value
        return self._block.once(("wide", lanes, value), lambda: broadcast(value, lanes))


def cast(value: Value, element: str) -> Value:
    """A value converted to another element type, lane by lane (float to integer truncates)."""
    if base(value) == element:
        return value
    if element == "bool":
        return tirx.Not(tirx.EQ(value, literal(0, base(value), lanes_of(value))))
    if base(value) == "bool":
        return tirx.Select(value, literal(1, element, lanes_of(value)), literal(0, element, lanes_of(value)))
    return tirx.Cast(dtype(element, lanes_of(value)), value)


def _apply_unary(block: Block, op: str, x: Value, functions: Functions) -> Value:
    kind, lanes = base(x), lanes_of(x)
    zero = literal(0, kind, lanes) if kind != "bool" else None
    if op in _CASTS:
        return cast(x, _CASTS[op])
    if op == "to_bool":
        return cast(x, "bool")
    if op == "not":
        return tirx.Not(cast(x, "bool"))
    if op == "is_nan":
        return scalar_math.is_nan(x)
    if op == "neg":
        return tirx.Mul(x, literal(-1, kind, lanes))
    if op == "abs" and kind not in _REAL:
        return tirx.Select(tirx.LT(x, zero), tirx.Sub(zero, x), x)
    if op == "sign":
        return _sign(x, zero)
    if kind not in _REAL:
        raise InternalError(f"{op} of a value of type {kind}")
    return functions.unary[op](block, x)


def _sign(x: Value, zero: Value) -> Value:
    plus, minus = literal(1, base(x), lanes_of(x)), literal(-1, base(x), lanes_of(x))
    # A NaN is neither above nor below zero; returning x keeps both NaN and 0.
    return tirx.Select(tirx.LT(zero, x), plus, tirx.Select(tirx.LT(x, zero), minus, x))


def _apply_binary(block: Block, op: str, x: Value, y: Value, functions: Functions) -> Value:
    if op in _LOGIC:
        return _LOGIC[op](cast(x, "bool"), cast(y, "bool"))
    if op in _COMPARISONS:
        return _COMPARISONS[op](x, y)
    if base(x) == "bool":
        raise InternalError(f"{op} of two bool values")
    if op in _ARITHMETIC:
        return _ARITHMETIC[op](x, y)
    if op in ("max", "min"):
        return extreme(op, x, y)
    if op.startswith("philox"):
        return philox(block, op, x, y)
    if op in remainders.BITS:
        return remainders.BITS[op](x, y)
    if op in ("mod", "fmod"):
        rest = (functions.rest if base(x) in _REAL else remainders.whole_rest)(block, x, y)
        return rest if op == "fmod" else remainders.with_sign_of_divisor(block, rest, x, y)
    if base(x) in _REAL:
        return scalar_math.quotient(x, y, functions.literal) if op == "div" else functions.power(block, x, y)
    if op == "div":
        return remainders.quotient(block, x, y)
    raise InternalError(f"{op} of integers")


def extreme(op: str, x: Value, y: Value) -> Value:
    """max or min that returns NaN if either side is NaN, as NumPy, PyTorch and ONNX have it."""
    chosen = tirx.Select(tirx.LT(x, y), y, x) if op == "max" else tirx.Select(tirx.LT(y, x), y, x)
    # These return x whenever a side is NaN: right if that is x; y needs a look, unless it is a constant.
    may_be_nan = base(y) in _REAL and not isinstance(y, tirx.FloatImm | tirx.Broadcast)
    return tirx.Select(scalar_math.is_nan(y), y, chosen) if may_be_nan else chosen


def spec_point(space: Space, rank: int, point: Point) -> Point:
    """A point of a rearranged space in the spec's own `rank` axes, for `Index` (axes that were merged read 0)."""
    axes: list[Value] = [index(0)] * rank
    vector_axis = -1
    for number, (origin, start) in enumerate(zip(space.origins, space.starts, strict=True)):
        if origin >= 0:
            axes[origin] = point.axes[number] + start if start else point.axes[number]
            vector_axis = origin if number == point.vector_axis else vector_axis
    return Point(tuple(axes), point.lanes, vector_axis)


def epilogue(
    block: Block,
    expr: Expr,
    accumulated: Value,
    inputs: Sequence[tuple[Buffer, Access]],
    point: Point,
    functions: Functions = VECTORS,
) -> Value:
    """`expr` with `Ref(0)` = `accumulated` and `Ref(k)` = epilogue input k - 1 at the output point.

    `accumulated` may be a vector of `point.lanes` along `point.vector_axis`; so is the result.
    """
    if expr == Ref(0):
        return accumulated
    refs = [block.let(accumulated, "acc")]
    for buffer, access in inputs:
        if access.fill is not None:
            raise InternalError("an epilogue input must be in bounds everywhere")
        refs.append(read(block, buffer, flatten_access(access, (1,) * len(point.axes)), point))
    return broadcast(Evaluator(block, refs, point=point, functions=functions).value(expr), point.lanes)
