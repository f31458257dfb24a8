"""Which mutants are tried: so many of each part of the product, at places that a seed decides."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from compiler.codegen.linking.toolchain import zig_cc
from compiler.errors import BuildError
from compiler.targets import load_cpu
from tests.kernel_harness.machine import native_target
from tests.mutation_testing.c_source import c_mutants
from tests.mutation_testing.mutant import Mutant
from tests.mutation_testing.python_source import python_mutants

SHARES = {"compiler": 20, "service": 14, "C runtime": 10, "device_agents": 8, "pockfarm": 6, "workers": 2}
"""Mutants of each part, 60 together: about by how much source it has, and two of the smallest."""
RUNTIME = Path("compiler/runtime")


def draw(root: Path, seed: int) -> list[Mutant]:
    """The mutants of a seed, part by part: each operator is as likely as it is frequent."""
    chosen: list[Mutant] = []
    for part, count in SHARES.items():
        candidates = mutants_of(part, root)
        random.Random(f"{seed} {part}").shuffle(candidates)
        chosen += _first(candidates, count, lambda mutant: is_valid(root, mutant))
    return chosen


def part_of(mutant: Mutant) -> str:
    return "C runtime" if mutant.path.endswith(".c") else mutant.path.partition("/")[0]


def mutants_of(part: str, root: Path) -> list[Mutant]:
    is_c = part == "C runtime"
    files = sorted((root / (RUNTIME if is_c else part)).rglob("*.c" if is_c else "*.py"))
    mutants = c_mutants if is_c else python_mutants
    return [mutant for file in files for mutant in mutants(str(file.relative_to(root)), file.read_text())]


def is_valid(root: Path, mutant: Mutant) -> bool:
    """Whether the change is a program at all, and another one."""
    text = mutant.applied((root / mutant.path).read_text())
    if mutant.path.endswith(".py"):
        compile(text, mutant.path, "exec")
        return True
    runtime = root / RUNTIME
    folders = [runtime, *(folder for folder in runtime.rglob("*") if folder.is_dir())]
    includes = [word for folder in folders for word in ("-I", str(folder))]
    triple = load_cpu(native_target()).zig_triple
    with tempfile.TemporaryDirectory(prefix="pockfarm-mutant-") as name:
        (Path(name) / "mutant.c").write_text(text)
        try:
            zig_cc(triple, ["-w", *includes, "-c", "mutant.c", "-o", "mutant.o"], Path(name))
        except BuildError:
            return False
    return True


def _first(candidates: list[Mutant], count: int, holds: Callable[[Mutant], bool]) -> list[Mutant]:
    """The first that hold, no two on one line."""
    chosen: dict[tuple[str, int], Mutant] = {}
    for candidate in candidates:
        place = (candidate.path, candidate.line)
        if len(chosen) < count and place not in chosen and holds(candidate):
            chosen[place] = candidate
    return list(chosen.values())
