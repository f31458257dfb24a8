"""Requests that a campaign keeps the farm busy with, and what each must come to.

Each is sent with an idempotency key to either API process, again and again until it is taken: so it is asked for once,
whatever happens on the way.
"""

from __future__ import annotations

import io
import itertools
import random
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
from sqlalchemy import func, select

from service.base.settings import Settings
from service.people.holdings import service as holdings
from service.store.database.models import OPEN_JOB_STATES, OPEN_RUN_STATES, Bundle, Job, Run
from service.store.storage import open_storage
from tests.thorough.chaos import answers
from tests.thorough.chaos.field import Field

JOBS_OPEN = 3
"""A compile more than workers, so that messages wait in the broker. There is a run less than boards that are there,
so that one that is given back need not wait."""
REAL_COMPILES = 5
"""One of so many is real."""
STEPS = (40, 70)
What = Literal["compile", "compile-real", "profile", "train", "train-on", "train-real"]
WHAT: tuple[What, ...] = ("profile", "train", "train-on", "train-real")
COMPILES = ("compile", "compile-real")


@dataclass(frozen=True)
class Request:
    """One piece of work that was asked for."""

    id: str
    what: What
    asked_at: float
    label: int = 0
    steps: int = 0
    start: float = answers.FIRST_WEIGHT
    """The weight that training starts from."""
    bundle: str = ""
    """The right answer to a compile; to a real one, it is found at the end."""
    seed: int = 0
    """Of a real compile's model."""


