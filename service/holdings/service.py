"""Holdings in the database. A digest is looked up among what the asker holds, by one query, found or not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database.insert import insert_if_new
from service.database.models import Holding
from service.database.scope import organisation_of
from service.garbage.holding import hold_files
from service.identifiers import clean_text, new_id
from service.quotas import limits as quotas
from service.settings import Settings

Kind = Literal["bundle", "dataset", "model", "data", "weights"]
_IDS: Mapping[Kind, str] = {"bundle": "bun", "dataset": "dat", "model": "mod", "data": "dat", "weights": "wgt"}
SENT: tuple[Kind, ...] = ("model", "data")
"""What a request for a compile may name by digest instead of sending it."""


def hold(
    session: Session,
    kind: Kind,
    digest: str,
    *,
    size_bytes: int,
    organisation_id: str | None = None,
    name: str = "",
    plan_name: str = "",
) -> None:
    """Note that the organisation (the session's, if none is given) has the file. Again changes nothing."""
    fields: dict[str, Any] = {
        "organisation_id": organisation_id or organisation_of(session),
        "kind": kind,
        "digest": digest,
        "id": new_id(_IDS[kind]),
        "name": clean_text(name),
        "plan_name": clean_text(plan_name),
        "size_bytes": size_bytes,
    }
    hold_files(session, [digest])
    insert_if_new(session, Holding, fields)


def hold_within(
    session: Session, settings: Settings, kind: Kind, digest: str, *, size_bytes: int, name: str = ""
) -> None:
    """`hold`, if the organisation has room for one more. Raises: Forbidden."""
    if find(session, (kind,), digest) is None:
        quotas.check(session, settings, "storage_bytes", more=size_bytes)
    hold(session, kind, digest, size_bytes=size_bytes, name=name)


def find(
    session: Session, kinds: Collection[Kind], digest: str, *, organisation_id: str | None = None
) -> Holding | None:
    """What the organisation (the session's, if none is given) holds under the digest, as one of the kinds."""
    whose = organisation_id or organisation_of(session)
    query = select(Holding).where(Holding.organisation_id == whose, Holding.kind.in_(kinds), Holding.digest == digest)
    return session.scalars(query.limit(1)).first()


def of_digests(session: Session, kind: Kind, digests: Iterable[str]) -> dict[str, Holding]:
    """What the session's organisation holds of these, by digest."""
    mine = Holding.organisation_id == organisation_of(session)
    query = select(Holding).where(mine, Holding.kind == kind, Holding.digest.in_(set(digests)))
    return {found.digest: found for found in session.scalars(query)}
