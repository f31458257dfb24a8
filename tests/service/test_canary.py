"""Devices that strikes have quarantined show by a canary run that they work again; nothing else does."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from sqlalchemy import select, update

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from device_agents import wire as p
from device_agents.execute import run_bundle
from pockfarm.local.toolchain import resolve_target
from service.boards.canary.building import HEALTH
from service.devices import canary_reference as reference
from service.devices.canary_verdict import LEARNING_RATE
from service.store.database.models import Device, Job, Run
from tests.service.board import Board, leased
from tests.service.farms import TestFarm
from tests.service.test_bad_devices import go_silent

DISK = p.Outcome("failed", "device", "device.disk", "full")


def quarantined(farm: TestFarm, **changes: Any) -> Board:
    """A board with three strikes, and a canary's bundle that is built."""
    digest, board = farm.bundle(), farm.board(name="bench", **changes)
    for _ in range(3):
        run = farm.run(bundle=digest, device=board.device_id)
        board.report(leased(board), DISK)
        farm.http.post(f"/runs/{run['id']}/cancel")
    assert shown(farm, board)["state"] == "quarantined"
    assert board.lease() is None
    return board


def shown(farm: TestFarm, board: Board) -> dict[str, Any]:
    found: dict[str, Any] = farm.http.get(f"/devices/{board.device_id}").json()
    return found


def history(farm: TestFarm, board: Board) -> str:
    return "\n".join(f"{line['kind']}: {line['message']}" for line in reversed(shown(farm, board)["history"]))


def pause_over(farm: TestFarm) -> None:
    """The pause before the next canary passes, and the sweeper looks twice: for the bundle, then at it."""
    for _ in range(2):
        with farm.farm.database.transaction() as session:
            session.execute(update(Device).where(Device.canary_at > 0).values(canary_at=1.0))
        farm.sweep()
        with farm.farm.database.read() as session:
            waiting = session.scalar(select(Job.id).where(Job.model_name == HEALTH.name, Job.state == "queued"))
        if waiting is not None:
            farm.work_off(waiting)


def canary(farm: TestFarm, board: Board) -> p.Assignment:
    farm.sweep()
    pause_over(farm)
    return leased(board)


def right(work: p.Assignment) -> tuple[float, ...]:
    return tuple(reference.losses(work.settings.seed))


def test_a_mended_device_comes_back_by_a_canary_run(farm: TestFarm) -> None:
    board = quarantined(farm)
    ordinary = farm.run(bundle=farm.bundle(b"another"))
    farm.sweep()
    assert board.lease() is None, "who mends it gets some time"
    work = canary(farm, board)
    assert (work.settings.mode, work.settings.steps, work.dataset is not None) == ("train", reference.STEPS, True)
    assert ordinary["id"] != work.run_id
    assert board.report(work, losses=right(work)).status_code == 200
    device = shown(farm, board)
    assert (device["state"], device["strikes"], device["canary_failures"]) == ("active", 0, 0)
    assert f"released: canary run {work.run_id} was right: it works again" in history(farm, board)
    assert leased(board).run_id == ordinary["id"], "now it gets other work again"


@pytest.mark.parametrize("lie", ["wrong", "missing", "none", "too few"])
def test_wrong_losses_keep_it_away_for_longer_and_longer(small_farm: TestFarm, lie: str) -> None:
    farm = small_farm
    board = quarantined(farm)
    pauses = []
    for n in (1, 2):
        work = canary(farm, board)
        losses: list[float | None] = list(right(work))
        if lie == "wrong":
            losses[-1] = (losses[-1] or 0.0) + 0.01
        elif lie == "missing":
            losses[2] = None
        losses = {"none": [], "too few": losses[:-1]}.get(lie, losses)
        assert board.report(work, losses=tuple(losses)).status_code == 200
        device = shown(farm, board)
        assert (device["state"], device["canary_failures"]) == ("quarantined", n)
        ended = farm.show(work.run_id)
        assert (ended["state"], ended["ending"]["code"]) == ("failed", "canary.wrong")
        with farm.farm.database.read() as session:
            pauses.append(session.get_one(Device, board.device_id).canary_at - time.time())
        assert board.lease() is None
    assert pauses == pytest.approx([1200.0, 2400.0], abs=30)
    assert "was not right: canary.wrong: " in history(farm, board)


def test_what_was_right_before_is_not_right_again(small_farm: TestFarm) -> None:
    farm = small_farm
    board = quarantined(farm)
    first = canary(farm, board)
    board.report(first, DISK)
    second = canary(farm, board)
    assert first.settings.seed != second.settings.seed
    board.report(second, losses=right(first))
    assert farm.show(second.run_id)["ending"]["code"] == "canary.wrong"


@pytest.mark.parametrize("end", ["failed", "silent", "restarted", "refused"])
def test_any_other_end_of_a_canary_is_no_strike_and_no_return(small_farm: TestFarm, end: str) -> None:
    farm = small_farm
    board = quarantined(farm)
    strikes = shown(farm, board)["strikes"]
    work = canary(farm, board)
    if end == "failed":
        board.report(work, DISK)
    elif end == "silent":
        go_silent(farm, work)
    elif end == "restarted":
        board.restart()
    else:
        board.report(work, losses=right(work), memory=p.Memory(peak_rss_bytes=1 << 60))
    device = shown(farm, board)
    assert (device["state"], device["strikes"], device["canary_failures"]) == ("quarantined", strikes, 1)
    assert farm.show(work.run_id)["state"] == "failed"


