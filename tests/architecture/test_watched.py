"""The first process of our containers: it ends when its command hangs, and is otherwise as if it were not there."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.service.lone_processes import wait_for_state
from tests.thorough.chaos.processes import descendants
from tests.waiting import HANG_S, until

TOUCHES_AND_STOPS = (
    "import os, pathlib, signal, sys; pathlib.Path(sys.argv[1]).touch(); os.kill(os.getpid(), signal.SIGSTOP)"
)
IS_UP_AND_SLEEPS = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
SAYS_SIGNALS = """
import os, pathlib, signal, sys, time
def say(number, _):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")  # it may come while `ready` is being written
    if number == signal.SIGTERM: sys.exit(7)
for number in (signal.SIGTERM, signal.SIGHUP): signal.signal(number, say)
print("ready", flush=True)
while True: time.sleep(1)
"""
LEAVES_AN_ORPHAN = """
import subprocess, sys, time
subprocess.run(["sh", "-c", "sleep 0.2 & echo $! >" + sys.argv[1]])
time.sleep(600)
"""
SOONER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import watched;"
    "watched.HUNG_AFTER_S, watched.LOOK_S = 1.0, 0.1; sys.exit(watched.main(sys.argv[1:]))"
)
"""The same program, which waits for one second in place of fifteen."""
IS_REAPER = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""PR_SET_CHILD_SUBREAPER, which outlives an exec: orphans come to it as they come to a container's first process."""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a test has started; all that is left of them is killed."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        for pid in [*descendants(process.pid), process.pid]:
            if process.poll() is None:
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def start(started: list[subprocess.Popen[str]], alive: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SOONER, str(ROOT / "docker"), str(alive), *words]
    process = subprocess.Popen(
        [sys.executable, "-c", IS_REAPER, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    started.append(process)
    return process


def test_a_command_that_hangs_ends_the_container(started: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    process = start(started, alive, sys.executable, "-c", TOUCHES_AND_STOPS, str(alive))
    _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 70
    hung = re.search(rf"{alive} was not touched for 1 s: process (\d+) hangs", said)
    assert hung, said
    until(lambda: not Path(f"/proc/{hung.group(1)}").exists(), "it is not gone, stopped as it was")
    assert not alive.exists(), "what is gone is not healthy"


def test_signals_are_passed_on_and_the_code_is_the_commands(
    started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start(started, tmp_path / "alive", sys.executable, "-c", SAYS_SIGNALS)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == "SIGHUP\n"
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=HANG_S)
    assert (said, process.returncode) == ("SIGTERM\n", 7)


def test_orphans_are_collected(started: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    process = start(started, tmp_path / "alive", sys.executable, "-c", LEAVES_AN_ORPHAN, str(mark))
    until(lambda: mark.exists() and mark.read_text().strip() != "")
    orphan = Path("/proc") / mark.read_text().strip()
    until(lambda: not orphan.exists(), "a zombie is left")
    assert process.poll() is None, "and only the command's end is the container's"


def test_a_command_that_dies_by_a_signal_and_one_that_is_not_there(
    started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start(started, tmp_path / "alive", "sh", "-c", "kill -9 $$")
    process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + signal.SIGKILL
    process = start(started, tmp_path / "alive", str(tmp_path / "no-such-program"))
    _, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 127
    assert "no-such-program" in stderr


def test_the_first_sign_may_be_long_in_coming_and_an_older_file_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a part that takes longer than 15 s to come up after a container of before would never do so."""
    monkeypatch.syspath_prepend(str(ROOT / "docker"))
    watched, clock = importlib.import_module("watched"), [1000.0]
    (tmp_path / "alive").touch()
    words = [sys.executable, "-S", "-c", IS_UP_AND_SLEEPS, str(tmp_path / "up")]
    command = watched.Command(words, tmp_path / "alive")
    # The clock below runs by looks alone: those at a Python that is still being read from the disk count for nothing.
    until((tmp_path / "up").exists)
    wait_for_state(command.pid, "S")
    monkeypatch.setattr(watched.time, "monotonic", lambda: clock[0])

    def hung_after_s() -> float:
        began = clock[0]
        while not command.is_hung():
            clock[0] += watched.LOOK_S
        return clock[0] - began

    try:
        assert hung_after_s() == pytest.approx(watched.UP_WITHIN_S, abs=2 * watched.LOOK_S)
        os.utime(tmp_path / "alive", (1, 1))
        clock[0] += watched.LOOK_S
        assert hung_after_s() == pytest.approx(watched.HUNG_AFTER_S, abs=2 * watched.LOOK_S)
    finally:
        os.kill(command.pid, signal.SIGKILL)
        os.waitpid(command.pid, 0)
