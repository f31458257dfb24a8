"""The heartbeat, in a process of its own, so that a job that takes every core and all memory cannot starve it.

The agent starts `python -m device_agents.farm.heartbeat`, writes one JSON line of settings to its stdin, then a line
for each change of phase or step. The end of stdin (the agent is gone) ends it: a dead agent's lease must run out. It
prints one JSON line when the farm says something: `{"cancel": true}` or `{"lost": "why"}`; and `{}` every two seconds,
by which the agent sees that it is neither dead nor stopped: else it starts another.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from device_agents.devices import DEVICE_KINDS, Board
from device_agents.devices.condition import ConditionReader
from device_agents.errors import AgentError, EnrolmentError, FarmError, Refused, Stale
from device_agents.farm.client import FarmClient
from device_agents.farm.state import StateFolder
from device_agents.wire import HEARTBEAT_INTERVAL_S, DeviceDescription, HeartbeatRequest, dumps, from_json, to_json
from device_agents.wire.watchdog import STOPPED, Watch

log = logging.getLogger("device_agents")

RETRY_S = 2.0
ALIVE_S = 2.0
HUNG_S = 15.0
"""A heartbeat process that has said nothing for so long is killed, and another started: it says that it lives every
`ALIVE_S`, from a thread that waits for nobody."""
LOOK_S = 2.5
RESTART_S = 1.0
STOPPED_INTERVALS = 10
"""The number of intervals for which an agent may be stopped (SIGSTOP, a debugger) before its lease may run out."""
STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class HeartbeatSettings:
    """The settings that the process needs."""

    server: str
    state: str
    session: str
    lease_token: str
    interval_s: float
    stopped_s: float
    """An agent that has been stopped for so long does no work: its lease may run out."""
    description: DeviceDescription
    kind: str = ""
    """The kind of device, by which its condition is read."""
    phase: str = "download"
    steps_done: int = 0
    """The steps that the first beat reports."""


class Heartbeat:
    """The agent's side: keeps the process up, tells it the phase, hears of cancellation and loss."""

    def __init__(
        self, client: FarmClient, lease_token: str, *, interval_s: float = HEARTBEAT_INTERVAL_S, kind: str = ""
    ) -> None:
        self._settings = HeartbeatSettings(
            client.server,
            str(client.state.path),
            client.session,
            lease_token,
            interval_s,
            STOPPED_INTERVALS * interval_s,
            client.description,
            kind,
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        self.is_cancelled = False
        self.lost: str | None = None
        """Why the lease is not ours any more; None while it is."""

    def __enter__(self) -> Heartbeat:
        self._start()
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closing.set()
            process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._watcher.join(timeout=STOP_TIMEOUT_S)
        if process.stdout:
            process.stdout.close()

    def tell(self, phase: str, steps_done: int) -> None:
        """Sets what the next beat reports."""
        with self._lock:
            self._settings = replace(self._settings, phase=phase, steps_done=steps_done)
            self._write({"phase": phase, "steps_done": steps_done})

    def _start(self) -> None:
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "device_agents.farm.heartbeat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._write(to_json(self._settings))

    def _write(self, value: Any) -> None:
        if self._process and self._process.stdin:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(dumps(value) + b"\n")
                self._process.stdin.flush()

    def _watch(self) -> None:
        """Listens, and starts another process when this one has died or hangs: the lease must not run out for that."""
        while True:
            process = self._process
            assert process is not None
            why = self._listen(process)
            if self._closing.is_set() or self.lost:
                return
            log.warning("the heartbeat process %s; starting another", why)
            _clear_away(process)
            if self._closing.wait(RESTART_S):
                return
            with self._lock:
                if not self._closing.is_set():
                    self._start()

    def _listen(self, process: subprocess.Popen[bytes]) -> str:
        """Listens to the process until it ends, or gives no sign of life. Returns which."""
        assert process.stdout is not None
        watch, rest = Watch(), b""
        watch.look(process.pid, time.monotonic(), has_sign=True)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not watch.is_silent(HUNG_S):
                is_ready = bool(selector.select(LOOK_S))
                watch.look(process.pid, time.monotonic(), has_sign=is_ready)
                if is_ready:
                    data = os.read(process.stdout.fileno(), 1 << 16)
                    if not data:
                        return f"ended with code {process.wait()}"
                    *lines, rest = (rest + data).split(b"\n")
                    self._take(lines)
        return f"gave no sign of life for {watch.silent_s:.0f} s"

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                self.is_cancelled = self.is_cancelled or bool(answer.get("cancel"))
                self.lost = self.lost or answer.get("lost")


def _clear_away(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()


def main() -> None:
    """The process: beats until stdin ends or the lease is lost."""
    parent = os.getppid()
    # Unbuffered: a buffer would swallow the lines that have come behind the first while this process started.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
        settings = from_json(HeartbeatSettings, json.loads(lines.readline()))
    with contextlib.suppress(OSError):
        os.nice(-5)
    state = StateFolder(Path(settings.state))
    client = FarmClient(settings.server, state, session=settings.session, description=settings.description)
    client.condition = next(
        (
            ConditionReader(kind, Board(), state.path, state.scratch.name)
            for kind in DEVICE_KINDS
            if kind.name == settings.kind
        ),
        None,
    )
    threading.Thread(target=_say_alive, name="alive", daemon=True).start()
    request = HeartbeatRequest(settings.phase, settings.steps_done)
    rhythm = Rhythm(settings.interval_s, settings.stopped_s, time.monotonic())
    os.set_blocking(sys.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            if selector.select(max(0.0, rhythm.next_s - time.monotonic())):
                data = os.read(sys.stdin.fileno(), 1 << 16)
                if not data:
                    return
                request = _newest(data, request)
            if rhythm.is_due(time.monotonic(), is_agent_stopped=is_stopped(parent)):
                wait_s = _beat(client, settings, request)
                if wait_s is None:
                    return
                rhythm.next_s = time.monotonic() + wait_s


class Rhythm:
    """When the next beat is due: none is while the agent has been stopped for long."""

    def __init__(self, interval_s: float, stopped_s: float, now_s: float) -> None:
        self.next_s = now_s
        self._interval_s = interval_s
        self._stopped_s = stopped_s
        self._running_s = now_s

    def is_due(self, now_s: float, *, is_agent_stopped: bool) -> bool:
        if not is_agent_stopped:
            self._running_s = now_s
        elif now_s - self._running_s > self._stopped_s:
            self.next_s = now_s + self._interval_s
        return now_s >= self.next_s


def _say_alive() -> None:
    """A stopped agent does not listen, and must not hold us up: what does not fit into the pipe is left out."""
    os.set_blocking(sys.stdout.fileno(), False)
    while True:
        with contextlib.suppress(BlockingIOError):
            os.write(sys.stdout.fileno(), b"{}\n")
        time.sleep(ALIVE_S)


def is_stopped(pid: int) -> bool:
    """Whether the process is there, and stopped by a signal or a debugger."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in STOPPED


def _newest(data: bytes, request: HeartbeatRequest) -> HeartbeatRequest:
    for line in data.splitlines():
        with contextlib.suppress(ValueError):
            request = from_json(HeartbeatRequest, json.loads(line))
    return request


def _beat(client: FarmClient, settings: HeartbeatSettings, request: HeartbeatRequest) -> float | None:
    """Seconds until the next beat; None when there will be none."""
    try:
        answer = client.heartbeat(settings.lease_token, request)
    except (Stale, Refused, EnrolmentError) as error:
        _say(lost=str(error)[:1000])
        return None
    except FarmError:
        return min(RETRY_S, settings.interval_s)
    except AgentError as error:
        _say(lost=str(error)[:1000])
        return None
    if answer.cancel:
        _say(cancel=True)
    return settings.interval_s


def _say(**what: object) -> None:
    """Prints one line, in one piece: shorter than what a pipe takes at once."""
    with contextlib.suppress(BlockingIOError):
        os.write(sys.stdout.fileno(), json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main()
