"""Holdings in the database. A digest is looked up among what the asker holds, by one query, found or not."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from service.base.identifiers import clean_name, new_id
from service.base.problems import Gone
from service.base.schemas import utc_text
from service.base.settings import Settings
from service.people.quotas import limits as quotas
from service.store.database.insert import insert_if_new
from service.store.database.models import Holding
from service.store.database.scope import EVERYONES, organisation_of
from service.store.garbage.holding import hold_files

Kind = Literal["bundle", "dataset", "model", "data", "weights"]
_IDS: Mapping[Kind, str] = {"bundle": "bun", "dataset": "dat", "model": "mod", "data": "dat", "weights": "wgt"}
KINDS: tuple[Kind, ...] = tuple(_IDS)
SENT: tuple[Kind, ...] = ("model", "data")
"""Kinds of files that a request for a compile may name by digest instead of sending them."""


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
    """Records that the organisation (the session's, if none is given) has the file, perhaps again after retention
    removed it.
    """
    fields: dict[str, Any] = {
        "organisation_id": organisation_id or organisation_of(session),
        "kind": kind,
        "digest": digest,
        "id": new_id(_IDS[kind]),
        "name": clean_name(name),
        "plan_name": clean_name(plan_name),
        "size_bytes": size_bytes,
    }
    hold_files(session, [digest])
    insert_if_new(session, Holding, fields)
    conditions = (
        Holding.organisation_id == fields["organisation_id"],
        Holding.kind == kind,
        Holding.digest == digest,
        Holding.files_removed_at.is_not(None),
    )
    session.execute(
        update(Holding).where(*conditions).values(files_removed_at=None, created_at=time.time()),
        execution_options=dict(EVERYONES),
    )


def hold_within(
    session: Session, settings: Settings, kind: Kind, digest: str, *, size_bytes: int, name: str = ""
) -> None:
    """Calls `hold` if the organisation has room for one more. Raises: Forbidden."""
    check_room(session, settings, digest, more_bytes=size_bytes)
    hold(session, kind, digest, size_bytes=size_bytes, name=name)


def check_room(session: Session, settings: Settings, digest: str, *, more_bytes: int, is_stored: bool = True) -> None:
    """Checks that the session's organisation has room for a file, or holds it already: each file counts once, whatever
    it is used as.

    Raises: Forbidden.
    """
    quotas.check_room(
        session,
        settings,
        more_bytes=more_bytes,
        organisation_id=organisation_of(session),
        is_stored=is_stored,
        is_held=lambda: find(session, KINDS, digest) is not None,
    )


def find(
    session: Session, kinds: Collection[Kind], digest: str, *, organisation_id: str | None = None
) -> Holding | None:
    """Returns the organisation's (the session's, if none is given) holding of the digest, as one of the kinds."""
    whose = organisation_id or organisation_of(session)
    query = select(Holding).where(
        Holding.organisation_id == whose,
        Holding.kind.in_(kinds),
        Holding.digest == digest,
        Holding.files_removed_at.is_(None),
    )
    return session.scalars(query.limit(1)).first()


def of_digests(session: Session, kind: Kind, digests: Iterable[str]) -> dict[str, Holding]:
    """Returns the holdings of these by the session's organisation, by digest."""
    is_own = Holding.organisation_id == organisation_of(session)
    query = select(Holding).where(is_own, Holding.kind == kind, Holding.digest.in_(set(digests)))
    return {holding.digest: holding for holding in session.scalars(query)}


WORDS: Mapping[Kind, str] = {
    "bundle": "the bundle",
    "dataset": "the data set",
    "model": "the model",
    "data": "the model's data file",
    "weights": "the trained weights",
}
AGAIN: Mapping[Kind, str] = {
    "bundle": "compile the model again",
    "dataset": "send it again with POST /datasets",
    "model": "send it again",
    "data": "send it again",
    "weights": "train again",
}


def refuse_taken(session: Session, kind: Kind, digest: str, *, where: str = "") -> None:
    """Checks that retention has not removed the session's file. Raises: Gone."""
    query = select(Holding.files_removed_at).where(*_is_own(session, kind, digest))
    removed_at = session.scalar(query)
    if removed_at is not None:
        raise gone_file(kind, digest, removed_at, where=where)


def use(session: Session, kind: Kind, digest: str, *, where: str = "") -> Holding | None:
    """Returns the session's holding, if there is one; retention does not take it before this transaction ends. Raises:
    Gone.
    """
    query = select(Holding).where(*_is_own(session, kind, digest)).with_for_update(read=True)
    holding = session.scalar(query, execution_options={"populate_existing": True})
    if holding is not None and holding.files_removed_at is not None:
        raise gone_file(kind, digest, holding.files_removed_at, where=where)
    return holding


def _is_own(session: Session, kind: Kind, digest: str) -> tuple[ColumnElement[bool], ...]:
    return Holding.organisation_id == organisation_of(session), Holding.kind == kind, Holding.digest == digest


def gone_file(kind: Kind, digest: str, removed_at: float, *, where: str = "") -> Gone:
    """Makes the error about a file that retention has taken."""
    return Gone(
        "retention.removed",
        f"{WORDS[kind]} {digest} was removed by retention on {utc_text(removed_at)}",
        where=where,
        hint=f"{AGAIN[kind]}; what is pinned stays",
    )
