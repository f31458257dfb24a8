"""Bounds every request body while it arrives, before anything reads it whole.

A body whose declared length is above its limit is refused at once; one without a length is cut off at the limit. Nobody
waits for the body of a stranger where a key is asked for, nor for one that does not arrive.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

from fastapi import Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.base.problems import TooLarge, TooSlow, problem_response
from service.base.settings import Settings
from service.people.access import authorise, farm_of

MULTIPART_OVERHEAD_BYTES = 64 << 10
DRAINED_BYTES = 64 << 20
"""Bytes of a body that are still read after it was answered before its end, so that its sender hears the answer and not
of a broken connection.
"""


def body_limits(settings: Settings) -> tuple[tuple[str, re.Pattern[str], int], ...]:
    """Returns (method, path, limit in bytes) of every request that may be longer than `body_limit_bytes`."""
    files_bytes = settings.model_limit_bytes + settings.external_limit_bytes
    compile_bytes = files_bytes + 3 * settings.text_limit_bytes + MULTIPART_OVERHEAD_BYTES
    return (
        ("POST", re.compile(r"/compile"), compile_bytes),
        ("POST", re.compile(r"/datasets"), settings.dataset_limit_bytes + MULTIPART_OVERHEAD_BYTES),
        (
            "PATCH",
            re.compile(r"/uploads/[^/]+"),
            max(settings.model_limit_bytes, settings.external_limit_bytes, settings.dataset_limit_bytes),
        ),
        ("PUT", re.compile(r"/agent/attempts/[^/]+/weights"), settings.weights_limit_bytes),
        ("PUT", re.compile(r"/agent/attempts/[^/]+/checkpoint"), settings.checkpoint_limit_bytes),
        ("POST", re.compile(r"/agent/attempts/[^/]+/report"), settings.report_limit_bytes),
    )


class BodyLimits:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._default = settings.body_limit_bytes
        self._limits = body_limits(settings)
        self._body_s = settings.body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body bounded."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit_bytes = self._limit_of(scope)
        if declared_bytes(scope) > limit_bytes:
            response = problem_response(_too_large(limit_bytes), scope["path"])
            response.headers["Connection"] = "close"  # the rest of the body is not read
            await response(scope, receive, send)
            return
        if not _has_body(scope):
            await self._app(scope, receive, send)
            return
        is_long = limit_bytes > self._default
        body = _Body(scope, receive, send, limit_bytes=limit_bytes, seconds=self._body_s, is_long=is_long)
        await self._app(scope, body.receive, body.send)

    def _limit_of(self, scope: Scope) -> int:
        for method, path, limit_bytes in self._limits:
            if scope["method"] == method and path.fullmatch(scope["path"]):
                return limit_bytes
        return self._default


class _Body:
    """The body of one request, and whether it has come to its end before the answer has."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, limit_bytes: int, seconds: float, is_long: bool
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._limit_bytes, self._seconds, self._is_long = limit_bytes, seconds, is_long
        self._seen_bytes = 0
        self._deadline: float | None = None
        self._is_over = self._has_stalled = False

    async def receive(self) -> Message:
        """Receives the next part. Raises: Unauthenticated, Forbidden, TooMany, TooLarge, TooSlow."""
        if self._has_stalled:
            raise self._too_slow()
        if self._is_over:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            await self._admit()
        if self._deadline is None or self._is_long:
            self._deadline = now + self._seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            self._has_stalled = True
            raise self._too_slow() from None
        self._seen_bytes += len(message.get("body", b""))
        self._is_over = not message.get("more_body", False)
        if self._seen_bytes > self._limit_bytes:
            raise _too_large(self._limit_bytes)
        return message

    async def send(self, message: Message) -> None:
        """Pass the answer on; after one that came before the body's end the connection is of no more use."""
        if self._is_over:
            await self._send(message)
        elif message["type"] == "http.response.start":
            await self._send({**message, "headers": [*message["headers"], (b"connection", b"close")]})
        elif message.get("more_body", False):
            await self._send(message)
        else:
            await self._send({**message, "more_body": True})
            if not self._has_stalled:
                await self._drain()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _too_slow(self) -> TooSlow:
        reason = "nothing more of the body came" if self._is_long else "the body was not whole"
        return TooSlow(f"{reason} within {self._seconds:g} s")

    async def _admit(self) -> None:
        """Authorises the caller before the body is read: FastAPI would read JSON first."""
        if "route" in self._scope:
            request = Request(self._scope)
            with suppress(SQLAlchemyError):  # FastAPI would blame the body; it asks again, and says what is wrong
                await authorise(request, farm_of(request))

    async def _drain(self) -> None:
        count = 0
        try:
            async with asyncio.timeout(self._seconds):
                while not self._is_over and count <= DRAINED_BYTES:
                    message = await self._receive()
                    count += len(message.get("body", b""))
                    self._is_over = not message.get("more_body", False)
        except TimeoutError:
            return


def _has_body(scope: Scope) -> bool:
    is_chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
    return is_chunked or declared_bytes(scope) > 0


def declared_bytes(scope: Scope) -> int:
    """Returns how long the request says that its body is; 0 if it does not say."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value[:19]) if value.isdigit() else 0
    return 0


def _too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(
        "limits.body",
        f"the request is longer than {limit_bytes:,} bytes",
        where="body",
        hint="send less, or ask the farm's operator for more (docs/api.md)",
    )
