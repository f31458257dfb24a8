"""The messages of attempts: heartbeats, events, weights, the signed report. Each is recorded once, and only for its
owner.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import (
    REPORT_TYPE,
    Envelope,
    Event,
    EventBatch,
    EventsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Outcome,
    Past,
    ProtocolError,
    Report,
    ReportResponse,
    check_plausible,
    dumps,
    loads,
    log_lines,
    pae,
    to_json,
)
from device_agents.wire.ed25519 import verify
from device_agents.wire.release import UPDATE_REFUSED
from service.artefacts.bundles.service import built
from service.artefacts.tunings import service as tunings
from service.base.identifiers import clean_text, digest_of, secret_hash
from service.base.problems import Conflict, Invalid
from service.base.settings import Settings
from service.boards.agents.enrolment import Agent
from service.boards.agents.leasing import voided
from service.boards.agents.possible import check_possible
from service.boards.canary import history
from service.boards.fleet.marks import REFUSED
from service.boards.releases.offering import note_refusal
from service.devices import blame, isolation
from service.people.quotas import limits as quotas
from service.store import events, states
from service.store.database.models import LIVE_ATTEMPT_STATES, OPEN_RUN_STATES, Attempt, Bundle, Device, Result, Run
from service.store.farm import Farm
from service.store.signs_of_life import GAP_S
from service.store.storage import StoredFile
from service.work.runs import attempts, checkpoints
from service.work.runs.summary import summarise

MAX_EVENTS_PER_ATTEMPT = 100_000
"""Later ones are counted and dropped: the report holds every loss anyway."""
MAX_EVENT_BYTES_PER_ATTEMPT = 16 << 20
"""Largest sum of the event bodies as JSON: a character may take twelve bytes there."""
DAY_CHECK_BYTES = 1 << 16
"""Events of a day are added up at an attempt's first ones, and whenever it has sent so many bytes more."""
MOST_STEPS = 1 << 30
PHASES = ("download", "verify", "run", "upload")
"""Phases of an attempt, as heartbeats say them too; an event comes sooner than the next heartbeat."""
_CONTROLS = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u00[01][0-9a-f]|[bfr])")
"""Control characters as JSON writes them, but for ends of lines and tabs."""


def find_attempt(session: Session, agent: Agent, lease_token: str) -> Attempt:
    """Returns the agent's attempt, in any state, with its row held. Raises: Conflict (not the agent's, or an older
    session).
    """
    attempt = _attempt_of(session, agent, lease_token)
    if session.get_one(Device, agent.device_id).session != agent.session:
        raise voided()
    return attempt


def _attempt_of(session: Session, agent: Agent, lease_token: str) -> Attempt:
    query = select(Attempt).where(Attempt.token_hash == secret_hash(lease_token), Attempt.device_id == agent.device_id)
    attempt = session.scalar(query.with_for_update())
    if attempt is None:
        raise stale("no attempt of this device has this lease token")
    log_lines.note(run=attempt.run_id, attempt=attempt.n)
    return attempt


def live_attempt(session: Session, agent: Agent, lease_token: str) -> Attempt:
    """Returns the agent's attempt if it still owns its run. Raises: Conflict."""
    attempt = find_attempt(session, agent, lease_token)
    if attempt.state not in LIVE_ATTEMPT_STATES:
        raise stale(f"the attempt has ended: {attempt.state}")
    return attempt


def stale(detail: str) -> Conflict:
    return Conflict("lease.stale", detail, cause="infra", hint="stop, and keep the result")


def _run_of(session: Session, attempt: Attempt) -> Run:
    return session.scalars(select(Run).where(Run.id == attempt.run_id).with_for_update()).one()


def heartbeat(
    session: Session, farm: Farm, agent: Agent, lease_token: str, request: HeartbeatRequest
) -> HeartbeatResponse:
    """Renews the lease. Raises: Conflict."""
    attempt = live_attempt(session, agent, lease_token)
    run, now = _run_of(session, attempt), time.time()
    is_in_gap = attempt.lease_expires_at < now - GAP_S  # a sweeper will move the deadline too
    attempt.lease_expires_at = now + farm.settings.lease_s
    session.get_one(Device, agent.device_id).last_seen_at = now
    _mark_running(session, run, attempt)
    phase = clean_text(request.phase, 40)
    steps_done = max(run.steps_done, min(request.steps_done, MOST_STEPS))
    if (run.phase, run.steps_done) != (phase, steps_done):
        run.phase, run.steps_done = phase, steps_done
    is_cancelled = run.cancel_requested or (now > attempt.deadline_at and not is_in_gap)
    return HeartbeatResponse(attempt.lease_expires_at, farm.settings.lease_s, cancel=is_cancelled)


