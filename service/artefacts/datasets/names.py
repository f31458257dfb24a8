"""What data sets are called: a name chooses nothing, since several may have it, and who gives one is told so."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.artefacts.datasets.service import Held
from service.store.database.models import Holding
from service.store.database.scope import organisation_of

HINT = "runs name a data set by its digest, which is what was just answered; GET /datasets lists names and digests"
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Said:
    """One thing to say of a data set that was sent."""

    code: str
    where: str
    message: str
    hint: str


def said_of(session: Session, held: Held, *, asked_name: str) -> list[Said]:
    """Of a data set that `asked_name` was just given to."""
    own, digest = held.holding.name, held.dataset.digest
    if own != asked_name:
        return [
            Said(
                "dataset.other-name",
                "name",
                f"the same bytes are here as {own!r}, and keep that name: {asked_name!r} names nothing ({digest})",
                HINT,
            )
        ]
    others = _others(session, name=own, digest=digest)
    if not others:
        return []
    more = " and more" if len(others) > SHOWN else ""
    return [
        Said(
            "dataset.same-name",
            "name",
            f"{own!r} is the name of other bytes too: {', '.join(others[:SHOWN])}{more}; this data set is {digest}",
            HINT,
        )
    ]


def _others(session: Session, *, name: str, digest: str) -> list[str]:
    """Digests of the session's organisation, the newest first; one more than are shown."""
    mine = Holding.organisation_id == organisation_of(session)
    query = select(Holding.digest).where(
        mine,
        Holding.kind == "dataset",
        Holding.name == name,
        Holding.digest != digest,
        Holding.files_removed_at.is_(None),
    )
    return list(session.scalars(query.order_by(Holding.id.desc()).limit(SHOWN + 1)))
