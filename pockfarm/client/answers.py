"""What a farm answers, and its refusals as our errors."""

from __future__ import annotations

import httpx

from pockfarm.errors import NotFound, Refused, Unauthorized, Unreachable
from pockfarm.values import Json, text

ATTEMPTS = 3
RETRY_PAUSE_S = 1.0
BUSY = frozenset({429, 502, 503, 504})


def checked(answer: httpx.Response) -> httpx.Response:
    """The answer, if it is no refusal. Raises: Unauthorized, NotFound, Refused."""
    if answer.is_success or answer.status_code == httpx.codes.NOT_MODIFIED:
        return answer
    try:
        body = answer.json()
    except ValueError:
        body = None
    problem: Json = body if isinstance(body, dict) else {}  # what stands before a farm may say anything
    message = text(problem, "detail") or f"{answer.request.method} {answer.request.url.path}: {answer.status_code}"
    kind = {401: Unauthorized, 404: NotFound}.get(answer.status_code, Refused)
    raise kind(
        message,
        status=answer.status_code,
        code=text(problem, "code"),
        where=text(problem, "where"),
        hint=text(problem, "hint"),
    )


def json_of(answer: httpx.Response) -> Json:
    """The object that it holds. Raises: Unreachable if it holds none: something else answers at the farm's address."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Unreachable(f"{answer.request.url}: expected a JSON object; is this the address of a farm?")
    return body
