"""What an agent tells of its board: the file system of its folder, its own files, the hottest zone; never an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from device_agents import wire
from device_agents.devices import DEVICE_KINDS, Board
from device_agents.devices import condition as conditions
from device_agents.devices.condition import ConditionReader
from device_agents.wire import Condition
from tests.agents.conftest import AgentProcess
from tests.agents.fake_farm import FakeFarm
from tests.agents.fake_step import bundle, script

HOST = next(kind for kind in DEVICE_KINDS if kind.name == "host")


def hot_board(root: Path, **zones: str) -> Board:
    """Whose thermal zones say this, in thousandths of a degree."""
    for number, (kind, text) in enumerate(zones.items()):
        zone = root / f"sys/class/thermal/thermal_zone{number}"
        zone.mkdir(parents=True)
        (zone / "type").write_text(kind)
        (zone / "temp").write_text(text)
    return Board(root)


def reader(tmp_path: Path, **zones: str) -> ConditionReader:
    folder = tmp_path / "state"
    folder.mkdir()
    return ConditionReader(HOST, hot_board(tmp_path / "board", **zones), folder, "scratch")


def test_the_hottest_zone_and_the_file_system_of_the_folder(tmp_path: Path) -> None:
    read = reader(tmp_path, cpu="48250", soc="61870", battery="90000")
    said = read()
    assert said.temperature_c == 61.9, "a battery is no processor"
    found = os.statvfs(read.folder)
    assert said.storage_total_bytes == found.f_blocks * found.f_frsize
    assert said.storage_free_bytes is not None
    assert 0 <= said.storage_free_bytes <= said.storage_total_bytes


@pytest.mark.parametrize("text", ["", "hot", "-273150", "999999", "1e9"])
def test_a_sensor_that_is_broken_says_nothing(tmp_path: Path, text: str) -> None:
    assert reader(tmp_path, cpu=text)().temperature_c is None


def test_what_the_agent_keeps_is_counted_without_the_jobs_files(tmp_path: Path) -> None:
    read = reader(tmp_path)
    (read.folder / "spool/kept").mkdir(parents=True)
    (read.folder / "spool/kept/result").write_bytes(os.urandom(1 << 20))
    (read.folder / "scratch").mkdir()
    (read.folder / "scratch/dataset").write_bytes(os.urandom(4 << 20))
    (read.folder / "loop").symlink_to(read.folder)
    kept_bytes = read().kept_bytes
    assert kept_bytes is not None
    assert 1 << 20 <= kept_bytes < 2 << 20


def test_too_many_files_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "MOST_ENTRIES", 5)
    read = reader(tmp_path)
    for number in range(6):
        (read.folder / str(number)).touch()
    assert read().kept_bytes is None


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    read = reader(tmp_path)
    read.folder.rmdir()
    assert read() == Condition(kept_bytes=0)


def test_every_kind_of_board_is_read_as_its_runs_are(tmp_path: Path) -> None:
    board = hot_board(tmp_path, **{"cpu-thermal": "50000", "cpu-1-0": "50000"})
    board = replace(board, tool=lambda argv, timeout_s: None)
    for kind in DEVICE_KINDS:
        assert kind.temperature_c(board) == kind.read(board).temperature_c, kind.name


def test_what_is_not_known_is_left_out_of_the_header() -> None:
    assert wire.dumps(Condition()) == b"{}"
    whole = wire.dumps(Condition(1 << 60, 1 << 60, 1 << 60, -59.9))
    assert len(whole) <= wire.MOST_CONDITION_CHARACTERS


def test_a_real_agent_tells_it_with_requests_for_work_and_with_heartbeats(
    farm: FakeFarm, start_agent: Callable[..., AgentProcess], gate: Path
) -> None:
    farm.assign(bundle(step=script("held", gate=gate)), warmup=0, steps=10)
    agent = start_agent("--once")
    farm.wait_for(lambda: farm.heartbeats)
    gate.touch()
    assert farm.report().outcome.state == "succeeded"
    assert agent.wait() == 0
    for end in (wire.LEASE_PATH, "/heartbeat"):
        told = [wire.loads(Condition, said) for path, said in farm.conditions if path.endswith(end)]
        assert told, end
        assert all(said.storage_total_bytes for said in told)
