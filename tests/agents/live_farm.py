"""The real service under uvicorn on the loopback, with a bundle whose binary is a script: for real agents."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from device_agents.job.bundle import read_manifest
from service.app import create_app
from service.base.settings import Settings
from service.people.holdings import service as holdings
from service.people.keys.service import create_key
from service.store.database.insert import insert_if_new
from service.store.database.models import Bundle
from service.store.database.schema import migrate
from service.store.farm import Farm
from tests.agents.fake_step import bundle
from tests.service.farms import RecordingQueue, empty_sqlite
from tests.waiting import HANG_S, until


@dataclass(frozen=True)
class LiveFarm:
    """A farm on a socket, and a client of it with an operator's key."""

    farm: Farm
    url: str
    http: httpx.Client

    def keep_bundle(self, file: Path | None = None) -> str:
        """Put a bundle (the script's, if no other is given) into the farm, as a compile would, or leave it there;
        returns its digest."""
        content = bundle() if file is None else file.read_bytes()
        stored = self.farm.storage.put(io.BytesIO(content), limit_bytes=1 << 24)
        manifest = {"threads": 2} if file is None else dict(read_manifest(file))
        digest = "sha256:" + "0" * 64
        with self.farm.database.transaction() as session:
            fields = {
                "digest": stored.digest,
                "size_bytes": stored.size_bytes,
                "target": "x86-64-v3",
                "model_name": "m",
                "model_digest": digest,
                "plan_name": "full",
                "plan_digest": digest,
                "spec_digest": digest,
                "required_features": [],
                "manifest": manifest,
                "compile_report": {},
            }
            insert_if_new(session, Bundle, fields)
            holdings.hold(session, "bundle", stored.digest, size_bytes=stored.size_bytes, name="m", plan_name="full")
        return stored.digest

    def run(self, digest: str) -> str:
        """A queued run's id."""
        answer = self.http.post("/runs", json={"bundle": digest, "steps": 4, "warmup": 0})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def runs(self) -> list[dict[str, Any]]:
        return list(self.http.get("/runs?limit=200").json()["items"])

    def token(self, **body: Any) -> str:
        return str(self.http.post("/devices/enrolment-tokens", json=body).json()["token"])

    def device(self, name: str) -> dict[str, Any]:
        """The device of that name; empty if it has not enrolled."""
        return next((one for one in self.http.get("/devices").json()["items"] if one["name"] == name), {})


@contextmanager
def live_farm(folder: Path, *, database_url: str = "", **settings: Any) -> Iterator[LiveFarm]:
    """A farm on a free port, swept by itself; on SQLite in the folder unless another database is named."""
    own = folder / "farm.db"
    if not database_url and not own.exists():
        folder.mkdir(parents=True, exist_ok=True)
        own.write_bytes(empty_sqlite())
    url = database_url or f"sqlite:///{own}"
    migrate(url)
    chosen = Settings(state=folder, database_url=url, **{"sweep_s": 0.2, "poll_s": 0.05, **settings})
    app = create_app(chosen, queue=RecordingQueue())
    farm: Farm = app.state.farm
    with farm.database.transaction() as session:
        _, secret = create_key(session, name="operator", role="operator")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started or not thread.is_alive())
    assert server.started
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=address, headers=headers, trust_env=False, timeout=HANG_S) as http:
        yield LiveFarm(farm, address, http)
    server.should_exit = True
    thread.join(timeout=HANG_S)
