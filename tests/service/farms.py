"""A farm in the test's own process, over its real HTTP application."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
from sqlalchemy import update

from service.app import create_app
from service.artefacts.bundles.archive import read_bundle
from service.artefacts.jobs import claims
from service.base.settings import Settings
from service.operations.sweeper import sweep
from service.people.keys.service import create_key
from service.store.database.models import HOME, Attempt
from service.store.database.schema import migrate
from service.store.farm import Farm
from service.store.signs_of_life import give_sign
from tests.service import one_compilation
from tests.service.board import Board
from tests.service.bundles import make_bundle, make_manifest
from tests.service.client import Client

one_compilation.install()


@cache
def empty_sqlite() -> bytes:
    """The file of a database that all migrations have made, once per process."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "farm.db"
        migrate(f"sqlite:///{path}")
        return path.read_bytes()


class SettingsOfTest(Settings):
    """What a test sets, validated, and nothing of the environment, which takes long to read."""

    storage_share: float | None = None
    """The disk is everybody's here: what other tests write would change it."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Values passed to the constructor alone."""
        return (init_settings,)


@dataclass
class RecordingQueue:
    """A broker that notes doorbells, and can be down."""

    rung: list[tuple[str, str]] = field(default_factory=list)
    is_down: bool = False
    has_lost: bool = False
    """It holds no message any more."""

    def ring(self, task: str, argument: str) -> None:
        self.check()
        self.rung.append((task, argument))

    def waiting(self) -> int:
        self.check()
        return 0 if self.has_lost else len(self.rung)

    def check(self) -> None:
        if self.is_down:
            raise ConnectionError("the broker is down")


@dataclass
class TestFarm:
    """A farm, its HTTP client (with an operator's key) and its broker."""

    __test__ = False
    farm: Farm
    http: Client
    queue: RecordingQueue
    anonymous: Client
    organisation_id: str = HOME

    def key(self, role: str = "user", **fields: Any) -> dict[str, str]:
        """The Authorization header of a new key."""
        with self.farm.database.of(self.organisation_id).transaction() as session:
            _, secret = create_key(session, name=role, role=role, **fields)  # type: ignore[arg-type]
        return {"Authorization": f"Bearer {secret}"}

    def tenant(self, name: str) -> TestFarm:
        """The same farm for an operator of a new organisation."""
        answer = self.http.post("/organisations", json={"name": name})
        assert answer.status_code == 201, answer.text
        http = Client(self.http.app, raise_exceptions=False, beside=self.http)
        tenant = replace(self, http=http, organisation_id=answer.json()["id"])
        http.headers.update(tenant.key("operator"))
        return tenant

    def worker_lives(self) -> None:
        """What a worker says every few seconds."""
        with self.farm.database.transaction() as session:
            give_sign(session, "worker")

    def sweep(self) -> None:
        sweep(self.farm)

    def compile(self, model: bytes = b"model", **fields: Any) -> httpx.Response:
        """POST /compile."""
        form = {"plan": "full", "target": "x86-64-v3"} | fields
        headers = form.pop("headers", {})
        return self.http.post("/compile", files={"model": ("net.onnx", model)}, data=form, headers=headers)

    def work_off(
        self,
        job_id: str,
        *,
        fields: Mapping[str, Any] | None = None,
        warnings: object = (),
        weights: bytes = b"weights",
        **digests: Any,
    ) -> str:
        """Do a worker's part with a ready bundle, perhaps with other manifest fields or warnings; its digest."""
        with self.farm.database.transaction() as session:
            claim = claims.claim(session, job_id, lease_s=60)
        assert claim is not None
        made = make_bundle(
            {**make_manifest(target=claim.target, **digests), **(fields or {})}, warnings=warnings, weights=weights
        )
        stored = self.farm.storage.put(io.BytesIO(made.data), limit_bytes=1 << 20)
        with self.farm.storage.local(stored.digest) as path:
            content = read_bundle(path)
        with self.farm.database.transaction() as session:
            claims.succeed(session, claim, stored, content)
        return stored.digest

    def bundle(self, model: bytes = b"model", *, target: str = "x86-64-v3", **manifest: Any) -> str:
        """A compiled bundle's digest."""
        job = self.compile(model, target=target).json()
        return self.work_off(job["id"], model=job["model"]["digest"], **manifest)

    def board(self, **changes: Any) -> Board:
        """An enrolled board."""
        token = self.http.post("/devices/enrolment-tokens", json={}).json()["token"]
        return Board(self.anonymous, **changes).enrol(token)

    def run(self, **body: Any) -> dict[str, Any]:
        """A queued run."""
        answer = self.http.post("/runs", json=body)
        assert answer.status_code == 202, answer.text
        return dict(answer.json())

    def show(self, run_id: str) -> dict[str, Any]:
        return dict(self.http.get(f"/runs/{run_id}").json())

    def send_dataset(self, **arrays: Any) -> httpx.Response:
        return self.http.post("/datasets", files={"file": ("digits.npz", npz(**arrays))})

    def dataset(self, samples: int = 16) -> str:
        """The digest of a data set that fits `make_manifest`."""
        x = np.random.default_rng(0).random((samples, 1, 8, 8), dtype=np.float32)
        answer = self.send_dataset(x=x, y=np.arange(samples, dtype=np.int64) % 10)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["digest"])


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


@contextmanager
def open_test_farm(state: Path, database_url: str, **settings: Any) -> Iterator[TestFarm]:
    """A farm whose sweeper is called by hand and whose broker records."""
    chosen: dict[str, Any] = {
        "sweep_s": 0.0,
        "poll_s": 0.02,
        "ready_s": 0.0,
        "metrics_s": 0.0,
        "compiler_version": "test",
    } | settings
    queue = RecordingQueue()
    app = create_app(SettingsOfTest(state=state, database_url=database_url, **chosen), queue=queue)
    farm: Farm = app.state.farm
    with farm.database.transaction() as session:
        _, secret = create_key(session, name="operator", role="operator")
    with Client(app, raise_exceptions=False) as http:
        anonymous = Client(app, raise_exceptions=False, beside=http)
        http.headers["Authorization"] = f"Bearer {secret}"
        yield TestFarm(farm, http, queue, anonymous)


def expire_lease(farm: TestFarm, run_id: str) -> None:
    """What a minute of silence does."""
    with farm.farm.database.transaction() as session:
        session.execute(update(Attempt).where(Attempt.run_id == run_id).values(lease_expires_at=time.time() - 1))
    farm.sweep()
