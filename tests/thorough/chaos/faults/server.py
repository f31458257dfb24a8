"""A broker that forgets, a database that restarts, doorbells that cannot be rung."""

from __future__ import annotations

import signal
import socket
import time

from tests.thorough.chaos.faults.fault import Wound, after
from tests.thorough.chaos.field import Field
from tests.thorough.chaos.links import until
from tests.thorough.chaos.processes import send
from tests.thorough.chaos.victims import Victim, pending_doorbells, queued_jobs

QUEUE = b"pockfarm"


def flush(field: Field, victim: Victim) -> Wound | None:
    """The broker forgets everything while messages wait in it."""
    if (
        not until(lambda: _ask(field, b"LLEN " + QUEUE) not in (b":0", b""), 20, pause_s=0.05)
        or not victim.is_in_flight()
    ):
        return None
    waiting = _ask(field, b"LLEN " + QUEUE).decode()[1:]
    if waiting == "0" or _ask(field, b"FLUSHALL") != b"+OK":
        return None
    jobs, wound = queued_jobs(field), after(field, victim, {})
    return Wound(
        f"{waiting} message(s) waiting; {', '.join(jobs)} queued",
        wound.ended_at,
        lambda: not set(jobs) & set(queued_jobs(field)) and wound.has_recovered(),
    )


def restart(field: Field, victim: Victim) -> Wound | None:
    """A database that is told to stop at once (SIGINT: fast shutdown), and is started again by whoever keeps it up."""
    if not victim.is_in_flight():
        return None
    old = {victim.part: field.pid(victim.part)}
    send(victim.pids, signal.SIGINT)
    return after(field, victim, old)


def silence(field: Field, victim: Victim) -> Wound | None:
    """No doorbell can be rung while one is due; then the API process that wrote it dies before it can."""
    links = [field.broker[name] for name in ("api-1", "api-2")]
    for link in links:
        link.cut()
    try:
        if not until(lambda: bool(pending_doorbells(field)), 30, pause_s=0.05):
            return None
        jobs = tuple(pending_doorbells(field))[:1]
        send(victim.pids, signal.SIGKILL)
        time.sleep(3)
        if jobs[0] not in pending_doorbells(field):
            return None
    finally:
        for link in links:
            link.mend()
    rung = Victim(victim.part, victim.pids, (), f"doorbell of {jobs[0]} in the outbox", victim.is_in_flight)
    wound = after(field, rung, {})
    return Wound(
        rung.evidence, wound.ended_at, lambda: jobs[0] not in pending_doorbells(field) and wound.has_recovered()
    )


def _ask(field: Field, command: bytes) -> bytes:
    """One line of the broker's answer; empty if it does not."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2)
            connection.connect(str(field.state.socket))
            connection.sendall(command + b"\r\n")
            return connection.recv(64).strip()
    except OSError:
        return b""
