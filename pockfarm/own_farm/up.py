"""`pockfarm up`, `down` and `status`: a farm on this machine, kept up by a supervisor process in the background."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pockfarm
from pockfarm.errors import AS_LINES, BELOW, FarmDown, UsageError
from pockfarm.output.table import text_table
from pockfarm.own_farm.parts import free_port
from pockfarm.own_farm.state import OFF, FarmStatus, StateFolder
from pockfarm.profiles import remember_here

PREFERRED_PORT = 8000
LAST_PORT = 65535
START_WITHIN_S = 240.0
STOP_WITHIN_S = 60.0
POLL_INTERVAL_S = 0.2


def up(state: StateFolder, *, say: Callable[[str], None], port: int = PREFERRED_PORT) -> FarmStatus:
    """Start the farm unless it is up already; returns once every part is up. Raises: UsageError, FarmDown."""
    if sys.platform == "win32":
        raise UsageError(
            "a farm runs on Linux, not on Windows", hint="for a farm elsewhere: pockfarm init", hint_form=BELOW
        )
    if not 0 <= port <= LAST_PORT:
        raise UsageError(f"ports are 1 to {LAST_PORT:,}", where=f"--port {port}", hint="0 takes one that is free")
    state.make()
    remember_here(state.path)
    if state.is_up():
        status = _wait_until_ready(state, None, say)
        if port not in (0, PREFERRED_PORT) and not status.url.endswith(f":{port}"):
            say(
                f"warning: the farm is up already, at {status.url} and not at port {port}; `pockfarm down` first, then "
                f"`pockfarm up --port {port}`"
            )
        return status
    _forget(state)
    log = state.logs / "supervisor.log"
    say(f"starting the farm in {state.path}")
    chosen_port = free_port(port)
    if port not in (0, chosen_port):
        say(f"  port {port} is in use: the farm takes {chosen_port}; name another with --port")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pockfarm.own_farm.supervisor", str(state.path), str(chosen_port)],
            cwd=Path(pockfarm.__file__).parent.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _wait_until_ready(state, process, say)


def down(state: StateFolder, *, say: Callable[[str], None]) -> None:
    """Stop the farm and wait until it is gone; nothing to do if it is not up. Raises: FarmDown."""
    status = state.status()
    if not state.is_up() or status is None:
        say(f"no farm is up in {state.path}")
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(status.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_WITHIN_S
    while state.is_up():
        if time.monotonic() > deadline:
            raise FarmDown(f"the supervisor (pid {status.pid}) did not stop within {STOP_WITHIN_S:.0f} s")
        time.sleep(POLL_INTERVAL_S)
    say("the farm is down; its data stay in " + str(state.path))


def status_of(state: StateFolder) -> FarmStatus:
    """Returns the status of the farm that is up. Raises: FarmDown when it is not up."""
    status = state.status()
    if status is None or not state.is_up():
        raise FarmDown(f"no farm is up on {state.path}", hint="start it with: pockfarm up")
    return status


def status_text(status: FarmStatus) -> str:
    """Returns the status of the farm as a table for a person."""
    rows = [
        (name, part.state, str(part.pid or ""), str(part.restarts), part.why) for name, part in status.parts.items()
    ]
    return f"{status.url}\n{text_table(('part', 'state', 'pid', 'restarts', 'why'), rows)}"


def _wait_until_ready(
    state: StateFolder, supervisor: subprocess.Popen[bytes] | None, say: Callable[[str], None]
) -> FarmStatus:
    deadline = time.monotonic() + START_WITHIN_S
    reported: set[str] = set()
    while time.monotonic() < deadline:
        status = state.status()
        for name, part in status.parts.items() if status else ():
            if part.state in ("up", OFF) and name not in reported and supervisor is not None:
                reported.add(name)
                say(f"  {name} is up" if part.state == "up" else f"  going without {name}: {part.why}")
        if status and status.ready:
            return status
        if status and status.problem:
            if supervisor is not None:
                supervisor.wait()  # it ends by itself after it has said why
            cause, _, log = status.problem.partition("\n")
            raise FarmDown(f"the farm does not start: {cause}", hint=log, hint_form=AS_LINES)
        if (supervisor is not None and supervisor.poll() is not None) or (supervisor is None and not state.is_up()):
            raise FarmDown("the farm's supervisor ended", hint=f"its log is {state.logs / 'supervisor.log'}")
        time.sleep(POLL_INTERVAL_S)
    raise FarmDown(f"the farm was not up within {START_WITHIN_S:.0f} s", hint=f"the logs are in {state.logs}")


def _forget(state: StateFolder) -> None:
    """Remove what an earlier supervisor wrote, so that nobody takes it for the new one's."""
    (state.path / "farm.json").unlink(missing_ok=True)
