"""The text in requests: any characters but NUL (PostgreSQL keeps none) and lone surrogates (UTF-8 has none)."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from service.base.problems import Invalid, problem_response

_STRANGE = re.compile("[\0\ud800-\udfff]")
_NUL_IN_QUERY = re.compile(rb"%00|\0")


def strange_character(text: str) -> str | None:
    """Returns the first invalid character of `text`, as `U+0000`; None if there is none."""
    match = _STRANGE.search(text)
    return f"U+{ord(match[0]):04X}" if match else None


class RefuseNul:
    """ASGI middleware: paths, queries and headers hold no NUL, so that no handler has to look."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        where = _place_of_nul(scope) if scope["type"] == "http" else ""
        if not where:
            await self._app(scope, receive, send)
            return
        problem = Invalid("request.text", "a text with the character U+0000, which is not text", where=where)
        await problem_response(problem, scope["path"])(scope, receive, send)


def _place_of_nul(scope: Scope) -> str:
    if "\0" in scope["path"]:
        return "path"
    if _NUL_IN_QUERY.search(scope["query_string"]):
        return "query"
    return next((name.decode("latin-1") for name, value in scope["headers"] if b"\0" in value), "")
