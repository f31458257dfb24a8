"""The rights that a restore does not bring back: a backup does not know what was revoked or removed after it.

What lets somebody in by itself is gone: links, sessions, tokens, credentials; so are answers to repeated requests, and
webhook deliveries that waited. Keys, devices and webhooks stay, and wait (`unconfirmed_at`) until whoever runs the
farm says which of them are still good: none is let in, given work or told of anything before.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, delete, func, or_, select
from sqlalchemy.orm import Session

from service.base.schemas import utc_text
from service.base.settings import Settings
from service.devices.blame import note
from service.operations.backup.form import BackupError
from service.people.audit.command_entries import COMMAND, add_entry
from service.store.database.models import (
    HOME,
    ApiKey,
    DashboardLink,
    DashboardSession,
    Device,
    DeviceCredential,
    EnrolmentToken,
    EnrolmentUse,
    IdempotencyRecord,
    Organisation,
    User,
    Webhook,
    WebhookDelivery,
)

HOW = "python -m service.admin confirm"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that waits for somebody's word."""

    kind: str
    row: ApiKey | Device | Webhook
    organisation: str

    def line(self) -> str:
        """Describes it to whoever decides, so that one is told from another."""
        row, words = self.row, ""
        if isinstance(row, ApiKey):
            used = f"last used {utc_text(row.last_used_at)}" if row.last_used_at else "never used"
            words = f"{row.name}, made {utc_text(row.created_at)}, {used}"
        elif isinstance(row, Device):
            words = f"{row.name}, a {row.device_class}, last seen {utc_text(row.last_seen_at)}"
        else:
            words = row.url
        return f"  {self.kind:8} {row.id}  {self.organisation}: {words}"


def revive_nothing(session: Session, settings: Settings, *, backup_at: float) -> list[str]:
    """Drops what lets somebody in, and makes keys, devices and webhooks wait for confirmation. Returns what to report
    about it, line by line.
    """
    now = time.time()
    names = _organisations(session)
    lines = [f"the backup is of {utc_text(backup_at)}, and does not know what was revoked or removed since"]
    lines += _good_then(session, names, backup_at)
    gone = _drop(session, now)
    lines.append("gone: " + ", ".join(f"{count:,} {words}" for words, count in gone.items()))
    for _, kind, good in _KINDS:
        for row in session.scalars(select(kind).where(*good(now))):
            row.unconfirmed_at = now
            if isinstance(row, Device):
                note(session, row.id, "restored", f"from a backup of {utc_text(backup_at)}: {HOW} {row.id}")
    session.flush()
    rows = waiting(session)
    counts = Counter(entry.row.organisation_id for entry in rows)
    for organisation_id in names:
        detail = f"from a backup of {utc_text(backup_at)}: {counts[organisation_id]} keys, devices and webhooks wait"
        add_entry(session, organisation_id, "restore", detail=f"{detail} for whoever runs the farm")
    if rows:
        lines.append(f"{len(rows):,} were good then, and wait until you say that they still are:")
        lines += [entry.line() for entry in rows]
        command = f"POCKFARM_STATE={settings.state} {HOW}"
        lines.append(f"next: {command} ID ... lets some in, --all every one; revoke or remove what is not to come back")
    return lines


def _organisations(session: Session) -> dict[str, str]:
    rows = session.execute(select(Organisation.id, Organisation.name).order_by(Organisation.id))
    return {row_id: name for row_id, name in rows}  # noqa: C416 (rows are no tuples to mypy)


