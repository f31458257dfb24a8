"""The parts of `make load`: each takes a farm that is up, and gives lines with a figure and its limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import httpx

from tests.load import rows
from tests.load.boards import LightBoard, Tally
from tests.load.farm import Kind, LoadedFarm

CLIENTS = 4
"""Requests at once, where the cost of one is measured."""
WARM_UP = 40
MS, MIB = 1e3, 1 << 20


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
        """Milliseconds of the API process for each of `count`."""
        note = f"database {MS * self.database_s / count:.2f}, {count:,.0f} in {self.wall_s:.1f} s"
        return Figure(what, MS * self.api_s / count, unit, limit, note)


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
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
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


async def idle(farm: LoadedFarm, seconds: float) -> list[Figure]:
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
    return [Figure("API process without agents", MS * alone.api_s / alone.wall_s, "ms/s"),
            cost.figure(f"idle agent, of {len(boards)}", agent_s, "ms/s", 0.3), gross]  # fmt: skip


async def empty(farm: LoadedFarm, seconds: float) -> list[Figure]:
    """Looks that find nothing, with a backlog of another class."""
    figures = [await _empty(farm, seconds, backlog) for backlog in (0, 20_000, 200_000)]
    first = figures[0].value
    figures.append(Figure("empty poll: most over none queued", max(one.value for one in figures) / first, "x", 1.5))
    return figures


async def _empty(farm: LoadedFarm, seconds: float, backlog: int) -> Figure:
    rows.queue_for_others(farm, backlog)
    count, tally = max(100, int(20 * seconds)), Tally()
    async with client(farm) as http:
        boards = [LightBoard(board, http) for board in farm.boards]

        async def ask(n: int) -> None:
            await boards[n % CLIENTS].ask(tally, 0.0)

        await many(WARM_UP, ask)
        with measured(farm) as cost:
            await many(count, ask)
    _refuse_errors(tally)
    return cost.figure(f"empty poll, {backlog:,} queued for others", count, "ms", None)


async def submit(farm: LoadedFarm, seconds: float) -> list[Figure]:
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


async def lease(farm: LoadedFarm, seconds: float) -> list[Figure]:
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


async def steady(farm: LoadedFarm, seconds: float, *, rate: float = 50.0) -> list[Figure]:
    """All boards wait, and runs are sent at a rate: no error, no 503, and nothing is left behind."""
    sent, done = Tally(), Tally()
    count = int(rate * seconds)
    async with client(farm) as http, client(farm) as other:
        boards = [LightBoard(board, http) for board in farm.boards]
        began = time.monotonic()
        working = [asyncio.create_task(board.work_until(began + seconds + 10, done)) for board in boards]

        async def send(n: int) -> None:
            await asyncio.sleep(max(0.0, began + n / rate - time.monotonic()))
            at = time.monotonic()
            answer = await other.post("/runs", json={"bundle": farm.bundle}, headers=farm.headers)
            sent.note(answer, wanted=(202,))
            sent.waits_s.append(time.monotonic() - at)

        with measured(farm) as cost:
            await many(count, send, at_once=32)
            took_s = time.monotonic() - began
        ran = sum(await asyncio.gather(*working))
    waits = sorted(sent.waits_s)
    errors = sent.errors + done.errors
    name = f"{len(boards)} agents, {rate:.0f} submits/s for {seconds:.0f} s"
    said = f"sent {count} in {took_s:.1f} s, answers {dict(sent.statuses)} and {dict(done.statuses)}"
    return [
        Figure(f"{name}: errors", len(errors), "", 0, said + (f"; the first: {errors[0]}" if errors else "")),
        Figure(f"{name}: runs not done", count - ran, "", 0),
        Figure(f"{name}: p99 of a submit's answer", MS * waits[int(0.99 * len(waits))], "ms"),
        cost.figure(f"{name}: submit, lease and report", count, "ms", None),
    ]


async def million(farm: LoadedFarm, seconds: float, *, results: int = 1_000_000) -> list[Figure]:
    """Lists and files over very many results."""
    rows.add_results(farm, results)
    figures = [Figure(f"database with {results:,} results", farm.database_bytes() / MIB, "MiB")]
    pages, turns = PAGES, max(5, int(seconds / 6))
    async with client(farm) as http:
        for path in pages:
            answer = await http.get(path, headers=farm.headers)
            if answer.status_code != 200:
                raise RuntimeError(f"{path}: {answer.status_code} {answer.text:.300}")
            with measured(farm) as cost:
                await many(turns, lambda _, path=path: http.get(path, headers=farm.headers), at_once=1)  # type: ignore[misc]
            figures.append(cost.figure(f"page {path}", turns, "ms", 50.0))
        figures += await _file(farm, http)
    return figures


PAGES = ("/runs?limit=50", "/runs?state=succeeded&limit=50", "/runs?device_class=x86-64&limit=50", "/devices?limit=50",
         "/dashboard/runs", "/dashboard/devices", "/dashboard/benchmarks")  # fmt: skip
FILE_ROWS = 100_000


async def _file(farm: LoadedFarm, http: httpx.AsyncClient) -> list[Figure]:
    lines = 0
    farm.peak_rss_bytes(forget=True)
    with measured(farm) as cost:
        async with http.stream("GET", "/dashboard/runs.csv", headers=farm.headers) as answer:
            if answer.status_code != 200:
                raise RuntimeError(f"the file: {answer.status_code}")
            async for chunk in answer.aiter_bytes():
                lines += chunk.count(b"\n")
                if lines > FILE_ROWS:
                    break
    note = f"{lines:,} rows in {cost.wall_s:.1f} s, {1e6 * cost.api_s / lines:.0f} us of processor time each"
    return [Figure("API process while it streams a CSV", farm.peak_rss_bytes() / MIB, "MiB RSS", 150.0, note)]


Part = Callable[[LoadedFarm, float], Awaitable[list[Figure]]]
PARTS: Mapping[str, Part] = {
    "idle": idle, "empty": empty, "submit": submit, "lease": lease, "steady": steady, "million": million,
}  # fmt: skip
BOARDS: Mapping[str, int] = {"idle": 200, "steady": 200}
"""How many a part needs; the others, a few."""
ONLY: Mapping[str, tuple[Kind, ...]] = {"million": ("postgresql",)}
