"""How attempts end and what becomes of their runs: the one place for retries, blame and strikes.

Which states follow which is in `service/store/states.py`. A device that had a run and failed is not given it again
(`spent`), and no run ends because of one device: it waits for another until its queue deadline. Two devices that die of
it end it, and get their strikes back.

Rows are held in the order attempt, run, devices (by id), everywhere, so that two transactions never wait for each
other. No web framework here: the sweeper and the agent endpoints both use it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session

from service.base.identifiers import clean_text
from service.base.settings import Settings
from service.devices import blame
from service.devices import canary_verdict as canary
from service.devices.blame import COUNTED, FAILED, MISSED, TAKEN_BACK
from service.store import states
from service.store.database.models import LIVE_ATTEMPT_STATES, OPEN_RUN_STATES, Attempt, Device, Run
from service.work.runs import checkpoints
from service.work.runs.faults import DAMAGE, DEATH, DEFECT, DOUBTS, NOT_RECEIVED, OVERRUN, Fault, doubt_of, fault_of

WAITS = "waits for another device"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an attempt or run; cause and code are None for success."""

    state: str
    cause: str | None = None
    code: str | None = None
    message: str = ""
    hint: str = ""


LEASE_EXPIRED = Ending("lost", "infra", "infra.lease-expired", "the device did not say that it was alive in time")
OUT_OF_TIME = Ending(
    "lost",
    "limits",
    "limits.run-time",
    "the attempt took longer than its clock allows",
    "use fewer steps, or ask for more time (time_limit_s)",
)
UNRECEIVED = Ending(
    "lost",
    "infra",
    NOT_RECEIVED,
    "the answer that gave the run to the device was lost on its way",
    "nothing: it may have the run again at once",
)
VERDICTS = {
    DEATH: Ending(
        "failed",
        "model",
        "model.kills-devices",
        "{n} devices died or went silent while they ran it",
        "it may need more memory than the boards have; try a smaller batch or a sparser plan",
    ),
    OVERRUN: replace(OUT_OF_TIME, state="failed"),
    DAMAGE: Ending(
        "failed",
        "infra",
        "infra.stored-file",
        "{n} devices got another file than the one that was signed: {message}",
        "the stored file, or what lies between it and the devices, is damaged; send it again",
    ),
    DEFECT: Ending(
        "inconclusive",
        "infra",
        "agent.internal",
        "the agents of {n} devices broke on it: {message}",
        "a defect of ours: the agents' logs have the details; please report it",
    ),
}
"""Endings of a run when two devices have ended alike in a way that one alone could not settle."""


def end_attempt(session: Session, attempt: Attempt, ending: Ending) -> None:
    """Records how the attempt ended; its token is stale from now on."""
    states.move(session, attempt, states.EVENT_OF[ending.state])
    attempt.cause, attempt.code, attempt.message = ending.cause, ending.code, clean_text(ending.message, 4000)


def end_run(session: Session, run: Run, ending: Ending, *, last: Attempt | None = None) -> None:
    """Records how the run ended. `last`: the attempt that ended it."""
    message = clean_text(ending.message, 4000)
    event = states.EVENT_OF[ending.state]
    states.move(session, run, event, cause=ending.cause, code=ending.code, message=message)
    run.phase, run.cause, run.code = "", ending.cause, ending.code
    run.message, run.hint = message, clean_text(ending.hint, 1000)
    if last is None or last.n > 1 or last.checkpoint_step is not None:
        checkpoints.drop(session, run)


def untried(device: Device, settings: Settings) -> ColumnElement[bool]:
    """Returns the condition on `Run` that earlier attempts on the device do not rule it out."""
    passed_at = max(device.released_at, device.succeeded_at, time.time() - settings.device_retry_s)
    spent = select(Attempt.id).where(
        Attempt.run_id == Run.id,
        Attempt.device_id == device.id,
        or_(
            and_(Attempt.spent == FAILED, Attempt.finished_at > device.released_at),
            and_(Attempt.spent == MISSED, Attempt.finished_at > passed_at),
        ),
    )
    return ~spent.exists()


