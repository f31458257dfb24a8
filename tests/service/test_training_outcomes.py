"""How training ended, from the device's report to the run's row, its page, its files, and the clients."""

from __future__ import annotations

import base64
import csv
import io
import json
from typing import Any

import pytest

from device_agents import wire as p
from device_agents.wire import Training, Validation
from tests.service.board import Board, leased
from tests.service.farms import TestFarm

VALIDATIONS = (Validation(2, 4, 1.5, 0.25), Validation(4, 4, 0.75, 0.5))
DIVERGED = Training("diverged", 5, "the loss of step 5 is NaN", (0.1, 0.2, 0.2, 0.2, 0.2), VALIDATIONS, best_step=4)
LOSSES = (2.5, 1.25, 1.0, 3.5, None)
VALIDATED = {"validation": 0.25, "eval_every": 2, "schedule": "linear", "warmup_steps": 1}


def trained(
    farm: TestFarm, board: Board, training: Training | None, *, outcome: p.Outcome | None = None, **more: Any
) -> str:
    """A run of mode train with this report; its id."""
    run = farm.run(bundle=farm.bundle(), mode="train", dataset=farm.dataset(), steps=9, **VALIDATED)
    work = leased(board)
    assert (work.settings.validation, work.settings.schedule, work.settings.warmup_steps) == (0.25, "linear", 1)
    answer = board.report(work, outcome, losses=LOSSES, training=training)
    assert answer.status_code == 200, answer.text
    return str(run["id"])


def test_a_run_whose_training_diverged_has_succeeded_and_says_so(farm: TestFarm) -> None:
    run_id = trained(farm, farm.board(), DIVERGED)
    shown = farm.show(run_id)
    assert (shown["state"], shown["ending"], shown["attempts"]) == ("succeeded", None, 1)
    assert shown["summary"]["training_outcome"] == "diverged"
    assert shown["summary"]["loss_last"] is None
    assert shown["trained_weights_digest"] is None
    report = farm.http.get(f"/runs/{run_id}/report").json()["report"]
    assert p.from_json(Training, report["training"]) == DIVERGED
    assert farm.http.get(f"/runs/{run_id}/weights").status_code == 404
    listed = farm.http.get("/runs", params={"mode": "train"}).json()["items"]
    assert [one["summary"]["training_outcome"] for one in listed] == ["diverged"]


def test_its_page_and_files_show_both_losses(farm: TestFarm) -> None:
    run_id = trained(farm, farm.board(), DIVERGED)
    page = farm.http.get(f"/dashboard/runs/{run_id}").text
    assert "<b>Training diverged.</b> At step 5: " in page
    assert "curve validation" in page
    assert "Validation: best 0.7500 after step 4." in page
    assert "Learning-rate warm-up" in page
    assert "Patience" not in page, "what nobody set is not told"
    losses = list(csv.DictReader(io.StringIO(farm.http.get(f"/dashboard/runs/{run_id}/losses.csv").text)))
    assert [(row["step"], row["loss"], row["learning_rate"]) for row in losses][::4] == [
        ("1", "2.5", "0.1"),
        ("5", "", "0.2"),
    ]
    rows = list(csv.DictReader(io.StringIO(farm.http.get(f"/dashboard/runs/{run_id}/validations.csv").text)))
    assert [(row["step"], row["samples"], row["loss"], row["accuracy_percent"]) for row in rows] == [
        ("2", "4", "1.5", "25.0"),
        ("4", "4", "0.75", "50.0"),
    ]
    assert " · diverged · " in farm.http.get("/dashboard/runs").text


def test_validations_are_on_the_page_while_it_runs(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle(), mode="train", dataset=farm.dataset(), steps=9, **VALIDATED)
    board = farm.board()
    work = leased(board)
    steps = [p.Event(n, 10.0 + n, "step", step=n, loss=3.0 - n, step_us=5.0) for n in (1, 2)]
    board.send_events(work, *steps, p.Event(3, 13.0, "eval", message="validation", step=2, loss=1.5, samples=4))
    rows = farm.http.get(f"/dashboard/runs/{run['id']}/validations.json").json()["rows"]
    assert [(row["step"], row["loss"]) for row in rows] == [(2, 1.5)]
    assert "curve validation" in farm.http.get(f"/dashboard/runs/{run['id']}").text


def test_an_older_agents_failure_is_the_same_outcome(farm: TestFarm) -> None:
    failed = p.Outcome("failed", "user", "train.diverged", "the loss is not a finite number any more")
    shown = farm.show(trained(farm, farm.board(), None, outcome=failed))
    assert (shown["state"], shown["ending"]["code"]) == ("failed", "train.diverged")
    assert shown["summary"]["training_outcome"] == "diverged"
    assert shown["attempts"] == 1, "it is not tried again"


@pytest.mark.parametrize(
    "change",
    [{"steps": 4}, {"outcome": "perfect"}],
)
def test_a_report_of_training_that_cannot_be_is_refused(farm: TestFarm, change: dict[str, Any]) -> None:
    farm.run(bundle=farm.bundle(), mode="train", dataset=farm.dataset(), steps=9, **VALIDATED)
    board = farm.board()
    work = leased(board)
    report = board.make_report(work, losses=LOSSES, training=DIVERGED)
    said = p.to_json(report)
    said["training"] |= change

    payload = json.dumps(said).encode()
    signature = base64.b64encode(board.key.sign(p.pae(p.REPORT_TYPE, payload))).decode()
    envelope = p.Envelope(p.REPORT_TYPE, base64.b64encode(payload).decode(), (p.Signature(board.device_id, signature),))
    answer = board.post(p.attempt_path(p.REPORT_PATH, work.lease_token), envelope)
    assert (answer.status_code, answer.json()["code"]) == (422, "report.impossible")


def test_settings_that_do_nothing_alone_are_refused(farm: TestFarm) -> None:
    bundle, dataset = farm.bundle(), farm.dataset()
    for wrong in (
        {"patience": 2},
        {"save_best": True},
        {"validation": 0.95},
        {"schedule": "steps"},
        {"final_ratio": 2},
        {"schedule": "constant", "final_ratio": 0.1},
        {"schedule": "constant", "schedule_steps": 9},
        {"validation": 0.5, "min_delta": 0.1},
    ):
        body = {"bundle": bundle, "mode": "train", "dataset": dataset, **wrong}
        assert farm.http.post("/runs", json=body).status_code == 422, wrong
