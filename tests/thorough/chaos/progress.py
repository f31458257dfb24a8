"""Requests that stand still while a campaign goes on, though nothing holds them: looked at all the time.

Time counts only if it could have been used: not while the fault that holds a request is on, nor while it waits for its
turn because every board (or worker) that could take it is busy or away.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.database.models import (
    LIVE_ATTEMPT_STATES,
    OPEN_JOB_STATES,
    OPEN_RUN_STATES,
    Attempt,
    Device,
    Job,
    Run,
)
from tests.thorough.chaos.field import ALL, Field
from tests.thorough.chaos.topology import WORKERS

STILL_S = 120.0
LOOK_S = 2.0
LONGEST_LOOK_S = 10.0
"""What one look counts for at most: else nobody was looking."""


@dataclass(frozen=True)
class Open:
    """A request that has not ended."""

    mark: tuple[object, ...]
    """Differs as soon as it has got on."""
    takers: frozenset[str] | None
    """Boards or workers that may take it; None: somebody has."""


@dataclass
class Stillness:
    """Adds up the time without progress of each."""

    found: dict[str, str] = field(default_factory=dict)
    """What stood still for longer than `STILL_S`, as it was."""
    _seen: dict[str, tuple[tuple[object, ...], float]] = field(default_factory=dict)

    def note(self, now: Mapping[str, Open], passed_s: float, *, held: Collection[str], idle: Collection[str]) -> None:
        """One look. `held`: by a fault; `idle`: boards and workers that are there and have nothing to do."""
        before, self._seen = self._seen, {}
        for name, one in now.items():
            was, still_s = before.get(name, (one.mark, -passed_s))
            could = name not in held and (one.takers is None or not one.takers.isdisjoint(idle))
            still_s = still_s + passed_s * could if was == one.mark else 0.0
            self._seen[name] = one.mark, max(0.0, still_s)
            if still_s > STILL_S:
                self.found[name] = f"{name}: no progress for more than {STILL_S:.0f} s: {one.mark}"


@contextlib.contextmanager
def watching(farm: Field) -> Iterator[Stillness]:
    """Look every `LOOK_S` until the block ends."""
    stillness, done = Stillness(), threading.Event()
    thread = threading.Thread(target=_watch, args=(farm, stillness, done), name="progress", daemon=True)
    thread.start()
    try:
        yield stillness
    finally:
        done.set()
        thread.join(30)


def _watch(farm: Field, stillness: Stillness, done: threading.Event) -> None:
    looked_at = time.monotonic()
    while not done.wait(LOOK_S):
        found = None if farm.is_held(ALL) else farm.look(lambda session: (_open(session), _busy(farm, session)))
        passed_s, looked_at = min(time.monotonic() - looked_at, LONGEST_LOOK_S), time.monotonic()
        if found is None:  # a fault has all of it, or the database is away
            continue
        requests, busy = found
        idle = {name for name in (*farm.farm, *WORKERS) if farm.is_up(name) and _is_reached(farm, name)} - busy
        held = {name for name in requests if farm.is_held(name)}
        stillness.note(requests, passed_s, held=held, idle=idle)


def _is_reached(farm: Field, name: str) -> bool:
    """Whether nothing parts it from the farm."""
    links = (farm.farm.get(name), farm.broker.get(name), farm.database.get(name))
    return not farm.topology.held(name).exists() and not any(one.stalled or one.refusing for one in links if one)


def _open(session: Session) -> dict[str, Open]:
    tried: dict[str, set[str]] = {}
    boards = {row.id: row.name for row in session.scalars(select(Device).where(Device.state == "active"))}
    for run_id, device_id in session.execute(
        select(Attempt.run_id, Attempt.device_id).join(Run).where(Run.state.in_(OPEN_RUN_STATES))
    ):
        tried.setdefault(run_id, set()).add(boards.get(device_id, ""))
    found = {}
    for run in session.scalars(select(Run).where(Run.state.in_(OPEN_RUN_STATES))):
        others = frozenset(set(boards.values()) - tried.get(run.id, set()))  # a run goes to each board once
        mark = (run.state, run.attempts, run.phase, run.steps_done)
        found[run.id] = Open(mark, others if run.state == "queued" else None)
    for job in session.scalars(select(Job).where(Job.state.in_(OPEN_JOB_STATES))):
        found[job.id] = Open(
            (job.state, job.attempts, job.stage, job.fraction), frozenset(WORKERS) if job.state == "queued" else None
        )
    return found


def _busy(farm: Field, session: Session) -> set[str]:
    names = select(Device.name).join(Attempt, Attempt.device_id == Device.id)
    boards = session.scalars(names.where(Attempt.state.in_(LIVE_ATTEMPT_STATES)))
    compiling = list(session.scalars(select(Job.worker).where(Job.state == "compiling")))
    workers = [name for name in WORKERS for one in compiling if one and one.startswith(farm.worker_prefix(name))]
    return {*boards, *workers}
