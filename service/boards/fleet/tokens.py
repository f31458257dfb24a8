"""Enrolment tokens: for one board or many, for all or some, until a time; who used them, and how they end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from device_agents.wire import DeviceDescription
from service.base.identifiers import clean_text, new_id, new_secret, secret_hash
from service.base.problems import Forbidden, Invalid, NotFound
from service.base.settings import Settings
from service.boards.fleet.schemas import EnrolmentTokenCreate
from service.devices.known_classes import check_asked, check_said
from service.devices.renaming import check_free
from service.store.database.models import HOME, Device, EnrolmentToken, EnrolmentUse, Organisation
from service.store.database.paging import newest_first
from service.store.database.scope import EVERYONES, organisation_of

FORGET_AFTER_S = 90 * 86400.0
HINT = "make another on the farm: `pockfarm devices enrol NAME`, or Enrol a board on its dashboard"
WIDER = "make a token that names these targets too, and enrol with it"


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A new token: its secret leaves this file once."""

    row: EnrolmentToken
    secret: str


def create(session: Session, settings: Settings, body: EnrolmentTokenCreate) -> CreatedToken:
    """Creates a token. Raises: Invalid (it would live too long, nobody knows its class, no name of a device), Conflict
    (the board's name is taken), Forbidden (shared by a tenant).
    """
    usual_s, most_s = settings.enrolment_token_s, settings.enrolment_token_most_s
    lifetime_s = usual_s if body.lifetime_s is None else body.lifetime_s
    if lifetime_s > max(most_s, usual_s):
        raise Invalid(
            "enrol.lifetime",
            f"{lifetime_s:.0f} s, a token of this farm lives for {most_s:.0f} at most",
            where="lifetime_s",
            hint="ask for less, or set POCKFARM_ENROLMENT_TOKEN_MOST_S",
        )
    is_home = organisation_of(session) == HOME
    if body.shared and not is_home:
        raise Forbidden(
            "device.shared",
            "only the farm's own devices are shared with everybody",
            where="shared",
            hint="leave `shared` out: the device is your organisation's",
        )
    check_asked(session, body.device_class, is_new=body.new_class)
    if body.name and body.uses == 1:  # then it is what the board will be called
        check_free(session, organisation_of(session), body.name)
    secret = new_secret()
    row = EnrolmentToken(
        is_shared=is_home if body.shared is None else body.shared,
        token_hash=secret_hash(secret),
        id=new_id("tok"),
        name=clean_text(body.name),
        device_class=body.device_class,
        targets=list(body.targets) if body.targets else None,
        max_uses=body.uses,
        expires_at=time.time() + lifetime_s,
    )
    session.add(row)
    session.flush()
    return CreatedToken(row, secret)


def admit(session: Session, secret: str, description: DeviceDescription) -> EnrolmentToken:
    """Returns the token, held, if it is good for a device of this kind. Raises: Forbidden."""
    token = session.scalar(
        select(EnrolmentToken).where(EnrolmentToken.token_hash == secret_hash(secret)).with_for_update()
    )
    if token is None or token.expires_at < time.time() or _is_closed(session, token.organisation_id):
        raise Forbidden("enrol.token", "this enrolment token is unknown or has expired", hint=HINT)
    if token.revoked_at is not None:
        raise Forbidden("enrol.token", "this enrolment token was revoked", hint=HINT)
    device_class = description.device_class
    if token.device_class is None:
        check_said(session, device_class)
    if token.device_class not in (None, device_class):
        raise Forbidden(
            "enrol.device-class",
            f"this token is for devices of class {token.device_class}, and this device is a {device_class}",
            where="device_class",
            hint=f"make a token for class {device_class}, or for any class; if the board was recognised wrongly, start "
            f"its agent with --class {token.device_class} (enrol.sh: POCKFARM_CLASS)",
        )
    check_targets(token.targets, description, code="enrol.targets", hint=WIDER)
    return token


def _is_closed(session: Session, organisation_id: str) -> bool:
    closed = select(Organisation.id).where(Organisation.id == organisation_id, Organisation.closed_at.is_not(None))
    return session.scalar(closed, execution_options=dict(EVERYONES)) is not None


