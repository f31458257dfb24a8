"""Identity of devices: enrolment by one-time token, renewal by signature, short-lived credentials."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, TypeVarTuple

from sqlalchemy import Select, delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from device_agents.wire import (
    CHALLENGE_TYPE,
    ENROL_PATH,
    ENROL_TYPE,
    REAL_CLASSES,
    Challenge,
    Credential,
    DeviceDescription,
    EnrolRequest,
    EnrolResponse,
    Machine,
    Program,
    RenewRequest,
    challenge_message,
    enrol_message,
    pae,
    to_json,
)
from device_agents.wire.ed25519 import verify
from service.base.identifiers import clean_text, new_secret, secret_hash
from service.base.problems import Forbidden, Problem, Unauthenticated, Unavailable
from service.boards.fleet import tokens
from service.boards.releases.offering import Offered, note_program
from service.devices import isolation, machines
from service.devices.blame import RESTARTED, judge_clock, note
from service.devices.maintenance.standing import Calendar
from service.devices.renaming import check_free, who_is_called
from service.devices.service import find
from service.people.audit.command_entries import add_entry
from service.people.quotas import limits as quotas
from service.store.database.models import (
    LIVE_ATTEMPT_STATES,
    Attempt,
    Device,
    DeviceCredential,
    EnrolmentToken,
    UsedChallenge,
)
from service.store.farm import Farm
from service.store.key_list import rooted
from service.store.signing import CHALLENGE_S
from service.work.runs import attempts

Columns = TypeVarTuple("Columns")
ANEW = "delete its state folder, which holds its key, and enrol it with a new token"
UNCONFIRMED_RETRY_S = 60
ANOTHER = "enrol what is another device with a new state folder and token"


@dataclass(frozen=True, slots=True)
class Caller:
    """The facts that come with an enrolment or a renewal, beside its body."""

    program: Program | None = None
    """The program that the agent runs from."""
    machine: Machine = field(default_factory=Machine)
    address: str = ""
    clock: float | None = None
    """The device's time; None if the agent does not tell it."""


@dataclass(frozen=True, slots=True)
class Agent:
    """The caller of an agent endpoint: a device, and the session that its credential belongs to."""

    device_id: str
    session: str


def enrol(session: Session, farm: Farm, request: EnrolRequest, caller: Caller) -> EnrolResponse | Problem:
    """Enrols a device with a token, for a caller that has the device's key. While another machine works as the device,
    it returns a problem instead, to be raised once what was recorded is committed.

    Raises: Forbidden (not signed by the key; a token that is unknown, used up, expired, revoked, or for other devices;
    a device that says to be another than it was).
    """
    if not verify(request.public_key, request.signature, pae(ENROL_TYPE, enrol_message(request))):
        raise _unsigned(request)
    token = tokens.admit(session, request.token, request.description)
    device = session.scalar(select(Device).where(Device.public_key == request.public_key))
    if device is not None and device.organisation_id != token.organisation_id:
        raise Forbidden("enrol.token", "this enrolment token is unknown or has expired", hint=tokens.HINT)
    if device is None:
        quotas.check(session, farm.settings, "devices", organisation_id=token.organisation_id)
        check_free(session, token.organisation_id, request.description.name)
        device = Device(
            public_key=request.public_key,
            session=request.session,
            is_shared=token.is_shared,
            organisation_id=token.organisation_id,
            isolation_level=request.description.isolation_level,
            **_columns(request.description),
        )
        session.add(device)
        session.flush()
        machines.admit(session, device, request.session, caller.machine, caller.address)
        machines.close_for(session, device.organisation_id, caller.machine)
        tokens.use(session, token, device)
        note_program(session, device, caller.program)
        note(session, device.id, "enrolled", f"as {device.name}" + (f", by token {token.id}" if token.id else ""))
        isolation.judge_description(session, device, request.description.isolation_level)
        _record(session, token, device, "enrolled", caller.address)
        return EnrolResponse(device.id, _credential(session, farm, device))
    if device.state == "removed":
        raise Forbidden("device.removed", "a device with this key was removed", hint=ANEW)
    _check_same(device, request.description, act="enrol")
    problem = machines.admit(session, device, request.session, caller.machine, caller.address)
    if problem is not None:
        return problem
    # The answer to the first try was lost, or the agent lost all but its key.
    tokens.use(session, token, device)
    device.unconfirmed_at = None  # whoever made the token, after the restore, has let it in
    _restart(session, farm, device, request.session, request.description)
    note_program(session, device, caller.program)
    _record(session, token, device, "enrolled once more", caller.address)
    return EnrolResponse(device.id, _credential(session, farm, device))


