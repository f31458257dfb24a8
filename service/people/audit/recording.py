"""Writes an entry for every request of a known caller that may change something, refused ones too.

The entry is in the database before the answer leaves: who was told that something is done can look it up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.base.identifiers import clean_text
from service.base.problems import SECRET_PARAMETERS
from service.people.audit.command_entries import address_of
from service.people.keys.service import Principal
from service.store.database.engine import Database
from service.store.database.models import AuditEntry

LOG = logging.getLogger(__name__)
READING = ("GET", "HEAD", "OPTIONS")
MOST_BODY_BYTES = 64 << 10
"""Largest answer that is searched for the id of what was made."""
CALLER = "principal"
"""Name of the caller in a request's state."""
Entry = Mapping[str, Any]
"""Columns of an `AuditEntry`."""
TOLD = ("organisation_id", "key_id", "action", "subject", "status")
FAILED: Message = {"type": "http.response.start", "status": 500}
FAILURE = b'{"code": "service.internal", "detail": "the farm failed on this request; the failure is in its log"}'
"""Body that is recorded for a request which a defect of ours ended."""


class RecordRequests:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, database: Database) -> None:
        self._app = app
        self._database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and hold its answer back until it is recorded."""
        if scope["type"] != "http" or scope["method"] in READING:
            await self._app(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        begun: list[Message] = []
        is_recorded = False

        async def record(start: Message, body: bytes) -> None:
            nonlocal is_recorded
            caller = state.get(CALLER)
            if isinstance(caller, Principal) and not is_recorded:
                is_recorded = True
                await run_in_threadpool(self._write, entries(scope, caller, start, body))

        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.append(message)
                return
            if begun:
                start = begun.pop()
                await record(start, message.get("body", b""))
                await send(start)
            await send(message)

        try:
            await self._app(scope, receive, recorded)
        except Exception:  # its answer is made further out, and what it did before may stand
            await record(FAILED, FAILURE)
            raise

    def _write(self, rows: list[Entry]) -> None:
        try:
            self._database.add(AuditEntry, rows)
        except Exception:  # whatever a driver raises: what was done is done, and the log has the rest
            shown_rows = [[row[name] for name in TOLD] for row in rows]
            LOG.exception("audit entries could not be written: %s", shown_rows)


def entries(scope: Scope, caller: Principal, start: Message, body: bytes) -> list[Entry]:
    """Makes the entries of an answered request: for the caller's organisation, and for one that it acted upon."""
    status: int = start["status"]
    answer = _json(body)
    named = [value for name, value in scope.get("path_params", {}).items() if name not in SECRET_PARAMETERS]
    route = getattr(scope.get("route"), "path", scope["path"])
    fields: dict[str, Any] = {
        "address": address_of(scope),
        "action": clean_text(f"{scope['method']} {route}"),
        "subject": clean_text(" ".join(map(str, named)) or _created_id(answer)),
        "outcome": "done" if status < 400 else "refused" if status < 500 else "failed",
        "status": status,
        "code": clean_text(str(answer.get("code", "")), 100) if status >= 400 else "",
        "detail": clean_text(str(answer.get("detail", "")), 1000) if status >= 400 else "",
    }
    entry = {"organisation_id": caller.organisation_id, "key_id": caller.key_id, "user_id": caller.user_id, **fields}
    other = scope.get("path_params", {}).get("organisation_id")
    if other is None or other == caller.organisation_id or status >= 400:
        return [entry]
    shared = fields | {"detail": "by the farm's administrators", "address": ""}
    return [entry, {"organisation_id": other, "key_id": None, "user_id": None, **shared}]


def _json(body: bytes) -> Mapping[str, Any]:
    if len(body) > MOST_BODY_BYTES:
        return {}
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _created_id(answer: Mapping[str, Any]) -> str:
    return str(answer.get("id") or answer.get("digest") or "")
