"""Random interleavings of what devices, owners and time can do: the invariants of leases and results always hold."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from sqlalchemy import select, update

from device_agents import wire as p
from service.store.database.models import LIVE_ATTEMPT_STATES, OPEN_RUN_STATES, Attempt, Device, Result, Run, Strike
from tests.sample import sample
from tests.service.board import Board
from tests.service.farms import TestFarm

OUTCOMES = (
    p.Outcome("succeeded"),
    p.Outcome("failed", "infra", "x.y", "m"),
    p.Outcome("failed", "user", "x.y", "m"),
    p.Outcome("cancelled", "user", "x.y", "m"),
    p.Outcome("inconclusive", "device", "x.y", "m"),
)


class Story:
    """Two boards and a few runs; every assignment ever given is remembered, and may be used again much too late."""

    def __init__(self, farm: TestFarm, seed: int) -> None:
        self.farm = farm
        self.random = random.Random(seed)
        self.bundle = farm.bundle()
        self.boards = [farm.board(name=f"board {n}") for n in range(2)]
        self.given: list[tuple[Board, p.Assignment]] = []
        self.ended: dict[str, str] = {}

    def step(self) -> str:
        acts = [
            self.queue,
            self.queue,
            self.lease,
            self.lease,
            self.lease,
            self.beat,
            self.beat,
            self.report,
            self.report,
            self.expire,
            self.restart,
            self.cancel,
            self.release,
        ]
        act = self.random.choice(acts)
        act()
        return act.__name__

    def queue(self) -> None:
        self.farm.run(bundle=self.bundle)

    def lease(self) -> None:
        board = self.random.choice(self.boards)
        work = board.lease()
        if work is not None:
            self.given.append((board, work))

    def beat(self) -> None:
        if self.given:
            board, work = self.random.choice(self.given)
            assert board.heartbeat(work).status_code in (200, 409)
            assert board.send_events(work, p.Event(1, 1.0, "log", message="hello")).status_code in (200, 409)

    def report(self) -> None:
        if self.given:
            board, work = self.random.choice(self.given)
            answer = board.report(work, self.random.choice(OUTCOMES))
            assert answer.status_code in (200, 409), answer.text

    def expire(self) -> None:
        with self.farm.farm.database.transaction() as session:
            live = session.scalars(select(Attempt.id).where(Attempt.state.in_(LIVE_ATTEMPT_STATES))).all()
            if live:
                silent = self.random.choice(live)
                session.execute(update(Attempt).where(Attempt.id == silent).values(lease_expires_at=1.0))
        self.farm.sweep()

    def restart(self) -> None:
        self.random.choice(self.boards).restart()

    def cancel(self) -> None:
        if self.given:
            self.farm.http.post(f"/runs/{self.random.choice(self.given)[1].run_id}/cancel")

    def release(self) -> None:
        for board in self.boards:
            self.farm.http.post(f"/devices/{board.device_id}/release", json={})

    def check(self) -> None:
        """The invariants, read from the rows themselves."""
        with self.farm.farm.database.read() as session:
            runs = session.scalars(select(Run)).all()
            attempts = session.scalars(select(Attempt)).all()
            results = session.scalars(select(Result)).all()
            devices = {device.id: device for device in session.scalars(select(Device))}
            strikes = Counter(session.scalars(select(Strike.device_id)))
        live = [attempt for attempt in attempts if attempt.state in LIVE_ATTEMPT_STATES]
        assert max(Counter(attempt.run_id for attempt in live).values(), default=0) <= 1
        assert max(Counter(attempt.device_id for attempt in live).values(), default=0) <= 1
        owned = {attempt.run_id for attempt in live}
        recorded = Counter(result.run_id for result in results if result.state == "recorded")
        assert max(recorded.values(), default=0) <= 1
        assert {device.id: device.strikes for device in devices.values() if device.strikes} == dict(strikes)
        failed = Counter(
            (attempt.run_id, attempt.device_id)
            for attempt in attempts
            if attempt.spent == "failed" and (attempt.finished_at or 0) > devices[attempt.device_id].released_at
        )
        assert max(failed.values(), default=0) <= 1, "a run goes to a device once, unless an operator has mended that"
        for run in runs:
            numbers = sorted(attempt.n for attempt in attempts if attempt.run_id == run.id)
            assert numbers == list(range(1, run.attempts + 1))
            assert run.state != "inconclusive" or len({a.device_id for a in attempts if a.run_id == run.id}) > 1
            assert (run.state in ("leased", "running")) == (run.id in owned), (run.state, run.id)
            assert (run.finished_at is None) == (run.state in OPEN_RUN_STATES)
            assert run.state != "succeeded" or recorded[run.id] == 1
            assert self.ended.setdefault(run.id, run.state) == run.state or self.ended[run.id] in OPEN_RUN_STATES
            self.ended[run.id] = run.state


@pytest.mark.parametrize("seed", sample(range(4), {"0"}))
def test_invariants_hold_whatever_happens_in_which_order(farm: TestFarm, seed: int) -> None:
    story = Story(farm, seed)
    done = []
    for _ in range(80):
        done.append(story.step())
        try:
            story.check()
        except AssertionError as error:
            raise AssertionError(f"after {done}") from error
    assert len(story.given) > 5
    assert {"succeeded", "queued"} & set(story.ended.values())
