"""Rewrites of scalar expressions: renumbering and substituting references, counting work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from compiler.kernels.spec import Binary, Expr, Index, Ref, RowSpec, Select, Stat, Unary

WORK = {
    "exp": 10, "log": 12, "tanh": 15, "sigmoid": 12, "erf": 20, "sin": 15, "cos": 15, "pow": 25,
    "div": 4, "sqrt": 4, "rsqrt": 5, "reciprocal": 4,
}  # fmt: skip


def substitute(expr: Expr, replace: Callable[[Expr], Expr]) -> Expr:
    """The expression with every leaf `x` replaced by `replace(x)`."""
    if isinstance(expr, Unary):
        return Unary(expr.op, substitute(expr.x, replace))
    if isinstance(expr, Binary):
        return Binary(expr.op, substitute(expr.x, replace), substitute(expr.y, replace))
    if isinstance(expr, Select):
        parts = (substitute(part, replace) for part in (expr.cond, expr.then, expr.other))
        return Select(*parts)
    return replace(expr)


def substitute_refs(expr: Expr, table: Callable[[int], Expr]) -> Expr:
    """The expression with `Ref(k)` replaced by `table(k)`."""
    return substitute(expr, lambda leaf: table(leaf.operand) if isinstance(leaf, Ref) else leaf)


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node of the expression."""
    yield expr
    if isinstance(expr, Unary):
        yield from walk(expr.x)
    elif isinstance(expr, Binary):
        yield from walk(expr.x)
        yield from walk(expr.y)
    elif isinstance(expr, Select):
        for part in (expr.cond, expr.then, expr.other):
            yield from walk(part)


def work(expr: Expr) -> int:
    """Rough floating-point operations of one evaluation."""
    return sum(WORK.get(part.op, 1) if isinstance(part, Unary | Binary) else 0 for part in walk(expr))


def refs(expr: Expr) -> set[int]:
    """Operands an expression reads."""
    return {part.operand for part in walk(expr) if isinstance(part, Ref)}


def compared_with_stats(spec: RowSpec) -> frozenset[int]:
    """Operands of a row kernel in a comparison for equality with a statistic: what hits must be found exactly."""
    parts = [part for expr in (*(term for _, term in spec.stages), *spec.exprs) for part in walk(expr)]
    equalities = [part for part in parts if isinstance(part, Binary) and part.op == "eq"]
    found = [refs(part) for part in equalities if isinstance(part.x, Stat) or isinstance(part.y, Stat)]
    return frozenset(operand for operands in found for operand in operands)


def uses_position(expr: Expr) -> bool:
    """True if the expression depends on more than its operands (an `Index` or a `Stat`)."""
    return any(isinstance(part, Index | Stat) for part in walk(expr))
