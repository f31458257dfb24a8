"""Gives work to devices: which run fits, the claim, the signed assignment."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from device_agents.wire import (
    BUNDLE_PATH,
    DATASET_PATH,
    EMULATION_TIME_FACTOR,
    VALIDATION_DATASET_PATH,
    WEIGHTS_PATH,
    Assignment,
    Blob,
    LeaseRequest,
    Limits,
    Statement,
    attempt_path,
)
from service import states
from service.agents.enrolment import Agent
from service.database.models import Attempt, Bundle, Dataset, Device, Run
from service.devices import blame
from service.farm import Farm
from service.identifiers import new_secret, secret_hash
from service.problems import Conflict
from service.runs import attempts
from service.settings import Settings

CANDIDATES = 50


@dataclass(frozen=True, slots=True)
class Seeker:
    """A device that wants work, as far as it decides which."""

    device_id: str
    device_class: str
    targets: tuple[str, ...]
    features: frozenset[str]
    is_welcome: bool
    """False: quarantined, or isolated less than the farm asks."""
    untried: ColumnElement[bool]
    """Over `Run`: it has not failed on this device."""
    only_canary: bool
    """Strikes quarantine it: it may show that it works again, and nothing else."""


def seek(
    session: Session, farm: Farm, agent: Agent, request: LeaseRequest, *, clock: float | None = None
) -> Seeker:  # fmt: skip
    """Note that the device is there and free; what it had before is given up. Raises: Conflict (older session).

    `clock`: what time it is to the device, in seconds since 1970; None if its agent does not say.
    """
    device = session.get_one(Device, agent.device_id)
    if agent.session != device.session or request.session != device.session:
        raise voided()
    attempts.lose_live(session, farm.settings, device, "the agent asked for other work")
    device.last_seen_at, device.isolation_level = time.time(), max(0, min(4, request.isolation_level))
    blame.judge_clock(session, device, clock)
    return _seeker(device, farm.settings)


def _seeker(device: Device, settings: Settings) -> Seeker:
    only_canary = device.state == "quarantined" and device.quarantined_for == blame.BY_STRIKES and not device.canary_off
    is_isolated = device.isolation_level >= settings.isolation_level
    is_welcome = (device.state == "active" or only_canary) and is_isolated
    return Seeker(
        device.id,
        device.device_class,
        tuple(device.targets),
        frozenset(device.features),
        is_welcome=is_welcome,
        untried=attempts.untried(device, settings),
        only_canary=only_canary,
    )


def voided() -> Conflict:
    """The refusal of an older session's request."""
    return Conflict("session.voided", "this device has started another session since", cause="device",
                    hint="run one agent per device")  # fmt: skip


def candidates(session: Session, seeker: Seeker) -> list[str]:
    """Ids of queued runs that the device could take, the oldest first."""
    query = (
        select(Run.id, Bundle.required_features)
        .join(Bundle, Bundle.digest == Run.bundle_digest)
        .where(Run.state == "queued", Run.target.in_(seeker.targets), Run.queue_deadline_at > time.time())
        .where((Run.wanted_device_id.is_(None)) | (Run.wanted_device_id == seeker.device_id))
        .where((Run.wanted_device_class.is_(None)) | (Run.wanted_device_class == seeker.device_class))
        .where(seeker.untried, *([Run.is_canary] if seeker.only_canary else []))
        .order_by(Run.created_at, Run.id)
        .limit(CANDIDATES)
    )
    rows = session.execute(query)
    return [run_id for run_id, required in rows if seeker.features.issuperset(required)]


def lease(session: Session, farm: Farm, agent: Agent, run_id: str) -> Assignment | None:
    """Claim the run for the device; None if another was quicker or the device is not welcome any more."""
    query = select(Run).where(Run.id == run_id, Run.state == "queued").with_for_update(skip_locked=True)
    run = session.scalar(query)
    if run is None:
        return None
    device = session.scalars(select(Device).where(Device.id == agent.device_id).with_for_update()).one()
    if device.session != agent.session:
        raise voided()
    seeker = _seeker(device, farm.settings)
    if seeker.only_canary and not run.is_canary:
        return None
    if not seeker.is_welcome or session.scalar(select(Run.id).where(Run.id == run_id, seeker.untried)) is None:
        return None
    token, limits = new_secret(), _limits(farm.settings)
    attempt = _start_attempt(session, farm.settings, run, device, token)
    bundle = session.get_one(Bundle, run.bundle_digest)
    return Assignment(
        run_id=run.id,
        attempt=attempt.n,
        lease_token=token,
        lease_expires_at=attempt.lease_expires_at,
        lease_s=farm.settings.lease_s,
        envelope=farm.signer.sign(_statement(farm, run, attempt, device, bundle)),
        bundle=Blob(bundle.digest, bundle.size_bytes, attempt_path(BUNDLE_PATH, token)),
        settings=run.settings,
        dataset=_dataset(session, run.dataset_digest, attempt_path(DATASET_PATH, token)),
        weights=_weights(farm, run, token),
        limits=limits,
        validation_dataset=_dataset(
            session, run.validation_dataset_digest, attempt_path(VALIDATION_DATASET_PATH, token)
        ),
    )


def _limits(settings: Settings) -> Limits:
    return Limits(settings.transfer_s, settings.run_s, settings.run_memory_bytes, settings.run_disk_bytes)


def _dataset(session: Session, digest: str | None, path: str) -> Blob | None:
    dataset = session.get(Dataset, digest) if digest is not None else None
    return Blob(dataset.digest, dataset.size_bytes, path) if dataset else None


def _weights(farm: Farm, run: Run, token: str) -> Blob | None:
    if run.weights_digest is None:
        return None
    size_bytes = farm.storage.size(run.weights_digest) or 0
    return Blob(run.weights_digest, size_bytes, attempt_path(WEIGHTS_PATH, token))


def clock_s(settings: Settings, device: Device) -> float:
    """Seconds that an attempt on the device may take, transfer and run together."""
    factor = EMULATION_TIME_FACTOR if device.measurement_class == "emulated" else 1.0
    return settings.transfer_s + settings.run_s * factor


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
        deadline_at=now + clock_s(settings, device),
    )
    session.add(attempt)
    session.flush()
    return attempt


def _statement(farm: Farm, run: Run, attempt: Attempt, device: Device, bundle: Bundle) -> Statement:
    now = time.time()
    return Statement(
        run_id=run.id,
        attempt=attempt.n,
        device_id=device.id,
        device_class=device.device_class,
        bundle_digest=bundle.digest,
        bundle_bytes=bundle.size_bytes,
        target=bundle.target,
        model_digest=bundle.model_digest,
        plan_digest=bundle.plan_digest,
        not_before=now - blame.CLOCK_SKEW_S,
        expires_at=attempt.deadline_at + blame.CLOCK_SKEW_S,
        release_number=farm.signer.release_number,
        dataset_digest=run.dataset_digest,
        weights_digest=run.weights_digest,
        validation_dataset_digest=run.validation_dataset_digest,
    )


__all__ = ["Seeker", "candidates", "clock_s", "lease", "seek", "voided"]
