"""A run once more: the same request, and whether the two say the same, with what explains their numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from device_agents import wire as p
from device_agents.measure.measurement import measure
from pockfarm import cli
from pockfarm.commands.reproduce import beside_text
from tests.agents.live_farm import LiveFarm
from tests.service.board import Board, leased
from tests.service.farms import TestFarm

BATCH = 8


def measured(us: float, blocks: int = 5) -> p.Measurement:
    """Blocks that hardly vary around so many microseconds."""
    times = [tuple(us * (1 + 0.001 * number + 0.0002 * step) for step in range(4)) for number in range(blocks)]
    return measure([p.Block(one) for one in times], batch=BATCH, warmup_steps=0, threads=2)


def profiled(farm: TestFarm, board: Board, bundle: str, us: float, **body: Any) -> str:
    run = farm.run(bundle=bundle, device=board.device_id, steps=20, **body)
    answer = board.report(leased(board), losses=(), measurement=measured(us), run_s=60.0)
    assert answer.status_code == 200, answer.text
    return str(run["id"])


def trained(farm: TestFarm, board: Board, body: dict[str, Any], *losses: float) -> str:
    run = farm.run(**body, mode="train", steps=len(losses))
    evaluation = p.Evaluation(16, losses[-1], 0.5)
    assert board.report(leased(board), losses=losses, evaluation_after=evaluation, verdict=None).status_code == 200
    return str(run["id"])


def beside(farm: TestFarm, one: str, other: str) -> dict[str, Any]:
    answer = farm.http.get(f"/runs/{one}/compare/{other}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_run_is_asked_for_again_as_it_was(farm: TestFarm) -> None:
    board, second = farm.board(), farm.board(name="second")
    body = {
        "bundle": farm.bundle(),
        "mode": "train",
        "steps": 3,
        "dataset": farm.dataset(),
        "learning_rate": 0.25,
        "validation": 0.5,
        "eval_every": 2,
        "seed": 9,
        "device_class": "x86-64",
    }
    first = farm.run(**body)
    assert leased(board).run_id == first["id"]
    again = farm.http.post(f"/runs/{first['id']}/retry", json={})
    assert again.status_code == 202, again.text
    same = (
        "bundle_digest",
        "dataset_digest",
        "validation_dataset_digest",
        "weights_digest",
        "others",
        "where",
        *p.settings_of(p.RunSettings),
    )
    assert {name: again.json()[name] for name in same} == {name: first[name] for name in same}
    assert again.json()["wanted_device_id"] == board.device_id, "on the device that made it"
    elsewhere = farm.http.post(f"/runs/{first['id']}/retry", json={"device": second.device_id}).json()
    assert elsewhere["wanted_device_id"] == second.device_id
    anywhere = farm.http.post(f"/runs/{first['id']}/retry", json={"device_class": "x86-64"}).json()
    assert (anywhere["wanted_device_id"], anywhere["wanted_device_class"]) == (None, "x86-64")
    both = farm.http.post(f"/runs/{first['id']}/retry", json={"device": board.device_id, "device_class": "x86-64"})
    assert (both.status_code, both.json()["code"]) == (422, "request.invalid")


def test_losses_agree_to_the_last_bit_or_not(farm: TestFarm) -> None:
    board = farm.board()
    body = {"bundle": farm.bundle(), "dataset": farm.dataset()}
    first = trained(farm, board, body, 2.0, 1.5, 1.25)
    same = trained(farm, board, body, 2.0, 1.5, 1.25)
    other = trained(farm, board, body, 2.0, 1.5000000000000002, 1.25)
    agrees, differs = beside(farm, first, same), beside(farm, first, other)
    assert (agrees["agrees"], agrees["losses"], agrees["differences"]) == (True, "equal to the last bit", [])
    assert differs["agrees"] is False
    assert differs["losses"].endswith(" step 2: 1.5 and 1.5000000000000002")
    assert differs["message"] == f"the losses {differs['losses']}"


def test_times_agree_as_far_as_the_device_is_known(farm: TestFarm) -> None:
    board, bundle = farm.board(), farm.bundle()
    first, same = profiled(farm, board, bundle, 1000.0), profiled(farm, board, bundle, 1010.0)
    comparison = beside(farm, first, same)
    assert comparison["agrees"] is None
    assert comparison["message"].startswith("cannot tell: how its device varies")
    for us in (995.0, 1003.0, 1008.0, 1001.0, 997.0, 1004.0, 999.0):
        last = profiled(farm, board, bundle, us)
    assert beside(farm, first, last)["agrees"] is True
    slower = profiled(farm, board, bundle, 1500.0)
    comparison = beside(farm, first, slower)
    assert (comparison["agrees"], comparison["time"]["message"][:14]) == (
        False,
        "likely 1.50\N{MULTIPLICATION SIGN} s",
    ), "it does not widen that itself"
    other = profiled(farm, board, farm.bundle(b"other"), 2500.0)
    comparison = beside(farm, first, other)
    assert (comparison["agrees"], comparison["message"]) == (None, "not the same run: other bundle")
    assert [difference["what"] for difference in comparison["differences"]] == ["bundle"]


def test_a_run_without_a_report_is_beside_nothing(farm: TestFarm) -> None:
    board, bundle = farm.board(), farm.bundle()
    one = profiled(farm, board, bundle, 1000.0)
    waiting = farm.run(bundle=bundle, device=board.device_id, steps=20)
    for path, status, code in (
        (f"/runs/{one}/compare/{waiting['id']}", 409, "run.open"),
        (f"/runs/{one}/compare/run_none", 404, "run.unknown"),
        (f"/runs/run_none/compare/{one}", 404, "run.unknown"),
    ):
        answer = farm.http.get(path)
        assert (answer.status_code, answer.json()["code"]) == (status, code), path


def test_a_number_is_explained_by_digests(farm: TestFarm) -> None:
    board, dataset = farm.board(), farm.dataset()
    bundle = farm.bundle()
    run = profiled(farm, board, bundle, 1000.0, dataset=dataset, seed=3)
    other = profiled(farm, board, bundle, 1000.0, dataset=dataset, seed=4)
    said, beside_it = (farm.http.get(f"/runs/{one}/report").json() for one in (run, other))
    explained = said["provenance"]
    info = farm.http.get(f"/bundles/{bundle}/info").json()
    assert explained["bundle"] == bundle
    assert (explained["model"], explained["plan"]) == (info["model_digest"], info["plan_digest"])
    assert (explained["dataset"], explained["weights"], explained["others"]) == (dataset, None, [])
    assert (explained["report"], explained["protocol"]) == (said["digest"], p.BENCH_PROTOCOL)
    assert (explained["device"], explained["device_facts"]["threads"]) == (board.device_id, 2)
    digests = ("bundle", "model", "plan", "spec", "settings", "device_state", "figures", "report")
    assert all(explained[name].startswith("sha256:") for name in digests)
    assert explained["compiler"]
    same = ("bundle", "model", "plan", "spec", "compiler", "device_state", "figures", "protocol")
    assert {name: explained[name] for name in same} == {name: beside_it["provenance"][name] for name in same}
    assert explained["settings"] != beside_it["provenance"]["settings"], "another seed"


def test_what_the_command_line_says(
    live: LiveFarm, said: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    with httpx.Client(base_url=live.url, timeout=60) as http:
        board = Board(http).enrol(live.token())
        bundle = live.keep_bundle()
        runs = []
        for us in (1000.0, 1004.0):
            runs.append(live.http.post("/runs", json={"bundle": bundle, "steps": 20}).json()["id"])
            answer = board.report(leased(board), losses=(), measurement=measured(us), run_s=60.0)
            assert answer.status_code == 200, answer.text
    one, other = runs
    told = said("reproduce", one, "--with", other)
    assert told.startswith(f"{other} may agree with {one}: cannot tell: how its device varies")
    markdown = said("report", one, "--md")
    assert f"**PockFarm run `{one}`**, profile on {board.description.name} (x86-64, host), 20" in markdown
    assert re.search(r"\| step \| 1\.00 ms \(95%: [0-9.]+ to [0-9.]+ ms\) \|", markdown), markdown
    assert f"| bundle | `{bundle}` |" in markdown
    assert f"`pockfarm reproduce {one}` makes it again" in markdown
    assert cli.main(["reproduce", "run_none"]) == 3
    assert "no run 'run_none'" in capsys.readouterr().err


def test_two_runs_beside_each_other_in_words() -> None:
    comparison = {
        "first": "run_a",
        "second": "run_b",
        "agrees": False,
        "message": "the losses differ from step 2: 1.5 and 1.4",
        "losses": "differ from step 2: 1.5 and 1.4",
        "weights": "other files",
        "differences": [{"what": "device", "first": "dev_1", "second": "dev_2"}],
    }
    lines = beside_text(comparison).splitlines()
    assert lines[0] == f"run_b does not agree with run_a: {comparison['message']}"
    assert lines[2].split() == ["weights", "other", "files"]
    assert lines[-1].split() == ["device", "dev_1", "dev_2"]
