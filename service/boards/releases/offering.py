"""Decides which device is offered which release, and what a release's failures do to it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from device_agents.wire import (
    OFFER_TYPE,
    AgentOffer,
    Blob,
    Envelope,
    Outcome,
    Program,
    ProtocolError,
    dumps,
    loads,
    release_path,
    version_order,
)
from service.base.identifiers import clean_text
from service.base.problems import NotFound
from service.boards.releases.publishing import halt, meets
from service.devices.blame import CLOCK_SKEW_S, note
from service.devices.maintenance.standing import Calendar
from service.store.database.memory import recalled
from service.store.database.models import HOME, AgentRelease, AgentUpdate, AuditEntry, Device
from service.store.farm import Farm

LOG = logging.getLogger(__name__)
RELEASES = frozenset({AgentRelease.__tablename__})
OFFER_S = 600.0
UPDATE_S = 300.0
"""Time that an update may take, to be over before a maintenance window begins."""
FEW = 10
"""In a stage of fewer devices, the first failure halts a release; in a larger one, a tenth of them does."""
MOST_HEADER = 8000


class Offer(NamedTuple):
    """A release that is not halted, as far as it decides about devices."""

    id: str
    sequence: int
    version: str
    digest: str
    oldest_python: str
    is_rollback: bool
    conditions: list[str]


class Offered:
    """The releases that are not halted, the newest first; read at most once a second."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = offers

    @classmethod
    def read(cls, session: Session) -> Offered:
        """Returns all releases that are not halted: there are few."""

        def read() -> Offered:
            query = select(*(getattr(AgentRelease, name) for name in Offer._fields))
            rows = session.execute(query.where(AgentRelease.state == "offered").order_by(AgentRelease.sequence.desc()))
            return cls([Offer(*row) for row in rows])

        return recalled(session, "offered releases", RELEASES, read)

    def candidates(self, device: Device) -> list[Offer]:
        """Returns the releases that the idle device might be offered, in this order; none that is older than what it
        runs.
        """
        if device.agent_updates != "on" or device.drained_at is not None:
            return []
        fitting = (offer for offer in self._offers if meets(offer.conditions, device) and _is_fit(offer, device))
        return list(takewhile(lambda offer: offer.digest != device.agent_digest, fitting))


def program_of(header: str | None) -> Program | None:
    """Reads what an agent says of the file that it runs from; None: it is older than that, or says nonsense."""
    if not header or len(header) > MOST_HEADER:
        return None
    try:
        return loads(Program, header)
    except ProtocolError:
        return None


def note_program(session: Session, device: Device, program: Program | None) -> None:
    """Records what the agent says as it enrols or renews: which program it runs, and how the newest update went."""
    device.agent_updates = program.updates if program else ""
    device.agent_digest = program.digest if program else ""
    if program is None or program.updates == "trial":
        return
    for update, release in _of_device(session, device):
        if program.failed is not None and program.failed.sequence == release.sequence:
            _fail(session, release, update, device, program.failed.reason)
        elif update.state == "given" and program.digest == release.digest:
            update.state, update.ended_at = "done", time.time()
            note(session, device.id, "updated", f"runs agent {release.version}")


def note_refusal(session: Session, device: Device, outcome: Outcome) -> None:
    """Records that the agent has refused the release that it was offered."""
    for update, release in _of_device(session, device):
        if update.state == "given":
            _fail(session, release, update, device, f"{outcome.message} ({outcome.code})")


def _of_device(session: Session, device: Device) -> list[tuple[AgentUpdate, AgentRelease]]:
    query = (
        select(AgentUpdate, AgentRelease)
        .join(AgentRelease, AgentRelease.id == AgentUpdate.release_id)
        .where(AgentUpdate.device_id == device.id, AgentUpdate.state != "failed")
    )
    return [(update, release) for update, release in session.execute(query)]


