"""What a farm answers, and its refusals as our errors."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from pockfarm.errors import NotFound, Refused, Unauthorized, Unreachable
from pockfarm.values import Json, text

if TYPE_CHECKING:
    import httpx

ATTEMPTS = 3
RETRY_PAUSE_S = 1.0
OTHER = "is this a farm's address? another server, or a proxy before the farm, answers there"
BUSY = frozenset({429, 502, 503, 504})


def silent(url: str, problem: Exception) -> str:
    """What to do where there was no answer."""
    if url.startswith("https://") and "WRONG_VERSION_NUMBER" in str(problem):
        return f"what is there speaks no TLS: is it http://{url[len('https://') :]}?"
    return "is it up? `pockfarm doctor` looks for what is wrong"


def checked(answer: httpx.Response) -> httpx.Response:
    """The answer, if it is no refusal. Raises: Unauthorized, NotFound, Refused."""
    if answer.is_success or answer.status_code == HTTPStatus.NOT_MODIFIED:
        return answer
    try:
        body = answer.json()
    except ValueError:
        body = None
    problem: Json = body if isinstance(body, dict) else {}  # what stands before a farm may say anything
    if not text(problem, "detail"):
        asked = f"{answer.request.method} {answer.request.url}"
        message, code, hint = f"{asked}: {answer.status_code}, and not in a farm's words", "farm.other", OTHER
        problem = {"detail": message, "code": code, "hint": hint}
    kind = {401: Unauthorized, 404: NotFound}.get(answer.status_code, Refused)
    raise kind(
        text(problem, "detail"),
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
