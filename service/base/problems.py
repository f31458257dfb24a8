"""Refusals as RFC 9457 problems: typed `cause` and `code`, where, what to do next; never a traceback.

Problem (an HTTPException, so that it also passes through body parsing)
|-- 401 Unauthenticated     no key, or not one of ours
|-- 403 Forbidden           the key may not do this
|-- 404 NotFound
|-- 409 Conflict            the state of things does not allow it
|-- 410 Gone                retention took it
|-- 413 TooLarge
|-- 416 WrongOffset         a piece of a file that does not go on where the upload stands
|-- 422 Invalid             understood, but wrong
|-- 429 TooMany             a quota; carries Retry-After
|-- 503 Unavailable         a part of the farm is down
`-- 507 Full                no room on the farm's disk

`cause` is the public family (model, compiler, limits, device, infra, service, user, policy).
"""

from __future__ import annotations

import http
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from device_agents.wire import ProtocolError
from service.base.disk import is_disk_full, is_file_error, lacks_room
from service.base.failures import Defect, PartDown
from service.base.identifiers import clean_text
from service.base.invalid_bodies import OPENAPI_HINT, explanation, next_step

LOG = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
SECRET_PARAMETERS = ("lease_token", "token")
"""Path parameters that give a right to who knows them."""
MAX_CHARACTERS = 4000
"""Longest member of a problem, in characters: members quote what was sent, whatever that was."""


FULL_RETRY_S = 10
"""Seconds after which to try again on a full disk. Shorter than a lease, because heartbeats renew leases through the
same disk.
"""
PART_RETRY_S = 5
MAX_ERRORS = 100
"""Fields that one answer names."""


class Problem(HTTPException):
    """A refusal. `code` is stable and dotted; `where` the field, limit or row; `hint` the next step."""

    status = 500
    cause = "user"

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        where: str = "",
        hint: str = "",
        cause: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(self.status, detail, dict(headers or {}))
        self.extra = dict(extra or {})
        """Further members of the document, such as a limit and its use."""
        self.code = code
        self.where = where
        self.hint = hint
        self.cause = cause or type(self).cause


class Unauthenticated(Problem):
    """No key, or not one of ours."""

    status = 401

    def __init__(self, detail: str, *, hint: str = "", code: str = "auth.missing") -> None:
        super().__init__(code, detail, hint=hint, headers={"WWW-Authenticate": 'Bearer realm="pockfarm"'})


class Forbidden(Problem):
    """The caller is known, and may not do this."""

    status, cause = 403, "policy"


class NotFound(Problem):
    """There is no such thing."""

    status = 404


class TooSlow(Problem):
    """The request did not come to its end in time."""

    status = 408

    def __init__(self, detail: str) -> None:
        hint = "send it again; a large file may come in pieces: POST /uploads"
        super().__init__("request.stalled", detail, where="body", hint=hint)


class Conflict(Problem):
    """The state of things does not allow it."""

    status = 409


class Gone(Problem):
    """Something that existed and that the rules of retention have removed."""

    status, cause = 410, "policy"


class TooLarge(Problem):
    """A size limit was passed."""

    status, cause = 413, "limits"


class WrongOffset(Problem):
    """A piece of a file that does not go on where the upload stands; says in `Upload-Offset` where that is."""

    status = 416

    def __init__(self, offset_bytes: int) -> None:
        super().__init__(
            "upload.offset",
            f"the upload stands at byte {offset_bytes}",
            where="Content-Range",
            hint="go on from there",
            headers={"Upload-Offset": str(offset_bytes)},
        )


class Invalid(Problem):
    """The request was understood, and is wrong."""

    status = 422


class TooMany(Problem):
    """A quota is used up for now."""

    status, cause = 429, "limits"

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        retry_after_s: int,
        where: str = "",
        hint: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        headers = {"Retry-After": str(retry_after_s)}
        super().__init__(code, detail, where=where, hint=hint, headers=headers, extra=extra)


class Unavailable(Problem):
    """A part of the farm is down."""

    status, cause = 503, "infra"


class Full(Problem):
    """No room on the farm's disk."""

    status, cause = 507, "infra"

    def __init__(self, where: str) -> None:
        super().__init__(
            "infra.disk-full",
            f"the disk of the farm's {where} is full: the request was not taken",
            where=where,
            hint="ask the farm's operator to make room, then send it again",
            headers={"Retry-After": str(FULL_RETRY_S)},
        )


def problem_body(
    status: int, *, cause: str, code: str, detail: str, instance: str = "", where: str = "", hint: str = ""
) -> dict[str, Any]:
    """Returns the members of a problem document."""
    body = {
        "type": f"urn:pockfarm:problem:{code}",
        "title": http.HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "cause": cause,
        "code": code,
    }
    extra = {"instance": instance, "where": where, "hint": hint}
    members = body | {name: value for name, value in extra.items() if value}
    return {
        name: clean_text(value, MAX_CHARACTERS) if isinstance(value, str) else value for name, value in members.items()
    }


