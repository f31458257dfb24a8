"""A real agent from one file, at the real farm: it becomes another, and does not become a broken one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from device_agents.slots.standing import Slots
from service.boards.releases.publishing import publish, take_in
from service.boards.releases.schemas import ReleaseCreate
from tests.agents.live_farm import LiveFarm, live_farm
from tests.agents.one_file import CRASHES, Installed, another
from tests.waiting import until


@pytest.fixture
def live(loopback: None, tmp_path: Path) -> Iterator[LiveFarm]:
    with live_farm(tmp_path / "farm") as running:
        yield running


def offer_all(live: LiveFarm, program: bytes) -> str:
    """As `service.admin agent-release FILE` does; the release's id."""
    found, stored = take_in(live.farm.storage, program)
    with live.farm.database.transaction() as session:
        return publish(session, found, stored, ReleaseCreate()).id


def ended(live: LiveFarm, release_id: str) -> dict[str, Any]:
    """The release once its only board is done with it."""
    told: dict[str, Any] = {}

    def is_done() -> bool:
        told.update(live.http.get(f"/agent-releases/{release_id}").json())
        return bool(told["done"] + told["failed"])

    until(is_done, lambda: str(told))
    return told


def test_a_real_agent_becomes_another_and_does_not_become_a_broken_one(live: LiveFarm, tmp_path: Path) -> None:
    board = Installed(tmp_path / "board", live.url, live.token())
    process = board.start("--name", "updated")
    try:
        newer = another("9.1")
        digest = f"sha256:{hashlib.sha256(newer).hexdigest()}"
        assert ended(live, offer_all(live, newer))["done"] == 1, board.log.read_text()
        broken = ended(live, offer_all(live, another("9.2", before_all=CRASHES)))
        assert broken["updates"][0]["reason"] == "it ended with code 1: boom: no such library"
        assert broken["state"] == "halted"
        run = live.run(live.keep_bundle())
        until(lambda: live.http.get(f"/runs/{run}").json()["state"] == "succeeded")
        assert process.poll() is None, "all of that was one process to the service manager"
    finally:
        board.end()
    seen = live.device("updated")
    assert (seen["agent_version"], seen["agent_updates"], seen["agent_digest"]) == ("9.1", "on", digest)
    assert len(live.http.get("/devices").json()["items"]) == 1, "it is the same device"
    standing = Slots(board.state).read()
    assert standing is not None
    assert (standing.current, standing.trial) == (digest, None)
