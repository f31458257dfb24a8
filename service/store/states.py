"""The states of runs, attempts, jobs and devices: every way from one to another is a line of a table here.

`move` applies a line and is the only code that writes `state`; what no line allows raises `IllegalTransition` and
changes nothing. Whoever calls it holds the row. `docs/states.md` is made of these tables (`python -m
service.store.states`).

The effect of a request to cancel, in words that follow an id: a second one, and one that is late, say so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Update, update
from sqlalchemy.orm import Session

from service.base.failures import Defect
from service.base.identifiers import clean_text
from service.store import events
from service.store.announcements import announce_end
from service.store.calls import call_device, call_for
from service.store.database.models import (
    ATTEMPT_STATES,
    DEVICE_STATES,
    JOB_STATES,
    OPEN_JOB_STATES,
    OPEN_RUN_STATES,
    RUN_STATES,
    Attempt,
    Device,
    DeviceEvent,
    Job,
    Run,
)

OPEN = frozenset((*OPEN_RUN_STATES, *OPEN_JOB_STATES))


def effect_of(row: Run | Job) -> str:
    """Describes the effect on a row that nobody has touched yet."""
    if row.state == "cancelled":
        return "was cancelled before"
    if row.state not in OPEN:
        return f"had ended before: {row.state}"
    if row.cancel_requested:
        return "was asked to stop before, and does when whoever works on it hears of it"
    return "is cancelled" if row.state == "queued" else "is asked to stop"


Row = Run | Attempt | Job | Device


@dataclass(frozen=True, slots=True)
class Transition:
    """A line of a table: `event` leads from any of `sources` to `target`."""

    event: str
    sources: tuple[str, ...]
    target: str
    who: str
    when: str
    """Condition that has to hold, or the line's purpose."""
    records: str
    """Record that is written beside the state."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The states of one kind of row and the ways between them."""

    name: str
    row: type[Row]
    states: tuple[str, ...]
    first: str
    ends: tuple[str, ...]
    """States in which it is over (`finished_at` is written); nothing leads out of them but what a line says."""
    transitions: tuple[Transition, ...]

    def transition(self, event: str, state: str) -> Transition | None:
        """Returns the line for an event in a state; None if there is none."""
        return next(
            (
                transition
                for transition in self.transitions
                if transition.event == event and state in transition.sources
            ),
            None,
        )


class IllegalTransition(Defect):
    """Code of ours tried to move a row in a way that no table allows. Nothing was changed."""

    code = "service.illegal-transition"

    def __init__(self, machine: str, row_id: str, state: str, event: str) -> None:
        super().__init__(f"{machine} {row_id} is {state}: no {event!r} leads out of that")
        self.machine, self.row_id, self.state, self.event = machine, row_id, state, event


_T = Transition
_HELD = ("leased", "running")
_ENDING = "finished_at, cause, code, message; an event"
_WITH_REPORT = "the device's report, or what the farm made of its end"
RUN = Machine(
    "run",
    Run,
    RUN_STATES,
    "queued",
    ("succeeded", "failed", "cancelled", "expired", "inconclusive"),
    (
        _T(
            "lease",
            ("queued",),
            "leased",
            "device",
            "it fits, has not failed on the run, and may have work",
            "device_id, attempts; an event",
        ),
        _T("start", ("leased",), "running", "device", "its first sign of life", "started_at; an event"),
        _T(
            "requeue",
            ("queued", *_HELD),
            "queued",
            "device, sweeper",
            "an attempt ended, and another may do better",
            "phase, queue_deadline_at; an event with the reason",
        ),
        _T(
            "succeed",
            ("queued", *_HELD),
            "succeeded",
            "device",
            "a report; from queued: a late one, and nobody took over",
            "finished_at, the report's summary; an event",
        ),
        _T("fail", ("queued", *_HELD), "failed", "device, sweeper", _WITH_REPORT, _ENDING),
        _T(
            "give-up", ("queued", *_HELD), "inconclusive", "device, sweeper", "several devices could not do it", _ENDING
        ),
        _T(
            "cancel",
            ("queued", *_HELD),
            "cancelled",
            "owner",
            "it waits, or its device has stopped or is silent",
            _ENDING,
        ),
        _T("expire", ("queued",), "expired", "sweeper", "queue_deadline_at has passed", _ENDING),
    ),
)
ATTEMPT = Machine(
    "attempt",
    Attempt,
    ATTEMPT_STATES,
    "leased",
    ("succeeded", "failed", "cancelled", "inconclusive", "lost"),
    (
        _T("start", ("leased",), "running", "device", "its first sign of life", "started_at"),
        _T(
            "succeed",
            (*_HELD, "lost"),
            "succeeded",
            "device",
            "a report; from lost: while nobody has taken over",
            "finished_at",
        ),
        _T(
            "fail",
            (*_HELD, "lost"),
            "failed",
            "device",
            "a report, or one that was refused",
            "finished_at, cause, code",
        ),
        _T("cancel", (*_HELD, "lost"), "cancelled", "device", "it was told to stop", "finished_at, cause, code"),
        _T("give-up", (*_HELD, "lost"), "inconclusive", "device", "a report that says so", "finished_at, cause, code"),
        _T(
            "lose",
            _HELD,
            "lost",
            "sweeper, agent",
            "silence, a clock that ran out, a new session, a wish for other work (from leased: it never arrived)",
            "finished_at, cause, code",
        ),
    ),
)
JOB = Machine(
    "job",
    Job,
    JOB_STATES,
    "queued",
    ("succeeded", "failed", "cancelled", "expired"),
    (
        _T(
            "claim",
            ("queued",),
            "compiling",
            "worker",
            "by one conditional UPDATE",
            "claim_hash, worker, attempts; an event",
        ),
        _T(
            "give-back",
            ("compiling",),
            "queued",
            "worker, sweeper",
            "its worker or child was lost, and may try again",
            "rung_at; an event with the reason, a doorbell",
        ),
        _T("succeed", ("compiling",), "succeeded", "worker", "the claim holds", "finished_at, bundle_digest; an event"),
        _T("fail", ("compiling",), "failed", "worker, sweeper", "a typed failure, or lost for the last time", _ENDING),
        _T("cancel", ("queued", "compiling"), "cancelled", "owner", "it waits, or its worker has heard", _ENDING),
        _T("expire", ("queued",), "expired", "sweeper", "queue_deadline_at has passed", _ENDING),
    ),
)
DEVICE = Machine(
    "device",
    Device,
    DEVICE_STATES,
    "active",
    ("removed",),
    (
        _T(
            "quarantine",
            ("active", "quarantined"),
            "quarantined",
            "operator, farm",
            "said so; by strikes or clock: if active",
            "state_reason, quarantined_for; a line of its history",
        ),
        _T(
            "release",
            ("active", "quarantined"),
            "active",
            "operator, farm",
            "said so; a strike taken back, the clock right again, a canary run that was right",
            "a line of its history",
        ),
        _T("remove", ("active", "quarantined", "removed"), "removed", "operator", "for ever", "a line of its history"),
    ),
)
MACHINES: tuple[Machine, ...] = (RUN, ATTEMPT, JOB, DEVICE)
EVENT_OF = {
    "succeeded": "succeed",
    "failed": "fail",
    "cancelled": "cancel",
    "inconclusive": "give-up",
    "expired": "expire",
    "lost": "lose",
}
"""The event that leads a run, an attempt or a job to each of its ends."""
_KINDS = {"quarantine": "quarantined", "release": "released", "remove": "removed"}


