"""API keys and dashboard sessions: made, found, revoked. Secrets leave this file once, when they are made."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.database.models import ApiKey, DashboardLink, DashboardSession
from service.identifiers import clean_text, new_secret, secret_hash

Role = Literal["user", "operator"]


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request."""

    key_id: str
    name: str
    role: Role


def create_key(session: Session, *, name: str, role: Role) -> tuple[ApiKey, str]:
    """A new key and its secret, which is not kept."""
    secret = f"pf_{new_secret()}"
    key = ApiKey(name=clean_text(name), role=role, secret_hash=secret_hash(secret))
    session.add(key)
    session.flush()
    return key, secret


def list_keys(session: Session) -> list[ApiKey]:
    """Every key, the newest first."""
    return list(session.scalars(select(ApiKey).order_by(ApiKey.id.desc())))


def revoke_key(session: Session, key_id: str) -> ApiKey | None:
    """Make a key useless from now on, and every dashboard session opened with it; None if there is none."""
    key = session.get(ApiKey, key_id)
    if key is not None and key.revoked_at is None:
        key.revoked_at = time.time()
    return key


def _principal(key: ApiKey | None) -> Principal | None:
    if key is None or key.revoked_at is not None:
        return None
    return Principal(key.id, key.name, "operator" if key.role == "operator" else "user")


def principal_of_key(session: Session, secret: str) -> Principal | None:
    """Whose key this is."""
    return _principal(session.scalar(select(ApiKey).where(ApiKey.secret_hash == secret_hash(secret))))


def create_link(session: Session, *, key_id: str, lifetime_s: float) -> tuple[str, float]:
    """A one-time dashboard token on behalf of a key, and when it expires."""
    token, expires_at = new_secret(), time.time() + lifetime_s
    session.add(DashboardLink(token_hash=secret_hash(token), api_key_id=key_id, expires_at=expires_at))
    return token, expires_at


def open_link(session: Session, token: str, *, lifetime_s: float) -> str | None:
    """Use up a one-time token: the secret of a new dashboard session, or None if it is unknown, used or expired."""
    now = time.time()
    is_fresh = (DashboardLink.used_at.is_(None)) & (DashboardLink.expires_at > now)
    used = session.execute(
        update(DashboardLink).where(DashboardLink.token_hash == secret_hash(token), is_fresh).values(used_at=now)
        .returning(DashboardLink.api_key_id)
    ).scalar_one_or_none()  # fmt: skip
    if used is None:
        return None
    secret = new_secret()
    session.add(DashboardSession(token_hash=secret_hash(secret), api_key_id=used, expires_at=now + lifetime_s))
    return secret


def principal_of_cookie(session: Session, secret: str) -> Principal | None:
    """Whose dashboard session this is."""
    query = select(ApiKey).join(DashboardSession, DashboardSession.api_key_id == ApiKey.id)
    is_mine = DashboardSession.token_hash == secret_hash(secret)
    return _principal(session.scalar(query.where(is_mine, DashboardSession.expires_at > time.time())))