def test_an_operators_quarantine_and_a_clock_get_no_canary(small_farm: TestFarm) -> None:
    farm = small_farm
    held, late = farm.board(name="held"), farm.board(name="late")
    farm.http.post(f"/devices/{held.device_id}/quarantine", json={})
    late.clock_off_s = 9000.0
    assert late.lease() is None
    pause_over(farm)
    with farm.farm.database.read() as session:
        assert session.scalars(select(Run)).all() == []
        assert session.scalars(select(Job)).all() == []


def test_an_operator_turns_canaries_off_and_on(small_farm: TestFarm) -> None:
    farm = small_farm
    board = quarantined(farm)
    path = f"/devices/{board.device_id}/canary"
    assert farm.http.post(path, json={"enabled": False}).json()["canary_off"] is True
    farm.sweep()
    pause_over(farm)
    assert board.lease() is None
    assert farm.http.post(path, json={"enabled": True}).json()["canary_off"] is False
    pause_over(farm)
    work = leased(board)
    assert farm.http.post(path, json={"enabled": True}, headers=farm.key()).status_code == 403
    board.report(work, losses=right(work))
    assert shown(farm, board)["state"] == "active"


def test_a_device_that_is_away_gets_none(farm: TestFarm) -> None:
    board = quarantined(farm)
    farm.sweep()
    with farm.farm.database.transaction() as session:
        session.execute(update(Device).values(last_seen_at=time.time() - 3600))
    pause_over(farm)
    with farm.farm.database.read() as session:
        assert session.scalars(select(Run).where(Run.is_canary)).all() == []
    assert shown(farm, board)["state"] == "quarantined"


def test_a_release_in_between_is_not_undone_and_canaries_are_not_listed(small_farm: TestFarm) -> None:
    farm = small_farm
    board = quarantined(farm)
    work = canary(farm, board)
    farm.http.post(f"/devices/{board.device_id}/release", json={})
    board.report(work, DISK)
    device = shown(farm, board)
    assert (device["state"], device["canary_failures"]) == ("active", 0)
    assert work.run_id not in {run["id"] for run in farm.http.get("/runs").json()["items"]}
    assert farm.show(work.run_id)["state"] == "failed"


def test_nobody_else_is_given_a_canary(farm: TestFarm) -> None:
    board = quarantined(farm)
    other = farm.board(name="other")
    farm.sweep()
    pause_over(farm)
    assert other.lease() is None
    assert leased(board).run_id


def test_the_model_means_what_the_reference_computes() -> None:
    """By ONNX's own evaluator, and the gradient by finite differences."""
    model = onnx.load_from_string(HEALTH.model)
    onnx.checker.check_model(model, full_check=True)
    (w, b), (x, y) = reference.weights(), reference.data(11)
    (logits,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(logits, x @ w + b, rtol=1e-6, atol=1e-6)

    def loss(w: Any, b: Any) -> float:
        made = x.astype(np.float64) @ w + b
        return float((np.log(np.exp(made).sum(axis=1)) - made[np.arange(len(y)), y]).mean())

    told = reference.losses(11)
    assert told[0] == pytest.approx(loss(w, b))
    d_w, step = np.zeros_like(w), 1e-5
    for place in np.ndindex(w.shape):
        near = np.zeros_like(w)
        near[place] = step
        d_w[place] = (loss(w + near, b) - loss(w - near, b)) / (2 * step)
    d_b = np.array([(loss(w, b + one) - loss(w, b - one)) / (2 * step) for one in step * np.eye(len(b))])
    after = loss(w - LEARNING_RATE * d_w, b - LEARNING_RATE * d_b)
    assert told[1] == pytest.approx(after, rel=1e-6)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_real_step_finds_what_the_reference_says(
    tmp_path: Path, umask: int, request: pytest.FixtureRequest
) -> None:
    """Compiled, and run on this machine, whatever its umask: what a board that works reports is taken."""
    before = os.umask(umask)
    request.addfinalizer(lambda: os.umask(before))
    settings = BuildSettings(
        plan=SparsePlan.parse("full"), spec=TrainingSpec.parse(dict(HEALTH.spec)), target=load(resolve_target("host"))
    )
    with (tmp_path / "canary.pfb").open("wb") as stream:
        compile_training(HEALTH.model, settings).write_to(stream)
    (tmp_path / "data.npz").write_bytes(reference.archive(5))
    asked = p.RunSettings("train", steps=reference.STEPS, seed=5)
    ran = run_bundle(tmp_path / "canary.pfb", asked, data=tmp_path / "data.npz")
    assert ran.report.outcome.state == "succeeded", ran.report.outcome
    assert reference.difference(5, ran.report.losses) == ""
    assert reference.difference(6, ran.report.losses) != ""


def test_the_file_is_the_one_that_bundles_were_built_of() -> None:
    """Another file is another compile on every farm: change it on purpose."""
    assert hashlib.sha256(HEALTH.model).hexdigest()[:16] == "8dc96d426cc8958f"
