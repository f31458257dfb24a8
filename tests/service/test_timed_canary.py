"""Devices measure the farm's own models again and again; where times change for good, and what changed with them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from sqlalchemy import func, select, update

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from device_agents import wire as p
from device_agents.execute import run_bundle
from pockfarm.local.toolchain import resolve_target
from pockfarm.webhooks import verify_webhook
from service.boards.canary.building import TIMED
from service.boards.canary.history import differences
from service.boards.canary.timed import SETTINGS
from service.dashboard import queries
from service.store.database.models import CanaryChange, CanaryTime, Device, Job, Run
from service.work.runs.variation import variations
from tests.sample import sample
from tests.service.board import Board, leased
from tests.service.canary_models import MODELS
from tests.service.farms import TestFarm
from tests.service.receiver import receiving
from tests.service.test_retry import measured
from tests.service.test_webhooks import LOOPBACK, deliver_due

QUIET = [1000.0, 1002.0, 999.0, 1001.0, 998.0, 1003.0, 1000.0, 999.0, 1001.0, 1002.0]


def time_comes(farm: TestFarm) -> None:
    """The next canaries are due, and the sweeper looks; a worker builds what it asks for, and it looks again."""
    for _ in range(2):
        with farm.farm.database.transaction() as session:
            session.execute(update(Device).values(timed_canary_at=1.0))
        farm.sweep()
        with farm.farm.database.read() as session:
            waiting = [(job.id, job.model_digest) for job in session.scalars(select(Job).where(Job.state == "queued"))]
        for job_id, model in waiting:
            farm.work_off(job_id, model=model)


def change_setting(farm: TestFarm, **values: Any) -> None:
    for name, value in values.items():
        extra = farm.farm.settings.model_extra
        if name in type(farm.farm.settings).model_fields or extra is None:
            object.__setattr__(farm.farm.settings, name, value)
        else:  # a setting of an optional feature
            extra[name] = value


def run_all(farm: TestFarm, board: Board, us: float, **report: Any) -> list[str]:
    """All canaries that are due: their runs."""
    time_comes(farm)
    runs = []
    for _ in TIMED:
        work = leased(board)
        told: dict[str, Any] = {"losses": (), "measurement": measured(us), "run_s": 60.0} | report
        answer = board.report(work, **told)
        assert answer.status_code == 200, answer.text
        runs.append(work.run_id)
    assert board.lease() is None
    return runs


def shown(farm: TestFarm, board: Board) -> dict[str, Any]:
    answer = farm.http.get(f"/devices/{board.device_id}/canaries")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def regressions(farm: TestFarm, **query: str) -> list[dict[str, Any]]:
    return list(farm.http.get("/regressions", params=query).json()["items"])


def gone_through(farm: TestFarm, board: Board, times: Sequence[float], **report: Any) -> None:
    for us in times:
        run_all(farm, board, us, **report)


def count(farm: TestFarm, table: type[Any]) -> int:
    with farm.farm.database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_a_device_that_works_is_given_each_canary_in_time(small_farm: TestFarm) -> None:
    farm, board = small_farm, small_farm.board()
    farm.sweep()
    with farm.farm.database.read() as session:
        planned = session.get_one(Device, board.device_id).timed_canary_at - time.time()
    assert 1800 - 60 < planned < 5400 + 60, "a device that is new has other things to do"
    assert count(farm, Run) == 0
    ordinary = farm.run(bundle=farm.bundle())
    time_comes(farm)
    with farm.farm.database.read() as session:
        runs = session.scalars(select(Run).where(Run.is_canary)).all()
        assert {run.settings for run in runs} == {SETTINGS}
        assert {run.wanted_device_id for run in runs} == {board.device_id}
        next_s = session.get_one(Device, board.device_id).timed_canary_at - time.time()
    assert len(runs) == len(TIMED)
    assert 0.9 * 86_400 - 60 < next_s < 1.1 * 86_400 + 60
    time_comes(farm)
    assert count(farm, Run) == len(TIMED) + 1, "those that wait are not doubled"
    assert [run["id"] for run in farm.http.get("/runs").json()["items"]] == [ordinary["id"]]


@pytest.mark.parametrize("what", ["emulated", "quarantined", "drained", "no canaries", "away", "never"])
def test_who_is_given_none(small_farm: TestFarm, what: str) -> None:
    farm = small_farm
    board = farm.board(measurement_class="emulated" if what == "emulated" else "host")
    if what in ("quarantined", "drained"):
        farm.http.post(f"/devices/{board.device_id}/{'quarantine' if what == 'quarantined' else 'drain'}", json={})
    elif what == "no canaries":
        farm.http.post(f"/devices/{board.device_id}/canary", json={"enabled": False})
    elif what == "away":
        with farm.farm.database.transaction() as session:
            session.execute(update(Device).values(last_seen_at=time.time() - 3600))
    elif what == "never":
        change_setting(farm, timed_canary_s=0.0)
    time_comes(farm)
    assert count(farm, Run) == 0
    assert count(farm, Job) == 0


def test_a_change_beyond_the_noise_is_a_regression_with_what_changed_there(farm: TestFarm) -> None:
    board = farm.board()
    gone_through(farm, board, QUIET)
    assert regressions(farm) == []
    change_setting(farm, compiler_version="test-2")
    gone_through(farm, board, [1050.0, 1052.0, 1049.0, 1051.0])
    assert regressions(farm) == [], "four runs may be a bad day"
    gone_through(farm, board, [1050.0])
    assert farm.http.get("/regressions", params={"device": "dev_0"}).json()["code"] == "device.unknown"
    changes = regressions(farm, device=board.device_id)
    assert sorted(change["canary"] for change in changes) == ["attention", "convolutions"]
    change = changes[0]
    assert change["state"] == "open"
    assert change["ratio_low"] < 1.05 < change["ratio_high"]
    assert change["deviation"] == pytest.approx(0.0016, abs=0.0005)
    assert {"what": "compiler", "before": "test", "after": "test-2", "away": 0} in change["differences"]
    assert "compiler from test to test-2" in change["explains"]
    history = farm.http.get(f"/devices/{board.device_id}").json()
    assert any(
        line["kind"] == "slower" and "compiler from test to test-2" in line["message"] for line in history["history"]
    )
    assert [mark["code"] for mark in history["marks"]].count("slower") == 1
    series = shown(farm, board)["series"]
    assert [len(each["runs"]) for each in series] == [15, 15]
    assert series[0]["deviation"] == pytest.approx(0.0016, abs=0.0005), "the change is none of its noise"
    before = next(run for run in series[0]["runs"] if run["run_id"] == series[0]["changes"][0]["before_run_id"])
    assert (before["compiler"], before["median_us"]) == ("test", pytest.approx(1002.0, rel=0.01))


def test_one_is_acknowledged_and_over_once_the_device_is_as_before(small_farm: TestFarm) -> None:
    farm, board = small_farm, small_farm.board()
    gone_through(farm, board, [*QUIET, *(1.1 * us for us in QUIET[:6])])
    first, second = regressions(farm)
    assert first["differences"] == []
    assert first["explains"].startswith("nothing ")
    path = f"/devices/{board.device_id}/canaries/{first['id']}/acknowledge"
    assert farm.http.post(path, json={}, headers=farm.key()).status_code == 403
    response = farm.http.post(path, json={"reason": "its fan is being replaced"}).json()
    assert (response["state"], response["acknowledgement"]) == ("acknowledged", "its fan is being replaced")
    assert [change["id"] for change in regressions(farm)] == [second["id"]]
    gone_through(farm, board, QUIET[:6])
    assert regressions(farm) == []
    states = {change["state"] for each in shown(farm, board)["series"] for change in each["changes"]}
    assert states == {"over", "faster"}
    assert farm.http.post(path, json={}).json()["code"] == "canary.not-open"
    missing = farm.http.post(f"/devices/{board.device_id}/canaries/chg_0/acknowledge", json={})
    assert (missing.status_code, missing.json()["code"]) == (404, "canary.change")


@pytest.mark.thorough
def test_times_that_may_have_changed_are_made_again_sooner(small_farm: TestFarm) -> None:
    farm, board = small_farm, small_farm.board()
    gone_through(farm, board, [*QUIET, 1100.0, 1101.0])
    with farm.farm.database.read() as session:
        next_s = session.get_one(Device, board.device_id).timed_canary_at - time.time()
    assert next_s < 1.1 * 86_400 / 6 + 60


def test_what_is_not_valid_is_shown_and_not_judged(small_farm: TestFarm) -> None:
    farm, board = small_farm, small_farm.board()
    gone_through(farm, board, QUIET)
    gone_through(farm, board, [1300.0] * 6, verdict=p.Verdict("throttled", "the board said so"))
    assert regressions(farm) == []
    assert [run["verdict"] for run in shown(farm, board)["series"][0]["runs"]][-1] == "throttled"


def test_one_that_fails_is_no_strike_and_no_time(small_farm: TestFarm) -> None:
    farm, board = small_farm, small_farm.board()
    time_comes(farm)
    for _ in TIMED:
        board.report(leased(board), p.Outcome("failed", "device", "device.disk", "full"))
    device = farm.http.get(f"/devices/{board.device_id}").json()
    assert (device["state"], device["strikes"]) == ("active", 0)
    assert any("measured nothing: device.disk: full" in line["message"] for line in device["history"])
    assert count(farm, CanaryTime) == 0


def test_canaries_are_counted_among_nobodys_runs(farm: TestFarm) -> None:
    board = farm.board()
    run_all(farm, board, 1000.0)
    time_comes(farm)
    board.report(leased(board), p.Outcome("failed", "device", "device.disk", "full"))
    ordinary = farm.run(bundle=farm.bundle(), device=board.device_id)
    farm.http.post(f"/runs/{ordinary['id']}/cancel")
    with farm.farm.database.of(farm.organisation_id).read() as session:
        assert queries.counts(session)["runs"] == {"cancelled": 1}


def test_a_compile_that_fails_is_not_asked_for_again_and_again(small_farm: TestFarm) -> None:
    farm, _ = small_farm, small_farm.board(targets=("x86-64-v3",))
    for _ in range(3):
        with farm.farm.database.transaction() as session:
            session.execute(update(Device).values(timed_canary_at=1.0))
        farm.sweep()
        with farm.farm.database.transaction() as session:
            session.execute(update(Job).values(state="failed", finished_at=time.time()))
    assert count(farm, Job) == len(TIMED)
    assert count(farm, Run) == 0


def test_what_canaries_show_of_a_device_is_known_of_everybodys_runs(farm: TestFarm) -> None:
    board = farm.board()
    gone_through(farm, board, QUIET[:7])
    acme = farm.tenant("acme")
    for session_of in (farm, acme):
        with farm.farm.database.of(session_of.organisation_id).read() as session:
            known = variations(session, [board.device_id])[board.device_id]
        assert known.freedom == 2 * (7 - 1)
        assert known.deviation == pytest.approx(float(np.std(np.log(QUIET[:7]), ddof=1)))


def test_what_a_hostile_device_says_of_itself_is_kept_short_and_plain(farm: TestFarm) -> None:
    board = farm.board()
    told = {f"{number}\0": "x\0\t" * 1000 for number in range(200)}
    run_all(farm, board, 1000.0, environment=told)
    with farm.farm.database.read() as session:
        facts = session.scalars(select(CanaryTime.facts)).first() or {}
    assert len(facts) <= 3 + 64
    assert all(len(name) < 60 and len(value) <= 200 and "\0" not in name + value for name, value in facts.items())


def test_another_organisation_sees_none_of_it(farm: TestFarm) -> None:
    board = farm.board()
    gone_through(farm, board, [*QUIET, *(1.1 * us for us in QUIET[:5])])
    acme = farm.tenant("acme")
    assert len(regressions(farm)) == 2
    assert regressions(acme) == []
    assert shown(acme, board)["series"] == [], "a shared device's history is its owner's"
    change = regressions(farm)[0]["id"]
    answer = acme.http.post(f"/devices/{board.device_id}/canaries/{change}/acknowledge", json={})
    assert answer.status_code == 403


def test_its_owner_is_told_by_a_webhook(small_farm: TestFarm, loopback: None) -> None:
    farm, board = small_farm, small_farm.board()
    change_setting(farm, webhook_networks=LOOPBACK)
    with receiving() as receiver:
        made = farm.http.post("/webhooks", json={"url": receiver.url, "events": ["device.slower"]}).json()
        gone_through(farm, board, [*QUIET, *(1.1 * us for us in QUIET[:5])])
        deliver_due(farm)
        told = [verify_webhook(made["secret"], headers, body) for headers, body in receiver.received]
    assert [one["type"] for one in told] == ["device.slower"] * 2
    assert {one["data"]["device_id"] for one in told} == {board.device_id}
    assert all("state" not in one["data"] for one in told), "a delivery says the same each time"


def test_what_changed_near_by_is_said_to_be_near() -> None:
    def run(**facts: str) -> CanaryTime:
        return CanaryTime(facts=facts)

    runs = [
        run(compiler="a", kernel="1"),
        run(compiler="a", kernel="2"),
        run(compiler="b", kernel="2"),
        run(compiler="b", kernel="2"),
        run(compiler="b", kernel="2", new="x"),
    ]
    found = differences(runs, 2)
    assert [(one["what"], one["away"]) for one in found] == [("compiler", 0), ("kernel", -1), ("new", 2)]


def test_the_history_survives_a_run_of_another_release_that_knows_no_job(small_farm: TestFarm) -> None:
    """Retention may have taken the job: then nothing is written, and the run ends all the same."""
    farm, board = small_farm, small_farm.board()
    time_comes(farm)
    with farm.farm.database.transaction() as session:
        session.execute(update(Job).values(bundle_digest=None))
    work = leased(board)
    assert board.report(work, losses=(), measurement=measured(1000.0), run_s=60.0).status_code == 200
    assert farm.show(work.run_id)["state"] == "succeeded"
    assert count(farm, CanaryTime) == count(farm, CanaryChange) == 0


@pytest.mark.parametrize("canary", sample(TIMED, {"attention"}, lambda canary: canary.name))
def test_the_file_is_what_the_script_makes_and_has_steps_that_are_finite(canary: Any, tmp_path: Any) -> None:
    model = onnx.load_from_string(canary.model)
    made = MODELS[canary.name]()
    assert model.graph == made.graph
    shape = [8, *(one.dim_value for one in model.graph.input[0].type.tensor_type.shape.dim[1:])]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (logits,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert np.isfinite(logits).all()
    assert logits.std() > 1e-3
    plan, spec = SparsePlan.parse(canary.plan), TrainingSpec.parse(dict(canary.spec))
    settings = BuildSettings(plan=plan, spec=spec, target=load(resolve_target("host")))
    with (tmp_path / "canary.pfb").open("wb") as stream:
        compile_training(canary.model, settings).write_to(stream)
    ran = run_bundle(tmp_path / "canary.pfb", SETTINGS)
    assert ran.report.outcome.state == "succeeded", ran.report.outcome
    assert ran.report.measurement is not None
    assert len(ran.report.measurement.blocks) == 5
