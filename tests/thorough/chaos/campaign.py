"""A campaign: faults one after another on each part, on several parts at once, while the farm is kept busy."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.thorough.chaos.faults.stopped import IN_VAIN, UNNOTICED
from tests.thorough.chaos.field import Field
from tests.thorough.chaos.links import until
from tests.thorough.chaos.points import NEVER_BACK, POINTS, Point, candidates

FIND_WITHIN_S = 40.0
RECOVER_WITHIN_S = 120.0
REST_S, LONG_REST_S = 25.0, 40.0
"""After a fault that kept all others waiting; in a long campaign."""
LANES = {"apis": 1, "workers": 2, "agents": 0, "servers": 1}
"""Faults at the same time, by what they hit; of agents as many as there are."""
LANE_OF = {
    "api-rows": "apis",
    "worker-rows": "workers",
    "small-disks": "agents",
    "clocks": "agents",
    "broker": "servers",
    "database": "servers",
    "files": "servers",
    "rows": "servers",
}


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
    session: str = ""
    """One from the farm's start to its verdict (`Log`)."""

    @property
    def is_board_gone(self) -> bool:
        """One that never comes back: its run has the lease's time to be elsewhere, and each such fault is judged."""
        return self.kind == NEVER_BACK

    @property
    def is_slow(self) -> bool:
        """Not recovered in time, something restarted that lived, or nobody noticed."""
        is_late = self.recovery_s is None or (self.is_board_gone and self.recovery_s > self.within_s)
        return bool(self.evidence) and (is_late or IN_VAIN in self.note or UNNOTICED in self.note)


@dataclass(frozen=True)
class Log:
    """The file of faults, and beside it what became of the work of each session that came to its end."""

    path: Path

    @property
    def _verdicts(self) -> Path:
        return self.path.with_name(self.path.name + ".verdicts")

    def add(self, record: Record) -> None:
        self._append(self.path, asdict(record))

    def judge(self, session: str, offenders: Mapping[str, Sequence[str]]) -> None:
        self._append(self._verdicts, {"session": session, "offenders": offenders})

    def _append(self, path: Path, value: Mapping[str, object]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(value) + "\n")

    def records(self) -> list[Record]:
        """Those whose work was judged; whatever a session has hit that was cut off proves nothing."""
        judged = {verdict["session"] for verdict in self._read(self._verdicts)}
        return [one for line in self._read(self.path) if (one := Record(**line)).session in judged]

    def offenders(self) -> dict[str, list[str]]:
        """What earlier sessions have found, by what it is."""
        found: dict[str, list[str]] = {}
        for verdict in self._read(self._verdicts):
            for name, some in verdict["offenders"].items():
                found.setdefault(name, []).extend(some)
        return found

    @staticmethod
    def _read(path: Path) -> list[Any]:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


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
    """Until there are enough confirmed faults, or the time is over: `patience_s` later where there are not `fewest`."""

    farm: Field
    wanted: int
    ends_at: float
    rng: random.Random
    log: Log
    is_long: bool = True
    only: str = ""
    fewest: int = 0
    patience_s: float = 0.0
    records: list[Record] = field(default_factory=list)
    before: list[Record] = field(default_factory=list)
    """Of the log that this campaign goes on with."""
    session: str = field(default_factory=lambda: uuid.uuid4().hex)
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self._turns, self._lock = Turns(), threading.Lock()
        self._busy: set[str] = set()
        topology = self.farm.topology
        self._parts = candidates(topology.database, topology.agents, tuple(self.farm.small_disks))
        self.before = self.log.records()

    def run(self) -> None:
        """Blocks until it is over."""
        threads = [
            threading.Thread(target=self._lane, args=(lane,), daemon=True)
            for lane, count in LANES.items()
            for _ in range(count or len(self.farm.topology.agents))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def confirmed(self) -> int:
        return sum(bool(one.evidence) for one in (*self.before, *self.records))

    def is_over(self) -> bool:
        ends_at = self.ends_at + (self.patience_s if self.confirmed() < self.fewest else 0.0)
        return self.confirmed() >= self.wanted or time.monotonic() >= ends_at or self.farm.stopping.is_set()

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
            left_s = max(self.ends_at - time.monotonic(), 0.0)
            often = Counter((one.point, one.kind) for one in (*self.before, *self.records) if one.evidence)
            often.update(self._busy_points)
            open_ = [one for one in points if one.needs_s <= left_s and often[one.point, one.kind] < one.most]
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
            record = replace(record, session=self.session)
            self.records.append(record)
            self.log.add(record)
        shown = "not recovered" if record.recovery_s is None else f"{record.recovery_s:.1f} s"
        self.say(
            f"{self.confirmed():4} {point.point}: {point.kind} ({part}): "
            + (f"{shown} {record.note} [{record.evidence}]" if record.evidence else "not in flight")
        )

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

        is_in_time = until(is_found, FIND_WITHIN_S * (4 if point.is_aside else 1), pause_s=0.15)
        if found[0] is None:
            return None if is_in_time else nothing
        victim = found[0]
        if point.marks:
            self.farm.hit.update(victim.work)
        with self.farm.holding(point.is_alone, victim.work):
            wound = point.harm(self.farm, victim)
        if wound is None:
            return nothing
        recovered = until(wound.has_recovered, RECOVER_WITHIN_S)
        took_s = time.monotonic() - wound.ended_at if recovered else None
        note = " ".join(filter(None, (wound.note, wound.afterwards())))
        return Record(point.point, point.kind, part, wound.evidence, now, took_s, point.within_s, note)
