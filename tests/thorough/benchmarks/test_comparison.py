"""The harness: processes that take turns, ratios round by round, and losses that give other work away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.compare import Comparison, SideResult, load, ratio_of
from benchmarks.compare import save as save_comparison
from benchmarks.processes import SideFailed, started, take_turns
from benchmarks.sides import OURS, Side
from tests.service.lone_processes import wait_for_state

TRAINS = """
import itertools, json, time
for step in itertools.count(1):
    time.sleep(0.005)
    print(json.dumps({"event": "step", "step": step, "loss": 1 / step, "us": 5000.0}), flush=True)
"""


def _side(name: str, program: str) -> Side:
    return Side(name, (sys.executable, "-c", program), {})


def test_sides_take_turns_and_are_stopped_in_between(tmp_path: Path) -> None:
    with started(_side("a", TRAINS), tmp_path / "a") as a, started(_side("b", TRAINS), tmp_path / "b") as b:
        turns = [(number, one.side.name, len(ms)) for number, one, ms in take_turns([a, b], rounds=2, steps=3)]
        wait_for_state(a.process.pid, "T")
        peak = a.peak_rss_bytes()
    assert turns == [(0, "a", 3), (0, "b", 3), (1, "a", 3), (1, "b", 3)]
    assert a.losses == [1 / step for step in range(1, len(a.losses) + 1)]
    assert peak > 1 << 20
    assert a.process.poll() is not None
    assert b.process.poll() is not None


def test_a_side_that_ends_tells_its_last_error(tmp_path: Path) -> None:
    with (
        pytest.raises(SideFailed, match="exit code 1: ValueError: no such layer"),
        started(_side("broken", "raise ValueError('no such layer')"), tmp_path / "log"),
    ):
        pass


def test_ratios_pair_the_medians_of_a_round() -> None:
    slow, fast = SideResult("slow", [[20, 21, 22], [40, 42, 44]]), SideResult("fast", [[7, 7, 7], [14, 14, 14]])
    assert ratio_of(slow, fast) == (3.0, 3.0, 3.0)


def test_other_work_shows_and_results_survive_the_disk(tmp_path: Path) -> None:
    sides = [
        SideResult(OURS, [[1.0]]),
        SideResult("JAX", [[2.0]], loss_difference=1e-6),
        SideResult("TensorFlow", [[1.5]], loss_difference=1e-2),
        SideResult("torch.compile", error="exit code 1"),
    ]
    found = Comparison("m", "full", 1, 2, sides, {})
    save_comparison(found, tmp_path / "m-full.json")
    again = load(tmp_path / "m-full.json")
    assert again == found
    assert [side.name for side in again.differing()] == ["TensorFlow"]
    best = again.fastest_other()
    assert best is not None
    assert best.name == "TensorFlow"
    assert again.side("torch.compile") is None
