"""Gives work to devices: the claim of a run.

The assignment of an attempt, whole: built from the rows and signed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from device_agents.wire import (
    ASSIGNMENT_TYPE,
    BUNDLE_PATH,
    CHECKPOINT_PATH,
    DATASET_PATH,
    OTHER_BUNDLE_PATH,
    VALIDATION_DATASET_PATH,
    WEIGHTS_PATH,
    Assignment,
    Blob,
    Envelope,
    LeaseRequest,
    Limits,
    OwnData,
    attempt_path,
    dumps,
)
from service.artefacts.bundles.service import built
from service.base.identifiers import new_secret, secret_hash
from service.base.problems import Conflict
from service.base.settings import Settings
from service.boards.agents.enrolment import Agent, Present, refused
from service.devices import blame, clocks, isolation
from service.devices.clocks import clock_s, longest_s, time_factor
from service.devices.maintenance.standing import Calendar
from service.devices.sightings import ENOUGH_S, Sightings
from service.devices.wants import own_digest
from service.people.quotas.rates import may_start, note_served, shares_of
from service.store import states
from service.store.database.models import Attempt, Dataset, Device, Run
from service.store.farm import Farm
from service.work.lanes.claim import Head, Seeker, TimeLeft, heads, in_turn, take
from service.work.lanes.key import Taker
from service.work.runs import attempts, checkpoints, compared


def assign(session: Session, farm: Farm, run: Run, attempt: Attempt, device: Device, token: str) -> Envelope:
    """Returns the signed assignment of an attempt that was just made for the device; `token` is its lease's."""
    return farm.signer.sign(ASSIGNMENT_TYPE, dumps(_assignment(session, farm, run, attempt, device, token)))


def _assignment(session: Session, farm: Farm, run: Run, attempt: Attempt, device: Device, token: str) -> Assignment:
    bundle = built(session, run.bundle_digest)
    validation_path = attempt_path(VALIDATION_DATASET_PATH, token)
    return Assignment(
        run_id=run.id,
        attempt=attempt.n,
        device_id=device.id,
        device_class=device.device_class,
        target=bundle.target,
        lease_token=token,
        lease_expires_at=attempt.lease_expires_at,
        lease_s=farm.settings.lease_s,
        not_before=time.time() - blame.CLOCK_SKEW_S,
        expires_at=attempt.deadline_at + blame.CLOCK_SKEW_S,
        release_number=farm.signer.release_number,
        model_digest=bundle.model_digest,
        plan_digest=bundle.plan_digest,
        bundle=Blob(bundle.digest, bundle.size_bytes, attempt_path(BUNDLE_PATH, token)),
        settings=run.settings,
        dataset=_dataset(session, run.dataset_digest, attempt_path(DATASET_PATH, token)),
        weights=_weights(farm, run, token),
        limits=_limits(farm.settings, run),
        validation_dataset=_dataset(session, run.validation_dataset_digest, validation_path),
        own_data=_own_data(run, attempt),
        checkpoint=_checkpoint(session, farm, run, attempt, token),
        others=_others(session, run, token),
    )


def _others(session: Session, run: Run, token: str) -> tuple[Blob, ...]:
    return tuple(
        Blob(other.digest, other.size_bytes, attempt_path(OTHER_BUNDLE_PATH, token, place))
        for place, other in enumerate(compared.others(session, run), 1)
    )


def _own_data(run: Run, attempt: Attempt) -> OwnData | None:
    """Returns the device's local data set as it was when the attempt began. An agent whose data set has changed since
    refuses the attempt.
    """
    if run.own_data is None or attempt.own_data_digest is None:
        return None
    return OwnData(run.own_data, attempt.own_data_digest)


def _limits(settings: Settings, run: Run) -> Limits:
    most_s = clocks.run_s(settings, run.settings)
    return Limits(settings.transfer_s, most_s, settings.run_memory_bytes, settings.run_disk_bytes)


def _dataset(session: Session, digest: str | None, path: str) -> Blob | None:
    dataset = session.get(Dataset, digest) if digest is not None else None
    return Blob(dataset.digest, dataset.size_bytes, path) if dataset else None


def _checkpoint(session: Session, farm: Farm, run: Run, attempt: Attempt, token: str) -> Blob | None:
    checkpoint = checkpoints.hand_out(session, run, farm.storage, attempt) if attempt.n > 1 else None
    return Blob(checkpoint.digest, checkpoint.size_bytes, attempt_path(CHECKPOINT_PATH, token)) if checkpoint else None


def _weights(farm: Farm, run: Run, token: str) -> Blob | None:
    if run.weights_digest is None:
        return None
    size_bytes = farm.storage.size(run.weights_digest) or 0
    return Blob(run.weights_digest, size_bytes, attempt_path(WEIGHTS_PATH, token))


