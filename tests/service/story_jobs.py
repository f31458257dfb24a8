"""Compile jobs in the rule-based test: owners who ask and cancel, workers who claim, hang, die, come back and finish.

Everything that may become of a job is certain, so the model foretells one state, not several.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from zlib import crc32

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from sqlalchemy import select

from service.artefacts.bundles.archive import read_bundle
from service.artefacts.jobs import claims
from service.store import states
from service.store.database.models import Bundle, Event, Job
from tests.service.bundles import make_bundle, make_manifest
from tests.service.farms import TestFarm
from tests.service.story_model import LEASE_S, QUEUE_S, check_history

Rule = Callable[..., None]
ATTEMPTS = 3
PICK = st.integers(0, 1 << 16).map(lambda number: crc32(str(number).encode()))
"""Of all size alike: the library prefers small numbers."""


def where(holds: Callable[[Any], object], otherwise: Callable[[Any], object]) -> Callable[[Rule], Rule]:
    """A rule that needs something to act on: where that is not there, what leads to it happens.

    As a precondition it would say what the library may draw; but which board got a run depends on the farm, and the
    library, which plays beginnings of stories again, must draw the same there.
    """

    def only_there(act: Rule) -> Rule:
        @wraps(act)
        def guarded(self: Any, *given: Any, **drawn: Any) -> None:
            if holds(self):
                act(self, *given, **drawn)
            else:
                otherwise(self)

        return guarded

    return only_there


LOST = claims.Failure("infra", "infra.child-killed", "the compile was killed", retry=True)
WRONG = claims.Failure("model", "model.unsupported", "an operator that is not known")


@dataclass
class Held:
    """One claim of a worker, live or not."""

    job: JobTrack
    claim: claims.Claim


@dataclass
class JobTrack:
    """One job, as it must be."""

    id: str
    model: bytes
    since: float
    state: str = "queued"
    told: str = "queued"
    """The state that the last look found."""
    attempts: int = 0
    expires_at: float = 0.0
    live: Held | None = None
    is_cancelled: bool = False

    @property
    def is_open(self) -> bool:
        return self.state in ("queued", "compiling")

    def lost(self) -> None:
        """Its worker is gone."""
        again = "queued" if self.attempts < ATTEMPTS else "failed"
        self.state, self.live = "cancelled" if self.is_cancelled else again, None

    def end(self, state: str) -> None:
        self.state, self.live = state, None


@dataclass
class JobBook:
    """All jobs of one story."""

    tracks: dict[str, JobTrack] = field(default_factory=dict)
    claims: list[Held] = field(default_factory=list)


class JobStory(RuleBasedStateMachine):
    """What owners and workers do with jobs; `Story` adds runs."""

    farm: TestFarm
    seen: Counter[str]
    now: float
    jobs: JobBook
    stories = 0
    """So that no story asks for what an earlier one has."""

    @staticmethod
    def any_of(things: list[Any], pick: int) -> Any:
        return things[pick % len(things)]

    @rule(pick=PICK)
    def compile(self, pick: int) -> None:
        """One of a few models: an open or a succeeded job answers for the same request."""
        model = f"story {type(self).stories} model {pick % 4}".encode()
        answer = self.farm.compile(model)
        job_id = answer.json()["id"]
        known = [one for one in self.jobs.tracks.values() if one.model == model]
        answering = [one for one in known if one.is_open or one.state == "succeeded"]
        is_done = any(one.state == "succeeded" for one in answering)
        assert answer.status_code == (200 if is_done else 202), answer.text
        if answering:
            assert [one.id for one in answering] == [job_id], "the same request is the same job"
            self.seen["job: shared"] += 1
            return
        assert job_id not in self.jobs.tracks
        self.jobs.tracks[job_id] = JobTrack(job_id, model, self.now)

    @rule(pick=PICK)
    @where(lambda self: self.jobs.tracks, lambda self: self.compile(1))
    def cancel_job(self, pick: int) -> None:
        if pick >> 8 & 1:
            return
        track: JobTrack = self.any_of(list(self.jobs.tracks.values()), pick)
        assert self.farm.http.post(f"/jobs/{track.id}/cancel").status_code in (200, 202)
        track.is_cancelled = track.is_cancelled or track.is_open
        if track.state == "queued":
            track.end("cancelled")

    @rule(pick=PICK)
    @where(lambda self: self.jobs.tracks, lambda self: self.compile(1))
    def claim(self, pick: int) -> None:
        """A doorbell, which may be old or doubled."""
        self.take(self.any_of(list(self.jobs.tracks.values()), pick))

    @rule(pick=PICK)
    def work_off(self, pick: int) -> None:
        """A worker does what waits, undisturbed."""
        self.compile(pick)
        for track in [one for one in self.jobs.tracks.values() if one.state == "queued"]:
            self.take(track)
            self.finish_with(self.jobs.claims[-1], "succeed")

    def take(self, track: JobTrack) -> None:
        with self.farm.farm.database.transaction() as session:
            taken = claims.claim(session, track.id, lease_s=LEASE_S, worker="story.1.2.x")
        assert (taken is not None) == (track.state == "queued")
        if taken is None:
            return
        track.state, track.attempts, track.expires_at = "compiling", track.attempts + 1, self.now + LEASE_S
        assert taken.attempt == track.attempts
        track.live = Held(track, taken)
        self.jobs.claims.append(track.live)

    @rule(pick=PICK)
    @where(lambda self: self.jobs.claims, lambda self: self.claim(1))
    def keep(self, pick: int) -> None:
        held: Held = self.any_of(self.jobs.claims, pick)
        told: list[bool] = []

        def act(session: Any) -> None:
            told.append(claims.keep(session, held.claim, lease_s=LEASE_S, stage="kernels", fraction=0.5))

        if self.wrote(held, act):
            held.job.expires_at = self.now + LEASE_S
            assert told == [held.job.is_cancelled]

    @rule(pick=PICK, how=st.sampled_from(("succeed", "succeed", "fail", "retry", "retry", "stop")))
    @where(lambda self: self.jobs.claims, lambda self: self.claim(1))
    def finish(self, pick: int, how: str) -> None:
        """A worker says how its compile ended; whoever has lost its claim changes nothing."""
        self.finish_with(self.any_of(self.jobs.claims, pick), how)

    def finish_with(self, held: Held, how: str) -> None:
        acts = {
            "succeed": lambda session: self.succeed(session, held),
            "fail": lambda session: claims.fail(session, held.claim, WRONG, attempts=ATTEMPTS),
            "retry": lambda session: claims.fail(session, held.claim, LOST, attempts=ATTEMPTS),
            "stop": lambda session: claims.cancelled(session, held.claim),
        }
        if not self.wrote(held, acts[how]):
            return
        track = held.job
        again = how == "retry" and track.attempts < ATTEMPTS and not track.is_cancelled
        ends = {"succeed": "succeeded", "fail": "failed", "retry": "failed", "stop": "cancelled"}
        track.end("queued" if again else ends[how])

    def succeed(self, session: Any, held: Held) -> None:
        claim, storage = held.claim, self.farm.farm.storage
        made = make_bundle(make_manifest(target=claim.target, model=claim.model_digest))
        stored = storage.put(io.BytesIO(made.data), limit_bytes=1 << 20)
        with storage.local(stored.digest) as path:
            claims.succeed(session, claim, stored, read_bundle(path))

    def wrote(self, held: Held, act: Any) -> bool:
        """Whether the claim still counted, which the model knows."""
        try:
            with self.farm.farm.database.transaction() as session:
                act(session)
        except claims.LostClaim:
            assert held.job.live is not held
            self.seen["job: claim lost"] += 1
            return False
        assert held.job.live is held, "who has lost its claim changes nothing"
        return True

    def sweep_jobs(self) -> None:
        """What a sweep makes of them: silent workers first, then what has waited too long."""
        for track in self.jobs.tracks.values():
            if track.state == "compiling" and track.expires_at <= self.now:
                self.seen["job: worker lost"] += 1
                track.lost()
            if track.state == "queued" and track.since + QUEUE_S <= self.now:
                track.end("expired")

    def check_jobs(self) -> None:
        """Rows and histories are as foretold."""
        with self.farm.farm.database.read() as session:
            rows = {job.id: job for job in session.scalars(select(Job).where(Job.id.in_(self.jobs.tracks)))}
            query = select(Event.subject, Event.body).where(Event.kind == "state", Event.subject.in_(rows))
            told = list(session.execute(query.order_by(Event.id)))
            bundles = set(session.scalars(select(Bundle.digest)))
        assert rows.keys() == self.jobs.tracks.keys()
        for track in self.jobs.tracks.values():
            row = rows[track.id]
            assert (row.state, row.attempts) == (track.state, track.attempts), track
            assert (row.claim_hash is not None) == (track.state == "compiling")
            assert (row.finished_at is None) == track.is_open
            assert (row.bundle_digest in bundles) == (track.state == "succeeded")
            typed = row.cause is not None and row.code is not None and row.message != ""
            assert typed == (not track.is_open and track.state != "succeeded")
            check_history(states.JOB, [body["state"] for subject, body in told if subject == track.id], track.state)
            if track.state != track.told:
                self.seen[f"job: {track.told} -> {track.state}"] += 1
            track.told = track.state
