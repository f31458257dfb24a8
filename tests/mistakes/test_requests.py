"""Each mistake in a request, made at a farm in this process: what is said names cause, place and next step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from string import Template

import httpx
import pytest
from safetensors.numpy import save

from device_agents.wire import Blob
from service.base.identifiers import digest_of
from tests.mistakes.record import Mistake
from tests.mistakes.requests import API
from tests.service.board import leased
from tests.service.farms import TestFarm, empty_sqlite, open_test_farm


@dataclass(frozen=True)
class Scene:
    """A farm with what mistakes name, and the header of each key."""

    farm: TestFarm
    things: Mapping[str, str]
    keys: Mapping[str, Mapping[str, str]]

    def ask(self, mistake: Mistake) -> httpx.Response:
        method, path, *body = Template(mistake.act).substitute(self.things).split(" ", 2)
        headers = {**self.keys[mistake.key], **({"Content-Type": "application/json"} if body else {})}
        return self.farm.anonymous.request(method, path, headers=headers, content=body[0].encode() if body else None)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("mistakes")
    (folder / "farm.db").write_bytes(empty_sqlite())
    with open_test_farm(folder / "state", f"sqlite:///{folder / 'farm.db'}") as farm:
        yield Scene(farm, _things(farm), _keys(farm))


def _things(farm: TestFarm) -> dict[str, str]:
    """As a day of work leaves them: a run that has trained, one that was cancelled, bundles of two models."""
    board = farm.board(name="host")
    emulated = farm.board(
        name="emulated-pi", device_class="raspberry-pi-4", measurement_class="emulated", targets=("aarch64",)
    )
    job = farm.compile(b"net").json()
    bundle = farm.work_off(job["id"], model=job["model"]["digest"])
    ended = farm.run(bundle=bundle, mode="train", dataset=farm.dataset(), device=board.device_id)
    weights, work = save({}), leased(board)
    board.put_weights(work, weights, digest_of(weights))
    board.report(work, weights=Blob(digest_of(weights), len(weights)))
    arm = farm.bundle(b"net", target="aarch64")
    waiting = farm.run(bundle=arm, device_class="raspberry-pi-9", allow_waiting=True)
    farm.http.post(f"/runs/{waiting['id']}/cancel")
    return {
        "bundle": bundle,
        "arm": arm,
        "mlp": farm.bundle(b"mlp"),
        "weights": digest_of(weights),
        "job": job["id"],
        "ended": ended["id"],
        "cancelled": waiting["id"],
        "short": bundle[:20],
        "emulated": emulated.device_id,
        "emulated_name": "emulated-pi",
    }


def _keys(farm: TestFarm) -> dict[str, dict[str, str]]:
    other = farm.tenant("others")
    return {
        "operator": {"Authorization": farm.http.headers["Authorization"]},
        "reader": farm.key(scopes=["read"]),
        "other": other.key(scopes=["read", "submit"]),
        "wrong": {"Authorization": "Bearer not-a-key"},
        "none": {},
    }


@pytest.mark.parametrize("mistake", API, ids=attrgetter("id"))
def test_cause_place_and_next_step_are_told(scene: Scene, mistake: Mistake) -> None:
    answer = scene.ask(mistake)
    assert answer.status_code == mistake.code, answer.text
    for words in (mistake.cause, mistake.place, mistake.step):
        assert Template(words).substitute(scene.things) in answer.text, json.dumps(answer.text)
