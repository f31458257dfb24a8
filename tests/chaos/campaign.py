"""A campaign: faults one after another on each part, on several parts at once, while the farm is kept busy."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.chaos.field import Field
from tests.chaos.links import until
from tests.chaos.points import POINTS, Point, candidates

FIND_WITHIN_S = 40.0
RECOVER_WITHIN_S = 150.0
REST_S, LONG_REST_S = 25.0, 40.0
"""After a fault that kept all others waiting; in a long campaign."""
LANES = {"apis": 1, "workers": 2, "agents": 0, "servers": 1}
"""Faults at the same time, by what they hit; of agents as many as there are."""
LANE_OF = {"api-rows": "apis", "worker-rows": "workers", "small-disks": "agents", "clocks": "agents",
           "broker": "servers", "database": "servers", "files": "servers", "rows": "servers"}  # fmt: skip


@dataclass(frozen=True)
class Record:
    """One fault, as the log keeps it."""

    point: str
    kind: str
    part: str
    evidence: str
    """Empty: it could not be confirmed in flight."""
    at: float
    recovery_s: float | None
    """From the end of the fault; None: not within `RECOVER_WITHIN_S`."""
    within_s: float
    note: str = ""


class Turns:
    """Faults side by side, or one alone; who wants to be alone lets those finish first that take long."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._going = {"short": 0, "long": 0}
        self._alone = False

    @property
    def is_wanted_alone(self) -> bool:
        """Somebody waits until the others are done, or has the field: nothing new is begun."""
        return self._alone

    @contextmanager
    def take(self, point: Point) -> Iterator[None]:
        """Wait for a turn."""
        if point.is_aside:
            yield
            return
        kind = "long" if point.needs_s else "short"
        with self._condition:
            if point.is_alone:
                self._condition.wait_for(lambda: not self._alone and not self._going["long"])
                self._alone = True
                self._condition.wait_for(lambda: not any(self._going.values()))
            else:
                self._condition.wait_for(lambda: not self._alone)
                self._going[kind] += 1
        try:
            yield
        finally:
            with self._condition:
                if point.is_alone:
                    self._alone = False
                else:
                    self._going[kind] -= 1
                self._condition.notify_all()


@dataclass
class Campaign:
    """Until there are enough confirmed faults, or the time is over."""

    farm: Field
    wanted: int
    ends_at: float
    rng: random.Random
    log: Path
    is_long: bool = True
    only: str = ""
    records: list[Record] = field(default_factory=list)
    before: list[Record] = field(default_factory=list)
    """Of the log that this campaign goes on with."""
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self._turns, self._lock = Turns(), threading.Lock()
        self._busy: set[str] = set()
        topology = self.farm.topology
        self._parts = candidates(topology.database, topology.agents, tuple(self.farm.small_disks))
        if self.log.exists():
            self.before = [Record(**json.loads(line)) for line in self.log.read_text().splitlines()]

    def run(self) -> None:
        """Blocks until it is over."""
        threads = [
            threading.Thread(target=self._lane, args=(lane,), daemon=True)
            for lane, count in LANES.items() for _ in range(count or len(self.farm.topology.agents))
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def confirmed(self) -> int:
        return sum(bool(one.evidence) for one in (*self.before, *self.records))

    def is_over(self) -> bool:
        return self.confirmed() >= self.wanted or time.monotonic() >= self.ends_at or self.farm.stopping.is_set()

    def _lane(self, lane: str) -> None:
        points = [one for one in POINTS if LANE_OF.get(one.lane, one.lane) == lane and self._parts[one.lane]]
        points = [one for one in points if self.is_long or not one.is_long]
        points = [one for one in points if self.only in f"{one.point}: {one.kind}"]
        while not self.is_over() and (point := self._next(points)) is not None:
            with self._turns.take(point):
                self._one(point)
            if point.is_alone:
                until(self.is_over, LONG_REST_S if self.is_long else REST_S)

    def _next(self, points: Sequence[Point]) -> Point | None:
        """One of those that were tried least; the longest before all others. None: there is none left."""
        with self._lock:
            done = Counter((one.point, one.kind) for one in (*self.before, *self.records))
            done.update(self._busy_points)
            left_s = self.ends_at - time.monotonic()
            open_ = [one for one in points if one.needs_s <= left_s and done[one.point, one.kind] < one.most]
            if not open_:
                return None
            first = min((done[one.point, one.kind], -one.needs_s) for one in open_)
            chosen = self.rng.choice([one for one in open_ if (done[one.point, one.kind], -one.needs_s) == first])
            self._busy_points[chosen.point, chosen.kind] += 1
        return chosen

    _busy_points: Counter[tuple[str, str]] = field(default_factory=Counter)

    def _one(self, point: Point) -> None:
        part = self._choose(point)
        try:
            record = None if self.is_over() else self._hit(point, part)
        finally:
            self._busy.discard(part)
            with self._lock:
                self._busy_points[point.point, point.kind] -= 1
        if record is None:
            return
        with self._lock:
            self.records.append(record)
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a") as file:
                file.write(json.dumps(asdict(record)) + "\n")
        shown = "not recovered" if record.recovery_s is None else f"{record.recovery_s:.1f} s"
        self.say(f"{self.confirmed():4} {point.point}: {point.kind} ({part}): "
                 + (f"{shown} {record.note} [{record.evidence}]" if record.evidence else "not in flight"))  # fmt: skip

    def _choose(self, point: Point) -> str:
        while True:
            with self._lock:
                free = [one for one in self._parts[point.lane] if one not in self._busy]
                if free:
                    part = self.rng.choice(free)
                    self._busy.add(part)
                    return part
            time.sleep(0.2)

    def _hit(self, point: Point, part: str) -> Record | None:
        """None: it was not tried, for another fault is to have the field."""
        now = time.time()
        nothing = Record(point.point, point.kind, part, "", now, None, point.within_s)
        found = [point.find(self.farm, part)]

        def gives_way() -> bool:
            return self.farm.stopping.is_set() or (self._turns.is_wanted_alone and not point.is_alone)

        def is_found() -> bool:
            found[0] = found[0] or point.find(self.farm, part)
            return found[0] is not None or gives_way()

        is_in_time = until(is_found, FIND_WITHIN_S, pause_s=0.15)
        if found[0] is None:
            return None if is_in_time else nothing
        victim = found[0]
        if point.marks:
            self.farm.hit.update(victim.work)
        wound = point.harm(self.farm, victim)
        if wound is None:
            return nothing
        recovered = until(wound.has_recovered, RECOVER_WITHIN_S)
        took_s = time.monotonic() - wound.ended_at if recovered else None
        return Record(point.point, point.kind, part, wound.evidence, now, took_s, point.within_s, wound.note)