def _fail(session: Session, release: AgentRelease, update: AgentUpdate, device: Device, reason: str) -> None:
    update.state, update.reason, update.ended_at = "failed", clean_text(reason, 1000), time.time()
    note(session, device.id, "update-failed", f"agent {release.version}: {reason}")
    session.flush()
    row = _locked_release(session, release.id)
    failed, offered = _count(session, row, "failed"), _count(session, row)
    if row.state != "offered" or failed < _most_failures(row, offered):
        return
    halt(session, row, f"{failed} of {offered} devices that took it failed; the last, {device.name}: {reason}")
    LOG.error("release %s of the agent (%s) is halted: %s", row.id, row.version, row.halt_reason)
    session.add(
        AuditEntry(
            organisation_id=HOME,
            key_id=None,
            user_id=None,
            address="",
            action="agent-release halted",
            subject=row.id,
            outcome="done",
            status=200,
            detail=row.halt_reason,
        )
    )


def _most_failures(release: AgentRelease, offered: int) -> int:
    if release.most_failures is not None:
        return release.most_failures
    stage = max(offered, release.most_devices or 0)
    return 1 if stage < FEW else math.ceil(stage / 10)


def _locked_release(session: Session, release_id: str) -> AgentRelease:
    query = select(AgentRelease).where(AgentRelease.id == release_id).with_for_update()
    return session.scalars(query, execution_options={"populate_existing": True}).one()


def _count(session: Session, release: AgentRelease, state: str | None = None) -> int:
    query = select(func.count()).select_from(AgentUpdate).where(AgentUpdate.release_id == release.id)
    return session.scalar(query if state is None else query.where(AgentUpdate.state == state)) or 0


def offer(session: Session, farm: Farm, device: Device) -> Envelope | None:
    """Returns the signed offer that the device gets in place of work; None: there is none for it. The device is
    idle.
    """
    for candidate in Offered.read(session).candidates(device):
        release = _reserve(session, candidate, device)
        if release is not None:
            return _signed(farm, release, device)
    return None


def _is_fit(release: Offer, device: Device) -> bool:
    """Whether the device could run it, and would not go back without being meant to."""
    try:
        if version_order(release.oldest_python) > version_order(str(device.environment.get("python", "99"))):
            return False
        return release.is_rollback or version_order(release.version) >= version_order(device.agent_version)
    except ValueError:  # versions of its own making: the agent decides
        return True


def _reserve(session: Session, candidate: Offer, device: Device) -> AgentRelease | None:
    """Reserves the release for the device if there is room for it, and records that. Returns the release, also if the
    device has it already and is not done.
    """
    if Calendar.read(session).hold(device, UPDATE_S) is not None:
        return None
    update = session.get(AgentUpdate, (candidate.id, device.id))
    if update is not None and update.state != "given":
        return None
    release = _locked_release(session, candidate.id)
    if release.state != "offered":
        return None
    if update is None:
        if release.most_devices is not None and _count(session, release) >= release.most_devices:
            return None
        session.add(AgentUpdate(release_id=release.id, device_id=device.id))
        note(session, device.id, "update", f"agent {release.version} is offered")
    return release


def _signed(farm: Farm, release: AgentRelease, device: Device) -> Envelope:
    now = time.time()
    agent_offer = AgentOffer(
        sequence=release.sequence,
        version=release.version,
        program=Blob(release.digest, release.size_bytes, release_path(release.sequence)),
        device_id=device.id,
        oldest_python=release.oldest_python,
        protocol=release.protocol,
        not_before=now - CLOCK_SKEW_S,
        expires_at=now + OFFER_S,
        release_number=farm.signer.release_number,
        is_rollback=release.is_rollback,
    )
    return farm.signer.sign(OFFER_TYPE, dumps(agent_offer))


def offered_release(session: Session, device_id: str, sequence: int) -> AgentRelease:
    """Returns the release, if the device was given it. Raises: NotFound."""
    query = select(AgentRelease).join(AgentUpdate, AgentUpdate.release_id == AgentRelease.id)
    offered = query.where(AgentUpdate.device_id == device_id, AgentRelease.sequence == sequence)
    release = session.scalar(offered.where(AgentUpdate.state != "failed"))
    if release is None:
        raise NotFound("release.not-given", f"no release {sequence} was offered to this device")
    return release
