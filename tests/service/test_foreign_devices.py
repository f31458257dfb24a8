"""Every address of devices x a device of another organisation, and each device's credential x every address of keys.

Attempts of others are as those that never were; what a device may ask for without naming one holds nothing of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from device_agents import wire as p
from service.base.identifiers import digest_of
from service.feature_list import PERMISSIONS
from tests.service.board import Board, leased
from tests.service.farms import TestFarm, open_test_farm

OF_ATTEMPTS = sorted(address for address, rule in PERMISSIONS.items() if rule.is_devices and "{lease_token}" in address)
OF_DEVICES = {"POST /agent/lease", "POST /agent/refusals", "POST /agent/kept-runs", "GET /agent/releases/{sequence}"}
"""Those that name no attempt; each has its own test below."""
NOBODYS = "0" * 64
WEIGHTS = b"weights of the other device"


class Scene:
    """A device at a run of its organisation, and a device of another one."""

    def __init__(self, farm: TestFarm) -> None:
        self.farm = farm
        self.owner, other = farm.tenant("owner"), farm.tenant("other")
        bundle, data = self.owner.bundle(), self.owner.dataset()
        asked = {"mode": "train", "steps": 2, "dataset": data, "validation_dataset": data}
        self.run = str(self.owner.run(bundle=bundle, **asked)["id"])
        self.theirs, self.mine = self.owner.board(name="theirs"), other.board(name="mine")
        self.work = leased(self.theirs)
        assert self.work.run_id == self.run
        assert self.theirs.heartbeat(self.work).status_code == 200
        self.queued = str(self.owner.run(bundle=bundle)["id"])

    def state(self) -> tuple[object, ...]:
        """What the run's owner sees of it."""
        events = self.owner.http.get(f"/runs/{self.run}/events", headers={"Accept": "application/json"})
        return self.owner.show(self.run), self.owner.show(self.queued), events.json()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "farm.db").write_bytes(migrated_sqlite.read_bytes())
    with open_test_farm(folder / "state", f"sqlite:///{folder / 'farm.db'}") as farm:
        yield Scene(farm)


def ask(scene: Scene, board: Board, address: str, lease_token: str) -> httpx.Response:
    """The whole of a request that the attempt's own device would make."""
    work = replace(scene.work, lease_token=lease_token)
    if address.startswith("GET"):
        return board.get(p.attempt_path(address.removeprefix("GET "), lease_token, 1))
    asked = {
        "POST /agent/attempts/{lease_token}/heartbeat": lambda: board.heartbeat(work, steps_done=1),
        "POST /agent/attempts/{lease_token}/events": lambda: board.send_events(
            work, p.Event(1, 1.0, "step", step=1, loss=0.5, step_us=5.0)
        ),
        "PUT /agent/attempts/{lease_token}/weights": lambda: board.put_weights(work, WEIGHTS, digest_of(WEIGHTS)),
        "PUT /agent/attempts/{lease_token}/checkpoint": lambda: board.put_weights(
            work, WEIGHTS, digest_of(WEIGHTS), path=p.CHECKPOINT_PATH
        ),
        "POST /agent/attempts/{lease_token}/report": lambda: board.report(work),
    }
    return asked[address]()


def test_each_address_of_devices_is_looked_at() -> None:
    assert {address for address, rule in PERMISSIONS.items() if rule.is_devices} == OF_DEVICES | set(OF_ATTEMPTS)


@pytest.mark.parametrize("address", OF_ATTEMPTS)
def test_anothers_attempt_is_as_one_that_never_was(scene: Scene, address: str) -> None:
    before = scene.state()
    others, nobodys = (ask(scene, scene.mine, address, token) for token in (scene.work.lease_token, NOBODYS))
    assert (others.status_code, nobodys.status_code) == (409, 409), others.text
    assert others.text.replace(scene.work.lease_token, "") == nobodys.text.replace(NOBODYS, "")
    assert scene.state() == before
    assert scene.farm.farm.storage.size(digest_of(WEIGHTS)) is None


def test_without_a_name_a_device_reaches_its_own_only(scene: Scene) -> None:
    before = scene.state()
    assert scene.mine.lease() is None
    assert scene.mine.post(p.REFUSAL_PATH, p.Outcome("failed", "device", "no", "no")).status_code == 204
    kept = scene.mine.post(p.KEPT_PATH, p.KeptRuns((scene.run,)))
    assert (kept.status_code, p.loads(p.KeptRuns, kept.content).runs) == (200, ())
    assert p.loads(p.KeptRuns, scene.theirs.post(p.KEPT_PATH, p.KeptRuns((scene.run,))).content).runs == (scene.run,)
    assert scene.mine.get("/agent/releases/1").status_code == 404
    assert scene.state() == before


@pytest.mark.parametrize("address", sorted(address for address, rule in PERMISSIONS.items() if rule.scope is not None))
def test_a_devices_credential_is_no_key(scene: Scene, address: str) -> None:
    method, path = address.split(" ")
    for board in (scene.theirs, scene.mine):
        headers = {"Authorization": f"Bearer {board.credential}", "Accept": "application/json"}
        answer = scene.farm.anonymous.request(method, path.replace("{run_id}", scene.run), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "auth.invalid"), answer.text


def test_the_attempt_was_there_all_the_time(scene: Scene) -> None:
    """What was refused above is taken from the device that has the attempt."""
    answers = {
        address: ask(scene, scene.theirs, address, scene.work.lease_token).status_code
        for address in sorted(OF_ATTEMPTS, key=lambda address: "report" in address)
    }
    refused = {address: status for address, status in answers.items() if status >= 300}
    assert refused == {
        "GET /agent/attempts/{lease_token}/weights": 404,
        "GET /agent/attempts/{lease_token}/checkpoint": 404,
        "GET /agent/attempts/{lease_token}/bundles/{place}": 404,
        "PUT /agent/attempts/{lease_token}/checkpoint": 422,
    }
