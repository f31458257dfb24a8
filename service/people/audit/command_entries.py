"""Entries beside those of requests with a key: who came with a token, what a command on the farm's machine did, what
retention took. Each is in the transaction of what it tells, but those of commands, which come right after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from service.base.identifiers import clean_text
from service.store.database.models import AuditEntry

COMMAND = "service.admin "
"""Prefix of the actions of commands."""


def address_of(scope: Mapping[str, Any]) -> str:
    """Returns the address from which a request came, by its ASGI scope; a `Request` is one too."""
    return clean_text(str((scope.get("client") or ("",))[0]), 100)


def add_entry(
    session: Session,
    organisation_id: str,
    action: str,
    *,
    subject: str = "",
    detail: str = "",
    address: str = "",
    key_id: str | None = None,
    status: int = 200,
) -> None:
    """Adds an entry about what was done for an organisation. `status`: that of the answer, or 200; from 400 on the act
    was refused.
    """
    session.add(
        AuditEntry(
            organisation_id=organisation_id,
            key_id=key_id,
            address=address,
            action=action,
            subject=clean_text(subject),
            outcome="done" if status < 400 else "refused",
            status=status,
            detail=clean_text(detail, 1000),
        )
    )
