"""An organisation with one of everything that the farm keeps for it, made through the real API by a real board."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from device_agents import wire as p
from service.base.identifiers import digest_of
from service.store.database.models import CanaryChange
from tests.service.board import Board, leased
from tests.service.farms import TestFarm

BYTE = b"m"
PIECE = {"Content-Range": "bytes 0-0/1"}
"""The only piece of an upload of one byte."""


@dataclass(frozen=True)
class Tenant:
    """What one organisation has. `names`: everything by which another could know of it."""

    farm: TestFarm
    job: str
    run: str
    bundle: str
    model: str
    dataset: str
    weights: str
    device: str
    change: str
    """Of its device's times."""
    key: str
    user: str
    enrolment_token: str
    window: str
    webhook: str
    group: str
    upload: str
    """One that is not finished: nothing has come of it."""

    @property
    def names(self) -> tuple[str, ...]:
        return (
            self.job,
            self.run,
            self.bundle,
            self.model,
            self.dataset,
            self.weights,
            self.device,
            self.key,
            self.user,
            self.enrolment_token,
            self.window,
            self.webhook,
            self.group,
            self.upload,
            self.farm.organisation_id,
        )

    def owned(self, kind: str) -> str:
        """The id or digest of its thing of that kind."""
        return self.model if kind == "file" else str(getattr(self, kind))


def make_tenant(farm: TestFarm, marker: str, *, hook: str = "https://hook.example/") -> Tenant:
    """A new organisation whose models, data and devices have names with `marker` in them."""
    mine = farm.tenant(f"organisation {marker}")
    job = mine.compile(f"model {marker}".encode(), name=f"net-{marker}").json()
    bundle = mine.work_off(job["id"], model=job["model"]["digest"], note=marker)
    samples = np.full((16, 1, 8, 8), float(sum(marker.encode())), np.float32)
    dataset = mine.send_dataset(x=samples, y=np.arange(16, dtype=np.int64) % 10).json()["digest"]
    run = mine.run(bundle=bundle, mode="train", steps=2, dataset=dataset)
    board = mine.board(name=f"board-{marker}")
    weights = do_training(board, f"weights {marker}".encode())
    user = mine.http.post("/users", json={"name": f"person-{marker}"}).json()["id"]
    key = mine.http.post("/keys", json={"name": f"key-{marker}", "user": user}).json()["id"]
    token = mine.http.post("/devices/enrolment-tokens", json={"name": f"token-{marker}", "uses": 2}).json()["id"]
    times = {"starts_at": "2400-01-01T00:00:00Z", "ends_at": "2400-01-02T00:00:00Z", "reason": f"reason-{marker}"}
    window = mine.http.post("/maintenance", json=times).json()["id"]
    group = mine.http.post("/run-groups", json={"bundle": bundle, "name": f"group-{marker}"}).json()["id"]
    mine.http.post(f"/run-groups/{group}/cancel")
    webhook = mine.http.post("/webhooks", json={"url": hook + marker}).json()["id"]
    upload, change = begin_upload(mine), become_slower(mine, board.device_id, run["id"])
    return Tenant(
        mine,
        job["id"],
        run["id"],
        bundle,
        job["model"]["digest"],
        dataset,
        weights,
        board.device_id,
        change,
        key,
        user,
        token,
        window,
        webhook,
        group,
        upload,
    )


def become_slower(farm: TestFarm, device_id: str, run_id: str) -> str:
    """The id of a change of the device's times, as its canaries find one."""
    change = CanaryChange(
        device_id=device_id,
        series=digest_of(device_id.encode()),
        canary="convolutions",
        target="x86-64-v3",
        before_run_id=run_id,
        after_run_id=run_id,
        ratio=1.1,
        ratio_low=1.05,
        ratio_high=1.15,
        deviation=0.01,
        differences=[],
    )
    with farm.farm.database.of(farm.organisation_id).transaction() as session:
        session.add(change)
        session.flush()
        return change.id


def begin_upload(farm: TestFarm, data: bytes = b"") -> str:
    """The id of an upload of one byte, `BYTE`, and so much of it sent."""
    answer = farm.http.post("/uploads", json={"kind": "model", "size_bytes": len(BYTE)})
    assert answer.status_code == 202, answer.text
    if data:
        sent = farm.http.patch(answer.headers["Location"], content=data, headers=PIECE)
        assert sent.status_code == 202, sent.text
    return str(answer.json()["id"])


def do_training(board: Board, weights: bytes) -> str:
    """The board's next run, done; the digest of what it trained."""
    work, digest = leased(board), digest_of(weights)
    assert board.heartbeat(work).status_code == 200
    assert board.send_events(work, p.Event(1, 1.0, "step", step=1, loss=0.5, step_us=5.0)).status_code == 200
    assert board.put_weights(work, weights, digest).status_code == 201
    assert board.report(work, weights=p.Blob(digest, len(weights))).status_code == 200
    return digest


def everything(tenant: Tenant) -> dict[str, Any]:
    """What its own operator sees of it, but for what changes by looking."""
    paths = (
        "/jobs",
        "/runs",
        "/bundles",
        "/datasets",
        "/devices",
        "/keys",
        "/users",
        "/organisation",
        "/maintenance",
        "/run-groups",
        "/webhooks",
        f"/devices/enrolment-tokens/{tenant.enrolment_token}",
        f"/jobs/{tenant.job}",
        f"/runs/{tenant.run}",
        f"/devices/{tenant.device}",
        f"/uploads/{tenant.upload}",
        f"/files/{tenant.model}",
    )
    found = {path: tenant.farm.http.get(path).json() for path in paths}
    for key in found["/keys"]:
        key.pop("last_used_at")
    return found
