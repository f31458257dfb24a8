"""The body of an agent's request, as a dependency: `Annotated[EnrolRequest, sent(EnrolRequest)]`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fastapi import Depends, Request
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from device_agents.wire import DIGEST_HEADER, ProtocolError, loads
from service.base.identifiers import DIGEST
from service.base.text import strange_character

T = TypeVar("T")
AT_ONCE_BYTES = 16 << 10
"""A body up to this long is read quicker than a thread is woken."""
FREE_TEXTS = ("phase",)
"""Cleaned, not refused: they are for people."""


def wire_body(kind: type[T]) -> Any:
    """The body as one wire type, its own texts (ids, keys, secrets, lists of ids) fit to be looked up.

    Raises: ProtocolError. Whoever calls is known by then if its dependency comes first in the signature.
    """
    return Depends(_reader(kind))


def described(kind: type) -> dict[str, Any]:
    """The body for OpenAPI, field by field, as the agent protocol has it."""
    text = f"`{kind.__name__}` of the agent protocol (docs/protocol.md)"
    schema = TypeAdapter(kind).json_schema()
    whole = _closed(schema, schema.get("$defs", {}))
    return {"requestBody": {"required": True, "description": text, "content": {"application/json": {"schema": whole}}}}


def described_file() -> dict[str, Any]:
    """A raw file as the body, with its digest beside it, for OpenAPI."""
    digest = {
        "name": DIGEST_HEADER,
        "in": "header",
        "required": True,
        "description": "`sha256:` of the body",
        "schema": {"type": "string", "pattern": f"^{DIGEST.pattern}$"},
    }
    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {"parameters": [digest], "requestBody": {"required": True, "content": content}}


def _closed(schema: Any, parts: Mapping[str, Any]) -> Any:
    """The schema with what it refers to in its place, and no object with fields that nobody knows."""
    if isinstance(schema, list):
        return [_closed(part, parts) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _closed(parts[schema["$ref"].rpartition("/")[2]], parts)
    closed = {name: _closed(part, parts) for name, part in schema.items() if name != "$defs"}
    return {**closed, "additionalProperties": False} if "properties" in closed else closed


def _reader(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    async def read(request: Request) -> T:
        data = await request.body()
        body = loads(kind, data) if len(data) <= AT_ONCE_BYTES else await run_in_threadpool(loads, kind, data)
        for name, value in vars(body).items():
            texts = value if isinstance(value, tuple) else (value,)
            strange = next(filter(None, (strange_character(text) for text in texts if isinstance(text, str))), None)
            if strange is not None and name not in FREE_TEXTS:
                raise ProtocolError(name, f"a text with the character {strange}, which is not text")
        return body

    return read
