"""`Idempotency-Key`: the same request again gets the answer that the first one got.

Source: draft-ietf-httpapi-idempotency-key-header-07. The record is written in the transaction of the effect, so both
exist or neither does; a second request at the same time waits for the first one's commit.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.base.problems import Conflict, Invalid
from service.people.access import caller_of, farm_of
from service.store.database.models import IdempotencyRecord

IdempotencyKey = Annotated[
    str | None, Header(alias="Idempotency-Key", max_length=255, description="Makes a retry of this request harmless")
]
Created = TypeVar("Created", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Answer:
    """An endpoint's answer, as it is kept for repeats."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    shows_secret: bool = False
    """The body is kept nowhere: a repeat is refused."""

    def response(self) -> JSONResponse:
        """Returns the HTTP response."""
        return JSONResponse(self.body, self.status, headers=dict(self.headers))


def fingerprint(*parts: object) -> str:
    """Returns the digest that two equal requests share."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def once(
    session: Session, *, api_key_id: str, key: str | None, payload: str, lifetime_s: float, act: Callable[[], Answer]
) -> Answer:
    """Calls `act()`, or returns the answer that it gave to the same key before.

    Raises: Invalid if the key is blank (unset variables of scripts are all alike) or came with another payload (its
    `fingerprint`) before, Conflict if the answer showed a secret.
    """
    if key is None:
        return act()
    if not key.strip():
        raise Invalid(
            "idempotency.blank",
            "this Idempotency-Key is blank",
            where="Idempotency-Key",
            hint="leave it out, or send a new key for a new request",
        )
    now = time.time()
    session.execute(delete(IdempotencyRecord).where(IdempotencyRecord.expires_at < now))
    record = IdempotencyRecord(api_key_id=api_key_id, key=key, fingerprint=payload, expires_at=now + lifetime_s)
    try:
        with session.begin_nested():
            session.add(record)
    except IntegrityError:
        return _replay(session, api_key_id, key, payload)
    answer = act()
    record.status, record.headers = answer.status, dict(answer.headers)
    record.body = None if answer.shows_secret else answer.body
    return answer


def _replay(session: Session, api_key_id: str, key: str, payload: str) -> Answer:
    record = session.get_one(IdempotencyRecord, (api_key_id, key))
    if record.fingerprint != payload:
        raise Invalid(
            "idempotency.reused",
            "this Idempotency-Key came with another request before",
            where="Idempotency-Key",
            hint="use a new key for a new request",
        )
    if record.body is None:
        raise Conflict(
            "idempotency.secret",
            "this request was done before: the first answer showed a secret, which the farm does not show again",
            where="Idempotency-Key",
            hint="if that answer is lost, revoke what it created, and ask with a new key",
        )
    return Answer(record.status or 200, record.body, (record.headers or {}) | {"Idempotency-Replayed": "true"})


@dataclass(frozen=True, slots=True)
class Repeats:
    """Knows one request by its `Idempotency-Key`; without one, every request is new."""

    key: str | None = None
    api_key_id: str = ""
    address: str = ""
    lifetime_s: float = 0.0
    response: Response = field(default_factory=Response)

    def once(
        self,
        session: Session,
        body: BaseModel | None,
        kind: type[Created],
        create: Callable[[], Created],
        *,
        shows_secret: bool = False,
    ) -> Created:
        """Gives what `create()` does, or did for the same key before. Raises: as the function `once`."""
        answer = once(
            session,
            api_key_id=self.api_key_id,
            key=self.key,
            payload=fingerprint(self.address, body.model_dump_json() if body is not None else ""),
            lifetime_s=self.lifetime_s,
            act=lambda: Answer(201, create().model_dump(mode="python"), shows_secret=shows_secret),
        )
        self.response.headers.update(answer.headers)
        return kind.model_validate(answer.body)


async def _repeats(request: Request, response: Response, key: IdempotencyKey = None) -> Repeats:
    address = f"{request.method} {request.url.path}"
    lifetime_s = farm_of(request).settings.idempotency_s
    return Repeats(key, caller_of(request).key_id, address, lifetime_s, response)


RepeatsDep = Annotated[Repeats, Depends(_repeats)]
EVERY_TIME = Repeats()
"""For callers within the farm, which repeat nothing."""
