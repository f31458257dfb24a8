"""Has an npz looked at by a process of its own, with little memory, little time and nothing else.

A user's file is never parsed in the API process.

The child (`python -m service.artefacts.datasets.inspection LIMIT MEMORY CPU`) finds the file as its standard input and
writes one JSON line, {"arrays": …} or {"refused": …}, to its standard output, a file in memory that it may not fill.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any, BinaryIO

from service.artefacts.datasets.archive import BadData
from service.artefacts.datasets.arrays import ArrayInfo
from service.base.confinement import ChildLimits, confine
from service.base.landlock import Files, python_places

ROOT = Path(__file__).resolve().parents[3]
ANSWER_BYTES = 1 << 16
AT_ONCE = 4
"""Children of one API process; a further one waits for its turn."""
_turns = BoundedSemaphore(AT_ONCE)


@dataclass(frozen=True, slots=True)
class InspectionLimits:
    """Limits of one inspection of one file. `wall_s` counts from its turn."""

    unpacked_bytes: int
    memory_bytes: int
    cpu_s: int
    wall_s: float


def inspect_confined(file: BinaryIO, limits: InspectionLimits) -> dict[str, ArrayInfo]:
    """Returns every array of the npz, fully read and checked by a child process. `file` needs a descriptor. Raises:
    BadData.
    """
    file.flush()
    reopened = Path(f"/proc/self/fd/{file.fileno()}")  # opened anew: a position of its own, and not for writing
    with _turns, reopened.open("rb", buffering=0) as read_only, _in_memory() as answer:
        exit_code = _run_child(read_only, answer, limits)
        answer.seek(0)
        return _outcome(answer.read(ANSWER_BYTES), exit_code, limits)


def _in_memory() -> BinaryIO:
    """Returns a file in memory for the answer: a disk may be full of other things."""
    return os.fdopen(os.memfd_create("answer", os.MFD_CLOEXEC), "w+b")


def _run_child(file: Any, answer: Any, limits: InspectionLimits) -> int:
    """Runs the child and returns its exit code, or minus the signal that ended it; after a time-out: minus SIGALRM."""
    numbers = (os.getpid(), limits.unpacked_bytes, limits.memory_bytes, limits.cpu_s)
    command = [sys.executable, "-m", "service.artefacts.datasets.inspection", *map(str, numbers)]
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        return subprocess.run(
            command,
            stdin=file,
            stdout=answer,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            start_new_session=True,
            timeout=limits.wall_s,
        ).returncode
    except subprocess.TimeoutExpired:  # it is dead and gone by now
        return -signal.SIGALRM


def _outcome(text: bytes, exit_code: int, limits: InspectionLimits) -> dict[str, ArrayInfo]:
    if exit_code in (-signal.SIGALRM, -signal.SIGXCPU, -signal.SIGKILL):
        raise BadData(
            "limits.dataset-time",
            f"looking at it takes more than {limits.cpu_s} s of processor time or {limits.wall_s:.0f} s",
            hint="split the data set",
        )
    try:
        answer: dict[str, Any] = json.loads(text)
    except ValueError:
        raise BadData(
            "data.unreadable",
            f"the process that looked at it ended with code {exit_code} and no answer",
            hint="write it anew with numpy.savez(file, x=…, y=…)",
        ) from None
    if "refused" in answer:
        raise BadData(**answer["refused"])
    return {name: ArrayInfo.from_json(value) for name, value in answer["arrays"].items()}


def main(arguments: list[str]) -> int:
    """Runs the child: looks at the standard input."""
    from service.artefacts.datasets.npz import inspect_npz  # NumPy is the child's alone

    parent, unpacked_bytes, memory_bytes, cpu_s = map(int, arguments)
    limits = ChildLimits(memory_bytes, cpu_s, file_bytes=ANSWER_BYTES)
    confine(limits, Files(python_places(ROOT, ("device_agents", "service"))), parent=parent)
    try:
        with os.fdopen(0, "rb", closefd=False) as file:
            arrays = inspect_npz(file, unpacked_limit_bytes=unpacked_bytes)
        answer: dict[str, Any] = {"arrays": {name: info.to_json() for name, info in arrays.items()}}
    except BadData as error:
        answer = {"refused": {"code": error.code, "message": error.message, "where": error.where, "hint": error.hint}}
    except MemoryError:
        message = f"looking at it takes more than {memory_bytes:,} bytes of memory"
        answer = {"refused": {"code": "limits.dataset-memory", "message": message, "hint": "split the data set"}}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
