"""Runs of mode sustained at the farm: who may ask for them, who gets them, which reports can be, what is shown."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from device_agents import wire as p
from pockfarm import cli
from service.store.database.models import OPEN_RUN_STATES
from tests.agents.conftest import AgentProcess
from tests.agents.live_farm import LiveFarm, live_farm
from tests.agents.real_step import real_bundle
from tests.service.board import Board, leased
from tests.service.farms import TestFarm
from tests.waiting import until

LASTS_S = 600.0
WHEN: dict[str, Any] = {"started_at": 1e9, "finished_at": 1e9 + 640, "run_s": 630.0}
BATCH, US, FACTOR, ONSET = 8, 10_000.0, 1.25, 200


def able(farm: TestFarm, **changes: Any) -> Board:
    return farm.board(modes=("compare", "sustained"), **changes)


def curve(*, factor: float = FACTOR, count: int = 600, onset: int = ONSET, **changes: Any) -> p.Sustained:
    """As a board finds it: from a window on steps take so many times as long."""
    windows = []
    for number in range(count):
        us = US * (factor if number >= onset else 1.0) * (1 + 0.002 * ((number * 7) % 5 - 2))
        windows.append(p.SustainedWindow(int(0.95e6 / us), us, 1.02 * us))
    found = p.Sustained(1.0, tuple(windows), sum(one.steps for one in windows), BATCH, 2, 1e9 + 20, "time")
    return replace(found, **changes)


def told(board: Board, work: p.Assignment, found: p.Sustained | None, **changes: Any) -> httpx.Response:
    """A report with it, of an attempt that took a little longer."""
    whole = board.make_report(work, losses=(), verdict=None, sustained=found, **(WHEN | changes))
    return signed(board, work, p.to_json(whole))


def signed(board: Board, work: p.Assignment, whole: dict[str, Any]) -> httpx.Response:
    payload = json.dumps(whole).encode()
    signature = board.sign(p.REPORT_TYPE, payload)
    envelope = p.Envelope(p.REPORT_TYPE, base64.b64encode(payload).decode(), (p.Signature(board.device_id, signature),))
    return board.post(p.attempt_path(p.REPORT_PATH, work.lease_token), envelope)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt of these tests may have taken ten minutes: its farm thinks that its clock was set."""
    monkeypatch.setattr("service.boards.agents.possible.CLOCK_SLACK_S", 3600.0)


def made(farm: TestFarm, board: Board, bundle: str, found: p.Sustained, **body: Any) -> str:
    run = farm.run(bundle=bundle, mode="sustained", **body)
    answer = told(board, leased(board), found)
    assert answer.status_code == 200, answer.text
    return str(run["id"])


@pytest.mark.usefixtures("patient")
def test_whole_life_of_a_sustained_run(farm: TestFarm) -> None:
    board = able(farm)
    run = farm.run(bundle=farm.bundle(), mode="sustained", dataset=farm.dataset())
    assert (run["mode"], run["steps"], run["warmup"], run["sustain_s"]) == ("sustained", 0, 0, None)
    work = leased(board)
    assert work.settings.sustained_s == LASTS_S
    assert work.limits.run_s * p.SUSTAIN_SHARE >= LASTS_S
    answer = told(board, work, curve())
    assert p.loads(p.ReportResponse, answer.content).state == "recorded", answer.text
    shown = farm.show(run["id"])
    summary = shown["summary"]
    assert (shown["state"], summary["median_us"], summary["verdict"]) == ("succeeded", None, None), "it never ranks"
    whole = farm.http.get(f"/runs/{run['id']}/report").json()
    said = whole["sustained"]
    assert (whole["comparison"], said["ended"], said["lasted_s"], len(said["windows"])) == (None, "time", LASTS_S, 600)
    assert said["onset_s"] == pytest.approx(ONSET, abs=6)
    assert said["ratio"] == pytest.approx(FACTOR, rel=0.005)
    assert said["ratio_low"] < FACTOR < said["ratio_high"]
    assert said["message"].startswith("slows down after 3 min ")
    assert said["windows"][0] == {
        "start_s": 0.0,
        "steps": 95,
        "median_us": pytest.approx(9960.0),
        "p90_us": pytest.approx(10159.2),
    }
    assert whole["provenance"]["protocol"] == "sustained/1"
    assert whole["provenance"]["device_facts"]["threads"] == 2


