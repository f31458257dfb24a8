"""What the farm is asked for while parts of it fail, and what must have become of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import func, select

from pockfarm.client import Client
from pockfarm.errors import NotFound, PockfarmError
from pockfarm.values import Job, Run
from service.store.database.engine import Database
from service.store.database.models import Attempt, Event, Result
from tests.e2e.inputs import SPEC, cnn
from tests.waiting import until

T = TypeVar("T")
PLAN = "bias-only"


@dataclass
class Work:
    """Two trainings that are under way, and a compile beside them."""

    client: Client
    rows: Database
    """Straight to the database."""
    target: str
    bundle: str
    dataset: str
    steps: int
    undisturbed: dict[int, bytes] = field(default_factory=dict)
    """Weights of a training of so many steps."""
    jobs: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    seed: int = 1
    """Of the next model, so that no request is like an earlier one."""

    def begin(self) -> None:
        """Ask for two trainings."""
        self.runs, self.jobs = [self.train(), self.train()], []

    def compile_meanwhile(self) -> None:
        """Ask for a compile while the trainings make steps, and for another when that is over."""
        job = self.job()
        if (self.jobs and (job is None or job.is_open)) or not self.is_training():
            return
        self.seed += 1
        job = self.client.compile(cnn(self.seed), plan=PLAN, spec=SPEC, target=self.target, name=f"cnn-{self.seed}")
        self.jobs = [job.id]

    def train(self) -> str:
        """A training's id."""
        return self.client.start_run(self.bundle, mode="train", steps=self.steps, dataset=self.dataset).id

    def job(self) -> Job | None:
        return patiently(lambda: self.client.job(self.jobs[0])) if self.jobs else None

    def run(self, run_id: str) -> Run | None:
        return patiently(lambda: self.client.run(run_id))

    def is_compiling(self) -> bool:
        """The compiler is at work: what it needs of the storage is there."""
        job = self.job()
        return job is not None and job.state == "compiling" and job.stage != ""

    def is_training(self) -> bool:
        """All runs make steps."""
        runs = [self.run(one) for one in self.runs]
        return all(run is not None and run.state == "running" and run.steps_done > 0 for run in runs)

    def device_of(self, run_id: str) -> str | None:
        run = self.run(run_id)
        return run.device_id if run else None

    def ends_well(self) -> None:
        """Everything succeeds, once, and as if nothing had happened. Raises: AssertionError."""
        until(self.has_ended, lambda: str([self.job(), *map(self.run, self.runs)]))
        weights = self.undisturbed.get(self.steps) or self.client.weights(self.client.wait_for_run(self.train()).id)
        self.undisturbed[self.steps] = weights
        job = self.job()
        assert job is not None
        assert job.state == "succeeded", job
        assert job.bundle_digest is not None
        assert self.client.bundle_bytes(job.bundle_digest)
        for one in self.runs:
            run = self.run(one)
            assert run is not None
            assert run.state == "succeeded", (run, self.history(one))
            assert len(self.client.report(one)["losses"]) == self.steps  # type: ignore[arg-type]
            assert self.client.weights(one) == weights, "not those of an undisturbed training"
            assert (self.ends(one), self.results(one)) == (1, 1), self.history(one)
        assert self.ends(job.id) == 1, self.history(job.id)

    def has_trained(self) -> bool:
        """No training is open any more."""
        return all(one is not None and not one.is_open for one in map(self.run, self.runs))

    def has_ended(self) -> bool:
        """Nor is the compile."""
        job = self.job()
        return job is not None and not job.is_open and self.has_trained()

    def ends(self, subject: str) -> int:
        """How often it has ended, by its history."""
        ended = Event.body["state"].as_string().in_(("succeeded", "failed", "cancelled", "expired", "inconclusive"))
        query = select(func.count()).where(Event.subject == subject, Event.kind == "state", ended)
        with self.rows.read() as session:
            return int(session.scalar(query) or 0)

    def results(self, run_id: str) -> int:
        """How many results are recorded."""
        query = select(func.count()).where(Result.run_id == run_id, Result.state == "recorded")
        with self.rows.read() as session:
            return int(session.scalar(query) or 0)

    def history(self, subject: str) -> list[str]:
        """All that happened to it, for a person."""
        with self.rows.read() as session:
            events = session.scalars(select(Event).where(Event.subject == subject).order_by(Event.id)).all()
            attempts = session.scalars(select(Attempt).where(Attempt.run_id == subject).order_by(Attempt.n)).all()
            told = [f"{one.at:.1f} {one.kind} {one.body}"[:300] for one in events]
            return told + [f"{one.n} on {one.device_id}: {one.state} {one.code} {one.message}" for one in attempts]


def patiently(ask: Callable[[], T]) -> T | None:
    """The answer; None while the farm has none."""
    try:
        return ask()
    except NotFound:
        raise
    except PockfarmError:
        return None
