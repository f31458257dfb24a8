"""Every mutant of a C file of the runtime, by its text: the compiler says afterwards which of them are C."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mutation_testing.mutant import Mutant, swaps

COMPARISONS = swaps([("<", "<="), (">", ">="), ("==", "!=")])
BOOLEANS = swaps([("&&", "||")])
NOT_CODE = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*',
    re.DOTALL | re.MULTILINE,
)
COMPARISON = re.compile(r"(?<= )(<=|>=|==|!=|<|>)(?= )")
BOOLEAN = re.compile(r"(?<= )(&&|\|\|)(?= )")
CONSTANT = re.compile(r"(?<![\w.])\d+(?![\w.])")
CONDITION = re.compile(r"\b(?:if|while) \(")
CALL = re.compile(r"^ {4,}(?:PF_TRY\(\w+\(.*\)\)|(?!return\b)\w+\(.*\));$", re.MULTILINE)
RETURN = re.compile(r"^ +return (?!0;|NULL;)([^;{}]+);", re.MULTILINE)


def c_mutants(path: str, text: str) -> list[Mutant]:
    """All mutants outside comments, strings and the preprocessor's lines."""
    code = NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    return [
        Mutant(path, operator, start, end, text[start:end], after, text.count("\n", 0, start) + 1, ())
        for operator, start, end, after in _changes(code, text)
    ]


def _changes(code: str, text: str) -> Iterator[tuple[str, int, int, str]]:
    for match in COMPARISON.finditer(code):
        yield "comparison", *match.span(), COMPARISONS[match.group()]
    for match in BOOLEAN.finditer(code):
        yield "branch", *match.span(), BOOLEANS[match.group()]
    for match in CONSTANT.finditer(code):
        yield "constant", *match.span(), str(int(match.group()) + 1)
    for match in CONDITION.finditer(code):
        end = _closing(code, match.end())
        yield "branch", match.end(), end, f"!({text[match.end() : end]})"
    for match in CALL.finditer(code):
        start = match.start() + len(match.group()) - len(match.group().lstrip())
        yield "dropped call", start, match.end(), ";"
    for match in RETURN.finditer(code):
        yield "return", *match.span(1), "0"


def _closing(code: str, start: int) -> int:
    """Where the bracket ends that is open at `start`."""
    depth, at = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        at += 1
    return at - 1
