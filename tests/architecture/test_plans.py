"""A kernel family's plan is arithmetic that every process may ask: nothing that it stands on imports TVM."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from compiler.codegen.family import FAMILIES
from tests.architecture.sources import ROOT, imports, python_files


def modules() -> dict[str, Path]:
    return {".".join(path.with_suffix("").parts): path for path in python_files("compiler")}


def tvm_below(start: str) -> list[str]:
    """What imports TVM, anywhere in it, among `start` and all that it stands on: in functions and for types too."""
    files, seen, waiting = modules(), set(), [start]
    found = []
    while waiting:
        name = waiting.pop()
        if name in seen or name not in files:
            continue
        seen.add(name)
        imported = imports(files[name])
        if any(one.split(".")[0] in ("tvm", "tvm_ffi") for one in imported):
            found.append(name)
        waiting.extend(imported)
    return sorted(found)


PLANS = {family.plan.__name__ for table in FAMILIES.values() for family in table.values()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(PLANS))
def test_a_plan_stands_on_nothing_that_imports_tvm(name: str) -> None:
    assert tvm_below(name) == []


def test_an_emitter_does() -> None:
    assert tvm_below("compiler.codegen.matmul.emit")


def test_the_table_loads_no_tvm() -> None:
    assert tvm_below("compiler.codegen.family") == []
    program = "import sys, compiler.codegen.family; sys.exit(any(name.split('.')[0] == 'tvm' for name in sys.modules))"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_a_family_imports_at_the_top_of_its_files() -> None:
    """What a function imports late, it hides: plan and emitter say at their top what they stand on."""
    late = {
        path.as_posix()
        for name, path in modules().items()
        if name.startswith("compiler.codegen.") and name.count(".") > 2
        for function in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(function, ast.FunctionDef)
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(function))
    }
    assert late == set()
