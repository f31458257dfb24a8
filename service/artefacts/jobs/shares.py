"""An organisation's share of the workers: never all of them, where there are others.

Of a farm for several organisations, whose workers run two compiles at once or more, each organisation may have all but
one of them: whoever comes next finds a worker, however long the compiles of others take.
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.store.database.models import Job, Organisation
from service.store.database.scope import EVERYONES
from service.store.signs_of_life import count_slots


def most_at_once(session: Session) -> int | None:
    """Returns how many compiles an organisation may have under way; None: as many as there are workers."""
    slots = count_slots(session)
    if slots < 2:
        return None
    are_open = select(func.count()).select_from(Organisation).where(Organisation.closed_at.is_(None))
    organisations = session.scalar(are_open, execution_options=dict(EVERYONES)) or 0
    return slots - 1 if organisations > 1 else None


def has_room(session: Session, organisation_id: str, most: int) -> bool:
    """Returns whether another compile of the organisation may start. Locks its row until the transaction ends, so that
    workers that ask at once count each other."""
    session.execute(select(Organisation.id).where(Organisation.id == organisation_id).with_for_update())
    return count_under_way(session, organisation_id) < most


def count_under_way(session: Session, organisation_id: str) -> int:
    """Returns how many compiles of the organisation workers are at."""
    query = select(func.count()).where(Job.organisation_id == organisation_id, Job.state == "compiling")
    return session.scalar(query, execution_options=dict(EVERYONES)) or 0
