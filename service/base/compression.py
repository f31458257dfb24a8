"""Pages, their files and descriptions travel compressed (gzip), where the browser takes it.

Only answers to GET of `COMPRESSED`: what a form's POST or the API answers may hold a secret beside words of the asker,
and the length of the two compressed together would tell of it (BREACH). A page holds no more than its forms' token,
and is shown only to requests that carry the session's cookie, which no other site can make a browser send
(`SameSite=Strict`). Streams of events are never held back: GZipMiddleware leaves `text/event-stream` as it is.
"""

from __future__ import annotations

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

COMPRESSED = ("/dashboard", "/docs", "/openapi.json")
"""Beginnings of addresses."""
LEAST_BYTES = 1000
"""Size from which answers are compressed; a shorter one fits into one packet anyway."""
LEVEL = 5
"""Level of gzip, out of nine: 3% longer than the highest for a page of tables, in a third of its time."""


class CompressPages:
    """Compresses answers to GET of `COMPRESSED`; all else passes untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._plain = app
        self._compressed = GZipMiddleware(app, minimum_size=LEAST_BYTES, compresslevel=LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        is_page = scope["type"] == "http" and scope["method"] == "GET" and scope["path"].startswith(COMPRESSED)
        await (self._compressed if is_page else self._plain)(scope, receive, send)
