"""Calls: a held request looks once and then when it is called, in whatever process the work has come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis
from sqlalchemy import event, false
from starlette.concurrency import run_in_threadpool

from device_agents import wire as p
from device_agents.wire import MAX_LONG_POLL_S
from service.store.calls import Calls
from service.store.database.models import HOME
from service.store.farm import Farm
from service.store.watching import Watchers
from service.work.lanes.claim import Seeker
from service.work.lanes.dispatch import Dispatcher, Waiter, WaitingRoom
from service.work.lanes.key import LaneKey, Taker
from service.work.lanes.relay import CHANNEL, Relay, redis_url
from tests.service.board import Board, assignment_of, leased
from tests.service.farms import TestFarm, expire_lease, open_test_farm
from tests.service.valkey import running_valkey, served
from tests.waiting import HANG_S, until, until_async

NEVER_S = 3600.0
LONG_S = MAX_LONG_POLL_S
KEY = LaneKey(HOME, "x86-64-v3", ("avx2",))


def seeker(name: str, *, features: tuple[str, ...] = ("avx2", "fma"), **changes: Any) -> Seeker:
    taker = Taker(f"dev_{name}", "x86-64", ("x86-64-v3",), frozenset(features))
    seen = {name: changes.pop(name) for name in ("device_class", "device_id", "owner_id") if name in changes}
    fields: dict[str, Any] = {"is_welcome": True, "untried": ~false(), "only_canary": False}
    return Seeker(replace(taker, **seen), **(fields | changes))


# ------------------------------------------------------------------------------------------------- the waiting room


@contextmanager
def waiting(room: WaitingRoom, *seekers: Seeker) -> Iterator[list[Waiter]]:
    held = [room.waiting(one) for one in seekers]
    yield [one.__enter__() for one in held]
    for one in held:
        one.__exit__(None, None, None)
    assert len(room) == 0


def called(waiters: list[Waiter]) -> list[int]:
    """Which of them have been called since the last time."""
    return [n for n, waiter in enumerate(waiters) if waiter.hear()]


def test_a_call_goes_to_who_has_waited_longest_among_those_that_fit() -> None:
    room = WaitingRoom()
    with waiting(
        room, seeker("weak", features=()), seeker("a"), seeker("server", device_class="server"), seeker("b")
    ) as waiters:
        assert room.call_lane("lan_1", KEY, 1) == 1
        assert called(waiters) == [1]
        room.back_in_line(waiters[1])
        assert room.call_lane("lan_1", KEY, 2) == 2
        assert called(waiters) == [2, 3]
        assert room.call_lane("lan_1", KEY, 5) == 1
        assert called(waiters) == [1]
        assert room.call_lane("lan_1", KEY, 5) == 0


def test_a_lane_for_one_device_calls_that_one_and_a_canary_only_who_may_have_it() -> None:
    room = WaitingRoom()
    struck, unwelcome = seeker("struck", only_canary=True), seeker("unwelcome", is_welcome=False)
    with waiting(room, struck, unwelcome, seeker("a"), seeker("others", owner_id="org_x")) as waiters:
        room.call_lane("lan_1", LaneKey(HOME, "x86-64-v3", (), device_id="dev_unwelcome"), 1)
        assert called(waiters) == [1]
        room.call_lane("lan_2", KEY, 3)
        assert called(waiters) == [2]
        room.call_lane("lan_3", LaneKey(HOME, "x86-64-v3", (), device_id="dev_struck", is_canary=True), 1)
        assert called(waiters) == [0]


def test_a_device_that_has_changed_is_called_as_what_it_is_now() -> None:
    room = WaitingRoom()
    with waiting(room, seeker("a", is_welcome=False)) as waiters:
        room.call_device("dev_a")
        assert waiters[0].is_outdated
        assert room.call_lane("lan_1", KEY, 1) == 0
        room.back_in_line(waiters[0], seeker("a"))
        assert not waiters[0].is_outdated
        assert room.call_lane("lan_1", KEY, 1) == 1


def test_what_a_device_was_called_for_and_leaves_is_passed_on(small_farm: TestFarm) -> None:
    async def play() -> list[list[int]]:
        dispatcher = Dispatcher(small_farm.farm.database, Watchers(), None, look_s=NEVER_S)
        dispatcher._keys = {"lan_1": KEY, "lan_2": KEY, "lan_3": KEY}
        heard = []
        with waiting(dispatcher.room, *(seeker(str(n)) for n in range(4))) as waiters:
            dispatcher.pass_on({"lan_1": False, "lan_2": False}, taken_from="lan_1")
            heard.append([n for n, one in enumerate(waiters) if one.hear() == {"lan_2": False}])
            dispatcher.pass_on({"lan_3": True}, taken_from="lan_3")  # there may be more
            heard.append([n for n, one in enumerate(waiters) if one.hear() == {"lan_3": True}])
        return heard

    assert asyncio.run(play()) == [[0], [1]]


# --------------------------------------------------------------------------------------------------- held requests


@pytest.fixture
def calling_farm(database_url: str, tmp_path: Path) -> Iterator[TestFarm]:
    """A farm that never looks by itself: what is not called for is not found."""
    with open_test_farm(tmp_path / "state", database_url, look_s=NEVER_S) as farm:
        yield farm


@contextmanager
def asking(farm: TestFarm, *boards: Board) -> Iterator[list[Future[httpx.Response]]]:
    """Requests for work that are held open by now."""
    with ThreadPoolExecutor(len(boards)) as threads:
        held = [threads.submit(board.try_lease, LONG_S) for board in boards]
        until(lambda: len(farm.farm.part(Dispatcher).room) == len(boards))
        yield held


def taken(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return assignment_of(answer).run_id


def taken_after(held: Future[httpx.Response], act: Callable[[], object]) -> str:
    """What a request gets that was still held."""
    assert not held.done()
    act()
    return taken(held.result())


def test_a_request_that_watches_a_run_is_answered_by_the_commit_that_changes_it(calling_farm: TestFarm) -> None:
    run = calling_farm.run(bundle=calling_farm.bundle())
    path, watchers = f"/runs/{run['id']}", calling_farm.farm.part(Watchers)
    tag = {"If-None-Match": calling_farm.http.get(path).headers["etag"]}
    with ThreadPoolExecutor(2) as threads:
        held = threads.submit(calling_farm.http.get, f"{path}?wait={LONG_S:.0f}", headers=tag)
        stream = threads.submit(calling_farm.http.get, f"{path}/events")
        until(lambda: len(watchers) == 2)
        calling_farm.http.post(f"{path}/cancel")
        answer = held.result(timeout=HANG_S)
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
        assert "event: end" in stream.result(timeout=HANG_S).text
    assert len(watchers) == 0


def test_a_queued_run_calls_a_device_that_waits(calling_farm: TestFarm) -> None:
    board, digest = calling_farm.board(), calling_farm.bundle()
    with asking(calling_farm, board) as (held,):
        run = calling_farm.run(bundle=digest)["id"]
        assert taken(held.result()) == run


def test_a_run_that_comes_back_calls_another_device(calling_farm: TestFarm) -> None:
    first, second, digest = calling_farm.board(name="first"), calling_farm.board(name="second"), calling_farm.bundle()
    run = calling_farm.run(bundle=digest)["id"]
    assert leased(first).run_id == run
    with asking(calling_farm, second) as (held,):
        expire_lease(calling_farm, run)
        assert taken(held.result()) == run


def test_a_failed_run_calls_past_the_devices_that_failed_on_it(calling_farm: TestFarm) -> None:
    first, second, third = (calling_farm.board(name=name) for name in ("first", "second", "third"))
    digest, passing = calling_farm.bundle(), p.Outcome("failed", "infra", "download.failed", "no network")
    run = calling_farm.run(bundle=digest)["id"]
    assert first.report(leased(first), passing).status_code == 200
    work = leased(third)
    with asking(calling_farm, first, second) as (one, other):
        assert third.report(work, passing).status_code == 200
        assert taken(other.result()) == run
        assert taken_after(one, lambda: calling_farm.run(bundle=digest)) != run


def test_a_released_device_is_called(calling_farm: TestFarm) -> None:
    board, digest = calling_farm.board(), calling_farm.bundle()
    run = calling_farm.run(bundle=digest)["id"]
    calling_farm.http.post(f"/devices/{board.device_id}/quarantine", json={"reason": "smoke"})
    with asking(calling_farm, board) as (held,):
        calling_farm.http.post(f"/devices/{board.device_id}/release", json={})
        assert taken(held.result()) == run


def test_a_device_that_waits_asks_the_database_nothing_and_one_run_calls_one(calling_farm: TestFarm) -> None:
    boards, digest = [calling_farm.board(name=f"board {n}") for n in range(3)], calling_farm.bundle()
    looks: list[str] = []

    def note(_c: object, _u: object, statement: str, *_: object) -> None:
        if "WITH RECURSIVE waiting" in statement:
            looks.append(statement)

    event.listen(calling_farm.farm.database.engine, "before_cursor_execute", note)
    with asking(calling_farm, *boards) as held:
        until(lambda: len(looks) == 3)
        first = calling_farm.run(bundle=digest)["id"]
        until(lambda: any(one.done() for one in held))
        assert [taken(one.result()) for one in held if one.done()] == [first]
        assert len(looks) == 4
        rest = {calling_farm.run(bundle=digest)["id"] for _ in range(2)}
        assert {taken(one.result()) for one in held} == rest | {first}


def test_without_a_call_the_process_looks_by_itself(database_url: str, tmp_path: Path) -> None:
    """As when another process has queued it, and the broker is away: all of several runs are found in one go."""
    with open_test_farm(tmp_path / "state", database_url, look_s=0.2) as farm:
        boards, digest = [farm.board(name=f"board {n}") for n in range(7)], farm.bundle()
        farm.farm.database.after_commit.remove(farm.farm.part(Dispatcher).after_commit)
        with asking(farm, *boards) as held:
            runs = {farm.run(bundle=digest)["id"] for _ in boards}
            assert {taken(one.result()) for one in held} == runs


# ------------------------------------------------------------------------------------------------ several processes


@asynccontextmanager
async def dispatching(*dispatchers: Dispatcher) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one.run()) for one in dispatchers]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def listeners(socket: Path) -> int:
    with Redis(unix_socket_path=str(socket)) as client:
        return int(client.pubsub_numsub(CHANNEL)[0][1])


def two_processes(farm: Farm, socket: Path) -> tuple[Dispatcher, Dispatcher]:
    """As two API processes have it: dispatchers that share the broker and the database only."""
    url = f"redis+socket://{socket}"
    first, other = (Dispatcher(farm.database, Watchers(), Relay(url), look_s=NEVER_S) for _ in range(2))
    farm.database.after_commit[:] = [first.after_commit]
    return first, other


@pytest.mark.usefixtures("loopback")
def test_a_call_is_heard_in_other_processes(farm: TestFarm) -> None:
    board, digest = farm.board(), farm.bundle()

    async def play(socket: Path) -> tuple[bool, bool]:
        one, other = two_processes(farm.farm, socket)
        async with dispatching(one, other):
            await until_async(lambda: listeners(socket) == 2)
            with other.room.waiting(seeker("x", device_id=board.device_id)) as waiter:
                await run_in_threadpool(farm.run, bundle=digest)
                by_run = await waiter.is_called(time.monotonic() + LONG_S)
                waiter.hear()
                await run_in_threadpool(farm.http.post, f"/devices/{board.device_id}/quarantine", json={"reason": "x"})
                await waiter.is_called(time.monotonic() + LONG_S)
                return by_run, waiter.is_outdated

    with running_valkey() as socket:
        assert asyncio.run(play(socket)) == (True, True)


@pytest.mark.usefixtures("loopback")
def test_what_was_queued_while_the_broker_was_away_is_found_when_it_is_back(farm: TestFarm) -> None:
    board, digest = farm.board(), farm.bundle()

    async def play(socket: Path) -> bool:
        one, other = two_processes(farm.farm, socket)
        async with dispatching(one, other):
            with other.room.waiting(seeker("x", device_id=board.device_id)) as waiter:
                with served(socket):
                    await until_async(lambda: listeners(socket) == 2)
                await run_in_threadpool(farm.run, bundle=digest)
                with served(socket):
                    return await waiter.is_called(time.monotonic() + LONG_S)

    with running_valkey() as elsewhere:
        assert asyncio.run(play(elsewhere.parent / "t"))


def test_words_that_are_no_calls_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    relay, other = Relay("redis://localhost"), Relay("redis://localhost")
    calls = Calls({"lan_1": 2}, {"dev_1"}, {"run_1"})
    assert other._read(relay._written(calls).encode()) == calls
    assert relay._read(relay._written(calls).encode()) is None
    ill_typed = b'{"from": "x", "lanes": {"a": "b"}, "devices": [], "subjects": []}'
    for words in (b"", b"{", b"[]", b'{"from": "x"}', ill_typed, "text"):
        assert relay._read(words) is None
    assert redis_url("redis+socket:///state/valkey.sock") == "unix:///state/valkey.sock"
    assert redis_url("rediss://broker:6379/0") == "rediss://broker:6379/0"


def test_calls_of_a_transaction_that_failed_are_not_heard(small_farm: TestFarm) -> None:
    heard: list[object] = []
    small_farm.farm.database.after_commit.append(lambda session: heard.append(dict(session.info)))
    answer = small_farm.http.post("/runs", json={"bundle": small_farm.bundle(), "device_class": "none such"})
    assert answer.status_code == 422
    assert all("calls" not in one for one in heard)  # type: ignore[operator]
