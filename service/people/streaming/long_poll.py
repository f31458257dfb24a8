"""ETag and long poll: a GET that is held open until what it reads has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from service.people.access import held_open, stay_while_admitted
from service.store.farm import Farm
from service.store.watching import Watchers

MAX_WAIT_S = 60.0
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait while `If-None-Match` holds")]
Look = Callable[[Session], tuple[str, BaseModel]]
"""Reads a row: its ETag's text and its view. Raises a problem if there is none."""


def pause_s(farm: Farm, subject: str) -> float:
    """Returns how long a change may go unnoticed. Only API processes call, and workers change jobs too, so jobs are
    looked at more often.
    """
    return farm.settings.look_s if subject.startswith("run_") else farm.settings.poll_s


async def watch(request: Request, farm: Farm, subject: str, look: Look, *, wait_s: float) -> Response:
    """Returns 200 with the view, or 304 when `If-None-Match` still holds after `wait_s`. `subject`: the job or run.

    Raises: TooMany (the caller's organisation has as many answers open as it may).
    """
    etags = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    give_up_at = time.monotonic() + wait_s
    with farm.part(Watchers).held(subject) as bell, ExitStack() as waiting:
        is_held = False
        while True:
            tag, view = await run_in_threadpool(_look, farm, look)
            etag = f'"{tag}"'
            headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
            if etag not in etags:
                return JSONResponse(view.model_dump(mode="json"), headers=headers)
            if time.monotonic() >= give_up_at or await request.is_disconnected():
                return Response(status_code=304, headers=headers)
            if not is_held:
                waiting.enter_context(held_open(request, farm))
                is_held = True
            await stay_while_admitted(request, farm, bell, min(pause_s(farm, subject), give_up_at - time.monotonic()))


def _look(farm: Farm, look: Look) -> tuple[str, BaseModel]:
    with farm.database.read() as session:
        return look(session)