def settle(session: Session, settings: Settings, run: Run, attempt: Attempt, device: Device, ending: Ending) -> None:
    """Decides what becomes of device and run after an attempt: strikes, another try elsewhere, or the same ending.

    The caller holds the rows of attempt, run and devices (`blame.hold`). A run that has gone on without the attempt
    stays as it is.
    """
    end_attempt(session, attempt, ending)
    if run.is_canary:
        _settle_canary(session, settings, run, attempt, device, ending)
        return
    if ending.state == "succeeded":
        blame.forget_strikes(session, device)
        device.succeeded_at = time.time()
    is_cancelled = ending.state == "cancelled" and run.cancel_requested
    fault = Fault.RUN if is_cancelled or ending.state == "succeeded" else fault_of(*_key(ending))
    attempt.fault = None if ending.state == "succeeded" else fault.value
    if fault in (Fault.DEVICE, Fault.EITHER) and blame.strike(
        session, device, run, code=ending.code or ending.state, message=ending.message, most=settings.device_strikes
    ):
        attempt.strike = COUNTED
    if run.state not in OPEN_RUN_STATES or run.attempts != attempt.n:
        return
    if fault is Fault.RUN:
        end_run(session, run, ending, last=attempt)
        return
    session.flush()
    attempt.spent = _spent(session, settings, run, attempt, device, fault, ending)
    session.flush()
    last = _last_word(session, settings, run, fault, ending)
    if last is None:
        _queue_again(session, settings, run, attempt, device, ending)
        return
    if fault is Fault.EITHER and not run.cancel_requested:
        blame.take_back(session, run, last.message, most=settings.device_strikes)
        statement = update(Attempt).where(Attempt.run_id == run.id, Attempt.strike == COUNTED)
        session.execute(statement.values(strike=TAKEN_BACK))
        if doubt_of(ending.state, ending.code) == DEATH:
            blame.doubt(session, run, most=settings.device_strikes)
    end_run(session, run, last)


def _settle_canary(
    session: Session, settings: Settings, run: Run, attempt: Attempt, device: Device, ending: Ending
) -> None:
    """Settles a canary by one attempt that the device had, whatever it was; it says something of the device only."""
    if run.state not in OPEN_RUN_STATES or run.attempts != attempt.n:
        return
    if ending.code == NOT_RECEIVED:
        _queue_again(session, settings, run, attempt, device, ending)
        return
    end_run(session, run, replace(ending, state="failed") if ending.state == "lost" else ending)
    message = f"{ending.code or ending.state}: {ending.message}"
    canary.conclude(session, settings, run, device, is_right=ending.state == "succeeded", message=message)


def _key(ending: Ending) -> tuple[str, str | None, str | None]:
    return ending.state, ending.cause, ending.code


def _spent(
    session: Session, settings: Settings, run: Run, attempt: Attempt, device: Device, fault: Fault, ending: Ending
) -> str | None:
    """Whether the device is out for this run. A run for one device only may go on after its agent has restarted, and so
    may one that came further there."""
    is_last = run.attempts >= settings.run_attempts
    if _came_further(attempt) and doubt_of(ending.state, ending.code) == DEATH:
        # Where its checkpoint lies on the board, nobody else can go on from it.
        is_wanted_again = ending.code == "infra.abandoned" or checkpoints.is_kept(session, run, attempt)
        return None if is_wanted_again else MISSED
    if ending.code == NOT_RECEIVED:
        return MISSED if _unreceived(session, run, device) >= settings.run_attempts else None
    if fault is Fault.NOBODY:
        return MISSED if is_last else None
    if fault is Fault.PASSING:
        return MISSED
    is_restart = ending.code == "infra.abandoned" and run.wanted_device_id is not None
    return None if is_restart and not is_last else FAILED


def _last_word(session: Session, settings: Settings, run: Run, fault: Fault, ending: Ending) -> Ending | None:
    """Returns how the run ends now; None if another device is to try it."""
    if run.cancel_requested:
        reason = "the device never confirmed" if ending.state == "lost" else f"then: {ending.message}"
        return Ending("cancelled", "user", "run.cancelled", f"cancelled; {reason}")
    if fault is Fault.EITHER:
        doubt = doubt_of(ending.state, ending.code)
        devices = _devices_of(session, run, _alike(doubt))
        verdict = VERDICTS[doubt]
        message = verdict.message.format(n=devices, message=ending.message) if "{" in verdict.message else ""
        return replace(verdict, message=message or verdict.message) if devices > 1 else None
    if fault is Fault.DEVICE or ending.code == NOT_RECEIVED or run.attempts < settings.run_attempts:
        return None
    counted = run.attempts - _unreceived(session, run) - _further(session, run)
    if counted < settings.run_attempts or _devices_of(session, run, _RECEIVED) < 2:
        return None
    if fault is Fault.NOBODY:
        return Ending("inconclusive", "infra", "infra.agent-stopped", ending.message, ending.hint)
    return replace(ending, state="inconclusive")


_RECEIVED = or_(Attempt.code.is_(None), Attempt.code != NOT_RECEIVED)


def _unreceived(session: Session, run: Run, device: Device | None = None) -> int:
    """Returns how many attempts of the run never reached their device."""
    query = select(func.count(Attempt.id)).where(Attempt.run_id == run.id, Attempt.code == NOT_RECEIVED)
    return session.scalar(query if device is None else query.where(Attempt.device_id == device.id)) or 0


