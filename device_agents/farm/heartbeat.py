"""The heartbeat, in a process of its own, so that a job that takes every core and all memory cannot starve it.

The agent starts `python -m device_agents.farm.heartbeat`, writes one JSON line of settings to its stdin, then a line
for each change of phase or step. The end of stdin (the agent is gone) ends it: a dead agent's lease must run out. It
prints one JSON line when the farm says something: `{"cancel": true}` or `{"lost": "why"}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_agents.errors import AgentError, EnrolmentError, FarmError, Refused, Stale
from device_agents.farm.client import FarmClient
from device_agents.farm.state import StateFolder
from device_agents.wire import HEARTBEAT_INTERVAL_S, DeviceDescription, HeartbeatRequest, dumps, from_json, to_json

RETRY_S = 2.0
STOPPED_INTERVALS = 10
"""An agent that has been stopped (SIGSTOP, a debugger) for so many intervals does no work: its lease may run out."""
STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class HeartbeatSettings:
    """What the process needs to know."""

    server: str
    state: str
    session: str
    lease_token: str
    interval_s: float
    description: DeviceDescription


class Heartbeat:
    """The agent's side: starts the process, tells it the phase, hears of cancellation and loss."""

    def __init__(self, client: FarmClient, lease_token: str, *, interval_s: float = HEARTBEAT_INTERVAL_S) -> None:
        self._settings = HeartbeatSettings(
            client.server, str(client.state.path), client.session, lease_token, interval_s, client.description
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read, name="heartbeat", daemon=True)
        self.is_cancelled = False
        self.lost: str | None = None
        """Why the lease is not ours any more; None while it is."""

    def __enter__(self) -> Heartbeat:
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
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
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
        self._reader.join(timeout=STOP_TIMEOUT_S)
        if process.stdout:
            process.stdout.close()

    def tell(self, phase: str, steps_done: int) -> None:
        """What the next beat says."""
        self._write({"phase": phase, "steps_done": steps_done})

    def _write(self, value: Any) -> None:
        if self._process and self._process.stdin:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(dumps(value) + b"\n")
                self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process is not None
        for line in self._process.stdout or ():
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                self.is_cancelled = self.is_cancelled or bool(said.get("cancel"))
                self.lost = self.lost or said.get("lost")


def main() -> None:
    """The process: beats until stdin ends or the lease is lost."""
    parent = os.getppid()
    settings = from_json(HeartbeatSettings, json.loads(sys.stdin.buffer.readline()))
    with contextlib.suppress(OSError):
        os.nice(-5)
    state = StateFolder(Path(settings.state))
    client = FarmClient(settings.server, state, session=settings.session, description=settings.description)
    request, next_s = HeartbeatRequest("download", 0), time.monotonic()
    running_s = next_s
    os.set_blocking(sys.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            if selector.select(max(0.0, next_s - time.monotonic())):
                data = os.read(sys.stdin.fileno(), 1 << 16)
                if not data:
                    return
                request = _newest(data, request)
            if not is_stopped(parent):
                running_s = time.monotonic()
            elif time.monotonic() - running_s > STOPPED_INTERVALS * settings.interval_s:
                next_s = time.monotonic() + settings.interval_s
            if time.monotonic() >= next_s:
                wait_s = _beat(client, settings, request)
                if wait_s is None:
                    return
                next_s = time.monotonic() + wait_s


def is_stopped(pid: int) -> bool:
    """Whether the process is there, and stopped by a signal or a debugger."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")


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
        print(json.dumps({"lost": str(error)}), flush=True)
        return None
    except FarmError:
        return min(RETRY_S, settings.interval_s)
    except AgentError as error:
        print(json.dumps({"lost": str(error)}), flush=True)
        return None
    if answer.cancel:
        print(json.dumps({"cancel": True}), flush=True)
    return settings.interval_s


if __name__ == "__main__":
    main()
