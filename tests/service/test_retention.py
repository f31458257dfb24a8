"""Retention: what is old goes by rule, what is needed or pinned stays, and whoever asks is told when it went."""

from __future__ import annotations

import time
from pathlib import Path
from typing import get_args

import pytest
from sqlalchemy import func, select, update

from service import admin
from service.base.identifiers import digest_of
from service.base.settings import Settings
from service.operations.retention.removal import RULES, Removal, Retention
from service.operations.retention.rules import DAY_S, WORDS, RuleName
from service.store.database.models import HOME, AuditEntry, Event, FileUse, Holding, Job, Result, Run
from tests.service.board import leased
from tests.service.farms import TestFarm, open_test_farm
from tests.service.tenants import do_training
from tests.service.test_external_models import DATA, named, send
from tests.service.test_garbage import collect, kept, twice

FILES: tuple[RuleName, ...] = ("weights", "bundles", "datasets", "models")


def rule(farm: TestFarm, *names: RuleName, days: float | str = 30, organisation_id: str = HOME) -> None:
    answer = farm.http.patch(f"/organisations/{organisation_id}", json={"retention": dict.fromkeys(names, days)})
    assert answer.status_code == 200, answer.text


def age(farm: TestFarm, days: float = 100) -> None:
    """As if everything had happened that long ago."""
    past = time.time() - days * DAY_S
    with farm.farm.database.transaction() as session:
        session.execute(update(Holding).values(created_at=past))
        session.execute(update(Run).values(created_at=past))
        session.execute(update(Run).where(Run.finished_at.is_not(None)).values(finished_at=past))
        session.execute(update(Job).values(created_at=past))
        session.execute(update(Job).where(Job.finished_at.is_not(None)).values(finished_at=past))
        session.execute(update(FileUse).values(used_at=past))


def retain(farm: TestFarm, *, dry_run: bool = False) -> list[Removal]:
    return Retention(farm.farm.database, farm.farm.settings, dry_run=dry_run).run()


def taken(farm: TestFarm, *, dry_run: bool = False) -> set[str]:
    return {one.subject for one in retain(farm, dry_run=dry_run) if one.subject.startswith("sha256:")}


def trained(farm: TestFarm, model: bytes = b"model") -> dict[str, str]:
    """A finished run, and digests of all that belongs to it."""
    board, bundle, dataset = farm.board(), farm.bundle(model), farm.dataset()
    run = farm.run(bundle=bundle, mode="train", steps=2, dataset=dataset)
    weights = do_training(board, b"weights of " + model)
    found = farm.http.get(f"/bundles/{bundle}/info").json()["model_digest"]
    return {"run": run["id"], "bundle": bundle, "dataset": dataset, "weights": weights, "model": found}


def files(made: dict[str, str]) -> set[str]:
    return {made[name] for name in ("bundle", "dataset", "weights", "model")}


def test_what_is_old_goes_and_its_record_stays(farm: TestFarm) -> None:
    made = trained(farm)
    age(farm)
    assert taken(farm) == set(), "without a rule everything stays"
    rule(farm, *FILES, "events")
    assert taken(farm) == files(made)
    assert taken(farm) == set(), "once"
    assert {one for one, _ in collect(farm).removed} == files(made)
    run = f"/runs/{made['run']}"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    for path in (
        f"{run}/weights",
        f"{run}/events",
        f"/bundles/{made['bundle']}",
        f"/datasets/{made['dataset']}/download",
    ):
        gone = farm.http.get(path)
        assert (gone.status_code, gone.json()["code"], gone.json()["cause"]) == (410, "retention.removed", "policy")
        assert f"removed by retention on {day}" in gone.json()["detail"], path
        assert gone.json()["hint"]
    for path in (
        run,
        f"{run}/report",
        f"{run}/why",
        "/runs",
        "/jobs",
        f"/bundles/{made['bundle']}/manifest",
        f"/dashboard/runs/{made['run']}",
        "/dashboard/runs",
        "/dashboard/jobs",
    ):
        assert farm.http.get(path).status_code == 200, path
    assert farm.http.get(f"/bundles/{made['bundle']}/info").json()["removed_at"].startswith(day)
    assert "removed by retention" in farm.http.get(f"/dashboard/runs/{made['run']}").text
    with farm.farm.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Result)) == 1
        assert session.scalar(select(func.count()).where(Event.subject == made["run"])) == 0
        told = session.scalars(select(AuditEntry).where(AuditEntry.action == "retention")).all()
        assert files(made) <= {entry.subject for entry in told}
    figures = farm.http.get("/metrics").text
    assert 'pockfarm_retention_files{kind="bundle"} 1.0' in figures


def test_what_has_gone_is_not_used_and_comes_again(farm: TestFarm) -> None:
    made = trained(farm)
    age(farm)
    rule(farm, *FILES)
    retain(farm)
    twice(farm)
    body = {"bundle": made["bundle"], "mode": "train", "steps": 2, "dataset": made["dataset"]}
    refused = farm.http.post("/runs", json=body)
    assert (refused.status_code, refused.json()["where"]) == (410, "bundle")
    assert farm.http.post("/tune", json={"bundle": made["bundle"]}).status_code == 410
    assert farm.http.post(f"/runs/{made['run']}/pin").status_code == 410
    assert farm.bundle() == made["bundle"], "the same request compiles anew, and gives the same bytes"
    assert farm.http.post("/runs", json=body).json()["where"] == "dataset"
    assert farm.dataset() == made["dataset"]
    assert farm.http.post("/runs", json=body | {"weights": made["weights"]}).json()["where"] == "weights"
    assert farm.http.post("/runs", json=body).status_code == 202
    assert twice(farm).removed == []
    assert farm.http.get(f"/bundles/{made['bundle']}").status_code == 200


