"""Small real processes for tests about processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import until


@contextmanager
def sleeping_process() -> Iterator[subprocess.Popen[bytes]]:
    """One that does nothing, for long."""
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def stopped_process() -> Iterator[int]:
    """The id of one that a signal has stopped."""
    with sleeping_process() as process:
        process.send_signal(signal.SIGSTOP)
        wait_for_state(process.pid, "T")
        yield process.pid


def wait_for_state(pid: int, state: str) -> None:
    """Until the kernel says so of every thread: a signal is delivered a little later."""
    until(lambda: {_state(thread) for thread in Path(f"/proc/{pid}/task").iterdir()} == {state}, f"{pid}: not {state}")


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]
