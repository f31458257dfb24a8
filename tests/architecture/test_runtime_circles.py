"""No circle in the C runtime: who includes whom, and who calls what another file defines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from compiler.codegen.linking.toolchain import device_sources
from compiler.targets import KINDS
from tests.architecture.sources import ROOT
from tests.architecture.test_circles import circles

RUNTIME = ROOT / "compiler" / "runtime"
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"", re.DOTALL)
DEFINED = re.compile(
    r"^(?!static\b|extern\b|typedef\b|#)[A-Za-z_][\w \t*]*?\b(\w+)"
    r"(?:\([^;{}]*\)\s*\{|\s*(?:\[[^]]*\])*\s*[=;])",
    re.MULTILINE,
)
"""A function or variable with external linkage at the beginning of a line, where this code begins its definitions."""


def sources(kind: str) -> dict[str, str]:
    """What a binary with this kind of device may be made of."""
    paths = [*RUNTIME.glob("*.[ch]"), *(RUNTIME / "tuner").glob("*.[ch]")]
    device = [*device_sources(kind), *(RUNTIME / "devices").glob(f"{kind}_*.h")]
    return {path.name: path.read_text() for path in (*paths, *device)}


def uses(files: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Unit -> the units it stands on: a header and the source of the same name are one unit.

    A source stands on what it includes and on what defines a name that it mentions; a header, on what it includes.
    """
    plain = {name: COMMENT.sub(" ", text) for name, text in files.items()}
    units = {name: Path(name).stem for name in files}
    makers = {
        symbol: units[name]
        for name, text in plain.items()
        if name.endswith(".c")
        for symbol in DEFINED.findall(text)
        if symbol != "main"
    }
    edges: dict[str, set[str]] = {unit: set() for unit in units.values()}
    for name, text in files.items():
        edges[units[name]] |= {Path(other).stem for other in re.findall(r'#include "([^"]+)"', text) if other in units}
        if name.endswith(".c"):
            mentioned = set(re.findall(r"\b[A-Za-z_]\w*", plain[name]))
            edges[units[name]] |= {makers[symbol] for symbol in mentioned & makers.keys()}
    return {unit: frozenset(others - {unit}) for unit, others in edges.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_runtime_has_no_circle(kind: str) -> None:
    assert [sorted(circle) for circle in circles(uses(sources(kind)))] == []


def test_what_the_test_sees() -> None:
    edges = uses(sources("cpu"))
    assert {"cpu", "failure"} <= edges["session"]
    assert "backend" in edges["cpu"]
    assert "command_train" in edges["main"], "found by its definition: its declaration is in commands.h"
    assert "tuner" not in frozenset().union(*edges.values())


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.c": '#include "b.h"\nint f(void) { return g(); }', "b.h": "int g(void);", "b.c": "int g(void) {\n}"}, []),
        ({"a.c": "int f(void) { return g(); }", "b.c": "int g(void) { return f(); }"}, [["a", "b"]]),
        ({"a.h": "extern int x;", "a.c": "int x;\nvoid f(void) { g(); }", "b.c": "int g(void) { x; }"}, [["a", "b"]]),
        ({"a.h": '#include "b.h"', "b.h": '#include "a.h"'}, [["a", "b"]]),
        ({"a.c": "static int f(void) { g(); }", "b.c": "void g(void) { /* f */ }\nstatic int f(void) {}"}, []),
    ],
)
def test_the_rule_itself(files: dict[str, str], expected: list[list[str]]) -> None:
    assert [sorted(circle) for circle in circles(uses(files))] == expected
