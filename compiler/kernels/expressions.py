"""Scalar expressions: what one point of a kernel computes; renumbering and substituting references, counting work.

`Ref(k)` reads operand k; which operand that is, each kernel family says (see `compiler.kernels.spec`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

MOST_NODES = 256
"""The most nodes of one expression as a tree. Fusion makes none that is larger: each reader of a value that is computed
anew has its own copy, so a chain in which each value is read twice would double with each link. Nor is one deeper than
that, so what follows may recurse.
"""

UNARY = (
    "neg",
    "abs",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "tanh",
    "sigmoid",
    "erf",
    "floor",
    "sign",
    "sin",
    "cos",
    "atan",
    "not",
    "to_f32",
    "to_i64",
    "to_i32",
    "to_bool",
    "is_nan",
)
BINARY = (
    "add",
    "sub",
    "mul",
    "div",
    "max",
    "min",
    "pow",
    "lt",
    "le",
    "eq",
    "and",
    "or",
    "mod",
    "fmod",
    "bit_and",
    "bit_or",
    "bit_xor",
    "shift_left",
    "philox",
    "philox0",
    "philox1",
)


@dataclass(frozen=True, slots=True)
class Const:
    """A literal of the expression's type (f32 unless used in an integer context)."""

    value: float


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of one operand at the current point."""

    operand: int


@dataclass(frozen=True, slots=True)
class Stat:
    """The result of an earlier stage of a `RowSpec`."""

    stage: int


@dataclass(frozen=True, slots=True)
class Index:
    """The current position along one iteration axis, as i64."""

    axis: int


@dataclass(frozen=True, slots=True)
class Unary:
    """`op` in `UNARY`; comparisons and `not` work on bool."""

    op: str
    x: Expr


@dataclass(frozen=True, slots=True)
class Binary:
    """`op` in `BINARY`; `lt`, `le`, `eq` give bool.

    `philox` draws 64 random bits as an i64 by a counter x under a key y (both i64); `philox0` and `philox1` give the
    upper 24 bits of its two words (`compiler.kernels.philox`).
    """

    op: str
    x: Expr
    y: Expr


@dataclass(frozen=True, slots=True)
class Select:
    """`then` where `cond` (bool) holds, else `other`; both sides may be evaluated."""

    cond: Expr
    then: Expr
    other: Expr


Expr = Const | Ref | Stat | Index | Unary | Binary | Select

ACCUMULATED: Expr = Ref(0)
"""The value that a contraction has summed up, as it is, in the contraction's epilogue."""


def add(x: Expr, y: Expr) -> Expr:
    """x + y."""
    return Binary("add", x, y)


def sub(x: Expr, y: Expr) -> Expr:
    """x - y."""
    return Binary("sub", x, y)


def mul(x: Expr, y: Expr) -> Expr:
    """x y."""
    return Binary("mul", x, y)


WORK = {
    "exp": 10,
    "log": 12,
    "tanh": 15,
    "sigmoid": 12,
    "erf": 20,
    "sin": 15,
    "cos": 15,
    "atan": 20,
    "pow": 25,
    "div": 4,
    "mod": 15,
    "fmod": 12,
    "sqrt": 4,
    "rsqrt": 5,
    "reciprocal": 4,
    "philox": 120,
    "philox0": 120,
    "philox1": 120,
}


def parts_of(expr: Expr) -> tuple[Expr, ...]:
    """Returns the parts that the expression is computed from; empty for a leaf."""
    if isinstance(expr, Unary):
        return (expr.x,)
    if isinstance(expr, Binary):
        return (expr.x, expr.y)
    return (expr.cond, expr.then, expr.other) if isinstance(expr, Select) else ()


def substitute(expr: Expr, replace: Callable[[Expr], Expr]) -> Expr:
    """The expression with every leaf `x` replaced by `replace(x)`. What it shares stays shared."""
    return _substituted(expr, replace, {})


def _substituted(expr: Expr, replace: Callable[[Expr], Expr], results: dict[int, Expr]) -> Expr:
    earlier = results.get(id(expr))
    if earlier is not None:
        return earlier
    result: Expr
    if isinstance(expr, Binary):
        result = Binary(expr.op, _substituted(expr.x, replace, results), _substituted(expr.y, replace, results))
    elif isinstance(expr, Unary):
        result = Unary(expr.op, _substituted(expr.x, replace, results))
    elif isinstance(expr, Select):
        cond, then, other = (_substituted(part, replace, results) for part in (expr.cond, expr.then, expr.other))
        result = Select(cond, then, other)
    else:
        result = replace(expr)
    results[id(expr)] = result
    return result


def size(expr: Expr) -> int:
    """Nodes of the expression as a tree: what it shares counts each time. It takes time for what it holds once."""
    return _size(expr, {})


def _size(expr: Expr, sizes: dict[int, int]) -> int:
    nodes = sizes.get(id(expr))
    if nodes is None:
        nodes = 1
        for part in parts_of(expr):
            nodes += _size(part, sizes)
        sizes[id(expr)] = nodes
    return nodes


def substitute_refs(expr: Expr, table: Callable[[int], Expr]) -> Expr:
    """The expression with `Ref(k)` replaced by `table(k)`."""
    return substitute(expr, lambda leaf: table(leaf.operand) if isinstance(leaf, Ref) else leaf)


def walk(expr: Expr) -> Iterator[Expr]:
    """Yields every node of the expression."""
    stack = [expr]
    while stack:
        part = stack.pop()
        yield part
        stack += reversed(parts_of(part))


def work(expr: Expr) -> int:
    """Rough floating-point operations of one evaluation."""
    return sum(WORK.get(part.op, 1) if isinstance(part, Unary | Binary) else 0 for part in walk(expr))


def refs(expr: Expr) -> set[int]:
    """Operands an expression reads."""
    return {part.operand for part in walk(expr) if isinstance(part, Ref)}


def uses_position(expr: Expr) -> bool:
    """Whether the expression depends on more than its operands (an `Index` or a `Stat`)."""
    return any(isinstance(part, Index | Stat) for part in walk(expr))