def _mark_running(session: Session, run: Run, attempt: Attempt) -> None:
    if attempt.state != "leased":
        return
    states.move(session, attempt, "start")
    states.move(session, run, "start", attempt=attempt.n)


def take_events(
    session: Session, settings: Settings, agent: Agent, lease_token: str, batch: EventBatch
) -> EventsResponse:
    """Records the events that come next in order; those seen before, and those after a gap, are not accepted."""
    attempt = live_attempt(session, agent, lease_token)
    run = _run_of(session, attempt)
    _mark_running(session, run, attempt)
    new_events: list[Event] = []
    for event in batch.events:
        if event.sequence == attempt.next_sequence + len(new_events):
            new_events.append(event)
    room = max(0, MAX_EVENTS_PER_ATTEMPT + 1 - attempt.next_sequence)
    _keep_events(session, settings, run, attempt, new_events[:room])
    attempt.next_sequence += len(new_events)
    phases = [event.message for event in new_events if event.kind == "phase" and event.message in PHASES]
    if phases and phases[-1] is not None:
        run.phase = phases[-1]
    checkpoints.take_kept(session, run, attempt, [event.step for event in new_events if event.kind == "checkpoint"])
    steps = [event.step for event in new_events if event.step is not None]
    if steps and max(steps) > run.steps_done:
        run.steps_done = min(max(steps), MOST_STEPS)
    return EventsResponse(attempt.next_sequence)


def _keep_events(session: Session, settings: Settings, run: Run, attempt: Attempt, batch: list[Event]) -> None:
    """Stores the events for which there is room. An event in their place says that the others were dropped."""
    bodies = [_event_body(event, attempt.n) for event in batch]
    sizes = [len(json.dumps(body)) for body in bodies]
    room_bytes, reason = _room_for_events(session, settings, run, attempt, sum(sizes))
    rows: list[tuple[float, str, dict[str, Any]]] = []
    for event, body, size_bytes in zip(batch, bodies, sizes, strict=True):
        if size_bytes > room_bytes:
            body = {"message": f"{reason}: no more are kept", "attempt": attempt.n}
            if rows or events.newest_body(session, run.id) != body:
                rows.append((event.at, "log", body))
            break
        room_bytes -= size_bytes
        attempt.event_bytes += size_bytes
        rows.append((event.at, event.kind, body))
    events.add_many(session, run.id, rows)


def _room_for_events(
    session: Session, settings: Settings, run: Run, attempt: Attempt, more_bytes: int
) -> tuple[float, str]:
    """Returns how many bytes more the attempt's events may take, and what is to be said beyond that."""
    room_bytes: float = MAX_EVENT_BYTES_PER_ATTEMPT - attempt.event_bytes
    reason = f"events of this attempt take more than {MAX_EVENT_BYTES_PER_ATTEMPT:,} bytes"
    after_bytes = attempt.event_bytes + more_bytes
    if attempt.event_bytes and attempt.event_bytes // DAY_CHECK_BYTES == after_bytes // DAY_CHECK_BYTES:
        return room_bytes, reason
    limit, use = quotas.standing(session, settings, "event_bytes_per_day", run.organisation_id)
    if limit is not None and limit - use < room_bytes:
        room_bytes = limit - use
        reason = (
            f"events of the organisation's runs take more than {limit:,.0f} bytes a day (quota event_bytes_per_day)"
        )
    return room_bytes, reason


def _event_body(event: Event, attempt: int) -> dict[str, Any]:
    fields = {name: value for name, value in to_json(event).items() if value is not None and name not in ("at", "kind")}
    if event.message is not None:
        fields["message"] = clean_text(event.message, 4000)
    return fields | {"attempt": attempt}


def may_still_report(session: Session, attempt: Attempt) -> bool:
    """Whether the attempt's result can count: it is live, or was lost and nobody has taken over since."""
    if attempt.state in LIVE_ATTEMPT_STATES:
        return True
    run = session.get_one(Run, attempt.run_id)
    return attempt.state == "lost" and run.state == "queued" and run.attempts == attempt.n


def checkpoint_sender(
    session: Session, settings: Settings, agent: Agent, lease_token: str, size_bytes: int
) -> checkpoints.Sender:
    """Returns what a checkpoint of so many bytes is measured against. Raises: Conflict, Invalid (the attempt has
    none), Forbidden (no room)."""
    attempt = live_attempt(session, agent, lease_token)
    run = session.get_one(Run, attempt.run_id)
    _check_checkpoint_room(session, settings, run, size_bytes, is_stored=False)
    return checkpoints.sender_of(run, attempt, session.get_one(Bundle, run.bundle_digest))


