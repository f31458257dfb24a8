"""Boards that cost the measuring process little: they ask, work for no time, and report with real signatures."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from device_agents import wire as p
from tests.service.board import Board, assignment_of

WAIT_S = 25.0
"""As real agents ask."""


@dataclass
class Tally:
    """What came of requests."""

    statuses: Counter[int] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    runs: int = 0
    """That were reported."""

    def note(self, answer: httpx.Response, *, wanted: tuple[int, ...]) -> bool:
        """Count an answer; whether it is one that was wanted."""
        self.statuses[answer.status_code] += 1
        if answer.status_code in wanted:
            return True
        asked = f"{answer.request.method} {answer.request.url.path}"
        self.errors.append(f"{asked}: {answer.status_code} {answer.text:.200}")
        return False


class LightBoard:
    """One board on a shared asynchronous client."""

    def __init__(self, board: Board, http: httpx.AsyncClient) -> None:
        self.board = board
        self._http = http

    async def ask(self, tally: Tally, wait_s: float = WAIT_S) -> p.Assignment | None:
        """A request for work."""
        request = p.LeaseRequest(self.board.session, wait_s, self.board.description.isolation_level)
        answer = await self._post(p.LEASE_PATH, request)
        if not tally.note(answer, wanted=(200, 204)) or answer.status_code == 204:
            return None
        return assignment_of(answer)

    async def report(self, work: p.Assignment, tally: Tally) -> None:
        """A run's whole life in one word: it succeeded."""
        envelope = self.board.envelope(self.board.make_report(work))
        tally.note(await self._post(p.attempt_path(p.REPORT_PATH, work.lease_token), envelope), wanted=(200,))

    async def beat(self, work: p.Assignment, steps_done: int, tally: Tally) -> None:
        """A heartbeat."""
        path = p.attempt_path(p.HEARTBEAT_PATH, work.lease_token)
        tally.note(await self._post(path, p.HeartbeatRequest("run", steps_done)), wanted=(200,))

    async def work_while(self, is_over: asyncio.Event, tally: Tally) -> None:
        """Take what there is until it is over; a request that waits is let go then."""
        working = asyncio.create_task(self.work_until(time.monotonic() + 1e9, tally))
        ending = asyncio.create_task(is_over.wait())
        await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    async def work_until(self, ends_at: float, tally: Tally) -> int:
        """Take what there is until this time (`time.monotonic()`); how many runs were done."""
        done = 0
        while (left_s := ends_at - time.monotonic()) > 0:
            try:
                work = await self.ask(tally, min(WAIT_S, left_s))
                if work is not None:
                    await self.report(work, tally)
                    done += 1
                    tally.runs += 1
            except httpx.TransportError as error:
                tally.errors.append(f"{self.board.description.name}: {error!r}")
        return done

    async def _post(self, path: str, body: object) -> httpx.Response:
        headers = self.board._headers() | {"Content-Type": "application/json"}
        return await self._http.post(path, content=p.dumps(body), headers=headers)
