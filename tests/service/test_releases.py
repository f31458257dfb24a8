"""Agents in stages: who is offered which, what failures do to a release, and what the file has to be."""

from __future__ import annotations

import hashlib
import io
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_agents import AGENT_VERSION
from device_agents import wire as p
from service import admin
from service.base.problems import Invalid
from service.boards.installation.agent_file import agent_digest, agent_file
from service.boards.releases.offering import program_of
from service.boards.releases.publishing import AgentFile, publish, read_agent, take_in
from service.boards.releases.schemas import ReleaseCreate
from tests.agents.live_farm import LiveFarm
from tests.agents.one_file import another
from tests.service.board import Board, leased, offer_of
from tests.service.farms import TestFarm

OWN = f"sha256:{agent_digest()}"
OLD = p.Program("on", "sha256:" + "0" * 64)


def board(farm: TestFarm, name: str = "board", program: p.Program | None = OLD, **changes: Any) -> Board:
    """One whose agent updates itself."""
    token = farm.http.post("/devices/enrolment-tokens", json={}).json()["token"]
    made = Board(farm.anonymous, name=name, **{"agent_version": "0.0.9", **changes})
    made.program = program
    return made.enrol(token)


def publish_own(farm: TestFarm, **body: Any) -> dict[str, Any]:
    answer = farm.http.post("/agent-releases", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def publish_version(farm: TestFarm, version: str, **body: Any) -> str:
    """As the operator does on the farm's machine; the release's id."""
    found, stored = take_in(farm.farm.storage, another(version))
    with farm.farm.database.transaction() as session:
        return publish(session, found, stored, ReleaseCreate(**body)).id


def is_offered(one: Board) -> bool:
    answer = one.try_lease()
    return answer.status_code == 200 and p.loads(p.Envelope, answer.content).payloadType == p.OFFER_TYPE


def show(farm: TestFarm, release_id: str) -> dict[str, Any]:
    return dict(farm.http.get(f"/agent-releases/{release_id}").json())


def now_runs(one: Board, digest: str, *, failed: p.UpdateFailure | None = None, updates: Any = "on") -> None:
    """The agent starts again, from that file."""
    one.program = p.Program(updates, digest, failed)
    one.restart()


def test_an_idle_board_is_offered_the_agent_before_any_work_and_gets_its_bytes(farm: TestFarm) -> None:
    one, run = board(farm), farm.run(bundle=farm.bundle())
    made = publish_own(farm)
    assert (made["version"], made["digest"], made["state"]) == (AGENT_VERSION, OWN, "offered")
    offer = offer_of(one.try_lease())
    assert (offer.device_id, offer.version, offer.protocol) == (one.device_id, AGENT_VERSION, p.PROTOCOL)
    assert (offer.sequence, offer.program.digest, offer.is_rollback) == (made["sequence"], OWN, False)
    data = one.get(offer.program.url or "").content
    assert (data, len(data)) == (agent_file(), offer.program.size_bytes)
    now_runs(one, OWN, updates="trial")
    assert one.lease() is None, "who is on trial gets no work, and no offer"
    assert show(farm, made["id"])["given"] == 1
    now_runs(one, OWN)
    assert leased(one).run_id == run["id"]
    told = show(farm, made["id"])
    assert (told["given"], told["done"], told["updates"][0]["state"]) == (0, 1, "done")
    seen = farm.http.get(f"/devices/{one.device_id}").json()
    assert (seen["agent_updates"], seen["agent_digest"]) == ("on", OWN)
    kinds = [line["kind"] for line in seen["history"]][::-1]
    assert kinds == ["enrolled", "update", "restarted", "restarted", "updated"]


def test_others_are_not_offered_it(farm: TestFarm) -> None:
    others = {
        "older than updates": board(farm, "a", None),
        "off": board(farm, "b", p.Program("off", OLD.digest)),
        "installed by pip": board(farm, "c", p.Program("installed")),
        "has it": board(farm, "d", p.Program("on", OWN)),
        "newer": board(farm, "e", agent_version="99.0"),
        "old Python": board(farm, "f", environment={"python": "3.8.1"}),
        "drained": board(farm, "g"),
    }
    farm.http.post(f"/devices/{others['drained'].device_id}/drain", json={"reason": "r"})
    publish_own(farm)
    assert [name for name, one in others.items() if is_offered(one)] == []
    stranger = board(farm, "i")
    assert is_offered(stranger)
    path = offer_of(stranger.try_lease()).program.url or ""
    assert others["off"].get(path).status_code == 404, "only who was offered it may fetch it"


@pytest.mark.parametrize(
    "header", [None, "", "{", '{"updates": "yes"}', '{"updates": "on", "digest": "x"}', " " * 9000]
)
def test_what_an_agent_says_may_be_nothing(header: str | None) -> None:
    assert program_of(header) is None


def test_a_stage_grows_and_never_shrinks(farm: TestFarm) -> None:
    boards = [board(farm, f"board-{number}") for number in range(5)]
    made = publish_own(farm, share=0.3)
    assert made["most_devices"] == 2, "30% of five"
    assert [is_offered(one) for one in boards] == [True, True, False, False, False]
    assert [is_offered(one) for one in boards[:2]] == [True, True], "who has it is offered it until it is done"
    less = farm.http.patch(f"/agent-releases/{made['id']}", json={"count": 1})
    assert (less.status_code, less.json()["code"]) == (422, "release.stage")
    assert farm.http.patch(f"/agent-releases/{made['id']}", json={"count": 3}).json()["most_devices"] == 3
    assert [is_offered(one) for one in boards] == [True, True, True, False, False]
    assert farm.http.patch(f"/agent-releases/{made['id']}", json={}).json()["most_devices"] is None
    assert all(is_offered(one) for one in boards)


def test_only_boards_with_the_tag_the_newest_first(farm: TestFarm) -> None:
    tagged, plain = board(farm, "tagged"), board(farm, "plain")
    farm.http.post(f"/devices/{tagged.device_id}/tags", json={"set": {"rack": "7"}})
    publish_own(farm)
    newer = publish_version(farm, "9.1", where=["rack=7"])
    assert offer_of(tagged.try_lease()).version == "9.1"
    assert offer_of(plain.try_lease()).version == AGENT_VERSION
    assert show(farm, newer)["conditions"] == ["rack=7"]
    wrong = farm.http.post("/agent-releases", json={"where": ["No Tag"]})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "run.where")


