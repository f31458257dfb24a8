"""Statements that run only where some conditions hold, of which there may be none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from compiler.codegen.grid.functions import number
from compiler.codegen.tir.tir import Block, Value


def guarded(block: Block, checks: Sequence[Value], value: Value) -> Value:
    """A real that is read only if all checks hold, else 0."""
    return block.let(tirx.if_then_else(_all_of(checks), value, number(0.0)) if checks else value, "r")


def when_all(block: Block, checks: Sequence[Value], then: Callable[[Block], None]) -> None:
    """A branch, if there is anything to check."""
    if checks:
        block.when(_all_of(checks), then)
    else:
        then(block)


def _all_of(checks: Sequence[Value]) -> Value:
    """Whether each of one or more conditions holds."""
    first, *rest = checks
    for check in rest:
        first = tirx.And(first, check)
    return first
