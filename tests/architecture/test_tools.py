"""The linter, the formatter and the type checker over the whole tree, so that one closing line says it all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

TOOLS = {
    "linter": ["ruff", "check", "."],
    "formatter": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
}


@pytest.mark.xdist_group("types")
@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_tool_finds_nothing(tool: str) -> None:
    program, *arguments = TOOLS[tool]
    command = [str(Path(sys.executable).parent / program), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
