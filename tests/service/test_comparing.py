"""Runs of mode compare at the farm: who may ask for them, who gets them, and which reports of them can be."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from device_agents import wire as p
from device_agents.figures.comparison import Verdict, verdict_of
from device_agents.figures.rounds import LOOKS, order_of
from device_agents.figures.warm_up import allowance
from service.operations.retention.removal import is_needed, is_open_anywhere
from service.store.database.models import OPEN_RUN_STATES, ComparedBundle, Holding, Run
from service.work.runs import compared
from tests.agents.conftest import AgentProcess
from tests.agents.live_farm import live_farm
from tests.agents.real_step import real_bundle
from tests.service.board import Board, leased
from tests.service.farms import TestFarm
from tests.waiting import until

STEPS, SEED = 6, 4


def bundles(farm: TestFarm) -> tuple[str, str]:
    return farm.bundle(b"one"), farm.bundle(b"two")


def asked(farm: TestFarm, **changes: Any) -> dict[str, Any]:
    one, two = bundles(farm)
    return {"bundle": one, "others": [two], "mode": "compare", "steps": STEPS, "seed": SEED, **changes}


def able(farm: TestFarm, **changes: Any) -> Board:
    return farm.board(modes=("compare",), **changes)


def comparison(work: p.Assignment, *, rounds: int = LOOKS[1], factor: float = 1.05, **changes: Any) -> p.Comparison:
    """As a board finds it: the second takes so many times as long."""
    count = 1 + len(work.others)
    processes = []
    for number in range(rounds):
        for place, which in enumerate(order_of(number, bundles=count, seed=SEED)):
            us = 1000.0 * (factor if which else 1.0) + number + place / 7
            processes.append(p.ComparedProcess(which, (us,) * (STEPS + allowance(STEPS))))
    measured = p.Comparison(
        (work.bundle.digest, *(other.digest for other in work.others)),
        STEPS,
        tuple(processes),
        "known",
        (2,) * count,
        30,
    )
    return replace(measured, **changes)


def test_whole_life_of_a_comparison(farm: TestFarm) -> None:
    board = able(farm)
    body = asked(farm)
    run = farm.run(**body)
    assert (run["mode"], run["others"], run["compare_s"]) == ("compare", body["others"], None)
    assert [one["others"] for one in farm.http.get("/runs?mode=compare").json()["items"]] == [body["others"]]
    work = leased(board)
    assert [other.digest for other in work.others] == body["others"]
    (other,) = work.others
    assert other.url
    assert board.get(other.url).content == farm.http.get(f"/bundles/{other.digest}").content
    missing = board.get(p.attempt_path(p.OTHER_BUNDLE_PATH, work.lease_token, 2))
    assert (missing.status_code, missing.json()["code"]) == (404, "attempt.no-file")
    assert board.get(p.attempt_path(p.OTHER_BUNDLE_PATH, work.lease_token, 9)).status_code == 422
    answer = board.report(work, losses=(), verdict=None, comparison=comparison(work))
    assert p.loads(p.ReportResponse, answer.content).state == "recorded", answer.text
    shown = farm.show(run["id"])
    assert (shown["state"], shown["summary"]["median_us"]) == ("succeeded", None)
    told = farm.http.get(f"/runs/{run['id']}/report").json()["comparison"]
    assert (told["rounds"], told["ended"]) == (LOOKS[1], "known")
    assert told["detectable"] > 0
    first, second = told["bundles"]
    assert (first["bundle_digest"], first["ratio"], first["message"]) == (body["bundle"], None, "")
    assert second["bundle_digest"] == body["others"][0]
    assert second["ratio"] == pytest.approx(1.05, rel=0.01)
    assert second["ratio_low"] < second["ratio"] < second["ratio_high"]
    assert second["message"].startswith("1.0")
    assert "slower" in second["message"]


def test_a_comparison_is_judged_once_and_by_the_difference_that_its_run_looked_for(
    farm: TestFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[float] = []

    def counting(told: p.Comparison, effect: float) -> Verdict:
        judged.append(effect)
        return verdict_of(told, effect)

    monkeypatch.setattr(compared, "verdict_of", counting)
    monkeypatch.setattr(compared, "MOST_KEPT", 1)
    board, body, runs = able(farm), asked(farm), []
    for effect in (0.02, 0.5):
        runs.append(farm.run(**body, effect=effect)["id"])
        work = leased(board)
        board.report(work, losses=(), verdict=None, comparison=comparison(work)).raise_for_status()
    first, second = runs
    answers = [farm.http.get(f"/runs/{second}/report").json()["comparison"] for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert farm.http.get(f"/dashboard/runs/{second}").status_code == 200
    assert judged == [0.5]
    for _ in range(2):
        assert farm.http.get(f"/runs/{first}/compare/{second}").json()["agrees"] is None, "other settings"
    assert judged == [0.5, 0.02, 0.5, 0.02, 0.5], "one is kept at a time here, so two push each other out"


def test_what_cannot_be_compared_is_refused(farm: TestFarm) -> None:
    able(farm)
    body = asked(farm)
    elsewhere = farm.bundle(b"three", target="raspberry-pi-4")
    cases: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"others": []}, "request.invalid", "needs one bundle beside the first"),
        ({"others": body["others"] * 4}, "request.invalid", "at most 3 items"),
        ({"mode": "profile"}, "request.invalid", "only compare takes several"),
        ({"dataset": farm.dataset()}, "request.invalid", "left out of mode compare"),
        ({"steps": 201}, "request.invalid", "1 to 200 of each process"),
        ({"effect": 0}, "request.invalid", "greater than 0"),
        ({"others": ["sha256:" + "9" * 64]}, "bundle.unknown", "no bundle"),
        ({"others": [elsewhere]}, "run.target", "the bundle is for raspberry-pi-4, the first for x86-64-v3"),
        ({"compare_s": 80_000}, "run.compare-time", "a run may measure for"),
        ({"threads": 3}, "run.threads", "at most 2"),
    )
    for change, code, words in cases:
        answer = farm.http.post("/runs", json=body | change)
        assert answer.status_code in (404, 422), change
        assert (answer.json()["code"], words in answer.text) == (code, True), answer.text


def test_only_agents_that_take_turns_are_given_comparisons(farm: TestFarm) -> None:
    older = farm.board(name="older")
    body = asked(farm)
    refused = farm.http.post("/runs", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "run.mode-unknown")
    run = farm.run(**body, allow_waiting=True)
    assert older.lease() is None
    told = farm.http.get(f"/runs/{run['id']}/why").json()["waiting"]
    assert "takes no runs of mode compare" in told["message"]
    assert leased(able(farm, name="newer")).run_id == run["id"]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"bundles": ("sha256:" + "7" * 64, "sha256:" + "8" * 64)}, "comparison.bundles"),
        ({"steps": STEPS + 1}, "comparison.steps"),
        ({"rounds": LOOKS[1] + 1}, "comparison.ended"),
        ({"rounds": LOOKS[0] - 1}, "comparison.ended"),
        ({"factor": 1e6}, "comparison"),
        ({"ended": "rounds"}, "comparison.ended"),
        ({"rounds": 0, "ended": "time"}, "comparison.processes"),
        ({"rounds": LOOKS[-1] + 1, "ended": "time"}, "comparison.processes"),
        ({"foreseen_rounds": LOOKS[-1] + 1}, "comparison.foreseen_rounds"),
        ({"protocol": "turns/9"}, "comparison.protocol"),
        ({"unit": 1e-300}, "comparison.processes[0].step_us[0]"),
        ({"spare": -1}, "comparison.processes[0].step_us"),
    ],
)
def test_a_comparison_that_cannot_be_ends_its_attempt(farm: TestFarm, changes: dict[str, Any], where: str) -> None:
    board = able(farm)
    farm.run(**asked(farm))
    work = leased(board)
    answer = forged(board, work, **changes)
    assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (422, "report.impossible", where)


def forged(board: Board, work: p.Assignment, *, unit: float = 1.0, spare: int = 0, **changes: Any) -> httpx.Response:
    """What a board sends that looks at nothing itself; `unit`: of its times, `spare`: steps more of each process."""
    rounds, factor = changes.pop("rounds", LOOKS[1]), changes.pop("factor", 1.05)
    whole = p.to_json(board.make_report(work, losses=(), verdict=None))
    told = p.to_json(comparison(work, rounds=LOOKS[1], factor=factor))
    width = 2 * len(told["bundles"])
    processes = (told["processes"] * 3)[: rounds * width]
    if rounds <= LOOKS[-1]:
        processes = [
            {"bundle": which, "step_us": told["processes"][which]["step_us"]}
            for number in range(rounds)
            for which in order_of(number, bundles=2, seed=SEED)
        ]
    for one in processes:
        times = [unit * us for us in one["step_us"]]
        one["step_us"] = times[:spare] if spare < 0 else times
    payload = json.dumps(whole | {"comparison": told | changes | {"processes": processes}}).encode()
    signature = board.sign(p.REPORT_TYPE, payload)
    envelope = p.Envelope(p.REPORT_TYPE, base64.b64encode(payload).decode(), (p.Signature(board.device_id, signature),))
    return board.post(p.attempt_path(p.REPORT_PATH, work.lease_token), envelope)


def test_an_emulated_boards_comparison_is_refused(farm: TestFarm) -> None:
    emulated = able(farm, measurement_class="emulated")
    refused = farm.http.post("/runs", json=asked(farm))
    assert (refused.status_code, refused.json()["code"]) == (422, "run.mode-unknown"), "nor does it count as one"
    assert emulated.lease() is None


def test_a_device_needs_the_features_of_all(farm: TestFarm) -> None:
    board = able(farm)
    one, two = farm.bundle(b"one"), farm.bundle(b"two", features=("avx2", "avx512f"))
    body = {"bundle": one, "others": [two], "mode": "compare", "steps": STEPS, "device": board.device_id}
    answer = farm.http.post("/runs", json=body)
    assert (answer.status_code, answer.json()["code"], "avx512f" in answer.text) == (422, "device.features", True)
    each = {**body, "device": None}
    assert farm.http.post("/run-groups", json=each).json()["code"] == "group.devices"


def test_processes_in_another_order_than_the_seeds_are_refused(farm: TestFarm) -> None:
    board = able(farm)
    farm.run(**asked(farm))
    work = leased(board)
    good = comparison(work)
    swapped = replace(good, processes=tuple(replace(one, bundle=1 - one.bundle) for one in good.processes))
    answer = board.report(work, losses=(), verdict=None, comparison=swapped)
    assert (answer.status_code, answer.json()["where"]) == (422, "comparison.processes")


def test_a_comparison_that_succeeded_has_one(farm: TestFarm) -> None:
    board = able(farm)
    farm.run(**asked(farm))
    answer = board.report(leased(board), losses=(), verdict=None)
    assert (answer.status_code, answer.json()["where"]) == (422, "comparison")


def test_what_a_comparison_needs_stays(farm: TestFarm) -> None:
    body = asked(farm)
    able(farm)
    run = farm.run(**body)
    (other,) = body["others"]
    with farm.farm.database.transaction() as session:
        held = session.scalars(select(Holding).where(Holding.digest == other)).one()
        assert is_open_anywhere(session, other)
        assert is_needed(session, held, before=1e12)
        session.execute(update(Run).where(Run.id == run["id"]).values(state="cancelled"))
    with farm.farm.database.transaction() as session:
        held = session.scalars(select(Holding).where(Holding.digest == other)).one()
        assert not is_open_anywhere(session, other)
        assert not is_needed(session, held, before=1e12)
        assert is_needed(session, held, before=0.0), "the run is newer"
        kept = session.execute(select(ComparedBundle.run_id, ComparedBundle.place, ComparedBundle.bundle_digest)).all()
        assert [tuple(one) for one in kept] == [(run["id"], 1, other)]


@pytest.mark.thorough
def test_a_real_agent_compares_real_bundles(tmp_path: Path, loopback: None) -> None:
    files = []
    for name, turns in (("one", 100_000), ("two", 4_000_000)):
        (tmp_path / name).mkdir()
        files.append(real_bundle(tmp_path / name, turns=turns))
    with live_farm(tmp_path / "farm") as live:
        agent = AgentProcess(live.url, live.token(), tmp_path / "agent", "--name", "here")
        try:
            until(lambda: bool(live.device("here")))
            one, two = (live.keep_bundle(file) for file in files)
            body = {"bundle": one, "others": [two], "mode": "compare", "steps": STEPS, "compare_s": 20}
            run = live.http.post("/runs", json=body).json()
            until(lambda: live.http.get(f"/runs/{run['id']}").json()["state"] not in OPEN_RUN_STATES)
            shown = live.http.get(f"/runs/{run['id']}").json()
            assert shown["state"] == "succeeded", shown["ending"]
            told = live.http.get(f"/runs/{run['id']}/report").json()["comparison"]
        finally:
            agent.end()
    assert told["bundles"][1]["ratio"] > 1.3, "forty times the work of its kernel, however busy the machine is"