def _came_further(attempt: Attempt) -> bool:
    """Returns whether the attempt has left a checkpoint: then what it did was not in vain, and the run is not to blame
    for its end.
    """
    return attempt.checkpoint_step is not None


def _further(session: Session, run: Run) -> int:
    """Returns how many attempts of the run came further than the one before."""
    query = select(func.count(Attempt.id)).where(Attempt.run_id == run.id, Attempt.checkpoint_step.is_not(None))
    return session.scalar(query) or 0


def _alike(doubt: str) -> ColumnElement[bool]:
    if doubt == OVERRUN:
        return and_(Attempt.state == "lost", Attempt.code == OUT_OF_TIME.code)
    is_alike = Attempt.code.in_([code for code, group in DOUBTS.items() if group == doubt])
    return and_(is_alike, Attempt.checkpoint_step.is_(None)) if doubt == DEATH else is_alike


def _devices_of(session: Session, run: Run, *conditions: ColumnElement[bool]) -> int:
    """Returns how many devices have had attempts at the run that meet the conditions."""
    query = select(func.count(Attempt.device_id.distinct())).where(Attempt.run_id == run.id, *conditions)
    return session.scalar(query) or 0


def _queue_again(
    session: Session, settings: Settings, run: Run, attempt: Attempt, device: Device, ending: Ending
) -> None:
    """Queues the run again, so that another device (or the same one) may try. Waiting starts anew, since its clock and
    the run's are separate.
    """
    if run.attempts <= settings.run_attempts or attempt.spent == FAILED:
        run.queue_deadline_at = time.time() + settings.queue_s
    reason = f"{ending.code or ending.state} on {device.name}: {ending.message}"[:300]
    if checkpoints.is_kept(session, run, attempt):
        reason += f"; {device.name} keeps the checkpoint of step {attempt.checkpoint_step:,}"
    if attempt.spent:
        reason += f"; the run {WAITS}"
        if not _others(session, settings, run):
            reason += f", and the farm has none now: enrol one, or mend {device.name} and release it"
    states.move(session, run, "requeue", attempt=run.attempts, reason=clean_text(reason, 1000))
    run.steps_done, run.phase = 0, WAITS if attempt.spent else ""


def _others(session: Session, settings: Settings, run: Run) -> bool:
    """Whether some device of the farm may still take the run, now or when it is free."""
    is_open = or_(Device.is_shared, Device.organisation_id == run.organisation_id)
    active = select(Device).where(Device.state == "active", is_open)
    if run.wanted_device_id is not None:
        active = active.where(Device.id == run.wanted_device_id)
    if run.wanted_device_class is not None:
        active = active.where(Device.device_class == run.wanted_device_class)
    fitting = [device for device in session.scalars(active) if run.target in device.targets]
    return any(
        session.scalar(select(Run.id).where(Run.id == run.id, untried(device, settings))) is not None
        for device in fitting
    )


def tried_on(session: Session, run: Run) -> str:
    """Says on which devices a run failed and how, for the message of a run that nobody else took; empty if on none."""
    query = select(Attempt, Device.name).join(Device, Device.id == Attempt.device_id)
    rows = session.execute(query.where(Attempt.run_id == run.id).order_by(Attempt.n)).all()
    return "; ".join(f"{name}: {attempt.code or attempt.state}: {attempt.message:.200}" for attempt, name in rows)


def lose(session: Session, settings: Settings, attempt: Attempt, ending: Ending) -> None:
    """Ends a live attempt whose device went silent, and settles its run. The caller holds the attempt's row."""
    run = session.scalars(select(Run).where(Run.id == attempt.run_id).with_for_update()).one()
    device = blame.hold(session, run, attempt.device_id)
    settle(session, settings, run, attempt, device, ending)


def lose_live(session: Session, settings: Settings, device: Device, reason: str, *, is_restart: bool = False) -> None:
    """Ends what a device worked on before, since it starts again or asks for other work.

    An agent says at once that it has begun. One that never did and asks again, in the same session, has not got the
    answer that gave it the run: that says nothing of the run, nor of the board.
    """
    live = select(Attempt).where(Attempt.device_id == device.id, Attempt.state.in_(LIVE_ATTEMPT_STATES))
    attempt = session.scalar(live.with_for_update())
    if attempt is None:
        return
    is_received = is_restart or attempt.state != "leased"
    ending = Ending("lost", "infra", "infra.abandoned", reason) if is_received else UNRECEIVED
    blame.note(session, device.id, "abandoned" if is_received else "not-received", f"run {attempt.run_id}: {reason}")
    lose(session, settings, attempt, ending)
    session.flush()
