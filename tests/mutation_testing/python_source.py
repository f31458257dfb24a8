"""Every mutant of a Python file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.mutation_testing.mutant import Mutant, swaps

COMPARISONS = swaps([("<", "<="), (">", ">="), ("==", "!="), ("in", "not in"), ("is", "is not")])
BOOLEANS = swaps([("and", "or")])
MESSAGE_CALLS = re.compile(r"(^|\.)(print|debug|info|warning|error|exception|warn|write_line)$")
TYPE_FIELDS = ("annotation", "returns", "decorator_list")
"""Of a node, those that do not compute."""


def python_mutants(path: str, text: str) -> list[Mutant]:
    """All mutants of what a file computes: not of types, docstrings, messages, or what only a type checker reads."""
    tree = ast.parse(text)
    source = _Source(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    module_lines = tuple(sorted({line for node in functions if (line := _first_line(node, source))}))
    return [
        Mutant(path, operator, start, end, text[start:end], after, source.line(start), lines or module_lines)
        for operator, start, end, after, lines in _walk(tree, source, ())
        if lines or module_lines
    ]


def first_line(name: str, text: str) -> int:
    """The line in which a function's first statement begins. Raises: StopIteration if there is no such function."""
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name == name)
    return _first_line(next(nodes), _Source(text))


@dataclass(frozen=True)
class _Source:
    text: str

    def __post_init__(self) -> None:
        starts = [0]
        for line in self.text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        object.__setattr__(self, "starts", starts)

    def offset(self, line: int, column_bytes: int) -> int:
        starts: list[int] = self.__dict__["starts"]
        content = self.text[starts[line - 1] : starts[line]] if line < len(starts) else ""
        return starts[line - 1] + len(content.encode()[:column_bytes].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self.offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self.offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def line(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1

    def begins_line(self, node: ast.stmt) -> bool:
        """Whether nothing but its indentation stands before a statement, so that another can be put there."""
        start = self.offset(_line_of(node), node.col_offset)
        before = self.text[self.text.rfind("\n", 0, start) + 1 : start]
        return not before.strip() and not self.text.startswith("elif", start)


Change = tuple[str, int, int, str, tuple[int, ...]]


def _walk(node: ast.AST, source: _Source, lines: tuple[int, ...]) -> Iterator[Change]:
    """Changes below a node; `lines` is where the statement begins that it stands in, if that is in a function."""
    for operator, start, end, after in _changes(node, source):
        yield operator, start, end, after, lines
    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    for child in _computing_children(node):
        if isinstance(child, ast.stmt) and (lines or is_function) and source.begins_line(child):
            yield from _walk(child, source, (_line_of(child),))
        else:
            yield from _walk(child, source, lines)


def _computing_children(node: ast.AST) -> Iterator[ast.AST]:
    """Without types, messages, and what only other readers of the file run."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name not in TYPE_FIELDS and isinstance(child, ast.AST) and not _is_left_out(child):
                yield child


def _is_left_out(node: ast.AST) -> bool:
    is_text = isinstance(node, (ast.JoinedStr, ast.Raise)) or _is_message(node)
    return is_text or _is_for_other_readers(node) or (isinstance(node, ast.Expr) and _is_message(node.value))


def _changes(node: ast.AST, source: _Source) -> Iterator[tuple[str, int, int, str]]:
    start, end = source.span(node) if hasattr(node, "lineno") else (0, 0)
    if isinstance(node, ast.Compare):
        yield from _between(node.left, node.comparators[0], COMPARISONS, "comparison", source)
    elif isinstance(node, ast.BoolOp):
        yield from _between(node.values[0], node.values[1], BOOLEANS, "branch", source)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield "constant", start, end, _another(node.value)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        first, last = source.span(node.test)
        yield "branch", first, last, f"(not ({source.text[first:last]}))"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "dropped call", start, end, "pass"
    elif isinstance(node, ast.Return) and not (node.value is None or _is_none(node.value)):
        yield "return", start, end, "return None"


def _between(
    left: ast.expr, right: ast.expr, changed: dict[str, str], operator: str, source: _Source
) -> Iterator[tuple[str, int, int, str]]:
    """The operator's own words between two operands."""
    start, end = source.span(left)[1], source.span(right)[0]
    words = re.search(r"not\s+in|is\s+not|[<>=!]=|[<>]|\b(in|is|and|or)\b", source.text[start:end])
    if words and (after := changed.get(" ".join(words.group().split()))):
        yield operator, start + words.start(), start + words.end(), after


def _another(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return str(not value)
    return str(value + 1) if isinstance(value, int) else repr(value * 2 or 1.0)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_message(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and MESSAGE_CALLS.search(ast.unparse(node.func)) is not None


def _is_for_other_readers(node: ast.AST) -> bool:
    """Blocks under `TYPE_CHECKING`, and what runs only as a program."""
    return (
        isinstance(node, ast.If)
        and re.fullmatch(r"TYPE_CHECKING|__name__ == '__main__'", ast.unparse(node.test)) is not None
    )


def _line_of(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef, source: _Source) -> int:
    """Where a function's first statement begins, past its docstring; 0 if none begins a line."""
    statements = [
        statement
        for statement in function.body
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    ]
    return next((_line_of(statement) for statement in statements if source.begins_line(statement)), 0)