def _record(session: Session, token: EnrolmentToken, device: Device, what: str, address: str) -> None:
    by = f"by enrolment token {token.id}" if token.id else "by an enrolment token"
    add_entry(
        session,
        token.organisation_id,
        f"POST {ENROL_PATH}",
        subject=device.id,
        address=address,
        status=201,
        detail=f"{device.name}, {device.device_class}, {what} {by}",
    )


def challenge(session: Session, farm: Farm, device_id: str) -> Challenge:
    """Returns a challenge for the device to sign. Raises: NotFound."""
    find(session, device_id)
    return Challenge(farm.signer.challenge(device_id))


def renew(session: Session, farm: Farm, request: RenewRequest, caller: Caller) -> Credential | Problem:
    """Returns a fresh credential for a caller that has the device's key. While another machine works as the device, it
    returns a problem instead, to be raised once what was recorded is committed. Raises: Forbidden, Unavailable (nobody
    has confirmed since a restore that it is still a device of the farm: agents ask again by themselves).
    """
    device = session.get(Device, request.device_id)
    if device is None or device.state == "removed":
        raise Forbidden("device.removed", "this device was removed, or never was", hint=ANEW)
    if not farm.signer.is_fresh_challenge(device.id, request.challenge):
        raise Forbidden("renew.challenge", "the challenge is not ours, or older than a minute", hint="ask for another")
    message = pae(CHALLENGE_TYPE, challenge_message(request.device_id, request.session, request.challenge))
    if not verify(device.public_key, request.signature, message):
        raise Forbidden("renew.signature", "the signature is not by this device's key")
    if not _spend(session, request.challenge):
        raise Forbidden("renew.challenge", "the challenge was used before", hint="ask for another")
    if device.unconfirmed_at is not None:
        raise Unavailable(
            "device.unconfirmed",
            "the farm was restored from a backup, and this device waits for its operator's word",
            cause="policy",
            headers={"Retry-After": str(UNCONFIRMED_RETRY_S)},
            hint=f"on the farm's machine: python -m service.admin confirm {device.id}",
        )
    _check_same(device, request.description, act="renew")
    problem = machines.admit(session, device, request.session, caller.machine, caller.address)
    if problem is not None:
        return problem
    _restart(session, farm, device, request.session, request.description)
    note_program(session, device, caller.program)
    judge_clock(
        session, device, caller.clock
    )  # an agent with a wrong clock asks for no work, where it would be judged too
    return _credential(session, farm, device)


def _unsigned(request: EnrolRequest) -> Forbidden:
    why = "is not by the key that it names" if request.signature else "is missing"
    return Forbidden(
        "enrol.signature",
        f"the signature of this enrolment {why}",
        where="signature",
        hint="enrol with the key of the device's own state folder; an agent that is older than such "
        "signatures is updated by the farm's line of enrolment; the token is still good",
    )


def _check_same(device: Device, description: DeviceDescription, *, act: str) -> None:
    """Checks that a device describes itself as what it enrolled as: a description cannot turn it into another. Raises:
    Forbidden.
    """
    for name in ("device_class", "measurement_class"):
        if getattr(description, name) != getattr(device, name):
            raise Forbidden(
                f"{act}.class", f"this device enrolled as {getattr(device, name)}", where=name, hint=ANOTHER
            )
    tokens.check_targets(device.bound_targets, description, code=f"{act}.targets", hint=ANOTHER)


def _spend(session: Session, challenge: str) -> bool:
    """Uses up a fresh challenge, for all API processes. Returns False if it was used before."""
    now = time.time()
    session.execute(delete(UsedChallenge).where(UsedChallenge.expires_at < now))
    try:
        with session.begin_nested():
            session.add(UsedChallenge(challenge_hash=secret_hash(challenge), expires_at=now + 2 * CHALLENGE_S))
    except IntegrityError:
        return False
    return True


