"""Small real processes for tests about processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    """Until the kernel says so: a signal is delivered a little later."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
        time.sleep(0.01)
