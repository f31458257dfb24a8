"""Brings calls to the devices that wait in this process: its own after each commit, those of others by the relay.

Every few seconds it looks for itself which lanes have something: that finds what no call was heard of, and what only
time has changed (a device may try a run again).

The waiting room: devices that have looked, found nothing, and are to be called. Belongs to one event loop.

A call goes to the device that has waited longest among those that fit, and to no more of them than there is work for.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from service.store.calls import Calls, calls_of
from service.store.database.engine import Database
from service.store.database.models import Lane
from service.store.watching import Watchers
from service.work.lanes.claim import Seeker
from service.work.lanes.finding import waiting_lanes
from service.work.lanes.key import ANY, LaneKey, Taker, device_wish
from service.work.lanes.relay import Relay


class Kind(NamedTuple):
    """The common key of devices that may take the same lanes, those for single devices aside."""

    taker: Taker
    """Taker without a device's name."""
    only_canary: bool


class Waiter:
    """A device's request for work, held open."""

    def __init__(self, seeker: Seeker) -> None:
        self.seeker = seeker
        self.is_outdated = False
        """The device has changed since `seeker` was made."""
        self._called_for: dict[str, bool] = {}
        self._bell = asyncio.Event()

    @property
    def kind(self) -> Kind:
        """The kind of waiter, which decides which calls may be for it."""
        seeker = self.seeker
        return Kind(replace(seeker.taker, device_id=ANY), seeker.only_canary)

    def call(self, lane_id: str, *, goes_on: bool) -> None:
        """Calls the waiter, since there may be work in the lane. `goes_on`: and perhaps more, so that whoever takes
        some calls the next.
        """
        self._called_for[lane_id] = goes_on
        self._bell.set()

    def outdate(self) -> None:
        """Tells the waiter that its device has changed."""
        self.is_outdated = True
        self._bell.set()

    async def is_called(self, until: float) -> bool:
        """Waits for a call, at most until this time (`time.monotonic()`). Returns False if none came."""
        try:
            await asyncio.wait_for(self._bell.wait(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            return False
        return True

    def hear(self) -> dict[str, bool]:
        """Returns the lanes for which it was called since the last time, and whether each call goes on."""
        called, self._called_for = self._called_for, {}
        self._bell.clear()
        return called


class WaitingRoom:
    """The devices that wait in this process."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._kinds: dict[Kind, dict[Waiter, int]] = {}
        self._devices: dict[str, set[Waiter]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._devices.values()))

    @contextmanager
    def waiting(self, seeker: Seeker) -> Iterator[Waiter]:
        """Yields a waiter that is in the room within the block."""
        waiter = Waiter(seeker)
        self._devices.setdefault(seeker.taker.device_id, set()).add(waiter)
        self._line_up(waiter)
        try:
            yield waiter
        finally:
            self._step_out(waiter)
            waiters = self._devices[seeker.taker.device_id]
            waiters.discard(waiter)
            if not waiters:
                del self._devices[seeker.taker.device_id]

    def wishes(self) -> frozenset[str]:
        """Returns every wish that some waiter satisfies."""
        kinds = (kind.taker.wishes for kind in self._kinds)
        return frozenset(map(device_wish, self._devices)).union(*kinds)

    def back_in_line(self, waiter: Waiter, seeker: Seeker | None = None) -> None:
        """Puts a waiter that has been called and goes on waiting back in line, perhaps as another device than
        before.
        """
        if seeker is not None:
            self._step_out(waiter)
            waiter.seeker, waiter.is_outdated = seeker, False
        self._line_up(waiter)

    def _line_up(self, waiter: Waiter) -> None:
        """Puts the waiter at the end of the line of its kind. A device that may have no work is called by its name
        only.
        """
        if waiter.seeker.is_welcome:
            self._kinds.setdefault(waiter.kind, {}).setdefault(waiter, next(self._numbers))

    def _step_out(self, waiter: Waiter) -> None:
        line = self._kinds.get(waiter.kind, {})
        line.pop(waiter, None)
        if not line:
            self._kinds.pop(waiter.kind, None)

    def call_device(self, device_id: str) -> None:
        """Makes the device's requests look again."""
        for waiter in self._devices.get(device_id, ()):
            waiter.outdate()

    def call_lane(self, lane_id: str, key: LaneKey, count: int, *, goes_on: bool = False) -> int:
        """Calls up to `count` devices that fit the lane, those first that have waited longest. Returns how many were
        called.
        """
        if key.device_id:
            waiters = self._devices.get(key.device_id, ())
            for waiter in waiters:
                waiter.call(lane_id, goes_on=goes_on)
            return len(waiters)
        lines = [line for kind, line in self._kinds.items() if _is_for(key, kind)]
        for called in range(count):
            first = min(
                (next(iter(line.items())) for line in lines if line), key=lambda candidate: candidate[1], default=None
            )
            if first is None:
                return called
            self._step_out(first[0])
            first[0].call(lane_id, goes_on=goes_on)
        return count


def _is_for(key: LaneKey, kind: Kind) -> bool:
    return kind.taker.may_take(key) and (key.is_canary or not kind.only_canary)


LOG = logging.getLogger(__name__)
MOST_LANES = 10_000
"""Whose keys are remembered."""
CALLED_AT_ONCE = 5
"""Devices that look at a lane when the process has found something in it; each that takes a run calls the next."""


class Dispatcher:
    """The dispatcher of one process. Everything but `after_commit` belongs to the event loop of `run`."""

    def __init__(self, database: Database, watchers: Watchers, relay: Relay | None, *, look_s: float) -> None:
        self.room = WaitingRoom()
        self._watchers = watchers
        self._database = database
        self._relay = relay
        self._look_s = look_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keys: dict[str, LaneKey] = {}
        self._learning: set[asyncio.Task[None]] = set()

    def after_commit(self, session: Session) -> None:
        """Spreads the calls that the session has gathered. From any thread; it never raises."""
        calls = calls_of(session)
        if calls and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._spread, calls)

    async def run(self) -> None:
        """Serves until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._look_again_and_again())
                if self._relay is not None:
                    tasks.create_task(self._relay.run(self.serve, self.look))
        finally:
            self._loop = None

    def _spread(self, calls: Calls) -> None:
        self.serve(calls)
        if self._relay is not None:
            self._relay.send(calls)

    def serve(self, calls: Calls, *, goes_on: bool = False) -> None:
        """Calls those who wait here. `goes_on`: whoever takes a run of a lane calls the next."""
        self._watchers.call(calls.subjects)
        if not len(self.room):
            return
        for device_id in calls.devices:
            self.room.call_device(device_id)
        unknown = {lane_id: count for lane_id, count in calls.lanes.items() if lane_id not in self._keys}
        for lane_id in calls.lanes.keys() - unknown.keys():
            self.room.call_lane(lane_id, self._keys[lane_id], calls.lanes[lane_id], goes_on=goes_on)
        if unknown:
            task = asyncio.get_running_loop().create_task(self._learn_and_serve(unknown, goes_on=goes_on))
            self._learning.add(task)
            task.add_done_callback(self._learning.discard)

    def pass_on(self, called_for: Mapping[str, bool], *, taken_from: str | None = None) -> None:
        """Calls other devices for lanes for which a device was called, but at which it does not look, or from which it
        has taken only one run.
        """
        for goes_on in (False, True):
            lanes = [lane_id for lane_id, more in called_for.items() if more is goes_on]
            rest = [lane_id for lane_id in lanes if goes_on or lane_id != taken_from]
            self.serve(Calls(lanes=dict.fromkeys(rest, 1)), goes_on=goes_on)

    async def _learn_and_serve(self, lanes: dict[str, int], *, goes_on: bool) -> None:
        try:
            await run_in_threadpool(self._learn, lanes)
        except Exception as error:  # the next look of this process finds them
            LOG.warning("the lanes that were called for could not be read: %s", error)
            return
        cached_lanes = {lane_id: count for lane_id, count in lanes.items() if lane_id in self._keys}
        self.serve(Calls(lanes=cached_lanes), goes_on=goes_on)

    def _learn(self, lane_ids: Collection[str]) -> None:
        with self._database.read() as session:
            lanes = session.scalars(select(Lane).where(Lane.id.in_(lane_ids)))
            keys = {lane.id: LaneKey.of_lane(lane) for lane in lanes}
        if len(self._keys) + len(keys) > MOST_LANES:
            self._keys = {}
        self._keys.update(keys)

    async def _look_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            await self.look()

    async def look(self) -> None:
        """Calls devices for every lane in which something waits that may be for one of them."""
        if not len(self.room):
            return
        try:
            busy = await run_in_threadpool(self._busy_lanes, self.room.wishes())
        except Exception as error:  # the database is away: later
            LOG.warning("could not look for queued runs: %s", error)
            return
        self.serve(Calls(lanes=dict.fromkeys(busy, CALLED_AT_ONCE)), goes_on=True)

    def _busy_lanes(self, wishes: Collection[str]) -> list[str]:
        with self._database.read() as session:
            return waiting_lanes(session, wishes)