def test_the_first_failure_of_a_small_stage_halts_it_and_says_so(farm: TestFarm) -> None:
    first, other = board(farm, "one"), board(farm, "other")
    release = publish_own(farm)
    sequence = offer_of(first.try_lease()).sequence
    now_runs(first, OLD.digest, failed=p.UpdateFailure(sequence, "it ended with code 1: boom"))
    halted = show(farm, release["id"])
    assert (halted["state"], halted["failed"]) == ("halted", 1)
    assert halted["halt_reason"].startswith("1 of 1 devices ")
    assert halted["halt_reason"].endswith(", one: it ended with code 1: boom")
    assert not is_offered(other)
    assert not is_offered(first)
    entries = farm.http.get("/audit?action=agent-release halted").json()["items"]
    assert [(entry["subject"], entry["detail"]) for entry in entries] == [(release["id"], halted["halt_reason"])]
    history = farm.http.get(f"/devices/{first.device_id}").json()["history"]
    assert "it ended with code 1: boom" in next(line["message"] for line in history if line["kind"] == "update-failed")
    wider = farm.http.patch(f"/agent-releases/{release['id']}", json={})
    assert (wider.status_code, wider.json()["code"]) == (409, "release.halted")
    again = publish_own(farm, digest=OWN)
    assert again["sequence"] > release["sequence"]
    assert is_offered(first)


def test_what_a_board_refuses_counts_and_work_is_not_touched(farm: TestFarm) -> None:
    one = board(farm)
    made = publish_own(farm, most_failures=2)
    offer_of(one.try_lease())
    refusal = p.Outcome("failed", "device", "update.device.system", "No space left on device")
    assert one.post(p.REFUSAL_PATH, refusal).status_code == 204
    told = show(farm, made["id"])
    assert (told["state"], told["failed"]) == ("offered", 1)
    assert told["updates"][0]["reason"] == "No space left on device (update.device.system)"
    run = farm.run(bundle=farm.bundle())
    assert leased(one).run_id == run["id"], "it goes on with what it has"
    assert one.post(p.REFUSAL_PATH, refusal).status_code == 204
    assert farm.show(run["id"])["state"] == "leased", "a refusal of an update ends no attempt"


def test_one_that_crashes_after_it_was_proven_still_counts(farm: TestFarm) -> None:
    one = board(farm)
    made = publish_own(farm)
    sequence = offer_of(one.try_lease()).sequence
    now_runs(one, OWN)
    assert show(farm, made["id"])["done"] == 1
    now_runs(one, OLD.digest, failed=p.UpdateFailure(sequence, "it was started 3 times"))
    assert show(farm, made["id"])["state"] == "halted"


