"""Brings calls to the devices that wait in this process: its own after each commit, those of others by the relay.

Every few seconds it looks for itself which lanes have something: that finds what no call was heard of, and what only
time has changed (a device may try a run again).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from service.store.calls import Calls, calls_of
from service.store.database.engine import Database
from service.store.database.models import Lane
from service.store.watching import Watchers
from service.work.lanes.finding import waiting_lanes
from service.work.lanes.key import LaneKey
from service.work.lanes.relay import Relay
from service.work.lanes.waiting import WaitingRoom

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
        """Spread what the session has called for. From any thread; it never raises."""
        calls = calls_of(session)
        if calls and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._spread, calls)

    async def run(self) -> None:
        """Serve until cancelled."""
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
        """Call who waits here. `goes_on`: whoever takes a run of a lane calls the next."""
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
        """Call others for what a device was called for, and does not look at, or has only taken one run of."""
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
        """Call devices for every lane in which something waits that may be for one of them."""
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