def problem_response(problem: Problem, instance: str = "") -> JSONResponse:
    """Returns the response for a problem."""
    body = problem_body(
        problem.status_code,
        cause=problem.cause,
        code=problem.code,
        detail=problem.detail,
        instance=instance,
        where=problem.where,
        hint=problem.hint,
    )
    return JSONResponse(body | problem.extra, problem.status_code, headers=problem.headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Makes every refusal and every failure of `app` a problem document."""
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(ProtocolError, _on_protocol_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(OperationalError, _on_database_error)
    app.add_exception_handler(NoConnection, _on_database_error)
    app.add_exception_handler(OSError, _on_system_error)
    app.add_exception_handler(PartDown, _on_part_down)
    app.add_exception_handler(Exception, _on_failure)


def shown_path(request: Request) -> str:
    """Returns the request's path for logs and answers, without the secrets that some paths carry."""
    path = request.url.path
    for name, value in request.path_params.items():
        if name in SECRET_PARAMETERS:
            path = path.replace(str(value), "...")
    return path


async def _on_http_exception(request: Request, error: Exception) -> Response:
    if isinstance(error, Problem):
        return problem_response(error, shown_path(request))
    assert isinstance(error, HTTPException)
    if error.status_code < 400:
        return Response(status_code=error.status_code, headers=error.headers)
    code, path = f"http.{error.status_code}", shown_path(request)
    detail, hint = str(error.detail), ""
    if error.status_code == 404:
        code, detail, hint = (
            "http.no-such-path",
            f"there is no address {path}",
            "/openapi.json lists those that there are",
        )
    elif error.status_code == 405:
        there = ", ".join(_methods(request, (error.headers or {}).get("Allow", "")))
        code, detail = "http.method", f"{request.method} is no method of {path}"
        hint = f"it takes {there}" if there else ""
    elif error.status_code == 400 and "parsing the body" in detail:
        code, detail, hint = "request.body", "the body is no JSON in UTF-8", OPENAPI_HINT
    body = problem_body(error.status_code, cause="user", code=code, detail=detail, instance=path, hint=hint)
    return JSONResponse(body, error.status_code, headers=error.headers, media_type=MEDIA_TYPE)


def _methods(request: Request, allowed: str) -> list[str]:
    """Returns the methods of the address, by its description; `allowed`: those that one of the endpoints that share it
    takes.
    """
    path = getattr(request.scope.get("route"), "path", "")
    described = request.app.openapi()["paths"].get(path, {})
    return sorted({*(method.upper() for method in described), *filter(None, allowed.split(", "))} - {"HEAD"})


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    failures = error.errors()[:MAX_ERRORS]
    errors = [
        {
            "where": clean_text(".".join(str(part) for part in item["loc"])),
            "detail": clean_text(explanation(item), 1000),
        }
        for item in failures
    ]
    body = problem_body(
        422,
        cause="user",
        code="request.invalid",
        detail=f"{errors[0]['where']}: {errors[0]['detail']}" if errors else "the request is not valid",
        instance=shown_path(request),
        where=errors[0]["where"] if errors else "",
        hint=next_step(request, failures[0]) if failures else OPENAPI_HINT,
    )
    return JSONResponse(body | {"errors": errors}, 422, media_type=MEDIA_TYPE)


async def _on_protocol_error(request: Request, error: Exception) -> Response:
    """Answers an agent whose message does not follow the protocol. The only place that translates the error."""
    assert isinstance(error, ProtocolError)
    return problem_response(
        Invalid("protocol.invalid", str(error), where=error.where, cause="device"), shown_path(request)
    )


async def _on_system_error(request: Request, error: Exception) -> Response:
    if not is_disk_full(error):
        raise error
    LOG.error("%s %s: no room: %s", request.method, request.url.path, error)
    return problem_response(Full("storage"), shown_path(request))


async def _on_part_down(request: Request, error: Exception) -> Response:
    assert isinstance(error, PartDown)
    LOG.error("%s %s: the %s did not answer: %s", request.method, shown_path(request), error.part, error)
    problem = Unavailable(
        f"infra.{error.part}",
        f"the farm's {error.part} is busy or down",
        where=error.part,
        hint="try again in a few seconds; GET /readyz says which part is down",
        headers={"Retry-After": str(PART_RETRY_S)},
    )
    return problem_response(problem, shown_path(request))


async def _on_disconnect(request: Request, _: Exception) -> Response:
    """Returns an answer that nobody receives: counts and logs use it to tell a disconnect from a failure of the
    farm.
    """
    problem = Invalid(
        "request.cut-off", "the connection ended before the request did", where="body", hint="send it again"
    )
    return problem_response(problem, shown_path(request))


async def _on_database_error(request: Request, error: Exception) -> Response:
    if isinstance(error, OperationalError) and await _is_without_room(request, error.orig):
        LOG.error("%s %s: no room: %s", request.method, request.url.path, error)
        return problem_response(Full("database"), shown_path(request))
    LOG.error("the database did not answer: %s", error)
    body = problem_body(
        503,
        cause="infra",
        code="infra.database",
        detail="the database is busy or down",
        instance=shown_path(request),
        hint="try again in a few seconds; GET /readyz says which part is down",
    )
    return JSONResponse(body, 503, headers={"Retry-After": "5"}, media_type=MEDIA_TYPE)


async def _is_without_room(request: Request, error: BaseException | None) -> bool:
    if is_disk_full(error):
        return True
    return is_file_error(error) and await run_in_threadpool(lacks_room, request.app.state.farm.settings)


async def _on_failure(request: Request, error: Exception) -> Response:
    LOG.exception("%s %s failed", request.method, shown_path(request), exc_info=error)
    code = error.code if isinstance(error, Defect) else Defect.code
    body = problem_body(
        500,
        cause="service",
        code=code,
        detail="the farm failed on this request; the failure is in its log",
        instance=shown_path(request),
    )
    return JSONResponse(body, 500, media_type=MEDIA_TYPE)
