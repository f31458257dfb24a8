"""Events over HTTP: server-sent events that resume after `Last-Event-ID`, or a JSON list for who asks for JSON."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any

from fastapi import Header, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from service.base.problems import Gone, Invalid, Unauthenticated
from service.base.schemas import EventView, utc_text
from service.people.access import check_admitted, held_open, stay_while_admitted
from service.people.streaming.long_poll import pause_s
from service.store import events as service
from service.store.database.models import Event
from service.store.farm import Farm
from service.store.watching import Watchers

KEEP_ALIVE_S = 15.0
MAX_EVENT_ID = (1 << 63) - 1
After = Annotated[int, Query(ge=0, le=MAX_EVENT_ID, description="Leave out events up to this id")]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", description="Sent by a browser that reconnects")]
_EVENT_ID = re.compile("[0-9]{1,19}")
IsOver = Callable[[Session], bool]
"""Whether the subject has reached its last state; read before the events, so that none is missed."""
EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One `text/event-stream` message per event (`id`, `event` = kind, `data` = the event as JSON), "
        "then `event: end`; with `Accept: application/json`, the events so far as a list",
        "content": {
            "text/event-stream": {"schema": {"type": "string"}},
            "application/json": {
                "schema": {"type": "array", "items": EventView.model_json_schema(mode="serialization")}
            },
        },
    }
}


def refuse_taken_events(removed_at: float | None, what: str) -> None:
    """Raises: Gone, if retention has taken the events of a job or run."""
    if removed_at is not None:
        day = utc_text(removed_at)
        raise Gone(
            "retention.removed",
            f"the events of this {what} were removed by retention on {day}",
            hint=f"what the {what}'s row and report say stays; a pinned run keeps its events",
        )


async def respond(
    request: Request, farm: Farm, subject: str, is_over: IsOver, *, last_event_id: str | None, after: int
) -> Response:
    """Returns the events of `subject` after the given id: a stream that ends with the subject, or a list."""
    reader = service.Reader(subject, _event_id(last_event_id) if last_event_id else after)
    accept = request.headers.get("accept", "")
    over, events = await run_in_threadpool(_look, farm, reader, is_over)  # refuses before a stream starts
    if "application/json" in accept and "text/event-stream" not in accept:
        return JSONResponse([_view(number, event).model_dump(mode="json") for number, event in events])
    stream = _stream(request, farm, reader, is_over, over, events)
    return _Held(held_open(request, farm), stream)


class _Held(StreamingResponse):
    """A stream that counts as an answer held open for as long as it is sent, and is refused before it starts."""

    def __init__(self, slot: AbstractContextManager[None], stream: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(stream, media_type="text/event-stream", headers=headers)
        self._held = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer. Raises: TooMany, with nothing sent."""
        with self._held:
            await super().__call__(scope, receive, send)


def _event_id(text: str) -> int:
    if not _EVENT_ID.fullmatch(text) or int(text) > MAX_EVENT_ID:
        raise Invalid(
            "request.event-id",
            "not the id of an event of this farm",
            where="Last-Event-ID",
            hint="leave it out to get every event",
        )
    return int(text)


Numbered = Sequence[tuple[int, Event]]


def _look(farm: Farm, reader: service.Reader, is_over: IsOver) -> tuple[bool, Numbered]:
    with farm.database.read() as session:
        return is_over(session), reader.next(session)


def _view(number: int, event: Event) -> EventView:
    return EventView(id=number, at=event.at, kind=event.kind, body=event.body)


def _message(number: int, event: Event) -> str:
    data = json.dumps(_view(number, event).model_dump(mode="json"), separators=(",", ":"))
    return f"id: {number}\nevent: {event.kind}\ndata: {data}\n\n"


async def _stream(
    request: Request, farm: Farm, reader: service.Reader, is_over: IsOver, over: bool, events: Numbered
) -> AsyncIterator[str]:
    """Yields the stream's text. `over` and `events`: the result of the first look."""
    yield "retry: 2000\n\n"
    try:
        async for text in _while_admitted(request, farm, reader, is_over, over, events):
            yield text
    except Unauthenticated as problem:
        yield f"event: refused\ndata: {json.dumps({'code': problem.code, 'detail': problem.detail})}\n\n"


async def _while_admitted(
    request: Request, farm: Farm, reader: service.Reader, is_over: IsOver, over: bool, events: Numbered
) -> AsyncIterator[str]:
    """Raises: Unauthenticated."""
    spoke_at, has_waited = time.monotonic(), False
    with farm.part(Watchers).held(reader.subject) as bell:
        while not await request.is_disconnected():
            if events:
                await check_admitted(request, farm)
                spoke_at = time.monotonic()
                yield "".join(_message(number, event) for number, event in events)
            elif over:
                yield "event: end\ndata: {}\n\n"
                return
            elif time.monotonic() - spoke_at > KEEP_ALIVE_S:
                spoke_at = time.monotonic()
                yield ": still here\n\n"
            elif has_waited:
                await stay_while_admitted(request, farm, bell, pause_s(farm, reader.subject))
            has_waited = True  # what happened between the first look and the bell is looked for at once
            over, events = await run_in_threadpool(_look, farm, reader, is_over)
