"""The names of data sets: a name chooses nothing, since several data sets may have it, and whoever gives one is told
so.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.artefacts.datasets.service import HeldDataset
from service.store.database.models import Holding
from service.store.database.scope import organisation_of

HINT = "runs name a data set by its digest, which is what was just answered; GET /datasets lists names and digests"
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice about a data set that was sent."""

    code: str
    where: str
    message: str
    hint: str


def notices_of(session: Session, dataset: HeldDataset, *, asked_name: str) -> list[Notice]:
    """Returns the notices about a data set that was just given the name `asked_name`."""
    name, digest = dataset.holding.name, dataset.dataset.digest
    if name != asked_name:
        return [
            Notice(
                "dataset.other-name",
                "name",
                f"the same bytes are here as {name!r}, and keep that name: {asked_name!r} names nothing ({digest})",
                HINT,
            )
        ]
    others = _others(session, name=name, digest=digest)
    if not others:
        return []
    more = " and more" if len(others) > SHOWN else ""
    return [
        Notice(
            "dataset.same-name",
            "name",
            f"{name!r} is the name of other bytes too: {', '.join(others[:SHOWN])}{more}; this data set is {digest}",
            HINT,
        )
    ]


def _others(session: Session, *, name: str, digest: str) -> list[str]:
    """Returns the digests of the session's organisation, the newest first; one more than are shown."""
    is_own = Holding.organisation_id == organisation_of(session)
    query = select(Holding.digest).where(
        is_own,
        Holding.kind == "dataset",
        Holding.name == name,
        Holding.digest != digest,
        Holding.files_removed_at.is_(None),
    )
    return list(session.scalars(query.order_by(Holding.id.desc()).limit(SHOWN + 1)))
