"""Calls: that there may be work for the devices of a lane, that something has changed for one device, or that a job or
run has changed, for whoever watches it.

A transaction notes them; they are heard after its commit (`dispatch.py`), and are no promise: whoever hears one looks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import event
from sqlalchemy.orm import Session

from service.store.database.models import Event, Job, Run

_NOTED = "calls"


@dataclass(slots=True)
class Calls:
    """The calls that a session gathers: lanes, devices and subjects."""

    lanes: dict[str, int] = field(default_factory=dict)
    """Number of devices that are to look at each lane."""
    devices: set[str] = field(default_factory=set)
    """Devices that are to look again at what they are, and then for work."""
    subjects: set[str] = field(default_factory=set)
    """Jobs and runs that have changed, or to which something has happened."""

    def __bool__(self) -> bool:
        return bool(self.lanes or self.devices or self.subjects)

    def add(self, other: Calls) -> None:
        """Adds the other's calls."""
        for lane_id, count in other.lanes.items():
            self.lanes[lane_id] = self.lanes.get(lane_id, 0) + count
        self.devices |= other.devices
        self.subjects |= other.subjects


def noted(session: Session) -> Calls:
    """Returns the calls of this session so far, to which more may be added."""
    calls: Calls = session.info.setdefault(_NOTED, Calls())
    return calls


def calls_of(session: Session) -> Calls | None:
    """Returns the calls of a session that has committed; None if it made none."""
    calls: Calls | None = session.info.pop(_NOTED, None)
    return calls


def call_for(session: Session, run: Run) -> None:
    """Calls devices for a run that waits: as many as have had it, and one more, on which it has not failed."""
    if run.lane_id is not None:
        noted(session).add(Calls(lanes={run.lane_id: run.attempts + 1}))


def call_device(session: Session, device_id: str) -> None:
    """Calls a device about which an operator or the farm has decided something."""
    noted(session).devices.add(device_id)


def watch_subjects(kind: type[Session]) -> None:
    """Makes sessions of this kind note which jobs and runs they change."""

    @event.listens_for(kind, "before_flush")
    def note_subjects(session: Session, _context: object, _instances: object) -> None:
        changed = {row.id for row in session.dirty if isinstance(row, Run | Job)}
        changed |= {row.subject for row in session.new if isinstance(row, Event)}
        if changed:
            noted(session).subjects |= changed
