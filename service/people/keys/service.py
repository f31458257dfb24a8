"""API keys and dashboard sessions: made, found, revoked. Secrets leave this file once, when they are made.

When keys were last used: noted in memory by each process, written by its sweeper: no request waits for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Row, Select, or_, select, update
from sqlalchemy.orm import Session

from service.base.identifiers import clean_name, new_secret, secret_hash
from service.people.audit.command_entries import add_entry
from service.people.permissions import ROLES, SCOPES, scopes_of
from service.store.database.engine import Database
from service.store.database.memory import UNREMEMBERED, Memory, recalled
from service.store.database.models import HOME, ApiKey, DashboardLink, DashboardSession, Organisation, User

EVERY_S = 60.0
"""A key's last use is written at most so often."""


@dataclass(slots=True)
class KeyUses:
    """Uses that the database has not been told of."""

    _new: dict[str, float] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, key_id: str) -> None:
        """Notes that the key is being used."""
        now = time.time()
        if now - self._told.get(key_id, 0.0) >= EVERY_S:
            with self._lock:
                self._new[key_id] = now

    def write(self, database: Database) -> None:
        """Writes the uses to the database; what fails now is written the next time."""
        with self._lock:
            new, self._new = self._new, {}
        if not new:
            return
        try:
            with database.transaction() as session:
                for key_id, at in sorted(new.items()):
                    is_newer = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < at)
                    statement = update(ApiKey).where(ApiKey.id == key_id, is_newer)
                    session.execute(statement.values(last_used_at=at), execution_options=UNREMEMBERED)
        except BaseException:
            with self._lock:
                self._new = new | self._new
            raise
        before = time.time() - EVERY_S
        self._told = {key: at for key, at in (self._told | new).items() if at > before}


Role = Literal["user", "operator"]
CALLERS = frozenset(kind.__tablename__ for kind in (ApiKey, User, Organisation))


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request."""

    key_id: str
    name: str
    organisation_id: str
    user_id: str | None
    scopes: frozenset[str]
    quotas: Mapping[str, float | None]
    """Its organisation's own."""
    expires_at: float | None = None

    @property
    def is_home(self) -> bool:
        """Whether the key belongs to the organisation that runs the farm."""
        return self.organisation_id == HOME


def create_key(
    session: Session,
    *,
    name: str,
    role: Role = "user",
    scopes: Iterable[str] | None = None,
    user_id: str | None = None,
    lifetime_s: float | None = None,
) -> tuple[ApiKey, str]:
    """Creates a key of the session's organisation (else: home's). Returns it and its secret, which is not stored.

    `scopes`: in place of the role's.
    """
    secret, granted = f"pf_{new_secret()}", frozenset(ROLES[role] if scopes is None else scopes)
    key = ApiKey(
        name=clean_name(name),
        role="operator" if "operate" in granted else "user",
        scopes=" ".join(scope for scope in SCOPES if scope in granted),
        secret_hash=secret_hash(secret),
        user_id=user_id,
        expires_at=None if lifetime_s is None else time.time() + lifetime_s,
    )
    session.add(key)
    session.flush()
    return key, secret


def list_keys(session: Session, limit: int | None = None) -> list[ApiKey]:
    """Returns every key, or at most `limit` of them, the newest first."""
    return list(session.scalars(select(ApiKey).order_by(ApiKey.id.desc()).limit(limit)))


def revoke_key(session: Session, key_id: str) -> ApiKey | None:
    """Revokes a key from now on, with every dashboard session that was opened with it. Returns None if there is no such
    key.
    """
    key = session.scalar(select(ApiKey).where(ApiKey.id == key_id))
    if key is not None and key.revoked_at is None:
        key.revoked_at = time.time()
    return key


def _keys() -> Select[ApiKey, dict[str, Any]]:
    """Returns the query for keys that are accepted now, with the state of their people and organisations and with their
    organisations' quotas.
    """
    removed = select(User.id).where(User.id == ApiKey.user_id, User.removed_at > 0)
    is_fresh = or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > time.time())
    query = select(ApiKey, Organisation.quotas).outerjoin(Organisation, Organisation.id == ApiKey.organisation_id)
    is_open = Organisation.closed_at.is_(None)
    is_good = (ApiKey.revoked_at.is_(None), ApiKey.unconfirmed_at.is_(None))
    return query.where(*is_good, is_fresh, is_open, ~removed.exists())


def _principal(row: Row[ApiKey, dict[str, Any]] | None) -> Principal | None:
    if row is None:
        return None
    key, quotas = row
    granted = scopes_of(key.role, key.scopes)
    return Principal(key.id, key.name, key.organisation_id, key.user_id, granted, quotas or {}, key.expires_at)


def principal_of_key(session: Session, secret: str) -> Principal | None:
    """Returns the caller whose key this is. One that another process has revoked within the last second may still be
    accepted.
    """
    hashed = secret_hash(secret)

    def read() -> Principal | None:
        return _principal(session.execute(_keys().where(ApiKey.secret_hash == hashed)).first())

    return _unexpired(recalled(session, ("key", hashed), CALLERS, read))


def known_principal(memory: Memory, secret: str) -> Principal | None:
    """Returns the caller whose key this is, if the key was looked up within the last second; nothing is read."""
    principal = memory.get(("key", secret_hash(secret)))
    return _unexpired(principal) if isinstance(principal, Principal) else None


def _unexpired(principal: Principal | None) -> Principal | None:
    is_over = principal is not None and principal.expires_at is not None and principal.expires_at <= time.time()
    return None if is_over else principal


def create_link(session: Session, *, key_id: str, lifetime_s: float) -> tuple[str, float]:
    """Creates a one-time dashboard token on behalf of a key. Returns it, and when it expires."""
    token, expires_at = new_secret(), time.time() + lifetime_s
    session.add(DashboardLink(token_hash=secret_hash(token), api_key_id=key_id, expires_at=expires_at))
    return token, expires_at


def open_link(session: Session, token: str, *, lifetime_s: float, address: str) -> str | None:
    """Uses up a one-time token. Returns the secret of a new dashboard session, or None if the token is unknown, used or
    expired, or its key is no longer good.
    """
    now = time.time()
    is_fresh = (DashboardLink.used_at.is_(None)) & (DashboardLink.expires_at > now)
    used = session.execute(
        update(DashboardLink)
        .where(DashboardLink.token_hash == secret_hash(token), is_fresh)
        .values(used_at=now)
        .returning(DashboardLink.api_key_id)
    ).scalar_one_or_none()
    if used is None or session.execute(_keys().where(ApiKey.id == used)).first() is None:
        return None
    secret = new_secret()
    session.add(DashboardSession(token_hash=secret_hash(secret), api_key_id=used, expires_at=now + lifetime_s))
    whose = session.scalars(select(ApiKey.organisation_id).where(ApiKey.id == used)).one()
    add_entry(
        session,
        whose,
        "GET /open/{token}",
        key_id=used,
        address=address,
        status=303,
        detail="a browser was let in by a one-time link",
    )
    return secret


def principal_of_cookie(session: Session, secret: str) -> Principal | None:
    """Returns the caller whose dashboard session this is."""
    query = _keys().join(DashboardSession, DashboardSession.api_key_id == ApiKey.id)
    is_mine = DashboardSession.token_hash == secret_hash(secret)
    return _principal(session.execute(query.where(is_mine, DashboardSession.expires_at > time.time())).first())
