"""What an agent's request holds, as a dependency: `Annotated[EnrolRequest, sent(EnrolRequest)]`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from device_agents.wire import ProtocolError, loads
from service.text import strange_character

T = TypeVar("T")
FREE_TEXTS = ("phase",)
"""Cleaned, not refused: they are for people."""


def sent(kind: type[T]) -> Any:
    """The body as one wire type, its own texts (ids, keys, secrets) fit to be looked up. Raises: ProtocolError.

    Whoever calls is known by then if its dependency comes first in the signature.
    """
    return Depends(_reader(kind))


def described(kind: type) -> dict[str, Any]:
    """The body for OpenAPI, which refers to the agent protocol for its fields."""
    text = f"`{kind.__name__}` of the agent protocol (docs/protocol.md)"
    return {"requestBody": {"required": True, "description": text, "content": {"application/json": {"schema": {
        "type": "object", "title": kind.__name__}}}}}  # fmt: skip


def _reader(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    async def read(request: Request) -> T:
        body = await run_in_threadpool(loads, kind, await request.body())
        for name, value in vars(body).items():
            strange = strange_character(value) if isinstance(value, str) else None
            if strange is not None and name not in FREE_TEXTS:
                raise ProtocolError(name, f"a text with the character {strange}, which is not text")
        return body

    return read
