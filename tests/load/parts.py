"""The parts of `make load`: each takes a farm that is up, and gives lines with a figure and its limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.load import rows
from tests.load.boards import LightBoard, Tally
from tests.load.farm import Kind, LoadedFarm

CLIENTS = 4
"""Requests at once, where the cost of one is measured."""
WARM_UP = 40
MS, KIB, MB = 1e3, 1 << 10, 1e6
LATE = 1.02
"""Of the time that a rate of requests gives, at most: beyond it, the rate was not kept."""
WISHES = 20_000
DRAIN_S = 60.0
"""After the last run was sent, at most."""


@dataclass
class Figure:
    """One line of the table."""

    what: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def is_kept(self) -> bool:
        return self.limit is None or self.value <= self.limit


@dataclass
class Cost:
    """Processor time of a block."""

    api_s: float = 0.0
    database_s: float = 0.0
    wall_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    def figure(self, what: str, count: float, unit: str, limit: float | None) -> Figure:
        """Milliseconds for each of `count`, of the API process and of the database's own processes together."""
        parts = f"API {MS * self.api_s / count:.2f}, database {MS * self.database_s / count:.2f}"
        whole_s = self.api_s + self.database_s
        return Figure(what, MS * whole_s / count, unit, limit, f"{parts}, {count:,.0f} in {self.wall_s:.1f} s")


@contextmanager
def measured(farm: LoadedFarm) -> Iterator[Cost]:
    """What the block costs the farm."""
    cost = Cost()
    api_s, database_s, began = farm.api_cpu_s(), farm.database_cpu_s(), time.monotonic()
    yield cost
    cost.api_s, cost.database_s = farm.api_cpu_s() - api_s, farm.database_cpu_s() - database_s
    cost.wall_s = time.monotonic() - began