def seek(session: Session, farm: Farm, agent: Agent, request: LeaseRequest, *, clock: float | None = None) -> Seeker:
    """Records that the device is there and free; what it worked on before is lost. Returns the device as a seeker of
    work. Raises: Conflict (older session).

    `clock`: what time it is to the device, in seconds since 1970; None if its agent does not say.
    """
    device = session.get_one(Device, agent.device_id)
    if device.state == "removed":
        raise refused()
    if agent.session != device.session or request.session != device.session:
        raise voided()
    attempts.lose_live(session, farm.settings, device, "the agent asked for other work")
    device.last_seen_at = time.time()
    isolation.judge_promise(session, device, request.isolation_level)
    blame.judge_clock(session, device, clock)
    return _seeker(Calendar.read(session), device, farm.settings)


def seeker_at_rest(farm: Farm, present: Present, request: LeaseRequest, clock: float | None) -> Seeker | None:
    """Returns what `seek` would return, for a device about which there is nothing to write; None if there is."""
    device = present.device
    is_as_before = (
        present.agent.session == device.session == request.session
        and not present.is_busy
        and time.time() - device.last_seen_at < ENOUGH_S
        and isolation.promises_the_same(device, request.isolation_level)
        and not blame.clock_decides(device, clock)
        and not present.releases.candidates(device)
    )
    if not is_as_before:
        return None
    farm.part(Sightings).note(device.id)
    return _seeker(present.calendar, device, farm.settings)


def _seeker(calendar: Calendar, device: Device, settings: Settings) -> Seeker:
    only_canary = device.state == "quarantined" and device.quarantined_for == blame.BY_STRIKES and not device.canary_off
    is_isolated = device.isolation_level >= settings.isolation_level
    is_held = calendar.hold(device, clock_s(settings, device)) is not None
    window_at = calendar.next_at(device, longest_s(settings, device))
    is_tried = device.agent_updates == "trial"
    is_welcome = not is_tried and (device.state == "active" or only_canary) and is_isolated and not is_held
    return Seeker(
        Taker.of(device),
        is_welcome=is_welcome,
        untried=and_(attempts.untried(device, settings), ~checkpoints.waits_for_another(device, settings)),
        only_canary=only_canary,
        time_left=None if window_at is None else TimeLeft(window_at, settings.transfer_s, time_factor(device)),
    )


def voided() -> Conflict:
    """Returns the refusal of an older session's request."""
    return Conflict(
        "session.voided",
        "this device has started another session since",
        cause="device",
        hint="run one agent per device",
    )


@dataclass(frozen=True, slots=True)
class Work:
    """A run that was claimed: the signed assignment, and the lane that it was in."""

    assignment: Envelope
    lane_id: str


def work_for(farm: Farm, agent: Agent, seeker: Seeker) -> Work | None:
    """Claims a run for the device; None if nothing waits that it may have, or if others were quicker."""
    if not seeker.is_welcome:
        return None
    with farm.database.read() as session:
        candidates = heads(session, seeker)
        waiting = {head.organisation_id for head in candidates}
        shares = shares_of(session, farm.settings, waiting) if candidates else {}
    for head in in_turn(candidates, shares):
        with farm.database.transaction() as session:
            assignment = lease(session, farm, agent, seeker, head)
            if assignment is not None and len(waiting) > 1:
                note_served(session, head.organisation_id)
        if assignment is not None:
            return Work(assignment, head.lane_id)
    return None


def lease(session: Session, farm: Farm, agent: Agent, seeker: Seeker, head: Head) -> Envelope | None:
    """Claims the first run of the head's lane for the device; None if others were quicker or the device is not welcome
    any more.
    """
    run = take(session, seeker, head.lane_id)
    if run is None:
        return None
    device = session.scalars(select(Device).where(Device.id == agent.device_id).with_for_update()).one()
    if device.session != agent.session:
        raise voided()
    if not _may_have(session, farm.settings, device, run, head):
        return None
    if not may_start(session, farm.settings, run):
        return None
    token = new_secret()
    attempt = _start_attempt(session, farm.settings, run, device, token)
    return assign(session, farm, run, attempt, device, token)


def _may_have(session: Session, settings: Settings, device: Device, run: Run, head: Head) -> bool:
    """Whether the device, now that its row is held, may still have the run of this head's lane."""
    calendar = Calendar.read(session)
    if calendar.hold(device, clock_s(settings, device, run.settings)) is not None:
        return False
    seeker = _seeker(calendar, device, settings)
    if not seeker.is_welcome or head.lane is None or not seeker.fits(head.lane):
        return False
    is_untried = select(Run.id).where(Run.id == run.id, seeker.untried)
    return run.attempts == 0 or session.scalar(is_untried) is not None


def _start_attempt(session: Session, settings: Settings, run: Run, device: Device, token: str) -> Attempt:
    now = time.time()
    n = run.attempts + 1
    states.move(session, run, "lease", attempt=n, device=device.id, name=device.name)
    run.device_id, run.attempts, run.steps_done, run.phase = device.id, n, 0, ""
    attempt = Attempt(
        run_id=run.id,
        n=run.attempts,
        device_id=device.id,
        token_hash=secret_hash(token),
        lease_expires_at=now + settings.lease_s,
        deadline_at=now + clock_s(settings, device, run.settings),
        isolation_level=device.isolation_level,
        own_data_digest=own_digest(device, run.own_data),
    )
    session.add(attempt)
    session.flush()
    return attempt


__all__ = ["Work", "lease", "seek", "voided", "work_for"]