@pytest.mark.usefixtures("patient")
def test_the_page_and_its_data(farm: TestFarm) -> None:
    run = made(farm, able(farm), farm.bundle(), curve())
    page = farm.http.get(f"/dashboard/runs/{run}").text
    assert "Step time while it is sustained" in page
    assert "Slows down after 3 min " in page
    assert page.count("sustained-plot") >= 2, "drawn for wide and for narrow screens"
    rows = farm.http.get(f"/dashboard/runs/{run}/windows.csv").text.splitlines()
    assert len(rows) == 601
    assert farm.http.get(f"/dashboard/runs/{run}/turns.csv").status_code == 404
    assert run not in farm.http.get("/dashboard/benchmarks").text


def test_what_cannot_be_sustained_is_refused(farm: TestFarm) -> None:
    able(farm)
    body = {"bundle": farm.bundle(), "mode": "sustained"}
    cases: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"sustain_s": 9}, "request.invalid", "greater than or equal to 10"),
        ({"sustain_s": 3601}, "request.invalid", "less than or equal to 3600"),
        ({"time_limit_s": 600}, "request.invalid", "at least 750: 600 s are to be sustained"),
        ({"sustain_s": 100, "time_limit_s": 99}, "request.invalid", "at least 125"),
        ({"others": [farm.bundle(b"two")]}, "request.invalid", "only compare takes several"),
        ({"threads": 3}, "run.threads", "at most 2"),
    )
    for change, code, words in cases:
        answer = farm.http.post("/runs", json=body | change)
        assert answer.status_code == 422, change
        assert (answer.json()["code"], words in answer.text) == (code, True), answer.text


def test_the_clock_leaves_room_and_the_farms_ceiling_holds(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    board = able(farm)
    body = {"bundle": farm.bundle(), "mode": "sustained", "sustain_s": 3600}
    farm.run(**body)
    assert leased(board).limits.run_s == pytest.approx(4500.0), "longer than the farm's own limit of half an hour"
    monkeypatch.setattr("service.devices.clocks.most_run_s", lambda _: 1800.0)
    answer = farm.http.post("/runs", json=body)
    assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (422, "limits.run-time", "sustain_s")
    assert "4,500 s needed, a run may take 1,800" in answer.text


def test_only_agents_that_sustain_are_given_such_runs(farm: TestFarm) -> None:
    older = farm.board(name="older", modes=("compare",))
    body = {"bundle": farm.bundle(), "mode": "sustained"}
    refused = farm.http.post("/runs", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "run.mode-unknown")
    run = farm.run(**body, allow_waiting=True)
    assert older.lease() is None
    assert "takes no runs of mode sustained" in farm.http.get(f"/runs/{run['id']}/why").json()["waiting"]["message"]
    emulated = able(farm, name="emulated", measurement_class="emulated")
    assert emulated.lease() is None
    assert leased(able(farm, name="newer")).run_id == run["id"]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"window_s": 1.01}, "sustained.window_s"),
        ({"count": 599}, "sustained.windows"),
        ({"count": 601}, "sustained.windows"),
        ({"ended": "cut"}, "sustained.ended"),
        ({"batch": BATCH + 1}, "sustained.batch"),
    ],
)
def test_a_curve_that_cannot_be_ends_its_attempt(farm: TestFarm, changes: dict[str, Any], where: str) -> None:
    board = able(farm)
    farm.run(bundle=farm.bundle(), mode="sustained")
    answer = told(board, leased(board), curve(**changes))
    assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (422, "report.impossible", where)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"steps": 1}, "sustained.steps"),
        ({"began_at": 5.0}, "sustained.began_at"),
        ({"protocol": "sustained/9"}, "sustained.protocol"),
        ({"windows": []}, "sustained.windows"),
        ({"windows": [{"steps": 9, "median_us": 1e6, "p90_us": 1e6}] * 600, "steps": 5400}, "sustained.windows[0]"),
        (
            {"windows": [{"steps": 1, "median_us": 2.0, "p90_us": 1.0}] * 600, "steps": 600},
            "sustained.windows[0].p90_us",
        ),
    ],
)
def test_a_forged_curve_is_refused_by_name(farm: TestFarm, changes: dict[str, Any], where: str) -> None:
    board = able(farm)
    farm.run(bundle=farm.bundle(), mode="sustained")
    work = leased(board)
    made = board.make_report(work, losses=(), verdict=None, **WHEN)
    answer = signed(board, work, p.to_json(made) | {"sustained": p.to_json(curve()) | changes})
    assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (422, "report.impossible", where)


def test_windows_of_ten_minutes_in_an_attempt_of_seconds_are_refused(farm: TestFarm) -> None:
    board = able(farm)
    farm.run(bundle=farm.bundle(), mode="sustained")
    answer = told(board, leased(board), curve())
    assert (answer.status_code, answer.json()["where"]) == (422, "run_s")