def _restart(session: Session, farm: Farm, device: Device, session_id: str, description: DeviceDescription) -> None:
    """Records the newest description. A new session voids the older one, and the work of the older one is lost."""
    environment, columns = device.environment, _columns(description)
    name, has_new_name = description.name, description.name != device.told_name
    namesake = who_is_called(session, device.organisation_id, name, but=device.id) if has_new_name else None
    if namesake:
        columns["told_name"] = device.told_name
    if device.session != session_id:
        attempts.lose_live(session, farm.settings, device, "the agent started again", is_restart=True)
        note(session, device.id, RESTARTED)
        if namesake:
            note(
                session,
                device.id,
                "name-taken",
                f"its agent calls it {name}, as {namesake} is called: the name stays {device.name}",
            )
        environment = {}
    for column, value in columns.items():
        setattr(device, column, value)
    device.environment = isolation.with_facts(device.environment, environment)
    isolation.judge_description(session, device, description.isolation_level)
    device.session, device.last_seen_at = session_id, time.time()


def _columns(description: DeviceDescription) -> dict[str, Any]:
    """Returns the description as columns, as the device sent it. The isolation level is not among them: it is judged
    separately.
    """
    return {
        "told_name": description.name,
        "device_class": description.device_class,
        "measurement_class": description.measurement_class,
        "targets": [clean_text(target, 100) for target in description.targets],
        "architecture": clean_text(description.architecture, 40),
        "cpu_model": clean_text(description.cpu_model),
        "features": [clean_text(feature, 100) for feature in description.features],
        "cores": min(description.cores, 1 << 20),
        "memory_bytes": min(description.memory_bytes, 1 << 60),
        "sensors": [clean_text(sensor, 100) for sensor in description.sensors],
        "agent_version": clean_text(description.agent_version, 100),
        "runner": clean_text(description.runner) if description.runner else None,
        "environment": {clean_text(key, 100): clean_text(value, 500) for key, value in description.environment.items()},
        "modes": list(description.modes) if description.measurement_class in REAL_CLASSES else [],
        "own_datasets": [to_json(dataset) for dataset in description.own_datasets],
    }


def _credential(session: Session, farm: Farm, device: Device) -> Credential:
    token, lifetime_s = new_secret(), farm.settings.credential_s
    expires_at = time.time() + lifetime_s
    session.execute(delete(DeviceCredential).where(DeviceCredential.expires_at < time.time()))
    session.add(
        DeviceCredential(
            token_hash=secret_hash(token), device_id=device.id, session=device.session, expires_at=expires_at
        )
    )
    listed = rooted(farm.settings.key_list_path)
    return Credential(
        token,
        expires_at,
        lifetime_s,
        (farm.signer.server_key(),),
        root=farm.signer.introduce(listed.root) if listed else None,
        key_list=listed.key_list if listed else None,
    )


@dataclass(frozen=True, slots=True)
class Present:
    """A device that calls, as the database had it just now; the row belongs to no session any more."""

    agent: Agent
    device: Device
    is_busy: bool
    """Whether the device holds an attempt."""
    calendar: Calendar
    releases: Offered


def authenticate(session: Session, token: str | None) -> Agent:
    """Returns the agent whose credential this is. Raises: Unauthenticated."""
    query = select(DeviceCredential.device_id, DeviceCredential.session)
    row = session.execute(_with_credential(query, token)).one_or_none()
    if row is None:
        raise refused()
    return Agent(*row)


def present(session: Session, token: str | None) -> Present:
    """Authenticates a device like `authenticate`, and reads in the same statement all that a request for work is judged
    by. Raises: Unauthenticated.
    """
    live = select(Attempt.id).where(Attempt.device_id == Device.id, Attempt.state.in_(LIVE_ATTEMPT_STATES))
    query = select(Device, DeviceCredential.session, live.exists()).select_from(DeviceCredential)
    row = session.execute(_with_credential(query, token)).one_or_none()
    if row is None:
        raise refused()
    device, session_id, is_busy = row
    return Present(Agent(device.id, session_id), device, is_busy, Calendar.read(session), Offered.read(session))


def _with_credential(query: Select[*Columns], token: str | None) -> Select[*Columns]:
    if token is None:
        raise Unauthenticated("no credential", code="agent.credential", hint="enrol, or renew the credential")
    is_good = (DeviceCredential.token_hash == secret_hash(token)) & (DeviceCredential.expires_at > time.time())
    return query.join(Device, Device.id == DeviceCredential.device_id).where(is_good, Device.state != "removed")


def refused() -> Unauthenticated:
    """Returns the refusal of a credential that is not, or no longer, good."""
    return Unauthenticated(
        "this credential is unknown, has expired or was revoked",
        code="agent.credential",
        hint="renew it with a signed challenge",
    )
