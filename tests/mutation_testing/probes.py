"""Which tests arrive at a mutant's line: a statement before it writes the name of the test that runs.

Processes that tests start inherit the name in PYTEST_CURRENT_TEST. What C runs is not asked: a test counts as arriving
at the runtime if it links a step.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutation_testing.mutant import Mutant
from tests.mutation_testing.python_source import first_line

MODULE = "mutation_probe"
SOURCE = '''"""Put here by a mutation run: who arrives at a place."""
import os

_seen = set()


def arrive(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (number, test) not in _seen:
        _seen.add((number, test))
        with open(os.path.join({folder!r}, str(number)), "a") as file:
            file.write(test.replace("\\n", " ") + "\\n")
'''
STATEMENT = """{indent}try: __import__("mutation_probe").arrive({number})
{indent}except Exception: pass
"""
LINK = ("compiler/codegen/linking/toolchain.py", "zig_cc")
"""The function that every link passes."""
PHASE = re.compile(r" \((setup|call|teardown)\)$")
GROUP = re.compile(r"@[\w-]+$")


def place_probes(root: Path, site_packages: Path, arrivals: Path, mutants: Sequence[Mutant]) -> None:
    """Write the probes into a checkout."""
    arrivals.mkdir(parents=True, exist_ok=True)
    (site_packages / f"{MODULE}.py").write_text(SOURCE.format(folder=str(arrivals)))
    lines: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, mutant in enumerate(mutants):
        for path, line in _places(root, mutant):
            lines[path][line].append(number)
    for path, numbers_by_line in lines.items():
        (root / path).write_text(_with_probes((root / path).read_text(), numbers_by_line))


def arriving_tests(arrivals: Path, number: int) -> set[str]:
    """Node ids of tests, without those of processes that no test's name reached."""
    file = arrivals / str(number)
    lines = file.read_text().splitlines() if file.exists() else []
    return {node_id(line) for line in lines if line}


def node_id(name: str) -> str:
    """A test's node id, of how pytest and xdist name it while it runs."""
    return GROUP.sub("", PHASE.sub("", name))


def _places(root: Path, mutant: Mutant) -> list[tuple[str, int]]:
    if mutant.path.endswith(".py"):
        return [(mutant.path, line) for line in mutant.probed_lines]
    path, function = LINK
    return [(path, first_line(function, (root / path).read_text()))]


def _with_probes(text: str, numbers_by_line: Mapping[int, Sequence[int]]) -> str:
    lines = text.splitlines(keepends=True)
    for line in sorted(numbers_by_line, reverse=True):
        indent = re.match(r"\s*", lines[line - 1])[0]  # type: ignore[index]
        probes = [STATEMENT.format(indent=indent, number=number) for number in numbers_by_line[line]]
        lines[line - 1 : line - 1] = probes
    return "".join(lines)