def machine_of(row: Row | type[Row]) -> Machine:
    """Returns the table for a row or its class."""
    kind = row if isinstance(row, type) else type(row)
    return next(machine for machine in MACHINES if machine.row is kind)


def move(session: Session, row: Row, event: str, **details: Any) -> None:
    """Applies a line of the row's table and writes its history. `details`: further fields of the history's entry.

    Raises: IllegalTransition; then row and history are as they were.
    """
    machine = machine_of(row)
    transition = machine.transition(event, row.state)
    if transition is None:
        raise IllegalTransition(machine.name, row.id, row.state, event)
    row.state = transition.target
    if isinstance(row, Device):
        call_device(session, row.id)
    elif isinstance(row, Run) and row.state == RUN.first:
        call_for(session, row)
    if not isinstance(row, Device):
        if transition.target in machine.ends:
            row.finished_at = time.time()
            if not isinstance(row, Attempt):
                announce_end(session, row)
        if event == "start":
            row.started_at = row.started_at or time.time()
    _tell(session, row, event, details)


def _tell(session: Session, row: Row, event: str, details: dict[str, Any]) -> None:
    if isinstance(row, (Run, Job)):
        events.add(session, row.id, "state", state=row.state, **details)
    elif isinstance(row, Device):
        message = clean_text(str(details.get("message", "")), 1000)
        session.add(DeviceEvent(device_id=row.id, kind=_KINDS[event], message=message))


def moving(kind: type[Row], event: str, row_id: str) -> Update:
    """Returns a line of the table as one conditional UPDATE, for a claim that holds no row; its history is the
    caller's.
    """
    machine = machine_of(kind)
    (line,) = [transition for transition in machine.transitions if transition.event == event]
    return update(kind).where(kind.id == row_id, kind.state.in_(line.sources)).values(state=line.target)


def end_phrase(state: str) -> str:
    """Returns the verb phrase for an end: `failed`, `was cancelled`, `stayed inconclusive`."""
    return {"cancelled": "was cancelled", "inconclusive": "stayed inconclusive"}.get(state, state)


def document() -> str:
    """Returns the tables as a page of the documentation."""
    parts = [_HEAD]
    for machine in MACHINES:
        parts.append(f"## {machine.name.capitalize()}\n\nBegins as `{machine.first}`. {_diagram(machine)}\n")
        parts.append(
            "| event | from | to | who | when | what is recorded |\n|---|---|---|---|---|---|\n"
            + "".join(map(_table_row, machine.transitions))
        )
    return "\n".join(parts)


def _table_row(line: Transition) -> str:
    return f"| {line.event} | {', '.join(line.sources)} | {line.target} | {line.who} | {line.when} | {line.records} |\n"


_HEAD = """# States

What a run, an attempt of a run, a job and a device can be, and every way from one state to another. This page is made
of the tables in `service/store/states.py` (`make golden`); one function applies a line, and nothing else writes a
state. What no line allows is a defect of ours: it changes nothing, and is answered with 500
`service.illegal-transition`.
"""


def _diagram(machine: Machine) -> str:
    arrows = sorted(
        {(source, transition.target) for transition in machine.transitions for source in transition.sources},
        key=lambda pair: (machine.states.index(pair[0]), machine.states.index(pair[1])),
    )
    lines = "\n".join(f"    {source} --> {target}" for source, target in arrows)
    drawn = f"```mermaid\nstateDiagram-v2\n    [*] --> {machine.first}\n{lines}\n```"
    return f"Over as: {_listed(machine.ends)}.\n\n{drawn}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(document(), end="")