def _check_checkpoint_room(session: Session, settings: Settings, run: Run, size_bytes: int, *, is_stored: bool) -> None:
    quotas.check_room(
        session,
        settings,
        more_bytes=size_bytes,
        organisation_id=run.organisation_id,
        is_held=lambda: False,
        is_stored=is_stored,
    )


def take_checkpoint(
    session: Session, settings: Settings, agent: Agent, lease_token: str, stored: StoredFile, past: Past
) -> str | None:
    """Records a checkpoint of the attempt, from which another attempt may go on. Returns the digest of a checkpoint
    that is no longer needed: this one if the run has a later one, else the one before. Raises: Conflict, Forbidden (no
    room).
    """
    attempt = live_attempt(session, agent, lease_token)
    run = _run_of(session, attempt)
    _check_checkpoint_room(session, settings, run, stored.size_bytes, is_stored=True)
    before = checkpoints.of_run_if_any(session, run)
    is_later = checkpoints.take(session, run, attempt, stored, past)
    if is_later:
        events.add(session, run.id, "log", message=f"checkpoint after step {past.step:,}", attempt=attempt.n)
    unneeded = before if is_later else stored.digest
    return unneeded if unneeded != checkpoints.of_run_if_any(session, run) else None


def take_report(
    session: Session, farm: Farm, agent: Agent, lease_token: str, envelope: Envelope
) -> ReportResponse | Invalid:
    """Records how the attempt ended; or, if the device's report cannot be true, ends it as failed and returns why.

    The refusal is returned, not raised: what it means for the attempt is to be committed.
    Raises: Conflict (another report before), Invalid (signature, about something else).
    """
    attempt = _attempt_of(session, agent, lease_token)
    run = _run_of(session, attempt)
    device = blame.hold(session, run, agent.device_id)
    if device.session != agent.session:
        raise voided()
    payload = _signed_payload(envelope, device)
    # A live attempt has sent none: with its report it ends.
    previous = session.get(Result, attempt.id) if attempt.state not in LIVE_ATTEMPT_STATES else None
    if previous is not None:
        if previous.digest != digest_of(payload):
            raise Conflict("report.other", "this attempt has sent another report before", cause="device")
        return ReportResponse("already-recorded")
    try:
        report = loads(Report, payload)
        _check_report(report, run, attempt, device)
        check_plausible(report, device)
        check_possible(report, run, attempt, built(session, run.bundle_digest), others=run.others, now=time.time())
    except ProtocolError as error:
        return _refuse(session, farm, run, attempt, device, error)
    counts = may_still_report(session, attempt)
    is_final = counts and _end(session, farm, run, attempt, device, report)
    session.add(
        Result(
            attempt_id=attempt.id,
            run_id=run.id,
            state="recorded" if is_final else "superseded",
            digest=digest_of(payload),
            envelope=dumps(envelope).decode(),
            report=_stored_form(report),
        )
    )
    return ReportResponse("recorded" if counts else "superseded")


def take_refusal(session: Session, farm: Farm, agent: Agent, outcome: Outcome) -> None:
    """Ends the device's live attempt, or its update, because its agent does not trust what it was given. Does nothing
    if there is none.

    Raises: Conflict (an older session), Invalid (a refusal of work that was not refused).
    """
    device = session.get_one(Device, agent.device_id)
    if device.session != agent.session:
        raise voided()
    if outcome.state != "failed" or outcome.code is None:
        raise Invalid(
            "refusal.state",
            f"says {outcome.state!r}, code {outcome.code!r:.80}",
            where="state",
            cause="device",
            hint="a refusal is `failed`, with a code",
        )
    if outcome.code.startswith(UPDATE_REFUSED):
        note_refusal(session, device, outcome)
        return
    live = select(Attempt).where(Attempt.device_id == device.id, Attempt.state.in_(LIVE_ATTEMPT_STATES))
    attempt = session.scalar(live.with_for_update())
    if attempt is not None:
        log_lines.note(run=attempt.run_id, attempt=attempt.n)
        attempts.lose(session, farm.settings, attempt, _ending(outcome))


def _ending(outcome: Outcome) -> attempts.Ending:
    """Returns how the attempt ended, as the device reports it: its texts are cleaned, and a failure without a cause
    counts as the device's.
    """
    code = clean_text(outcome.code, 100) if outcome.code else None
    if outcome.state != "succeeded" and outcome.cause is None:
        return attempts.Ending(outcome.state, "device", code or "device.unsaid", outcome.message, outcome.hint)
    return attempts.Ending(outcome.state, outcome.cause, code, outcome.message, outcome.hint)


