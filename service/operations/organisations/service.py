"""Organisations in the database."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.base.identifiers import clean_name
from service.base.problems import Conflict, NotFound
from service.base.settings import Settings
from service.devices.service import set_state
from service.operations.organisations.schemas import QuotaView, RetentionView
from service.operations.retention.rules import WORDS, RuleName, days_of
from service.people.quotas.limits import QUOTAS, UNCOUNTED, Quota, QuotaName, has_share, limit_of, share_of_disk
from service.store.database.models import HOME, Device, Organisation


def create(session: Session, name: str) -> Organisation:
    """Creates an organisation. Raises: Conflict for a name that is taken."""
    organisation = Organisation(name=_free(session, name))
    session.add(organisation)
    session.flush()
    return organisation


def _free(session: Session, name: str) -> str:
    cleaned = clean_name(name)
    if session.scalar(select(Organisation.id).where(Organisation.name == cleaned)) is not None:
        raise Conflict(
            "organisation.name",
            f"there is an organisation {cleaned!r:.100} already",
            where="name",
            hint="GET /organisations lists them",
        )
    return cleaned


def newest(session: Session) -> list[Organisation]:
    """Returns every organisation, closed ones too, the newest first."""
    return list(session.scalars(select(Organisation).order_by(Organisation.id.desc())))


def find(session: Session, organisation_id: str) -> Organisation:
    """Returns the organisation. Raises: NotFound."""
    organisation = session.scalar(select(Organisation).where(Organisation.id == organisation_id))
    if organisation is None:
        raise NotFound(
            "organisation.unknown", f"no organisation {organisation_id!r:.60}", hint="GET /organisations lists them"
        )
    return organisation


def rename(session: Session, organisation: Organisation, name: str) -> None:
    """Raises: Conflict."""
    if clean_name(name) != organisation.name:
        organisation.name = _free(session, name)


def set_quotas(organisation: Organisation, changes: Mapping[QuotaName, float | str]) -> None:
    """Sets the organisation's limits: a number, `unlimited`, or `default` (the farm's for all)."""
    organisation.quotas = _changed(organisation.quotas, changes, "unlimited")


def set_retention(organisation: Organisation, changes: Mapping[RuleName, float | str]) -> None:
    """Sets the organisation's rules: days, `forever`, or `default` (the farm's for all)."""
    organisation.retention = _changed(organisation.retention, changes, "forever")


def _changed(overrides: Mapping[str, Any], changes: Mapping[Any, float | str], none: str) -> dict[str, Any]:
    stay = {name: value for name, value in overrides.items() if changes.get(name) != "default"}
    return stay | {name: None if value == none else value for name, value in changes.items() if value != "default"}


def quotas_shown(session: Session, settings: Settings, organisation: Organisation) -> list[QuotaView]:
    """Its limits, and what it uses of each."""
    return [_quota_shown(session, settings, organisation, quota) for quota in QUOTAS]


def _quota_shown(session: Session, settings: Settings, organisation: Organisation, quota: Quota) -> QuotaView:
    use = None if quota.name in UNCOUNTED else quota.count(session, organisation.id)
    limit = limit_of(settings, organisation.quotas, quota.name)
    if limit is None and has_share(settings, organisation.quotas, quota.name, organisation.id):
        limit = share_of_disk(settings, use or 0.0)
    return QuotaView(name=quota.name, words=quota.words, limit=limit, use=use)


def retention_shown(settings: Settings, organisation: Organisation) -> list[RetentionView]:
    """Returns how long the organisation's data is retained."""
    return [
        RetentionView(name=name, words=words, days=days_of(settings, organisation.retention, name))
        for name, words in WORDS.items()
    ]


def close(session: Session, organisation_id: str) -> Organisation:
    """Takes none of its keys from now on, and removes its devices; what it began on others goes on.

    Raises: NotFound, Conflict (the home one).
    """
    organisation = find(session, organisation_id)
    if organisation.id == HOME:
        raise Conflict("organisation.home", "the farm's own organisation stays open", hint="revoke its keys instead")
    organisation.closed_at = organisation.closed_at or time.time()
    devices = select(Device.id).where(Device.organisation_id == organisation.id, Device.state != "removed")
    for device_id in session.scalars(devices.order_by(Device.id)).all():
        set_state(session, device_id, "removed", "its organisation was closed")
    return organisation
