"""`Idempotency-Key`: the same request again gets the answer that the first one got.

Source: draft-ietf-httpapi-idempotency-key-header-07. The record is written in the transaction of the effect, so both
exist or neither does; a second request at the same time waits for the first one's commit.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Header
from fastapi.responses import JSONResponse
from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.database.models import IdempotencyRecord
from service.problems import Invalid

IdempotencyKey = Annotated[
    str | None, Header(alias="Idempotency-Key", max_length=255, description="Makes a retry of this request harmless")
]


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint answers, as it is kept for repeats."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> JSONResponse:
        """The HTTP response."""
        return JSONResponse(self.body, self.status, headers=dict(self.headers))


def fingerprint(*parts: object) -> str:
    """What makes two requests the same."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def once(
    session: Session, *, api_key_id: str, key: str | None, payload: str, lifetime_s: float, act: Callable[[], Answer]
) -> Answer:
    """`act()`, or the answer it gave to the same key before.

    Raises: Invalid if the key came with another payload (its `fingerprint`) before.
    """
    if key is None:
        return act()
    now = time.time()
    session.execute(delete(IdempotencyRecord).where(IdempotencyRecord.expires_at < now))
    record = IdempotencyRecord(api_key_id=api_key_id, key=key, fingerprint=payload, expires_at=now + lifetime_s)
    try:
        with session.begin_nested():
            session.add(record)
    except IntegrityError:
        return _replay(session, api_key_id, key, payload)
    answer = act()
    record.status, record.headers, record.body = answer.status, dict(answer.headers), answer.body
    return answer


def _replay(session: Session, api_key_id: str, key: str, payload: str) -> Answer:
    record = session.get_one(IdempotencyRecord, (api_key_id, key))
    if record.fingerprint != payload:
        raise Invalid("idempotency.reused", "this Idempotency-Key came with another request before",
                      where="Idempotency-Key", hint="use a new key for a new request")  # fmt: skip
    return Answer(record.status or 200, record.body or {}, (record.headers or {}) | {"Idempotency-Replayed": "true"})