def _signed_payload(envelope: Envelope, device: Device) -> bytes:
    """Raises: Invalid unless the device signed it."""
    payload = envelope.payload_bytes()
    if envelope.payloadType != REPORT_TYPE:
        raise Invalid("report.type", f"payload type {envelope.payloadType!r:.80}, expected {REPORT_TYPE}")
    message = pae(REPORT_TYPE, payload)
    is_one = [signature.keyid for signature in envelope.signatures] == [device.id]
    if not is_one or not verify(device.public_key, envelope.signatures[0].sig, message):
        raise Invalid("report.signature", "the report is not signed once, by this device's key", cause="policy")
    return payload


def _refuse(session: Session, farm: Farm, run: Run, attempt: Attempt, device: Device, error: ProtocolError) -> Invalid:
    """Ends the attempt whose report holds impossible values that its agent should have noticed. That is a strike for
    the device, until another device ends the same way. No lease is left to run out.
    """
    message = f"{REFUSED}{error}"[:4000]
    checkpoints.distrust(session, run, attempt)
    if may_still_report(session, attempt):
        ending = attempts.Ending("failed", "infra", "report.impossible", message, "update the device's agent")
        attempts.settle(session, farm.settings, run, attempt, device, ending)
    return Invalid("report.impossible", message, where=error.where, cause="infra", hint="send no such figures")


def _check_report(report: Report, run: Run, attempt: Attempt, device: Device) -> None:
    """Raises: Invalid if the report is about something else than the attempt."""
    expected = {
        "run_id": attempt.run_id,
        "attempt": attempt.n,
        "device_id": device.id,
        "bundle_digest": run.bundle_digest,
        "measurement_class": device.measurement_class,
    }
    for name, value in expected.items():
        if getattr(report, name) != value:
            raise Invalid(
                "report.mismatch", f"says {getattr(report, name)!r:.80}, expected {value!r}", where=name, cause="device"
            )
    own_data = report.own_data
    is_same = (own_data.name if own_data else None) == run.own_data
    is_same = is_same and (own_data is None or attempt.own_data_digest in (None, own_data.digest))
    if not is_same and report.outcome.state == "succeeded":
        raise Invalid(
            "report.own-data",
            "says another data set of the device's own than the run is for",
            where="own_data",
            cause="device",
            hint="update the device's agent",
        )
    if report.weights is not None and report.weights.digest != attempt.weights_digest:
        raise Invalid(
            "report.weights",
            "the weights that it names were not uploaded for this attempt",
            where="weights",
            cause="device",
            hint="PUT the weights first",
        )


def _difference(run: Run, report: Report) -> str:
    """Says how the losses of a canary run differ from the farm's own; empty if they are right."""
    from service.devices.canary_reference import difference  # NumPy: only where a canary is judged

    return difference(run.settings.seed, report.losses)


def _end(session: Session, farm: Farm, run: Run, attempt: Attempt, device: Device, report: Report) -> bool:
    """Ends the attempt, and its run unless another attempt follows. Returns whether the run has ended."""
    ending = _ending(report.outcome)
    if time.time() > attempt.deadline_at and ending.state == "cancelled" and not run.cancel_requested:
        ending = attempts.Ending(
            "failed", "limits", "limits.run-time", attempts.OUT_OF_TIME.message, attempts.OUT_OF_TIME.hint
        )
    is_judged = run.is_canary and not run.is_timed_canary and ending.state == "succeeded"
    wrong = _difference(run, report) if is_judged else ""
    if wrong:
        ending = attempts.Ending("failed", "device", "canary.wrong", wrong, "the device computes wrongly; replace it")
    isolation.judge_report(session, device, report)
    fell = isolation.fell_short(attempt, report) if ending.state == "succeeded" else ""
    if fell:
        ending = attempts.Ending("failed", "device", "device.isolation", fell, "see what its agent finds: --probe")
    attempts.settle(session, farm.settings, run, attempt, device, ending)
    if run.state in OPEN_RUN_STATES:
        return False
    summarise(run, report, device.device_class)
    if run.is_timed_canary and run.state == "succeeded":
        history.take(session, farm.settings, run, device, report)
    if run.state == "succeeded" and run.mode == "tune":
        decision_count = tunings.keep(session, run, report)
        events.add(session, run.id, "log", message=f"{decision_count} decisions on schedules kept")
    return True


def _stored_form(report: Report) -> dict[str, Any]:
    """Returns the report as plain data that every database accepts and every page and terminal can show: texts are
    without control characters, marks of direction and lone surrogates.
    """
    text = json.dumps(to_json(report), ensure_ascii=False).encode("utf-8", "replace").decode()
    text = _CONTROLS.sub(r"\1 ", text)
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    stored: dict[str, Any] = json.loads(text)
    return stored
