"""Checks by the database which key the farm signs with: a key file that is lost or swapped is noticed, never replaced.

Devices trust the key that they enrolled with. A farm that silently made another would sign work that no board accepts.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from sqlalchemy import inspect, select, text, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from service.base.settings import Settings
from service.store.database.engine import Database
from service.store.database.models import SigningKey
from service.store.key_list import KEY_LIST_NAME, rooted
from service.store.signing import Signer, load_signer

LOG = logging.getLogger(__name__)
WAY_OUT = (
    "put the file back from a backup; if it is lost for good, `python -m service.admin new-signing-key` makes another, "
    "and every device has to enrol again with a new token"
)
EVIDENCE = ("devices", "attempts")
"""Tables whose rows say that an older release has signed: it kept no record of its keys."""


class SigningKeyLost(Exception):
    """The key file is missing or another one than the farm signs with. The operator must act; see the message."""


def open_signer(settings: Settings, database: Database) -> Signer:
    """Returns the farm's signer; its key is made if the farm has never had one. Raises: SigningKeyLost."""
    path = settings.signing_key_path
    if not path.exists():
        evidence = _signed_before(database, path)
        if evidence:
            raise SigningKeyLost(f"the signing key {path} is missing, and this farm {evidence}: {WAY_OUT}")
    return load_signer(path, release_number=settings.release_number)


def _signed_before(database: Database, path: Path) -> str:
    """Returns how we know that there was a key; empty if there was none. Raises: SigningKeyLost if that cannot be
    determined.
    """
    try:
        with database.read() as session:
            tables = inspect(session.connection()).get_table_names()
            if SigningKey.__tablename__ in tables and (key := current_key(session)) is not None:
                return f"signs with key {key.key_id}"
            for table in EVIDENCE:
                if table in tables and session.scalar(text(f"SELECT id FROM {table} LIMIT 1")) is not None:
                    return f"has {table} that trust an earlier key"
    except SQLAlchemyError as error:
        message = f"the signing key {path} is missing, and the database cannot tell whether there was one ({error}); "
        raise SigningKeyLost(message + "see that it answers, then start again") from None
    return ""


def current_key(session: Session) -> SigningKey | None:
    """Returns the key that the farm signs with; None if it has not started yet."""
    return session.scalar(select(SigningKey).where(SigningKey.retired_at.is_(None)))


def confirm(session: Session, signer: Signer, path: Path) -> None:
    """Records the key at the farm's first start; later, that it is still the same. Raises: SigningKeyLost."""
    recorded = current_key(session) or _record(session, signer)
    if recorded.key_id == signer.key_id:
        return
    listed = rooted(path.with_name(KEY_LIST_NAME))
    if listed is None or signer.key_id not in listed.keys.good_at(time.time()):
        raise SigningKeyLost(
            f"{path} holds key {signer.key_id}, and this farm signs with key {recorded.key_id}: {WAY_OUT}"
        )

    LOG.info("the farm signs with key %s from now on, which its root has listed", signer.key_id)
    _retire(session)
    session.add(SigningKey(key_id=signer.key_id, public_key=signer.public_key))


def _retire(session: Session) -> None:
    session.execute(update(SigningKey).where(SigningKey.retired_at.is_(None)).values(retired_at=time.time()))
    session.flush()


def _record(session: Session, signer: Signer) -> SigningKey:
    """Records the farm's first key: of processes that start a farm together one writes it, and the others find it."""
    try:
        with session.begin_nested():
            session.add(SigningKey(key_id=signer.key_id, public_key=signer.public_key))
    except IntegrityError:
        LOG.info("another process of this farm has recorded the signing key")
    unretired = select(SigningKey).where(SigningKey.retired_at.is_(None)).order_by(SigningKey.created_at).limit(1)
    return session.scalars(unretired).one()


def replace_key(settings: Settings, database: Database) -> Signer:
    """Retires the farm's key and makes another. Raises: SigningKeyLost if the file is still there."""
    path = settings.signing_key_path
    if path.exists():
        raise SigningKeyLost(
            f"the signing key {path} is there; to make another all the same, move that file away first"
        )
    signer = load_signer(path, release_number=settings.release_number)
    with database.transaction() as session:
        _retire(session)
        session.add(SigningKey(key_id=signer.key_id, public_key=signer.public_key))
    return signer
