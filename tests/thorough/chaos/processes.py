"""Processes by what they do: the parts' own, and the children that they start. Read from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path


def children(pid: int) -> list[int]:
    """Direct children of all threads of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(word) for word in (thread / "children").read_text().split()]
    return found


def descendants(pid: int) -> list[int]:
    """All processes below one, parents first."""
    found, waiting = [], children(pid)
    while waiting:
        one = waiting.pop(0)
        found.append(one)
        waiting += children(one)
    return found


def command_of(pid: int) -> str:
    """The words of a process's command; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def below(pid: int, word: str) -> list[int]:
    """Processes below one whose command has a word in it."""
    return [one for one in descendants(pid) if word in command_of(one)]


def state_of(pid: int) -> str:
    """`R`, `S`, `T` (stopped) ...; empty if the process is gone, or only its exit code is there."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return "" if state in "ZX" else state


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """A signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