@pytest.mark.parametrize("why", ["open", "used", "pinned run", "pinned files"])
def test_what_is_needed_stays(farm: TestFarm, why: str) -> None:
    made = trained(farm)
    board = farm.board()
    run = farm.run(bundle=made["bundle"], mode="train", steps=2, dataset=made["dataset"], weights=made["weights"])
    if why != "open":
        do_training(board, b"more")
    age(farm)
    used = {made["bundle"], made["dataset"], made["weights"]}
    if why == "used":
        with farm.farm.database.transaction() as session:
            session.execute(update(Run).where(Run.id == run["id"]).values(created_at=time.time() - DAY_S))
    if why == "pinned run":
        assert farm.http.post(f"/runs/{run['id']}/pin").json()["pinned_at"]
    if why == "pinned files":
        used = {made["bundle"], made["dataset"]}
        assert farm.http.post(f"/bundles/{made['bundle']}/pin").json()["pinned_at"]
        assert farm.http.post(f"/datasets/{made['dataset']}/pin").json()["pinned_at"]
    rule(farm, *FILES, "events")
    assert not used & taken(farm)
    twice(farm)
    assert used <= kept(farm)
    if why == "open":
        assert leased(board)
    elif why == "pinned run":
        assert farm.http.get(f"/runs/{run['id']}/events", headers={"Accept": "application/json"}).json()
        assert farm.http.delete(f"/runs/{run['id']}/pin").json() == {"pinned_at": None}
        assert used <= taken(farm)


def test_what_another_organisation_holds_keeps_its_bytes(farm: TestFarm) -> None:
    """One's rule takes it from the one; the other, whose files are the same, notices nothing."""
    mine, other = trained(farm), trained(acme := farm.tenant("acme"))
    assert mine["dataset"] == other["dataset"]
    age(farm)
    rule(farm, *FILES)
    assert files(mine) - {mine["model"]} <= taken(farm)
    twice(farm)
    assert acme.http.get(f"/datasets/{other['dataset']}/download").status_code == 200
    assert farm.http.get(f"/datasets/{mine['dataset']}/download").status_code == 410
    assert files(other) <= kept(farm)
    rule(farm, *FILES, organisation_id=acme.organisation_id)
    assert mine["model"] in taken(farm)
    assert {one for one, _ in collect(farm).removed} == files(mine) | files(other)


def test_files_of_a_listing_go_after_it(farm: TestFarm) -> None:
    send(farm, named(DATA), *DATA.values())
    with farm.farm.database.transaction() as session:
        session.execute(update(Job).values(state="failed", finished_at=time.time()))
    age(farm)
    rule(farm, "models", days=1)
    before = kept(farm)
    retain(farm)
    retain(farm)
    twice(farm)
    assert before
    assert kept(farm) == set()


def test_logs_go_by_their_own_rules(farm: TestFarm) -> None:
    acme = farm.tenant("acme")
    acme.run(bundle=acme.bundle())
    with farm.farm.database.transaction() as session:
        session.execute(update(AuditEntry).values(at=time.time() - 100 * DAY_S))
    rule(farm, "audit", organisation_id=acme.organisation_id)
    assert [one.what for one in retain(farm)] == ["entries of the audit log"]
    assert [entry["action"] for entry in acme.http.get("/audit").json()["items"]] == [
        "retention",
        "PATCH /organisations/{organisation_id}",
    ]
    assert len(farm.http.get("/audit").json()["items"]) > 1


def test_a_dry_run_says_what_would_go_and_takes_nothing(
    tmp_path: Path, sqlite_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_test_farm(tmp_path / "s", sqlite_url, retention_weights_days=30.0, retention_s=1e-9) as farm:
        made = trained(farm)
        age(farm)
        monkeypatch.setenv("POCKFARM_STATE", str(tmp_path / "s"))
        monkeypatch.setenv("POCKFARM_DATABASE_URL", sqlite_url)
        monkeypatch.setenv("POCKFARM_RETENTION_WEIGHTS_DAYS", "30")
        assert admin.main(["retention", "--dry-run"]) == 0
        said = capsys.readouterr().out
        assert f"{HOME}  trained weights  {made['weights']}  16 bytes" in said
        assert "1 things would be taken, files of 16 bytes" in said
        assert farm.http.get(f"/runs/{made['run']}/weights").status_code == 200
        farm.sweep()
        assert farm.http.get(f"/runs/{made['run']}/weights").status_code == 410, "the sweeper follows the rules"


def test_rules_are_shown_and_can_go_back_to_the_default(small_farm: TestFarm) -> None:
    def shown() -> dict[str, float | None]:
        return {one["name"]: one["days"] for one in small_farm.http.get("/organisation").json()["retention"]}

    rule(small_farm, "weights", "deliveries", days=7)
    assert (shown()["weights"], shown()["deliveries"]) == (7, 7)
    rule(small_farm, "deliveries", days="forever")
    rule(small_farm, "weights", days="default")
    assert (shown()["weights"], shown()["deliveries"]) == (None, None)
    assert set(get_args(RuleName)) == WORDS.keys() == RULES.keys()
    assert {f"retention_{name}_days" for name in WORDS} < Settings.model_fields.keys()


def test_what_goes_is_noted_once(farm: TestFarm) -> None:
    """A model goes by its holding and by the jobs that compiled it."""
    farm.bundle()
    age(farm)
    rule(farm, "models")
    retain(farm)
    with farm.farm.database.read() as session:
        entries = list(session.scalars(select(AuditEntry.subject).where(AuditEntry.action == "retention")))
    assert entries == [digest_of(b"model")]
