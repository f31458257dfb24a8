"""How attempts end and what becomes of their runs: one place for retries, blame and strikes.

    run:      queued -> leased -> running -> succeeded | failed | cancelled | inconclusive
                ^__________|________|            (a lost attempt, or one that failed for a reason that may pass)
    attempt:  leased -> running -> succeeded | failed | cancelled | inconclusive | lost

Rows are held in the order attempt, run, device, everywhere, so that two transactions never wait for each other.
No web framework here: the sweeper and the agent endpoints both use it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.database.models import LIVE_ATTEMPT_STATES, OPEN_RUN_STATES, Attempt, Device, Run
from service.devices.blame import note, strike
from service.events import service as events
from service.identifiers import clean_text
from service.settings import Settings

RETRIED_CAUSES = ("device", "infra", "service")
"""Causes that may pass on another try."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt or run ended; cause and code are None for success."""

    state: str
    cause: str | None = None
    code: str | None = None
    message: str = ""
    hint: str = ""


LEASE_EXPIRED = Ending("lost", "infra", "infra.lease-expired", "the device did not say that it was alive in time")
OUT_OF_TIME = Ending("lost", "limits", "limits.run-time", "the attempt took longer than its clock allows",
                     "use fewer steps, or raise POCKFARM_RUN_S")  # fmt: skip


def end_attempt(attempt: Attempt, ending: Ending) -> None:
    """Record how the attempt ended; its token is stale from now on."""
    attempt.state, attempt.finished_at = ending.state, time.time()
    attempt.cause, attempt.code, attempt.message = ending.cause, ending.code, clean_text(ending.message, 4000)


def end_run(session: Session, run: Run, ending: Ending) -> None:
    """Record how the run ended."""
    run.state, run.finished_at, run.phase = ending.state, time.time(), ""
    run.cause, run.code = ending.cause, ending.code
    run.message, run.hint = clean_text(ending.message, 4000), clean_text(ending.hint, 1000)
    events.add(session, run.id, "state", state=run.state, cause=run.cause, code=run.code, message=run.message)


def queue_again(session: Session, run: Run, settings: Settings, reason: str) -> None:
    """Another device (or the same one) may try; waiting starts anew, for clocks do not eat each other."""
    run.state, run.phase, run.steps_done = "queued", "", 0
    run.queue_deadline_at = time.time() + settings.queue_s
    events.add(session, run.id, "state", state="queued", attempt=run.attempts, reason=clean_text(reason, 500))


def settle(session: Session, settings: Settings, run: Run, ending: Ending) -> None:
    """What becomes of a run whose newest attempt has ended (other than lost): another try, or the same ending."""
    if ending.state == "cancelled" and not run.cancel_requested:
        _retry_or(
            session, settings, run, Ending("inconclusive", "infra", "infra.agent-stopped", ending.message), ending
        )
    elif ending.state in ("failed", "inconclusive") and ending.cause in RETRIED_CAUSES:
        if run.cancel_requested:
            end_run(session, run, Ending("cancelled", "user", "run.cancelled", f"cancelled; then: {ending.message}"))
            return
        last = Ending("inconclusive", ending.cause, ending.code, ending.message, ending.hint)
        _retry_or(session, settings, run, last, ending)
    else:
        end_run(session, run, ending)


def _retry_or(session: Session, settings: Settings, run: Run, last: Ending, ending: Ending) -> None:
    if run.attempts < settings.run_attempts:
        queue_again(session, run, settings, f"{ending.code or ending.state}: {ending.message}")
    else:
        end_run(session, run, last)


def lose(session: Session, settings: Settings, attempt: Attempt, ending: Ending) -> None:
    """End a live attempt whose device went silent, and settle its run. The caller holds the attempt's row."""
    run = session.scalars(select(Run).where(Run.id == attempt.run_id).with_for_update()).one()
    device = session.scalars(select(Device).where(Device.id == attempt.device_id).with_for_update()).one()
    end_attempt(attempt, ending)
    strike(session, device, f"run {run.id}: {ending.message}", most=settings.device_strikes)
    if run.state not in OPEN_RUN_STATES or run.attempts != attempt.n:
        return
    if run.cancel_requested:
        end_run(session, run, Ending("cancelled", "user", "run.cancelled", "cancelled; the device never confirmed"))
    elif ending.cause == "limits":
        end_run(session, run, Ending("failed", ending.cause, ending.code, ending.message, ending.hint))
    elif run.attempts < settings.run_attempts:
        queue_again(session, run, settings, ending.message)
    else:
        session.flush()
        end_run(session, run, _blame(session, run))


def _blame(session: Session, run: Run) -> Ending:
    """Lost on two devices: the model's doing. On one only: perhaps the device's."""
    lost_on = select(func.count(Attempt.device_id.distinct())).where(Attempt.run_id == run.id, Attempt.state == "lost")
    devices = session.scalar(lost_on) or 0
    if devices > 1:
        return Ending(
            "failed",
            "model",
            "model.kills-devices",
            f"{devices} devices went silent while they ran it",
            "it may need more memory than the boards have; try a smaller batch or a sparser plan",
        )
    return Ending("inconclusive", "device", "device.silent", f"its device went silent {run.attempts} times",
                  "look at the device's page, and try another device")  # fmt: skip


def lose_live(session: Session, settings: Settings, device: Device, reason: str) -> None:
    """Give up what a device worked on before: it starts again, or asks for other work."""
    live = select(Attempt).where(Attempt.device_id == device.id, Attempt.state.in_(LIVE_ATTEMPT_STATES))
    attempt = session.scalar(live.with_for_update())
    if attempt is not None:
        note(session, device.id, "abandoned", f"run {attempt.run_id}: {reason}")
        lose(session, settings, attempt, Ending("lost", "infra", "infra.abandoned", reason))
        session.flush()