def test_going_back_is_said_and_halting_is_for_operators(farm: TestFarm) -> None:
    one = board(farm, agent_version="99.0")
    made = publish_own(farm, rollback=True)
    assert offer_of(one.try_lease()).is_rollback
    halted = farm.http.post(f"/agent-releases/{made['id']}/halt", json={"reason": "too warm"}).json()
    assert (halted["state"], halted["halt_reason"]) == ("halted", "too warm")
    assert not is_offered(one)
    path = offer_path = p.release_path(made["sequence"])
    assert one.get(path).status_code == 200, "who has begun may end"
    assert farm.anonymous.get(offer_path).status_code in (401, 422)
    assert one.get(p.release_path(made["sequence"] + 1)).status_code == 404
    assert one.get(p.release_path(1 << 64)).status_code == 422, "no such number fits the database"


def test_no_update_reaches_into_maintenance(farm: TestFarm) -> None:
    one = board(farm)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 60))
    later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    window = farm.http.post("/maintenance", json={"starts_at": now, "ends_at": later}).json()
    publish_own(farm)
    assert not is_offered(one)
    farm.http.delete(f"/maintenance/{window['id']}")
    assert is_offered(one)


def zipped(**members: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return out.getvalue()


GOOD = {
    "__main__.py": "OLDEST = (3, 9)",
    "device_agents/__init__.py": 'AGENT_VERSION = "1.2"',
    "device_agents/wire/paths.py": f'PROTOCOL = "{p.PROTOCOL}"',
    "device_agents/slots/launcher.py": "",
}


def test_a_file_is_read_and_never_run() -> None:
    assert read_agent(agent_file()).version == AGENT_VERSION
    assert read_agent(zipped(**GOOD)) == AgentFile("1.2", "3.9", p.PROTOCOL)
    bad = {
        "no archive": b"#!/bin/sh\n",
        "cut off": agent_file()[:-100],
        "other": zipped(**{"__main__.py": "OLDEST = (3, 9)"}),
        "older": zipped(**{name: text for name, text in GOOD.items() if "slots" not in name}),
        "version": zipped(**{**GOOD, "device_agents/__init__.py": 'AGENT_VERSION = "one"'}),
        "no text": zipped(**{**GOOD, "device_agents/__init__.py": "AGENT_VERSION = (1,)"}),
        "computed": zipped(**{**GOOD, "device_agents/__init__.py": "AGENT_VERSION = open('/etc/passwd').read()"}),
        "python": zipped(**{**GOOD, "__main__.py": "OLDEST = 3"}),
        "protocol": zipped(**{**GOOD, "device_agents/wire/paths.py": 'PROTOCOL = "pockfarm.agent/9"'}),
        "deep": zipped(**{**GOOD, "__main__.py": "OLDEST = " + "(" * 5000 + ")" * 5000}),
    }
    for name, data in bad.items():
        with pytest.raises(Invalid) as refused:
            read_agent(data)
        assert refused.value.code == "release.file", name


def test_a_new_file_comes_in_on_the_farms_own_machine(
    farm: TestFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = farm.farm.settings
    monkeypatch.setattr(admin, "Settings", lambda: settings)
    data = another("9.1")
    (tmp_path / "agent.pyz").write_bytes(data)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    refused = farm.http.post("/agent-releases", json={"digest": digest})
    assert (refused.status_code, refused.json()["code"]) == (404, "release.file-unknown")
    one = board(farm)
    words = ["agent-release", str(tmp_path / "agent.pyz"), "--share", "10%"]
    assert admin.main(words) == 0
    assert f"agent 9.1, {digest}, to at most 1; devices ask within a minute" in capsys.readouterr().out
    assert offer_of(one.try_lease()).version == "9.1"
    assert publish_own(farm, digest=digest)["version"] == "9.1"
    for wrong in (["agent-release"], ["agent-release", str(tmp_path / "none")], [*words, "--count", "1"]):
        assert admin.main(wrong) == 1
        assert "agent-release" in capsys.readouterr().err


def test_the_command_line_offers_widens_and_halts(live: LiveFarm, said: Callable[..., str]) -> None:
    assert "no releases of the agent" in said("releases", "list")
    one = Board(live.http, name="shelf", agent_version="0.0.9")
    one.program = OLD
    one.enrol(live.token())
    line = said("releases", "offer", "--share", "10%", "--failures", "3")
    release = line.split()[0]
    assert line == f"{release}  agent {AGENT_VERSION}  offered to 1 device\n"
    assert "no device has asked for it yet" in said("releases", "show", release)
    assert is_offered(one)
    assert "shelf" in said("releases", "show", release)
    assert "offered to all devices" in said("releases", "widen", release)
    assert "halted to all devices: too warm" in said("releases", "halt", release, "--reason", "too warm")
    assert "too warm" in said("releases", "list")
    assert "on" in said("devices", "show", one.device_id)
    assert f"Agent {AGENT_VERSION} is halted" in live.http.get("/dashboard").text
    again = said("releases", "offer", "--digest", OWN, "--rollback", "--to", "rack=7")
    assert again.split()[0] in said("releases", "list")
