"""What must hold in the rule-based test after every step, whoever did what: the rows are as the model foretells."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from hypothesis.stateful import invariant
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store import states
from service.store.database.models import Attempt, Device, DeviceEvent, Event, Result, Run, Strike
from tests.service.story_jobs import JobStory
from tests.service.story_model import OPEN, Track, check_history


class Rows(NamedTuple):
    """What the database says of runs."""

    runs: dict[str, Run]
    attempts: list[Attempt]
    results: list[Result]
    told: dict[str, list[str]]
    """The states of each run, in the order of its events."""


def rows_of(session: Session) -> Rows:
    """All there are."""
    runs = {run.id: run for run in session.scalars(select(Run))}
    told: dict[str, list[str]] = {run_id: [] for run_id in runs}
    for subject, body in session.execute(
        select(Event.subject, Event.body).where(Event.kind == "state", Event.subject.in_(runs)).order_by(Event.id)
    ):
        told[subject].append(body["state"])
    attempts = list(session.scalars(select(Attempt).order_by(Attempt.n)))
    return Rows(runs, attempts, list(session.scalars(select(Result))), told)


class RecordedStory(JobStory):
    """Runs, attempts, results and devices as they must be; `Story` has the rules that change them."""

    tracks: dict[str, Track]
    removed: set[str]
    held: set[str]
    """Devices that an operator has quarantined."""
    struck: set[str]
    """Devices that strikes have quarantined."""
    seen: Counter[str]
    """What has happened in all examples together: a test that nothing happens in proves nothing."""

    @invariant()
    def nothing_is_lost_doubled_or_untold(self) -> None:
        if not hasattr(self, "tracks"):
            return
        with self.farm.farm.database.read() as session:
            runs, attempts, results, told = rows_of(session)
            devices = list(session.scalars(select(Device)))
            strikes = Counter(session.scalars(select(Strike.device_id)))
            noted = list(session.execute(select(DeviceEvent.device_id, DeviceEvent.kind).order_by(DeviceEvent.id)))
        self.learn_canaries(runs)
        assert runs.keys() == self.tracks.keys()
        self.check_jobs()
        self.check_runs(runs, attempts)
        self.check_results(runs, attempts, results)
        for run_id, run in runs.items():
            check_history(states.RUN, told[run_id], run.state)
        self.check_devices(devices, strikes, noted)

    def check_runs(self, runs: dict[str, Run], attempts: list[Attempt]) -> None:
        live = [one for one in attempts if one.state in ("leased", "running")]
        assert max(Counter(one.run_id for one in live).values(), default=0) <= 1
        assert max(Counter(one.device_id for one in live).values(), default=0) <= 1
        for track in self.tracks.values():
            run, mine = runs[track.id], [one for one in attempts if one.run_id == track.id]
            assert run.state == track.foretold, f"{run.id}: {track.state} -> {run.state}, foretold {track.foretold}"
            if run.state != track.state:
                self.seen[f"{track.state} -> {run.state}"] += 1
            track.state = run.state
            assert [one.n for one in mine] == list(range(1, len(track.leases) + 1))
            assert run.attempts == len(mine)
            assert [one.device_id for one in mine] == [lease.board.device_id for lease in track.leases]
            assert [one.state in ("leased", "running") for one in mine] == [lease.is_live for lease in track.leases]
            assert (run.state in ("leased", "running")) == (track.live is not None)
            assert (run.finished_at is None) == (run.state in OPEN)
            typed = run.cause is not None and run.code is not None and run.message != ""
            assert typed == (run.state not in OPEN and run.state != "succeeded")

    def check_results(self, runs: dict[str, Run], attempts: list[Attempt], results: list[Result]) -> None:
        owner = {(lease.run.id, lease.n): lease for track in self.tracks.values() for lease in track.leases}
        sent = {one.id: owner[one.run_id, one.n] for one in attempts}
        accepted = {key for key, lease in sent.items() if lease.report is not None}
        assert {one.attempt_id for one in results} == accepted, "each accepted report is kept once, and no other"
        for one in results:
            lease = sent[one.attempt_id]
            assert one.report["device_id"] == lease.board.device_id
            assert one.report["run_id"] == lease.run.id
        recorded = Counter(one.run_id for one in results if one.state == "recorded")
        for track in self.tracks.values():
            assert recorded[track.id] <= 1
            assert (track.state == "succeeded") == track.is_won
            assert not track.is_won or recorded[track.id] == 1
            assert runs[track.id].state not in OPEN or recorded[track.id] == 0

    def check_devices(self, devices: list[Device], strikes: Counter[str], noted: list[Any]) -> None:
        assert {one.id: one.strikes for one in devices if one.strikes} == dict(strikes)
        self.struck = {one.id for one in devices if one.state == "quarantined" and one.quarantined_for == "strikes"}
        for one in devices:
            if one.state == "quarantined" and one.id not in self.held:
                self.seen["quarantined by strikes"] += 1
            assert (one.state == "removed") == (one.id in self.removed)
            assert one.id not in self.held or one.state == "quarantined"
            assert one.strikes < 3 or one.state != "active"
            told = {"quarantined": "quarantined", "released": "active", "removed": "removed"}
            lines = [told[kind] for device_id, kind in noted if device_id == one.id and kind in told]
            check_history(states.DEVICE, ["active", *lines], one.state)

    def learn_canaries(self, runs: dict[str, Run]) -> None:
        """Runs that the sweeper itself has made, each for a device that strikes have quarantined."""
        for run in runs.values():
            if run.is_canary and run.id not in self.tracks:
                assert run.wanted_device_id in self.struck
                self.seen["canary sent"] += 1
                self.tracks[run.id] = Track(run.id, {"device": run.wanted_device_id}, self.now, is_canary=True)
