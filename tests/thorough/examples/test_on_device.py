"""The example of a step without a farm, as its reader runs it, and the page as it stands."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from examples import on_device
from tests.thorough.docs.snippets import snippets


def test_c_and_python_learn_alike(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["on_device"])
    monkeypatch.delitem(sys.modules, "examples.on_device")
    runpy.run_module("examples.on_device", run_name="__main__")
    said = capfd.readouterr().out.splitlines()
    rows = [tuple(map(float, line.split()[1:])) for line in said if re.match(r" +\d+ ", line)]
    assert len(rows) == on_device.STEPS
    assert all(in_c == in_python for in_c, in_python in rows)
    assert rows[-1][0] < rows[0][0]
    assert said[0].startswith("after 10 steps: loss ")


def test_the_page_runs_from_its_top_to_its_bottom(tmp_path: Path) -> None:
    """As its reader does: each block in turn, in one folder."""
    commands = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-W", "ignore", "-c"]}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    said = []
    for block in snippets("docs/on-device.md"):
        done = subprocess.run(
            [*commands[block.language], block.text],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{block.place}\n{done.stdout}\n{done.stderr}"
        said.append(done.stdout + done.stderr)
    _, _, binary, program, python = said
    assert "One training step, compiled for" in binary
    assert '"event":"done"' in binary
    assert len(program.split()) == 10
    assert "Score(samples=20, loss=" in python
    assert (tmp_path / "parameters.safetensors").is_file()
