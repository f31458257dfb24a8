"""The interval beside the median in lists of runs: that of the report's own blocks."""

from __future__ import annotations

import statistics

import pytest

from device_agents.figures.one_run import run_interval
from pockfarm.commands.lists import RUN_HEADER, run_row
from service.work.runs import intervals
from tests.service.farms import TestFarm
from tests.service.test_retry import measured, profiled


def test_a_list_and_a_run_tell_the_interval_of_the_blocks(farm: TestFarm) -> None:
    board, bundle = farm.board(), farm.bundle()
    run = profiled(farm, board, bundle, 42_000.0)
    short = profiled(farm, board, farm.bundle(b"other"), 97.0, seed=2)
    blocks = [statistics.median(block.step_us) for block in measured(42_000.0).blocks]
    told = run_interval(blocks)
    assert told is not None
    listed = {one["id"]: one["summary"] for one in farm.http.get("/runs").json()["items"]}
    shown = farm.http.get(f"/runs/{run}").json()["summary"]
    assert (listed[run]["median_low_us"], listed[run]["median_high_us"]) == (told.low, told.high)
    assert shown == listed[run]
    assert told.low <= shown["median_us"] <= told.high
    assert listed[short]["median_low_us"] > 0


def test_without_blocks_enough_there_is_none(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    board, bundle = farm.board(), farm.bundle()
    run = profiled(farm, board, bundle, 42_000.0)
    monkeypatch.setattr(intervals, "MOST_STEPS", 19)
    summary = farm.http.get(f"/runs/{run}").json()["summary"]
    assert (summary["median_low_us"], summary["median_high_us"]) == (None, None), "of so many steps the report tells"
    queued = farm.run(bundle=bundle, device=board.device_id, steps=4)
    assert farm.http.get(f"/runs/{queued['id']}").json()["summary"] is None


def test_the_command_prints_both_in_one_unit(farm: TestFarm) -> None:
    summary = {"median_us": 42_300.0, "median_low_us": 42_100.0, "median_high_us": 42_600.0}
    cells = dict(zip(RUN_HEADER, run_row({"id": "run_1", "summary": summary}), strict=True))
    assert (cells["step"], cells["95%"]) == ("42.3 ms", "42.1 to 42.6 ms")
    assert dict(zip(RUN_HEADER, run_row({"id": "run_1"}), strict=True))["95%"] == "-"
