"""The audit log: every changing request of a known caller, refused ones too; nothing changes it, nobody else reads."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from service import admin
from service.app import addresses
from service.feature_list import PERMISSIONS
from service.people.keys import endpoints as keys
from tests.service.board import Board
from tests.service.farms import TestFarm


def log(farm: TestFarm, query: str = "") -> list[dict[str, Any]]:
    answer = farm.http.get(f"/audit?limit=200{query}")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def test_who_did_what_on_what_and_what_came_of_it(farm: TestFarm) -> None:
    acme = farm.tenant("acme")
    user = acme.http.post("/users", json={"name": "Ada"}).json()["id"]
    key = acme.http.post("/keys", json={"name": "hers", "user": user, "scopes": ["submit"]}).json()
    hers = {"Authorization": f"Bearer {key['secret']}"}
    job = acme.http.post(
        "/compile", headers=hers, files={"model": ("n.onnx", b"m")}, data={"plan": "full", "target": "x86-64-v3"}
    ).json()["id"]
    assert acme.http.post(f"/jobs/{job}/cancel", headers=hers).status_code == 202
    assert acme.http.delete(f"/keys/{key['id']}", headers=hers).status_code == 403
    assert acme.http.post("/runs", headers=hers, json={"bundle": "x"}).status_code == 422
    entries = log(acme)
    told = [(one["action"], one["subject"], one["outcome"], one["status"], one["code"]) for one in reversed(entries)]
    assert told[-6:] == [
        ("POST /users", user, "done", 201, ""),
        ("POST /keys", key["id"], "done", 201, ""),
        ("POST /compile", job, "done", 202, ""),
        ("POST /jobs/{job_id}/cancel", job, "done", 202, ""),
        ("DELETE /keys/{key_id}", key["id"], "refused", 403, "auth.scope"),
        ("POST /runs", "", "refused", 422, "request.invalid"),
    ]
    newest = entries[0]
    assert (newest["key_id"], newest["key_name"], newest["user_id"], newest["user_name"]) == (
        key["id"],
        "hers",
        user,
        "Ada",
    )
    assert newest["address"] == "testclient"
    assert key["secret"] not in str(entries)
    assert [one["status"] for one in log(acme, f"&key={key['id']}&outcome=refused")] == [422, 403]
    assert log(farm, f"&key={key['id']}") == []
    assert farm.anonymous.get("/audit", headers=hers).status_code == 403


def test_what_the_farm_did_to_a_tenant_is_in_both_logs(farm: TestFarm) -> None:
    acme = farm.tenant("acme")
    farm.http.patch(f"/organisations/{acme.organisation_id}", json={"name": "acme ltd"})
    (mine,), (theirs,) = (log(one, "&action=PATCH%20/organisations/{organisation_id}") for one in (farm, acme))
    assert (mine["subject"], theirs["subject"]) == (acme.organisation_id,) * 2
    assert (theirs["key_id"], theirs["address"], theirs["detail"]) == (None, "", "by the farm's administrators")


def test_pages_and_files_hold_all_of_it(farm: TestFarm) -> None:
    for number in range(60):
        farm.http.post("/users", json={"name": f"person {number}"})
    first = farm.http.get("/audit?limit=40").json()
    second = farm.http.get(f"/audit?limit=40&cursor={first['next']}").json()
    assert len({one["id"] for one in first["items"] + second["items"]}) == 60
    assert second["next"] is None
    rows = list(csv.DictReader(io.StringIO(farm.http.get("/dashboard/audit.csv").text)))
    assert len(rows) == 60
    page = farm.http.get("/dashboard/audit").text
    older = re.search(r'href="(/dashboard/audit\?[^"]*before=[^"]*)"', page)
    assert older is not None
    assert "POST /users" in farm.http.get(older[1].replace("&amp;", "&")).text
    assert farm.http.get("/dashboard/audit.json?outcome=refused").json()["rows"] == []


def test_nothing_changes_an_entry(small_farm: TestFarm) -> None:
    """No address leads to it but for reading, and nothing that the service does writes one again."""
    audit_addresses = [address for address in addresses(small_farm.http.app) if "audit" in address]
    assert audit_addresses
    assert all(address.startswith("GET ") for address in audit_addresses)
    assert all(PERMISSIONS[address].scope == "admin" for address in audit_addresses)
    asked: list[str] = []
    event.listen(small_farm.farm.database.engine, "before_cursor_execute", lambda *words: asked.append(words[2]))
    small_farm.http.post("/users", json={"name": "Ada"})
    small_farm.sweep()
    touched = [words for words in asked if "audit_entries" in words]
    assert len(touched) == 1
    assert touched[0].startswith("INSERT INTO audit_entries")


def test_strangers_and_readers_leave_no_entry(small_farm: TestFarm) -> None:
    small_farm.http.get("/jobs")
    small_farm.anonymous.post("/runs", json={})
    assert log(small_farm) == []


def test_what_a_defect_ended_is_recorded_as_failed(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(keys, "make_key", fail)
    assert farm.http.post("/keys", json={"name": "one"}).status_code == 500
    (newest,) = log(farm, "&action=POST%20/keys&outcome=failed")
    assert (newest["status"], newest["code"]) == (500, "service.internal")
    assert "a defect" not in str(newest)


def test_who_came_with_a_token_is_in_the_log_of_whose_token_it_was(farm: TestFarm) -> None:
    acme = farm.tenant("acme")
    made = acme.http.post("/devices/enrolment-tokens", json={}).json()
    board = Board(farm.anonymous, name="bench").enrol(made["token"])
    board.enrol(made["token"])  # the answer was lost
    (again, first) = log(acme, "&action=POST%20/agent/enrol")
    assert (first["subject"], first["status"], first["key_id"]) == (board.device_id, 201, None)
    assert first["address"] == "testclient"
    assert "bench" in first["detail"]
    assert made["id"] in first["detail"]
    assert "once more" in again["detail"]
    assert made["token"] not in str((first, again))
    link = acme.http.post("/dashboard/links").json()
    assert farm.anonymous.get(f"/open/{link['token']}", follow_redirects=False).status_code == 303
    assert farm.anonymous.get(f"/open/{link['token']}", follow_redirects=False).status_code == 403
    (opened,) = log(acme, "&action=GET%20/open/{token}")
    assert (opened["outcome"], opened["address"]) == ("done", "testclient")
    assert opened["key_id"] == log(acme, "&action=POST%20/dashboard/links")[0]["key_id"]
    assert link["token"] not in str(opened)
    assert log(farm, "&action=POST%20/agent/enrol") == log(farm, "&action=GET%20/open/{token}") == []


def test_commands_on_the_farms_own_machine(
    farm: TestFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(admin, "Settings", lambda: farm.farm.settings)
    changing = (
        ("create-key",),
        ("one-time-link",),
        ("enrolment-token",),
        ("gc",),
        ("gc", "--dry-run"),
        ("retention",),
        ("prepare-key",),
        ("rotate-key",),
        ("backup", str(tmp_path / "farm.tar")),
        ("accept-keys", str(tmp_path / "none")),
        ("restore", str(tmp_path / "farm.tar")),
        ("agent-release", "--own"),
        ("key-request", str(tmp_path / "request")),
        ("openapi",),
        ("agent-file", str(tmp_path / "agent")),
        ("migrate",),
    )
    codes = [admin.main(list(words)) for words in changing]
    said = capsys.readouterr()
    entries = {one["action"].removeprefix("service.admin "): one for one in log(farm)}
    assert set(entries) == {words[0] for words in changing} - set(admin.UNRECORDED)
    refused = {name for name, one in entries.items() if one["outcome"] == "refused"}
    assert refused == {words[0] for words, code in zip(changing, codes, strict=True) if code}
    assert {"accept-keys", "restore"} <= refused
    assert entries["restore"]["detail"] in said.err
    assert sum(one["action"] == "service.admin gc" for one in log(farm)) == 1, "a dry run changes nothing"
    named = {key["id"] for key in farm.http.get("/keys").json()}
    assert {entries["create-key"]["subject"], entries["one-time-link"]["subject"]} <= named
    assert entries["enrolment-token"]["subject"].startswith("tok_")
    assert entries["backup"]["subject"] == str(tmp_path / "farm.tar")
    secrets = [line.rpartition("/")[2] for line in said.out.splitlines()[:3]]
    assert not any(secret in str(entries) for secret in secrets), secrets


def test_a_command_whose_entry_cannot_be_written_says_so(
    small_farm: TestFarm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(admin, "Settings", lambda: small_farm.farm.settings)
    with small_farm.farm.database.engine.begin() as connection:
        connection.execute(text("ALTER TABLE audit_entries RENAME TO elsewhere"))
    assert admin.main(["create-key"]) == 0
    said = capsys.readouterr()
    assert "the audit log has no entry of this" in said.err
    assert len(said.out.split()) == 1
