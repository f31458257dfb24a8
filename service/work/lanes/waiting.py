"""The waiting room: devices that have looked, found nothing, and are to be called. Belongs to one event loop.

A call goes to the device that has waited longest among those that fit, and to no more of them than there is work for.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from service.work.lanes.claim import Seeker
from service.work.lanes.key import ANY, LaneKey, Taker, device_wish


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
        """Which calls may be for it."""
        seeker = self.seeker
        return Kind(replace(seeker.taker, device_id=ANY), seeker.only_canary)

    def call(self, lane_id: str, *, goes_on: bool) -> None:
        """There may be work in the lane. `goes_on`: and perhaps more, so that whoever takes some calls the next."""
        self._called_for[lane_id] = goes_on
        self._bell.set()

    def outdate(self) -> None:
        """The device has changed."""
        self.is_outdated = True
        self._bell.set()

    async def is_called(self, until: float) -> bool:
        """Wait for a call, at most until this time (`time.monotonic()`); False: none came."""
        try:
            await asyncio.wait_for(self._bell.wait(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            return False
        return True

    def hear(self) -> dict[str, bool]:
        """The lanes that it was called for since it heard last, and whether each call goes on."""
        called, self._called_for = self._called_for, {}
        self._bell.clear()
        return called


class WaitingRoom:
    """Who waits in this process."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._kinds: dict[Kind, dict[Waiter, int]] = {}
        self._devices: dict[str, set[Waiter]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._devices.values()))

    @contextmanager
    def held(self, seeker: Seeker) -> Iterator[Waiter]:
        """A waiter that is in the room within the block."""
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
        """Every wish that some waiter satisfies."""
        kinds = (kind.taker.wishes for kind in self._kinds)
        return frozenset(map(device_wish, self._devices)).union(*kinds)

    def back_in_line(self, waiter: Waiter, seeker: Seeker | None = None) -> None:
        """It has been called and goes on waiting, perhaps as another device than before."""
        if seeker is not None:
            self._step_out(waiter)
            waiter.seeker, waiter.is_outdated = seeker, False
        self._line_up(waiter)

    def _line_up(self, waiter: Waiter) -> None:
        """At the end of the line of its kind; a device that may have no work is called by its name only."""
        if waiter.seeker.is_welcome:
            self._kinds.setdefault(waiter.kind, {}).setdefault(waiter, next(self._numbers))

    def _step_out(self, waiter: Waiter) -> None:
        line = self._kinds.get(waiter.kind, {})
        line.pop(waiter, None)
        if not line:
            self._kinds.pop(waiter.kind, None)

    def call_device(self, device_id: str) -> None:
        """Let the device's requests look again."""
        for waiter in self._devices.get(device_id, ()):
            waiter.outdate()

    def call_lane(self, lane_id: str, key: LaneKey, count: int, *, goes_on: bool = False) -> int:
        """Call up to `count` devices that fit the lane, those first that have waited longest; how many were."""
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