@asynccontextmanager
async def client(farm: LoadedFarm) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the farm that keeps its connections, as agents do."""
    # Let go before the server does (after 5 s): a request on a connection that it closes meanwhile is lost.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=3.0)
    async with httpx.AsyncClient(base_url=farm.address, timeout=60.0, limits=limits) as http:
        yield http


async def many(count: int, act: Callable[[int], Awaitable[object]], *, at_once: int = CLIENTS) -> None:
    """`act(n)` for n below `count`, a few at once."""
    numbers = iter(range(count))

    async def work() -> None:
        for n in numbers:
            await act(n)

    await asyncio.gather(*(work() for _ in range(at_once)))


def _refuse_errors(tally: Tally) -> None:
    if tally.errors:
        raise RuntimeError(f"{len(tally.errors)} requests failed; the first: {tally.errors[0]}")


async def idle(farm: LoadedFarm, seconds: float, _: int = 0) -> list[Figure]:
    """Agents that wait for work, for which there is none."""
    with measured(farm) as alone:
        await asyncio.sleep(min(20.0, seconds))
    tally = Tally()
    async with client(farm) as http:
        boards = [LightBoard(board, http) for board in farm.boards]
        ends_at = time.monotonic() + seconds
        with measured(farm) as cost:
            await asyncio.gather(*(board.work_until(ends_at, tally) for board in boards))
    _refuse_errors(tally)
    resting_s = alone.api_s / alone.wall_s * cost.wall_s
    agent_s = len(boards) * cost.wall_s
    gross = cost.figure(f"idle agent, of {len(boards)}, all of the process counted", agent_s, "ms/s", None)
    cost.api_s = max(0.0, cost.api_s - resting_s)
    return [
        Figure("API process without agents", MS * alone.api_s / alone.wall_s, "ms/s"),
        cost.figure(f"idle agent, of {len(boards)}", agent_s, "ms/s", 0.3),
        gross,
    ]


async def empty(farm: LoadedFarm, seconds: float, _: int = 0) -> list[Figure]:
    """Looks that find nothing, with a backlog of another class, and with very many wishes of others."""
    await _empty(farm, seconds, "told nobody")  # the others are not to be compared with a process that has just begun
    figures = []
    for backlog in (0, 20_000, 200_000):
        rows.queue_for_others(farm, backlog)
        figures.append(await _empty(farm, seconds, f"{backlog:,} queued for others"))
    rows.queue_for_others(farm, 0)
    rows.queue_wishes_of_others(farm, WISHES)
    figures.append(await _empty(farm, seconds, f"{WISHES:,} distinct tags queued for others"))
    rows.queue_wishes_of_others(farm, 0)
    figures.append(await _empty(farm, seconds, f"those {WISHES:,} lanes empty"))
    first = figures[0].value
    figures.append(Figure("empty poll: most over none queued", max(one.value for one in figures) / first, "x", 1.5))
    return figures


async def _empty(farm: LoadedFarm, seconds: float, there_is: str) -> Figure:
    count, tally = max(100, int(20 * seconds)), Tally()
    async with client(farm) as http:
        boards = [LightBoard(board, http) for board in farm.boards]

        async def ask(n: int) -> None:
            await boards[n % CLIENTS].ask(tally, 0.0)

        await many(WARM_UP, ask)
        with measured(farm) as cost:
            await many(count, ask)
    _refuse_errors(tally)
    return cost.figure(f"empty poll, {there_is}", count, "ms", None)


async def submit(farm: LoadedFarm, seconds: float, _: int = 0) -> list[Figure]:
    """Runs that are sent."""
    count, tally = max(100, int(20 * seconds)), Tally()
    async with client(farm) as http:

        async def send(_: int) -> None:
            answer = await http.post("/runs", json={"bundle": farm.bundle}, headers=farm.headers)
            tally.note(answer, wanted=(202,))

        await many(WARM_UP, send)
        with measured(farm) as cost:
            await many(count, send)
    _refuse_errors(tally)
    return [cost.figure("submit", count, "ms", 5.0)]


async def lease(farm: LoadedFarm, seconds: float, _: int = 0) -> list[Figure]:
    """Runs that wait already: taken, and reported."""
    count, tally = max(100, int(20 * seconds)), Tally()
    rows.queue_for_boards(farm, count + WARM_UP)
    async with client(farm) as http:
        boards = [LightBoard(board, http) for board in farm.boards]

        async def work(n: int) -> None:
            board = boards[n % CLIENTS]
            found = await board.ask(tally)
            if found is None:
                raise RuntimeError("there was no work, though runs were queued")
            await board.report(found, tally)

        async def of_one(board: int, turns: int) -> None:
            for _ in range(turns):
                await work(board)

        await asyncio.gather(*(of_one(n, WARM_UP // CLIENTS) for n in range(CLIENTS)))
        with measured(farm) as cost:
            await asyncio.gather(*(of_one(n, count // CLIENTS) for n in range(CLIENTS)))
    _refuse_errors(tally)
    return [cost.figure("lease and report", count // CLIENTS * CLIENTS, "ms", 10.0)]


async def heartbeat(farm: LoadedFarm, seconds: float, _: int = 0) -> list[Figure]:
    """Boards that work on a run and say that they live."""
    count, tally = max(100, int(20 * seconds)), Tally()
    rows.queue_for_boards(farm, CLIENTS)
    async with client(farm) as http:
        boards = [LightBoard(board, http) for board in farm.boards[:CLIENTS]]
        works = [await board.ask(tally) for board in boards]

        async def beat(n: int) -> None:
            work = works[n % CLIENTS]
            if work is None:
                raise RuntimeError("there was no work, though runs were queued")
            await boards[n % CLIENTS].beat(work, n, tally)

        await many(WARM_UP, beat)
        with measured(farm) as cost:
            await many(count, beat)
    _refuse_errors(tally)
    return [cost.figure("heartbeat", count, "ms", None)]


async def steady(farm: LoadedFarm, seconds: float, _: int = 0, *, rate: float = 50.0) -> list[Figure]:
    """All boards wait, and runs are sent at a rate: no error (on SQLite: no 503), and nothing is left behind."""
    sent, done = Tally(), Tally()
    count, before = int(rate * seconds), farm.database_bytes()
    async with client(farm) as http, client(farm) as other:
        boards = [LightBoard(board, http) for board in farm.boards]
        began = time.monotonic()
        is_over = asyncio.Event()
        working = [asyncio.create_task(board.work_while(is_over, done)) for board in boards]

        async def send(n: int) -> None:
            await asyncio.sleep(max(0.0, began + n / rate - time.monotonic()))
            at = time.monotonic()
            answer = await other.post("/runs", json={"bundle": farm.bundle}, headers=farm.headers)
            sent.note(answer, wanted=(202,))
            sent.waits_s.append(time.monotonic() - at)

        with measured(farm) as cost:
            await many(count, send, at_once=32)
            took_s = time.monotonic() - began
            await _until(lambda: done.runs >= count, DRAIN_S)
        is_over.set()
        await asyncio.gather(*working)
    waits = sorted(sent.waits_s)
    errors, busy = sent.errors + done.errors, sent.statuses[503] + done.statuses[503]
    name = f"{len(boards)} agents, {rate:.0f} submits/s for {seconds:.0f} s"
    said = f"sent {count} in {took_s:.1f} s, answers {dict(sent.statuses)} and {dict(done.statuses)}"
    is_strict = farm.kind == "postgresql"
    return [
        Figure(
            f"{name}: errors", len(errors), "", 0 if is_strict else None, said + (f": {errors[0]}" if errors else "")
        ),
        Figure(f"{name}: answers 503", busy, "", 0),
        Figure(f"{name}: runs not done", count - done.runs, "", 0, f"{DRAIN_S:.0f} s after the last was sent"),
        Figure(f"{name}: time to send them", took_s, "s", LATE * seconds, f"{count / took_s:.1f} a second"),
        Figure(f"{name}: p99 of a submit's answer", MS * waits[int(0.99 * len(waits))], "ms"),
        cost.figure(f"{name}: a run, all counted", count, "ms", None),
        Figure("database for a run, audit and events counted", (farm.database_bytes() - before) / count / KIB, "KiB"),
    ]


async def _until(is_so: Callable[[], bool], seconds: float) -> None:
    give_up_at = time.monotonic() + seconds
    while not is_so() and time.monotonic() < give_up_at:
        await asyncio.sleep(0.2)


async def million(farm: LoadedFarm, seconds: float, results: int = 1_000_000) -> list[Figure]:
    """Lists and files over very many results."""
    began = time.monotonic()
    rows.add_results(farm, results)
    figures = [
        Figure(
            f"database with {results:,} results",
            farm.database_bytes() / MB,
            "MB",
            None,
            f"made in {time.monotonic() - began:.0f} s",
        )
    ]
    turns = max(10, int(seconds))
    async with client(farm) as http:
        for path in (*PAGES, *_pages_of_one(farm)):
            figures.append(await _page(farm, http, path, turns))
        figures += await _file(farm, http)
    return figures


PAGES = (
    "/runs?limit=50",
    "/runs?state=succeeded&limit=50",
    "/runs?device_class=x86-64&limit=50",
    "/devices?limit=50",
    "/dashboard",
    "/dashboard/runs",
    "/dashboard/runs?state=open",
    "/dashboard/devices",
    "/dashboard/benchmarks",
    "/dashboard/jobs",
    "/dashboard/audit",
)
FILE_ROWS = 100_000


def _pages_of_one(farm: LoadedFarm) -> list[str]:
    """Pages of a run in the middle of all results, of two beside each other, of a device, and the list from there."""
    run_id = farm.one("SELECT id FROM runs ORDER BY id LIMIT 1 OFFSET (SELECT count(*) / 2 FROM runs)")
    newest = farm.one("SELECT id FROM runs WHERE state = 'succeeded' ORDER BY id DESC LIMIT 1")
    device = farm.boards[0].device_id
    return [
        f"/runs/{run_id}",
        f"/runs/{run_id}/why",
        f"/runs/{run_id}/report",
        f"/dashboard/runs/{run_id}",
        f"/dashboard/compare?run={run_id}&run={newest}",
        f"/devices/{device}",
        f"/dashboard/devices/{device}",
        f"/runs?limit=50&cursor={run_id}",
        f"/dashboard/runs?before={run_id}",
    ]


async def _page(farm: LoadedFarm, http: httpx.AsyncClient, path: str, turns: int) -> Figure:
    async def get(_: int = 0) -> None:
        answer = await http.get(path, headers=farm.headers)
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text:.300}")

    await many(2, get, at_once=1)
    with measured(farm) as cost:
        await many(turns, get, at_once=1)
    return cost.figure(f"page {path}", turns, "ms", 50.0)


async def _file(farm: LoadedFarm, http: httpx.AsyncClient) -> list[Figure]:
    lines, before = 0, farm.peak_rss_bytes(forget=True)
    farm.peak_rss_bytes(forget=True)
    rests = farm.peak_rss_bytes()
    with measured(farm) as cost:
        async with http.stream("GET", "/dashboard/runs.csv", headers=farm.headers) as answer:
            if answer.status_code != 200:
                raise RuntimeError(f"the file: {answer.status_code}")
            async for chunk in answer.aiter_bytes():
                lines += chunk.count(b"\n")
                if lines > FILE_ROWS:
                    break
    note = (
        f"{lines:,} rows in {cost.wall_s:.1f} s, {1e6 * cost.api_s / lines:.0f} us of processor time each; "
        f"{rests / MB:.0f} MB before, {before / MB:.0f} at most since its start"
    )
    return [Figure("memory of the API process while it streams a CSV", farm.peak_rss_bytes() / MB, "MB", 150.0, note)]


Part = Callable[[LoadedFarm, float, int], Coroutine[Any, Any, list[Figure]]]
PARTS: Mapping[str, Part] = {
    "idle": idle,
    "empty": empty,
    "submit": submit,
    "lease": lease,
    "heartbeat": heartbeat,
    "steady": steady,
    "million": million,
}
SECONDS: Mapping[str, float] = {
    "idle": 55.0,
    "empty": 20.0,
    "submit": 20.0,
    "lease": 20.0,
    "heartbeat": 15.0,
    "steady": 300.0,
    "million": 20.0,
}
BOARDS: Mapping[str, int] = {"idle": 200, "steady": 200}
"""How many a part needs; the others, a few."""
ONLY: Mapping[str, tuple[Kind, ...]] = {"million": ("postgresql",)}
"""Very many rows, made by the database itself: copies of one that the farm has written."""