@pytest.mark.usefixtures("patient")
def test_a_sustained_run_that_succeeded_has_a_curve(farm: TestFarm) -> None:
    board = able(farm)
    farm.run(bundle=farm.bundle(), mode="sustained")
    answer = told(board, leased(board), None)
    assert (answer.status_code, answer.json()["where"]) == (422, "sustained")


@pytest.mark.usefixtures("patient")
def test_a_run_of_another_mode_has_no_curve(farm: TestFarm) -> None:
    board = able(farm)
    farm.run(bundle=farm.bundle(), mode="profile", steps=20)
    work = leased(board)
    made = board.make_report(work, losses=(), verdict=None)
    answer = signed(board, work, p.to_json(made) | {"sustained": p.to_json(curve())})
    assert (answer.status_code, answer.json()["where"]) == (422, "sustained")


@pytest.mark.usefixtures("patient")
def test_a_boards_own_limit_makes_it_shorter(farm: TestFarm) -> None:
    board = able(farm)
    farm.run(bundle=farm.bundle(), mode="sustained")
    answer = told(board, leased(board), curve(count=400), own_limits={"run_s": 500.0})
    assert answer.status_code == 200, answer.text


@pytest.mark.usefixtures("patient")
def test_two_agree_where_they_slow_down_by_as_much(farm: TestFarm) -> None:
    board, bundle = able(farm), farm.bundle()
    first, same = (made(farm, board, bundle, curve(factor=factor)) for factor in (1.25, 1.25))
    other = made(farm, board, bundle, curve(factor=1.6))
    few = [made(farm, board, bundle, curve(count=10), sustain_s=10) for _ in range(2)]
    comparison = farm.http.get(f"/runs/{first}/compare/{same}").json()
    assert (comparison["agrees"], " overlap (" in comparison["message"]) == (True, True)
    comparison = farm.http.get(f"/runs/{first}/compare/{other}").json()
    assert (comparison["agrees"], "lie apart" in comparison["message"]) == (False, True)
    comparison = farm.http.get(f"/runs/{few[0]}/compare/{few[1]}").json()
    assert (comparison["agrees"], " too few windows " in comparison["message"]) == (None, True)
    comparison = farm.http.get(f"/runs/{first}/compare/{few[0]}").json()
    assert comparison["agrees"] is None
    assert farm.http.post(f"/runs/{first}/retry", json={}).status_code == 202


@pytest.mark.usefixtures("patient")
def test_what_the_command_line_says(
    live: LiveFarm, said: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    with httpx.Client(base_url=live.url, timeout=60) as http:
        board = Board(http, modes=("sustained",)).enrol(live.token())
        run = said("run", live.keep_bundle(), "sustained", "--sustain-time", "600", "--no-wait").split()[-1]
        answer = told(board, leased(board), curve())
        assert answer.status_code == 200, answer.text
    text, markdown = said("report", run), said("report", run, "--md")
    assert "slows down after 3 min " in text
    assert re.search(r"^step +10.0 ms at first, 12.5 ms sustained; ", text, re.MULTILINE)
    assert "| curve | slows down after 3 min " in markdown
    assert "| protocol | sustained/1 |" in markdown


def test_it_is_a_mode_of_both_commands() -> None:
    for command in (["run", "sha256:0", "sustained"], ["exec", "b.pfb", "sustained"]):
        assert cli.parser().parse_args([*command, "--sustain-time", "60"]).sustain_s == 60.0


@pytest.mark.thorough
def test_a_real_agent_sustains_a_real_bundle(tmp_path: Path, loopback: None) -> None:
    with live_farm(tmp_path / "farm") as live:
        agent = AgentProcess(live.url, live.token(), tmp_path / "agent", "--name", "here")
        try:
            until(lambda: bool(live.device("here")))
            bundle = live.keep_bundle(real_bundle(tmp_path, slow=True))
            body = {"bundle": bundle, "mode": "sustained", "sustain_s": 10}
            run = live.http.post("/runs", json=body).json()
            until(lambda: live.http.get(f"/runs/{run['id']}").json()["state"] not in OPEN_RUN_STATES)
            shown = live.http.get(f"/runs/{run['id']}").json()
            assert shown["state"] == "succeeded", shown["ending"]
            found = live.http.get(f"/runs/{run['id']}/report").json()["sustained"]
        finally:
            agent.end()
    assert (len(found["windows"]), found["window_s"], found["ended"]) == (10, 1.0, "time")
    assert found["sustained_us"] >= 1000.0
    assert found["message"].startswith("cannot tell: too few windows")
