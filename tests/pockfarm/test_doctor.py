"""What `pockfarm doctor` finds: of a healthy farm nothing, of each thing that is wrong its cause and how to mend it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import types
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pockfarm import cli
from pockfarm.client import Client, answers
from pockfarm.doctor import OK, WARNING, WRONG, Finding, farm_findings, findings_text, is_well, reach
from pockfarm.doctor import farm as of_farm
from pockfarm.doctor import installation as here
from pockfarm.own_farm.state import OFF, FarmStatus, PartStatus, StateFolder
from pockfarm.values import Device, device_of
from service.people.permissions import SCOPES
from service.store.signs_of_life import give_sign
from tests.agents.live_farm import LiveFarm
from tests.pockfarm.fake_farm import Answer, fake_farm

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NONSENSE = here.Package("pockfarm", "no_such_module_of_ours", "this test", "dev")


def states(findings: list[Finding]) -> dict[str, str]:
    return {one.check: one.state for one in findings}


def found(findings: list[Finding], check: str) -> Finding:
    (one,) = [one for one in findings if one.check == check]
    return one


def test_a_farm_without_worker_and_devices_is_not_well(
    live: LiveFarm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(here, "PACKAGES", here.PACKAGES[:1])
    monkeypatch.setenv("POCKFARM_STATE", str(tmp_path / "none"))
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "wrong    farm's workers" in out
    assert "-> start a worker, " in out
    assert "-> pockfarm devices enrol NAME" in out
    with live.farm.database.transaction() as session:
        give_sign(session, "worker")
    with Client(live.url, os.environ["POCKFARM_API_KEY"]) as farm:
        of_parts = states(farm_findings(farm))
    assert of_parts["farm's database"] == of_parts["farm's disk"] == of_parts["clock"] == OK
    assert of_parts["API key"] == of_parts["regressions"] == OK
    assert cli.main(["doctor", "--json"]) in (0, 1)
    assert {"check", "state", "message", "mend"} == set(json.loads(capsys.readouterr().out)[0])


def test_the_scopes_of_a_key_are_found_out(live: LiveFarm) -> None:
    made = live.http.post("/keys", json={"name": "reader", "scopes": ["read"]}).json()
    with Client(live.url, made["secret"]) as farm:
        key = found(farm_findings(farm), "API key")
    assert (key.state, key.message) == (WARNING, "its scopes are read: it submits nothing")
    with Client(live.url, "pf_unknown") as farm:
        findings = farm_findings(farm)
    assert found(findings, "API key").state == WRONG
    assert findings[-1].check == "API key", "nothing is asked by a key that is none"
    assert tuple(of_farm.SCOPES) == SCOPES


def test_no_farm_and_one_that_does_not_answer_are_told_apart(
    loopback: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("POCKFARM_URL", raising=False)
    monkeypatch.delenv("POCKFARM_API_KEY", raising=False)
    monkeypatch.setattr(answers, "RETRY_PAUSE_S", 0.01)
    farm, finding = reach(StateFolder(tmp_path))
    assert (farm, finding.state, finding.message) == (None, WARNING, "no farm is named here")
    monkeypatch.setenv("POCKFARM_API_KEY", "k")
    with fake_farm() as server:
        monkeypatch.setenv("POCKFARM_URL", server.url)
        farm, finding = reach(None)
        assert (farm, finding.state) == (None, WRONG)
        assert finding.message == f"{server.url}/healthz answers 404"
        server.on("GET", "/healthz", Answer(200, {"status": "ok"}))
        farm, finding = reach(None)
        assert finding == Finding("farm", OK, f"{server.url} answers")
        assert farm is not None
        farm.close()
    farm, finding = reach(None)
    assert (farm, finding.state) == (None, WRONG)
    assert "no answer from the farm" in finding.message


def device(name: str, **said: Any) -> Device:
    return device_of(
        {"id": f"dev_{name}", "name": name, "state": "active", "last_seen_at": "2026-03-01T12:00:00.000Z", **said}
    )


def test_devices_that_are_ill_or_silent_are_named() -> None:
    gone = {"last_seen_at": "2026-03-01T11:00:00.000Z"}
    findings = of_farm.device_findings(
        [device("a"), device("b", state="quarantined", state_reason="3 strikes"), device("c", **gone)], AT
    )
    assert states(findings) == {"quarantined": WARNING, "offline": WARNING, "devices": OK}
    assert found(findings, "quarantined").message == "b (3 strikes)"
    assert found(findings, "offline").message == "c (since 2026-03-01T11:00:00.000Z)"
    assert found(findings, "devices").message == "2 of 3 answer"
    assert not is_well(of_farm.device_findings([device("c", **gone)], AT))
    assert states(of_farm.device_findings([device("x", state="removed")], AT)) == {"devices": WARNING}


def test_parts_clock_and_regressions_are_judged() -> None:
    response = {"parts": {"database": "ok", "broker": "down"}, "why": {"broker": "it does not answer"}}
    broker = found(of_farm.ready_findings(response), "farm's broker")
    assert (broker.state, broker.message) == (WRONG, "it does not answer")
    assert "start Valkey" in broker.mend
    assert of_farm.skew_finding(2.0).state == OK
    assert of_farm.skew_finding(-3600.0).message.endswith(" 3,600 s behind the farm's")
    slower = [{"device_id": f"dev_{n}", "canary": "attention", "message": "7% slower"} for n in range(7)]
    assert of_farm.regression_finding(slower).message.endswith(" and 2 more")


@pytest.mark.parametrize(
    ("findings", "constraints", "state", "told"),
    [
        ([here.Package("no-such-package", "x", "a farm here", "farm")], {}, WARNING, "needed for a farm here"),
        ([NONSENSE], {}, WRONG, "does not load (ModuleNotFoundError: No module named 'no_such_module_of_ours')"),
        ([here.PACKAGES[0]], {"httpx": "0.0.1"}, WARNING, "PockFarm is tested with 0.0.1"),
        ([here.PACKAGES[0]], {}, OK, ""),
    ],
)
def test_packages_are_there_load_and_are_those_that_are_tested(
    findings: list[here.Package], constraints: Mapping[str, str], state: str, told: str
) -> None:
    (finding,) = here.package_findings(findings, constraints)
    assert finding.state == state
    assert told in finding.message
    assert (finding.state == OK) == (not finding.mend)


def test_the_versions_are_those_of_the_checkout(tmp_path: Path) -> None:
    pinned = here.constraints_in(here.CONSTRAINTS)
    assert {one.name for one in here.PACKAGES} <= {*pinned, "sqlalchemy"}
    assert here.constraints_in(tmp_path / "none") == {}
    assert here.python_finding((3, 9, 2)).state == WRONG
    assert here.python_finding(sys.version_info[:3]).state == OK


def test_the_state_folder_is_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateFolder(tmp_path / "state")
    assert states(here.state_findings(state))["state folder"] == OK
    state.make()
    state.api_key_file.write_text("pf_1")
    state.api_key_file.chmod(0o644)
    open_to_others = found(here.state_findings(state), "state folder")
    assert (open_to_others.state, open_to_others.mend) == (WRONG, f"chmod go-rwx {state.api_key_file}")
    state.api_key_file.chmod(0o600)
    assert found(here.state_findings(state), "state folder").state == OK
    for free_bytes, judged in ((here.GIB // 2, WRONG), (2 * here.GIB, WARNING), (50 * here.GIB, OK)):
        usage = types.SimpleNamespace(free=free_bytes)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)
        assert here.disk_finding(state.path).state == judged


def test_processes_of_a_farm_here_are_looked_at(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    state.make()
    assert here.processes_finding(state).state == OK
    parts = {"api": PartStatus(8, 0, "up"), "worker": PartStatus(None, 3, "restarting", "it hung")}
    state.save(FarmStatus(pid=7, url="http://127.0.0.1:8000", ready=False, parts=parts))
    assert here.processes_finding(state).state == WARNING
    descriptor = state.lock()
    assert descriptor is not None
    try:
        finding = here.processes_finding(state)
    finally:
        os.close(descriptor)
    assert (finding.state, finding.message) == (WRONG, "worker is restarting (it hung)")


def test_a_farm_without_an_optional_part_is_well(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    state.make()
    parts = {"api": PartStatus(8, 0, "up"), "agent-opencl": PartStatus(None, 0, OFF, "no driver")}
    state.save(FarmStatus(pid=7, url="http://127.0.0.1:8000", ready=True, parts=parts))
    descriptor = state.lock()
    assert descriptor is not None
    try:
        finding = here.processes_finding(state)
    finally:
        os.close(descriptor)
    assert (finding.state, finding.message) == (WARNING, "agent-opencl is off (no driver)")


def test_linker_emulator_and_opencl_may_be_absent(tmp_path: Path) -> None:
    assert here.linker_finding(tmp_path / "none").state == WARNING
    (tmp_path / "o").mkdir()
    assert here.linker_finding(tmp_path).state == OK
    for device in here.OPTIONAL_DEVICES:
        assert here.device_finding(device, "").state == OK
        missing = here.device_finding(device, "no driver")
        assert (missing.state, missing.mend) == (WARNING, device.mending)
        assert missing.message.endswith("no driver")


def test_findings_are_a_line_each_with_the_way_out() -> None:
    said = findings_text([Finding("a", OK, "fine"), Finding("disk", WRONG, "full", "make room")])
    assert said.splitlines() == [
        "ok       a     fine",
        "wrong    disk  full",
        "               -> make room",
        "",
        "1 wrong, 0 warnings, 2 checks",
    ]
