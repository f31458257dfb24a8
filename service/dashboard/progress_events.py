"""The progress of a run, by the events that it has sent: steps, validations, lines of its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import Validation
from service.dashboard.facts import EventFacts
from service.store.database.models import Event

MOST_STEPS = 5000
MOST_LINES = 200


@dataclass(frozen=True, slots=True)
class SentStep:
    """A step as it was sent; None: not finite, or not told."""

    step: int
    loss: float | None
    ms: float | None
    at: float


def steps(session: Session, run_id: str, limit: int | None = MOST_STEPS) -> list[SentStep]:
    """Returns the newest steps in their order; for an attempt that goes on, also those of the attempts before."""
    query = select(Event.body, Event.at).where(Event.subject == run_id, Event.kind == "step").order_by(Event.id.desc())
    rows = [dict(body) | {"at": at} for body, at in session.execute(query.limit(limit))]
    return [
        SentStep(int(body.get("step") or 0), _number(body.get("loss")), _milliseconds(body.get("step_us")), body["at"])
        for body in _as_one(rows[::-1])
    ]


def log(session: Session, run_id: str) -> list[EventFacts]:
    """Returns the newest lines that the run's devices sent, oldest first."""
    query = select(Event).where(Event.subject == run_id, Event.kind == "log").order_by(Event.id.desc())
    newest = session.scalars(query.limit(MOST_LINES))
    return [EventFacts(event.at, event.kind, str(event.body.get("message", "")), event.id) for event in newest][::-1]


def losses(session: Session, run_id: str, limit: int | None = MOST_STEPS) -> list[float | None]:
    """Returns the losses in step order."""
    return [step.loss for step in steps(session, run_id, limit)]


def validations(session: Session, run_id: str) -> list[Validation]:
    """Returns the validations in step order; for an attempt that goes on, also those before."""
    query = select(Event.body).where(Event.subject == run_id, Event.kind == "eval").order_by(Event.id)
    needed = {"step", "samples", "loss"}
    bodies = [body for body in session.scalars(query) if body.get("message") == "validation" and needed <= body.keys()]
    return [
        Validation(body["step"], body["samples"], body["loss"], _number(body.get("accuracy")))
        for body in _as_one(bodies)
        if body["step"] and body["samples"]
    ]


def _as_one(bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the events of steps as if from one attempt: steps that a later attempt repeats are dropped from an
    earlier one.
    """
    merged: list[dict[str, Any]] = []
    for body in bodies:
        step = body.get("step") or 0
        while merged and merged[-1].get("attempt") != body.get("attempt") and (merged[-1].get("step") or 0) >= step:
            merged.pop()
        merged.append(body)
    return merged


def _milliseconds(value: object) -> float | None:
    us = _number(value)
    return None if us is None else us / 1000


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
