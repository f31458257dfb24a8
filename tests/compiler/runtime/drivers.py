"""A step's binary with a stub for its driver: the stub is built, the binary runs with it, and its log is read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from compiler.element_types import ELEMENT_TYPES
from tests.compiler.agreement.step_binary import StepBinary

_OPERAND = re.compile(r"^\{(\d+)u, (\d+), PF_(\w+)\}", re.MULTILINE)
"""A row of `pf_operand` in the source of a binary's tables."""


def build_stub(source: Path, library: Path, *options: str, triple: str = "x86_64-linux-gnu.2.31") -> Path:
    """The stub as a library of the name that the driver has; its folder."""
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        triple,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        *options,
        str(source),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True, env={**os.environ, "ZIG_LOCAL_CACHE_DIR": str(library.parent)})
    return library.parent


def run_with(
    drivers: Path, binary: StepBinary, command: str, *arguments: object, **environment: str
) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and events of a command on the binary's own weights; the folder's drivers come before the system's."""
    words = [
        *binary.runner,
        str(binary.folder / "bin/step"),
        command,
        "--weights",
        str(binary.weights),
        *map(str, arguments),
    ]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "LD_LIBRARY_PATH": str(drivers), **environment},
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def logged(log: Path, word: str) -> list[str]:
    """What follows a word in the lines of a stub's log that begin with it."""
    return [line.removeprefix(word).strip() for line in log.read_text().splitlines() if line.split()[0] == word]


def mapped_bytes(binary: StepBinary) -> int:
    """All memory of the step, by the plan that is in the binary."""
    (info,) = binary.run("info")
    return int(info["mapped_bytes"])


def operand_bytes(tables: str) -> dict[int, int]:
    """Offset -> the most bytes of an operand there, by the source of a binary's tables."""
    found: dict[int, int] = {}
    for offset, count, dtype in _OPERAND.findall(tables):
        size = int(count) * ELEMENT_TYPES[dtype.lower()].item_bytes
        found[int(offset)] = max(size, found.get(int(offset), 0))
    return found
