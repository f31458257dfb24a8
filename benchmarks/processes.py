"""Processes that take turns: each trains for ever and is stopped (SIGSTOP) while the others run.

So every side runs in its own process, starts once, and a slow minute of the machine hits all of them alike.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

START_S, STEP_S = 900.0, 180.0
"""Longest wait for the first step (frameworks compile there) and for another."""
WARMUP_STEPS = 3
UNTIMED_AFTER_STOP = 2
"""The step during which a process was stopped, and one that fills the caches again."""
TURN_S = 8.0
"""After this, a turn ends with its second timed step."""
_PR_SET_PDEATHSIG = 1


class Side(Protocol):
    """What a process is started by; it prints its steps as JSON lines, as our binary does."""

    @property
    def name(self) -> str:
        """As tables have it."""

    @property
    def command(self) -> tuple[str, ...]:
        """The program and its arguments."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Beside our own."""


class SideFailed(Exception):
    """A process ended, or went silent; the message is its last line."""


@dataclass
class RunningSide:
    """A side's process, and what it printed so far."""

    side: Side
    log: Path
    process: subprocess.Popen[bytes]
    start_ms: float = 0.0
    losses: list[float] = field(default_factory=list)
    _unread: bytes = b""

    def turn(self, steps: int) -> list[float]:
        """Run alone for `steps` timed steps (fewer if they are long); milliseconds of each. Raises: SideFailed."""
        self._drain()
        os.killpg(self.process.pid, signal.SIGCONT)
        for _ in range(UNTIMED_AFTER_STOP):
            self.step_ms(STEP_S)
        deadline = time.monotonic() + TURN_S
        found: list[float] = []
        while len(found) < steps and (len(found) < 2 or time.monotonic() < deadline):
            found.append(self.step_ms(STEP_S))
        self.pause()
        return found

    def step_ms(self, limit_s: float) -> float:
        """Wait for a step's line; its milliseconds. Raises: SideFailed."""
        while True:
            event = self._event(time.monotonic() + limit_s)
            if event["event"] == "error":
                raise SideFailed(str(event.get("message", event)))
            if event["event"] == "step":
                self.losses.append(float(event["loss"]))
                return float(event["us"]) / 1e3

    def pause(self) -> None:
        """Stop until the next turn."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def peak_rss_bytes(self) -> int:
        """Highest resident size so far."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0

    def end(self) -> None:
        """Kill the process and what it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _event(self, deadline: float) -> dict[str, Any]:
        """The next line that is an event; frameworks may print other things."""
        while True:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                if line.startswith(b'{"event"'):
                    event: dict[str, Any] = json.loads(line)
                    return event
                continue
            self._receive(deadline)

    def _receive(self, deadline: float) -> None:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise SideFailed(f"no step within its time limit{self._last_words()}")
        received = os.read(self.process.stdout.fileno(), 1 << 16)
        if not received:
            self.process.wait()
            raise SideFailed(f"exit code {self.process.returncode}{self._last_words()}")
        self._unread += received

    def _drain(self) -> None:
        """Take in the lines of steps that ended before the stop."""
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], 0)[0]:
            self._receive(time.monotonic())
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            if line.startswith((b'{"event":"step"', b'{"event": "step"')):
                self.losses.append(float(json.loads(line)["loss"]))

    def _last_words(self) -> str:
        """The last line of its standard error that is no log message."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if "Error" in line or "error" in line or "failed" in line] or lines
        return f": {told[-1][:300]}" if told else ""


@contextmanager
def started(side: Side, log: Path) -> Iterator[RunningSide]:
    """Start a side, wait for its warm-up steps, stop it; killed on the way out. Raises: SideFailed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors:
        begun = time.monotonic()
        process = subprocess.Popen(
            side.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **side.environment},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    running = RunningSide(side, log, process)
    try:
        running.step_ms(START_S)
        running.start_ms = (time.monotonic() - begun) * 1e3
        for _ in range(WARMUP_STEPS - 1):
            running.step_ms(STEP_S)
        running.pause()
        yield running
    finally:
        running.end()


def _die_with_parent() -> None:
    """A stopped process would outlive a killed harness for ever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def take_turns(sides: Sequence[RunningSide], rounds: int, steps: int) -> Iterator[tuple[int, RunningSide, list[float]]]:
    """Yield (round, side, milliseconds of its steps), every side once a round."""
    for number in range(rounds):
        for side in sides:
            yield number, side, side.turn(steps)