def check_targets(bound: Sequence[str] | None, description: DeviceDescription, *, code: str, hint: str) -> None:
    """Checks that a device claims to run nothing but the targets that its token named. Raises: Forbidden."""
    beyond = sorted(set(description.targets) - set(bound)) if bound else []
    if beyond:
        raise Forbidden(
            code,
            f"this token is for devices that run {', '.join(bound or ())}, and "
            f"this device says that it runs {', '.join(beyond)} too"[:1000],
            where="targets",
            hint=hint,
        )


def use(session: Session, token: EnrolmentToken, device: Device) -> None:
    """Counts the device, once, and binds it to the token's targets, if none has bound it yet: another token, made for
    other devices, lets it run no more than its targets. Raises: Forbidden if the token is used up.
    """
    if token.device_id == device.id or session.scalar(_uses(token, device.id)) is not None:
        return  # the answer to its first try was lost
    if token.uses >= token.max_uses:
        times = "before" if token.max_uses == 1 else f"{token.max_uses} times, as often as it may be"
        raise Forbidden("enrol.token", f"this enrolment token was used {times}", hint=HINT)
    token.uses, token.device_id = token.uses + 1, device.id
    if device.bound_targets is None:
        device.bound_targets = token.targets
    if token.id is not None:
        session.add(EnrolmentUse(token_id=token.id, device_id=device.id, organisation_id=token.organisation_id))


def _uses(token: EnrolmentToken, device_id: str) -> Select[int]:
    return select(EnrolmentUse.id).where(EnrolmentUse.token_id == token.id, EnrolmentUse.device_id == device_id)


def listed(session: Session, *, limit: int, cursor: str | None) -> tuple[Sequence[EnrolmentToken], str | None]:
    """Returns a page of tokens, the newest first; those of older releases have no id, and are not shown."""
    query = select(EnrolmentToken).where(EnrolmentToken.id.is_not(None))
    return newest_first(session, query, EnrolmentToken.id, limit=limit, cursor=cursor)  # type: ignore[arg-type]


def find(session: Session, token_id: str) -> EnrolmentToken:
    """Returns the token of that id (which is no secret). Raises: NotFound."""
    token = session.scalar(select(EnrolmentToken).where(EnrolmentToken.id == token_id))
    if token is None:
        raise NotFound(
            "enrol.token-unknown",
            f"no enrolment token {token_id!r:.60}",
            hint="GET /devices/enrolment-tokens lists them",
        )
    return token


def users(session: Session, token: EnrolmentToken) -> list[tuple[EnrolmentUse, Device]]:
    """Returns the devices that used the token, the first one first."""
    query = select(EnrolmentUse, Device).join(Device, Device.id == EnrolmentUse.device_id)
    rows = session.execute(query.where(EnrolmentUse.token_id == token.id).order_by(EnrolmentUse.id))
    return [(use, device) for use, device in rows]


def revoke(session: Session, token_id: str) -> EnrolmentToken:
    """Revokes a token: no more devices enrol with it, and those that have enrolled stay. Raises: NotFound."""
    token = find(session, token_id)
    if token.revoked_at is None:
        token.revoked_at = time.time()
    return token


def is_to_be_forgotten(session: Session) -> bool:
    """Whether `forget` has something to do: a look that blocks nobody."""
    old = select(EnrolmentToken.token_hash).where(EnrolmentToken.expires_at < time.time() - FORGET_AFTER_S)
    return session.scalar(old.limit(1)) is not None


def forget(session: Session) -> None:
    """Deletes tokens that ran out a season ago, and who used them; the devices' histories name them for ever."""
    before = time.time() - FORGET_AFTER_S
    old = select(EnrolmentToken.id).where(EnrolmentToken.expires_at < before, EnrolmentToken.id.is_not(None))
    session.execute(delete(EnrolmentUse).where(EnrolmentUse.token_id.in_(old)))
    session.execute(delete(EnrolmentToken).where(EnrolmentToken.expires_at < before))
