"""People in the database, as one organisation has them."""

from __future__ import annotations

import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.base.identifiers import clean_name
from service.base.problems import Conflict, NotFound
from service.store.database.models import User


def create(session: Session, organisation_id: str, name: str) -> User:
    """Creates a person. Raises: Conflict for a name that is taken."""
    cleaned = clean_name(name)
    query = select(User.id).where(User.organisation_id == organisation_id, User.name == cleaned)
    if session.scalar(query) is not None:
        raise Conflict(
            "user.name", f"there is a user {cleaned!r:.100} already", where="name", hint="GET /users lists them"
        )
    user = User(organisation_id=organisation_id, name=cleaned)
    session.add(user)
    session.flush()
    return user


def newest(session: Session) -> list[User]:
    """Returns every person, removed ones too, the newest first."""
    return list(session.scalars(select(User).order_by(User.id.desc())))


def find(session: Session, user_id: str, *, where: str = "") -> User:
    """Returns the person. Raises: NotFound."""
    user = session.scalar(select(User).where(User.id == user_id))
    if user is None:
        raise NotFound("user.unknown", f"no user {user_id!r:.60}", where=where, hint="GET /users lists them")
    return user


def remove(session: Session, user_id: str) -> User:
    """Removes a person: none of the person's keys is accepted from now on. Raises: NotFound."""
    user = find(session, user_id)
    user.removed_at = user.removed_at or time.time()
    return user
