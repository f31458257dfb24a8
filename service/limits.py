"""Bounds every request body while it arrives, before anything reads it whole.

A body whose declared length is above its limit is refused at once; one without a length is cut off at the limit.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.problems import TooLarge, problem_response
from service.settings import Settings

MULTIPART_OVERHEAD_BYTES = 64 << 10


def body_limits(settings: Settings) -> tuple[tuple[str, re.Pattern[str], int], ...]:
    """(method, path, limit in bytes) of every request that may be longer than `body_limit_bytes`."""
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
        seen_bytes = 0

        async def bounded() -> Message:
            nonlocal seen_bytes
            message = await receive()
            seen_bytes += len(message.get("body", b""))
            if seen_bytes > limit_bytes:
                raise _too_large(limit_bytes)
            return message

        await self._app(scope, bounded, send)

    def _limit_of(self, scope: Scope) -> int:
        for method, path, limit_bytes in self._limits:
            if scope["method"] == method and path.fullmatch(scope["path"]):
                return limit_bytes
        return self._default


def declared_bytes(scope: Scope) -> int:
    """Returns how long the request says that its body is; 0 if it does not say."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value[:19]) if value.isdigit() else 0
    return 0


def _too_large(limit_bytes: int) -> TooLarge:
    return TooLarge("limits.body", f"the request is longer than {limit_bytes:,} bytes", where="body",
                    hint="send less, or ask the farm's operator for more (docs/api.md)")  # fmt: skip