def _good_then(session: Session, names: dict[str, str], backup_at: float) -> list[str]:
    """Lists what was in force as the backup was made, and waits for nobody's word or does not come back."""
    still_open = select(Organisation.name).where(Organisation.closed_at.is_(None)).order_by(Organisation.name)
    people = select(User).where(User.removed_at.is_(None)).order_by(User.name)
    by_key = select(DashboardLink.expires_at, ApiKey.name).join(ApiKey, ApiKey.id == DashboardLink.api_key_id)
    links = by_key.where(DashboardLink.used_at.is_(None), DashboardLink.expires_at > backup_at)
    tokens = select(EnrolmentToken).where(EnrolmentToken.expires_at > backup_at, EnrolmentToken.revoked_at.is_(None))
    lines = [f"  open     organisation {name}" for name in session.scalars(still_open)]
    lines += [
        f"  person   {person.id}  {names.get(person.organisation_id, '')}: {person.name}"
        for person in session.scalars(people)
    ]
    lines += [f"  link     by key {name}, good until {utc_text(at)}" for at, name in session.execute(links)]
    for token in session.scalars(tokens):
        lines.append(
            f"  token    {token.id or '-'}  {names.get(token.organisation_id, '')}: {token.name or 'without a name'}"
        )
    return ["in force then (close, remove or make again what should be otherwise):", *lines] if lines else []


def _drop(session: Session, now: float) -> dict[str, int]:
    """Deletes what lets in, answers or is sent without anybody's consent. Returns how many rows, by their name in
    words.
    """
    fresh = EnrolmentToken.expires_at > now
    uses = select(EnrolmentToken.id).where(fresh, EnrolmentToken.id.is_not(None))
    session.execute(delete(EnrolmentUse).where(EnrolmentUse.token_id.in_(uses)))
    unsent = or_(WebhookDelivery.state == "waiting", WebhookDelivery.next_at.is_not(None))
    dropped: dict[str, tuple[Any, Sequence[ColumnElement[bool]]]] = {
        "dashboard links": (DashboardLink, ()),
        "dashboard sessions": (DashboardSession, ()),
        "enrolment tokens": (EnrolmentToken, (fresh,)),
        "credentials of devices": (DeviceCredential, ()),
        "answers to repeated requests": (IdempotencyRecord, ()),
        "webhook deliveries that waited": (WebhookDelivery, (unsent,)),
    }
    counts = {}
    for words, (kind, which) in dropped.items():
        counts[words] = int(session.scalar(select(func.count()).select_from(kind).where(*which)) or 0)
        session.execute(delete(kind).where(*which), execution_options={"synchronize_session": False})
    return counts


_KINDS: tuple[tuple[str, Any, Callable[[float], tuple[ColumnElement[bool], ...]]], ...] = (
    (
        "key",
        ApiKey,
        lambda now: (ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now)),
    ),
    ("device", Device, lambda _: (Device.state != "removed",)),
    ("webhook", Webhook, lambda _: (Webhook.removed_at.is_(None),)),
)
"""Kinds of rows that wait: the word for each, its table, and which rows are good without a restore."""


def waiting(session: Session) -> list[Waiting]:
    """Returns the keys, devices and webhooks that came back by a restore and that nobody has confirmed, revoked or
    removed.
    """
    names, now = _organisations(session), time.time()
    return [
        Waiting(word, row, names.get(row.organisation_id) or row.organisation_id)
        for word, kind, good in _KINDS
        for row in session.scalars(select(kind).where(kind.unconfirmed_at.is_not(None), *good(now)).order_by(kind.id))
    ]


def confirm(session: Session, ids: Collection[str] | None) -> list[Waiting]:
    """Confirms these, or all that wait (None), so that they may use the farm again. Raises: BackupError, which names
    what does not wait; none is confirmed then.
    """
    by_id = {entry.row.id: entry for entry in waiting(session)}
    strangers = sorted(set(ids or ()) - set(by_id))
    if strangers:
        raise BackupError(f"{', '.join(strangers)[:200]}: does not wait to be confirmed; `{HOW}` lists what does")
    chosen = list(by_id.values()) if ids is None else [by_id[row_id] for row_id in dict.fromkeys(ids)]
    for entry in chosen:
        entry.row.unconfirmed_at = None
        if isinstance(entry.row, Device):
            note(session, entry.row.id, "confirmed", "its operator says that it is still a device of this farm")
        if entry.row.organisation_id != HOME:
            add_entry(session, entry.row.organisation_id, f"{COMMAND}confirm", subject=entry.row.id)
    return chosen