@dataclass
class Workload:
    """Keeps some jobs and runs open until it is told to stop."""

    farm: Field
    key: str
    rng: random.Random
    requests: list[Request] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Answers that no request of ours should get."""
    trained: list[float] = field(default_factory=list)
    """Weights that the farm has, for runs to start from."""
    real: str = ""
    """The bundle of a real binary, compiled by the farm."""
    real_data: str = ""
    real_learned: tuple[tuple[float, ...], str] | None = None
    """Losses and the digest of the weights of its training, undisturbed."""
    _datasets: dict[int, str] = field(default_factory=dict)
    _done: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._threads = [threading.Thread(target=self._keep, args=(what,), daemon=True) for what in (True, False)]
        self.bundle = keep_bundle(self.farm)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Ask for nothing more."""
        self._done.set()
        for thread in self._threads:
            thread.join(60)

    def open(self) -> Counter[str]:
        """How many of ours have not ended, by table."""
        found: Counter[str] = Counter()
        for request in list(self.requests):
            is_job = request.what in COMPILES
            row = self.farm.job(request.id) if is_job else self.farm.run(request.id)
            if row is None or row.state in (OPEN_JOB_STATES if is_job else OPEN_RUN_STATES):
                found["jobs" if is_job else "runs"] += 1
        return found

    def _keep(self, compiles: bool) -> None:
        table = Job if compiles else Run
        states = OPEN_JOB_STATES if compiles else OPEN_RUN_STATES
        rng = random.Random(self.rng.random())
        while not self._done.wait(0.3):
            count = self.farm.count(select(func.count()).select_from(table).where(table.state.in_(states)))
            if count is not None and count < (JOBS_OPEN if compiles else self.farm.boards_there() - 1):
                request = self._compile(rng) if compiles else self._run(rng)
                if request is not None:
                    self.requests.append(request)

    def _compile(self, rng: random.Random) -> Request | None:
        if rng.randrange(REAL_COMPILES) == 0:
            return self.compile_real(rng.randrange(1 << 30))
        model = answers.STAND_IN + uuid.uuid4().hex.encode()
        body = self._send(
            "/compile", files={"model": ("net.onnx", model)}, data={"plan": "full", "target": "x86-64-v3"}
        )
        return Request(body["id"], "compile", time.time(), bundle=answers.made_of(model).digest) if body else None

    def _run(self, rng: random.Random) -> Request | None:
        what, steps = rng.choice(WHAT), rng.randint(*STEPS)
        if what == "train-real":
            return self.train_real()
        if what == "profile":
            body = self._send("/runs", json={"bundle": self.bundle, "mode": "profile", "steps": steps, "warmup": 0})
            return Request(body["id"], "profile", time.time(), steps=steps) if body else None
        start = rng.choice(self.trained) if what == "train-on" and self.trained else None
        return self.train(rng.randrange(4), steps, start)

    def compile_real(self, seed: int) -> Request | None:
        """Ask for a compile by the real compiler."""
        asked = {"plan": answers.REAL_PLAN, "target": answers.REAL_TARGET, "spec": answers.REAL_SPEC}
        body = self._send("/compile", files={"model": ("net.onnx", answers.real_model(seed))}, data=asked)
        return Request(body["id"], "compile-real", time.time(), seed=seed) if body else None

    def train_real(self) -> Request | None:
        """Ask for the training of the real binary, always the same."""
        if not self.real_data:
            body = self._send("/datasets", files={"file": ("images.npz", answers.real_data())})
            self.real_data = body["digest"] if body else ""
        asked = {
            "bundle": self.real,
            "mode": "train",
            "dataset": self.real_data,
            "steps": answers.REAL_STEPS,
            "seed": 7,
        }
        body = self._send("/runs", json=asked)
        return Request(body["id"], "train-real", time.time(), steps=answers.REAL_STEPS) if body else None

    def train(self, label: int, steps: int, start: float | None = None) -> Request | None:
        """Ask for training; `start`: a weight of `trained`, else the bundle's."""
        request = {
            "bundle": self.bundle,
            "mode": "train",
            "dataset": self._dataset(label),
            "learning_rate": answers.RATE,
            "steps": steps,
        }
        if start is not None:
            request["weights"] = answers.weights_digest(start)
        body = self._send("/runs", json=request)
        if body is None:
            return None
        what: What = "train" if start is None else "train-on"
        return Request(body["id"], what, time.time(), label, steps, answers.FIRST_WEIGHT if start is None else start)

    def _dataset(self, label: int) -> str:
        if label not in self._datasets:
            body = self._send("/datasets", files={"file": ("data.npz", answers.data(label))})
            self._datasets[label] = body["digest"] if body else ""
        return self._datasets[label]

    def _send(self, path: str, **what: Any) -> dict[str, Any] | None:
        """Until it is taken; None when there is no more time. Other refusals than `not now` are noted."""
        headers = {"Authorization": f"Bearer {self.key}", "Idempotency-Key": uuid.uuid4().hex}
        ports = itertools.cycle(self.rng.sample(list(self.farm.topology.api_ports.values()), 2))
        while not self.farm.stopping.is_set():
            try:
                url = f"http://127.0.0.1:{next(ports)}{path}"
                answer = httpx.post(url, headers=headers, timeout=10, trust_env=False, **what)
            except httpx.TransportError:
                time.sleep(0.5)
                continue
            if answer.is_success:
                return dict(answer.json())
            self.farm.refusals[answer.status_code] += 1
            if answer.status_code not in (409, 429, 503, 507):
                self.refused.append(f"POST {path}: {answer.status_code} {answer.text[:300]}")
                return None
            time.sleep(0.5)
        return None


def keep_bundle(farm: Field) -> str:
    """Put the script's bundle into the farm, as a compile would; its digest."""
    storage = open_storage(Settings(storage_url=f"file://{farm.topology.storage}").storage)
    stored = storage.put(io.BytesIO(answers.binary()), limit_bytes=1 << 20)
    digest = "sha256:" + "0" * 64
    with farm.rows.transaction() as session:
        session.add(
            Bundle(
                digest=stored.digest,
                size_bytes=stored.size_bytes,
                target="x86-64-v3",
                model_name="m",
                model_digest=digest,
                plan_name="full",
                plan_digest=digest,
                spec_digest=digest,
                required_features=[],
                manifest={"threads": 2},
                compile_report={},
            )
        )
        holdings.hold(session, "bundle", stored.digest, size_bytes=stored.size_bytes, name="m", plan_name="full")
    return stored.digest
