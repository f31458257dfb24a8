"""A run's history as it explains itself: every attempt with what followed, and what a waiting run waits for."""

from __future__ import annotations

from service.dashboard import addresses
from service.dashboard import format as fmt
from service.dashboard.parts import Fact
from service.dashboard.tables import Column, Row, Table, table
from service.work.runs.why import RunWhy, Waiting

ATTEMPT_COLUMNS = (
    Column("attempt", "Attempt", "number", primary=True),
    Column("device", "Device"),
    Column("state", "State", "state"),
    Column("cause", "Cause"),
    Column("code", "Code", "code"),
    Column("message", "Message", wrap=True),
    Column("decision", "What followed", files_only=True),
    Column("created_at", "Started", "time", "UTC"),
    Column("finished_at", "Finished", "time", "UTC"),
)
WAITING_COLUMNS = (
    Column("device", "Device", primary=True),
    Column("class", "Class"),
    Column("code", "Why", "code"),
    Column("message", "Now it", wrap=True),
    Column("until", "Until", "time", "UTC"),
)


def attempt_table(explanation: RunWhy) -> Table:
    """Returns a table of every attempt of a run."""
    rows = [
        Row(
            {
                "attempt": attempt.n,
                "device": attempt.device_name,
                "state": attempt.state,
                "cause": attempt.cause,
                "code": attempt.code,
                "message": attempt.message or None,
                "decision": attempt.decision,
                "created_at": fmt.iso(attempt.created_at),
                "finished_at": fmt.iso(attempt.finished_at),
            },
            {"device": addresses.device(attempt.device_id)},
        )
        for attempt in explanation.tries
    ]
    return table("attempts", "Attempts", ATTEMPT_COLUMNS, rows)


def waiting_table(waiting: Waiting) -> Table:
    """Returns a table of every device on which a waiting run may execute, with what prevents it."""
    rows = [
        Row(
            {
                "device": device.name,
                "class": device.device_class,
                "code": device.code,
                "message": device.message,
                "until": fmt.iso(device.until),
            },
            {"device": addresses.device(device.device_id)},
        )
        for device in waiting.devices
    ]
    return table("waiting", "Devices that it may wait for", WAITING_COLUMNS, rows)


def waiting_facts(waiting: Waiting) -> tuple[Fact, ...]:
    """Returns the run's place in the queue and when it may start."""
    least = "at least " if waiting.is_position_least else ""
    position = f"{least}{waiting.position:,}" if waiting.position is not None else fmt.ABSENT
    start = fmt.ABSENT if waiting.expected_start_at is None else f"{fmt.clock_seconds(waiting.expected_start_at)} UTC"
    return (
        Fact("Position", position),
        Fact("May start", start, hint=waiting.basis),
        Fact("How sure", waiting.confidence, hint=waiting.basis),
        Fact("Expires", f"{fmt.clock_seconds(waiting.expires_at)} UTC"),
    )
