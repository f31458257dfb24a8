"""Names and docstrings of the product are plain: no name says what happened to a value, no docstring is a fragment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

import pytest

from tests.architecture.sources import ROOT, python_files

pytestmark = pytest.mark.xdist_group("sources")  # which are parsed once for all of them

PRODUCT = ("compiler", "service", "workers", "device_agents", "pockfarm", "migrations")
RIDDLES = frozenset({"one", "found", "own", "known", "kept", "said", "told", "made", "asked", "taken"})
"""Name the value by the term of its field: `matches`, `remaining`, `parameter`, `message`."""
FRAGMENT = re.compile(r"(What|Of|One)\b")
"""Begin with a verb in the third person ("Returns ..."), or name the thing ("Terminal output")."""
MADE_FROM = "pockfarm/client/synchronous/"
"""Written by a script from the asynchronous client, which is checked."""
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("device_agents/job/step_events.py", "taken"): "a field of the binary's JSON",
    **{
        (f"compiler/{path}.py", "one"): "the number 1, beside `zero`"
        for path in (
            "codegen/grid/attention/emit",
            "codegen/winograd/points",
            "frontend/expansion/unrolled",
            "frontend/exporters/embedding_bags",
            "ops/elements",
            "ops/unary",
            "step/loss_kinds",
        )
    },
}
"""Names that stay, by file, and the reason."""


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that the code binds, with its line: variables, parameters, attributes of `self`, definitions."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield getattr(node, "lineno", 0), name


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes, functions and assignments, with their lines."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text.strip()


def test_names_say_what_a_value_is() -> None:
    riddles = {
        f"{path.as_posix()}:{line}: {name}"
        for path in python_files(*PRODUCT)
        if not path.as_posix().startswith(MADE_FROM)
        for line, name in bound_names(ast.parse((ROOT / path).read_text()))
        if name in RIDDLES and (path.as_posix(), name) not in EXCEPTIONS
    }
    assert sorted(riddles) == []


def test_docstrings_are_sentences_or_name_the_thing() -> None:
    fragments = {
        f"{path.as_posix()}:{line}: {text[:60]}"
        for path in python_files(*PRODUCT)
        for line, text in docstrings(ast.parse((ROOT / path).read_text()))
        if FRAGMENT.match(text)
    }
    assert sorted(fragments) == []


def test_each_exception_is_still_needed() -> None:
    needed = {
        (path, name)
        for path, name in EXCEPTIONS
        if name in {bound for _, bound in bound_names(ast.parse((ROOT / path).read_text()))}
    }
    assert needed == EXCEPTIONS.keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("found = 1", ["found"]),
        ("def f(known, *, own=1): pass", ["f", "known", "own"]),
        ("class A:\n    kept: int\n    def f(self): self.told = 1", ["A", "f", "kept", "self", "told"]),
        ("[one for one in x]", ["one"]),
        ("import a as said", ["said"]),
        ("try:\n    pass\nexcept E as made:\n    pass", ["made"]),
        ("print(found.own)", []),
    ],
)
def test_what_binds_a_name(text: str, expected: list[str]) -> None:
    assert sorted(name for _, name in bound_names(ast.parse(text))) == expected
