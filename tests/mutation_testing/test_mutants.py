"""Mutants of small sources, where they are put, and who is seen to arrive there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation_testing.c_source import c_mutants
from tests.mutation_testing.probes import arriving_tests, node_id, place_probes
from tests.mutation_testing.python_source import python_mutants
from tests.mutation_testing.report import BY_TEST, BY_TEST_ALL, Result, tables

PYTHON = '''"""Numbers: 1."""
LIMIT = 3


def clipped(values: list[int], most: int = 4) -> int | None:
    """Sum of at most 5."""
    if most < 0 and values:
        raise ValueError(f"{most} < 0")
    values.sort()
    print(7)
    return sum(values) if LIMIT not in values else None
'''
C = """/* 1 < 2 */
static int clipped(int value) {
    if (value < 3 && ready())
        return value;
    log_it("4 == 5");
    return 0;
}
"""


def changes(text: str, path: str) -> set[tuple[str, str, str]]:
    mutants = (c_mutants if path.endswith(".c") else python_mutants)(path, text)
    return {(mutant.operator, mutant.before, mutant.after) for mutant in mutants}


def test_mutants_of_python_are_of_what_is_computed() -> None:
    assert changes(PYTHON, "clip.py") == {
        ("constant", "3", "4"),
        ("constant", "4", "5"),
        ("constant", "0", "1"),
        ("comparison", "<", "<="),
        ("comparison", "not in", "in"),
        ("branch", "and", "or"),
        ("branch", "most < 0 and values", "(not (most < 0 and values))"),
        ("branch", "LIMIT not in values", "(not (LIMIT not in values))"),
        ("dropped call", "values.sort()", "pass"),
        ("return", "return sum(values) if LIMIT not in values else None", "return None"),
    }


def test_mutants_of_c_are_of_code() -> None:
    assert changes(C, "clip.c") == {
        ("comparison", "<", "<="),
        ("constant", "3", "4"),
        ("constant", "0", "1"),
        ("branch", "&&", "||"),
        ("branch", "value < 3 && ready()", "!(value < 3 && ready())"),
        ("dropped call", 'log_it("4 == 5");', ";"),
        ("return", "value", "0"),
    }


def test_a_changed_source_is_a_program_and_another_text_is_refused() -> None:
    for mutant in python_mutants("clip.py", PYTHON):
        compile(mutant.applied(PYTHON), "clip.py", "exec")
        with pytest.raises(ValueError, match=r"clip\.py:\d+ does not read"):
            mutant.applied("#" + PYTHON)


def test_a_probe_names_the_arriving_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linking = tmp_path / "compiler/codegen/linking"
    linking.mkdir(parents=True)
    (linking / "toolchain.py").write_text('def zig_cc():\n    """Links."""\n    return 1\n')
    (tmp_path / "clip.py").write_text(PYTHON)
    mutants = [*python_mutants("clip.py", PYTHON), c_mutants("clip.c", C)[0]]
    place_probes(tmp_path, tmp_path, tmp_path / "arrivals", mutants)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/test_a.py::test_b[1 2]@group (call)")
    subprocess.run([sys.executable, "-c", "import clip; clip.clipped([1])"], cwd=tmp_path, check=True)
    arrivals = {mutant: arriving_tests(tmp_path / "arrivals", number) for number, mutant in enumerate(mutants)}
    assert [mutant.operator for mutant, tests in arrivals.items() if not tests] == ["comparison"]
    assert {name for tests in arrivals.values() for name in tests} == {"tests/test_a.py::test_b[1 2]"}


def test_a_test_is_known_by_its_node_id() -> None:
    assert node_id("tests/test_a.py::test_b[x@y] (setup)") == "tests/test_a.py::test_b[x@y]"


def test_the_last_line_says_what_make_test_kills() -> None:
    mutants = python_mutants("pockfarm/clip.py", PYTHON)[:3]
    results = {0: Result(BY_TEST, "test_a"), 1: Result(BY_TEST_ALL, "test_b")}
    lines = tables(mutants, results)
    assert lines[-1] == "2 of 3 mutants tried: make test kills 1 of the 2 that make test-all kills (50%)"
    assert any(line.startswith(BY_TEST_ALL) and "pockfarm/clip.py" in line for line in lines)
