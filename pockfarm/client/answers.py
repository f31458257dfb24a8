"""A farm's answers, and its refusals as PockFarm's errors."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from device_agents.wire.log_lines import visible
from pockfarm.errors import NotFound, Refused, Unauthorized, Unreachable
from pockfarm.values import Json, text

if TYPE_CHECKING:
    import httpx

ATTEMPTS = 3
RETRY_PAUSE_S = 1.0
OTHER = "is this a farm's address? another server, or a proxy before the farm, answers there"
BUSY = frozenset({429, 502, 503, 504})
_is_for_a_terminal = False


def silent(url: str, problem: Exception) -> str:
    """Returns the hint for a farm that did not answer."""
    if url.startswith("https://") and "WRONG_VERSION_NUMBER" in str(problem):
        return f"what is there speaks no TLS: is it http://{url[len('https://') :]}?"
    return "is it up? `pockfarm doctor` looks for what is wrong"


def for_a_terminal() -> None:
    """From now on what a farm says holds nothing that a terminal would act on: escapes, marks of direction."""
    global _is_for_a_terminal
    _is_for_a_terminal = True


def decoded(answer: httpx.Response) -> Any:
    """The JSON of an answer, as whoever reads it may have it. Raises: ValueError."""
    return _visible(answer.json()) if _is_for_a_terminal else answer.json()


def _visible(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_visible(item) for item in value]
    return {name: _visible(item) for name, item in value.items()} if isinstance(value, dict) else value


def checked(answer: httpx.Response) -> httpx.Response:
    """The answer, if it is no refusal. Raises: Unauthorized, NotFound, Refused."""
    if answer.is_success or answer.status_code == HTTPStatus.NOT_MODIFIED:
        return answer
    try:
        body = decoded(answer)
    except ValueError:
        body = None
    problem: Json = body if isinstance(body, dict) else {}  # what stands before a farm may say anything
    if not text(problem, "detail"):
        request_line = f"{answer.request.method} {answer.request.url}"
        message, code, hint = f"{request_line}: {answer.status_code}, and not in a farm's words", "farm.other", OTHER
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
        body = decoded(answer)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Unreachable("expected a JSON object", where=answer.request.url, hint="is this the address of a farm?")
    return body
