"""Problems as pages: a browser that opens a page of the farm gets words and a next step instead of JSON."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.exceptions import HTTPException

from service.dashboard import addresses, render

Handler = Callable[[Request, Exception], Awaitable[Response]]
HANDLED = (HTTPException, RequestValidationError, OperationalError, NoConnection, Exception)
LINK_COMMAND = "pockfarm link"


@dataclass(frozen=True, slots=True)
class ProblemPage:
    """The contents of a problem page."""

    status: int
    title: str
    detail: str
    hint: str
    code: str
    command: str = ""


def install(app: FastAPI) -> None:
    """Answers browsers with pages. Call it after `service.base.problems.install`, whose answers it renders."""
    for kind in HANDLED:
        inner = cast("Handler", app.exception_handlers[kind])
        app.add_exception_handler(kind, _dressed(inner))


def _dressed(inner: Handler) -> Handler:
    async def handler(request: Request, error: Exception) -> Response:
        answer = await inner(request, error)
        return problem_page(answer, request) if wants_page(request) else answer

    return handler


def wants_page(request: Request) -> bool:
    """Returns whether the request is from a browser on one of our pages. Programs, and requests for the data files of
    tables, get problem documents.
    """
    path = request.url.path
    is_page = path == "/" or (
        path.startswith(("/open/", "/docs", addresses.ROOT)) and not path.endswith((".csv", ".json"))
    )
    return is_page and request.method in ("GET", "HEAD", "POST") and "text/html" in request.headers.get("accept", "")


def came_from(request: Request) -> str:
    """Returns the page of ours that a refused form was on; empty if there is none."""
    if request.method != "POST":
        return ""
    before = urlsplit(request.headers.get("referer", ""))
    is_ours = before.netloc == request.headers.get("host") and f"{before.path}/".startswith(f"{addresses.ROOT}/")
    return before.path + (f"?{before.query}" if before.query else "") if is_ours else ""


def without(request: Request, field: str) -> str:
    """Returns the address of the page that was requested, without the field of its query that was refused; empty if
    that is not why.
    """
    fields = request.query_params.multi_items()
    remaining = [(name, value) for name, value in fields if name != field]
    return (
        addresses.with_query(request.url.path, remaining)
        if request.method == "GET" and len(remaining) < len(fields)
        else ""
    )


def problem_page(answer: Response, request: Request) -> Response:
    """Returns the page of a problem document; anything else is left as it is."""
    if answer.status_code < 400:
        return answer
    body = json.loads(bytes(answer.body))
    problem = _words(answer.status_code, body, is_act=request.method == "POST")
    field = body.get("where", "").removeprefix("query.")
    response = render.page(
        "problem.html",
        answer.status_code,
        problem=problem,
        back=came_from(request),
        field=field,
        without=without(request, field) if answer.status_code == 422 else "",
    )
    if "retry-after" in answer.headers:
        response.headers["Retry-After"] = answer.headers["retry-after"]
    return response


def _words(status: int, body: dict[str, str], *, is_act: bool) -> ProblemPage:
    code, detail, hint = body.get("code", ""), body.get("detail", ""), body.get("hint", "")
    if status == 401:
        return ProblemPage(
            status,
            "Open the dashboard with a link",
            "This browser has no session on this farm, or its session has ended.",
            "On the farm's machine, make a new one-time link and open it here:",
            code,
            LINK_COMMAND,
        )
    if code == "link.used":
        return ProblemPage(
            status,
            "This link no longer opens",
            "Each link opens the dashboard once and for a day at most. This one was used before, or is too old.",
            "Make another one on the farm's machine:",
            code,
            LINK_COMMAND,
        )
    if status == 404:
        return ProblemPage(
            status, "There is no such page", detail, hint or "The lists below lead to all there is.", code
        )
    if status >= 500:
        return ProblemPage(
            status,
            "The farm could not answer",
            detail,
            hint or "Try again in a moment; the farm's log has the details.",
            code,
        )
    return ProblemPage(status, "This was not done" if is_act else "This cannot be shown", detail, hint, code)
