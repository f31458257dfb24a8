"""The instruments' own working: they are right on a few traces, and a rule that is wrong is seen."""

from __future__ import annotations

import random

import pytest

from device_agents.devices import Reading
from device_agents.measure.energy import EnergyMeter
from tests.sample import sample
from tests.thorough.calibration import instruments
from tests.thorough.calibration.instruments import RAILS, TRACES, Check, TextBoard, shown

KEPT = ("Jetson, clock alone", "Snapdragon, Android", "Raspberry Pi 4, vcgencmd", "Raspberry Pi 5, sysfs word")


@pytest.mark.parametrize("name", sample(TRACES, KEPT))
def test_throttles_are_found_and_clean_traces_are_not_called_throttled(name: str) -> None:
    for number in range(6):
        is_hurt, is_said = instruments._is_throttled(TRACES[name], random.Random(number), number)
        assert is_said == is_hurt, number


@pytest.mark.parametrize("name", RAILS)
def test_energy_is_what_the_rail_carried(name: str) -> None:
    assert instruments._energy_error(RAILS[name], random.Random(3)) <= instruments.ENERGY_SHARE


def test_onsets_are_found_where_they_are() -> None:
    missed, invented = instruments.curves(60, seed=7)
    assert missed.is_kept
    assert invented.is_kept
    assert "onset of injected slow-downs" in missed.what


def test_a_curve_s_rule_that_finds_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_agents.figures.sustained.EFFECT", 1e9)
    missed, invented = instruments.curves(10, seed=7)
    assert (missed.found, missed.is_kept, invented.found) == (100.0, False, 0.0)


def test_a_rule_that_finds_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_agents.measure.measurement.THROTTLE_S", 1e9)
    trace = TRACES["Jetson, clock alone"]
    found = [instruments._is_throttled(trace, random.Random(number), number) for number in range(4)]
    assert found == [(True, False), (False, False)] * 2


def test_a_meter_that_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = EnergyMeter.add

    def late(self: EnergyMeter, reading: Reading, now_s: float) -> None:
        right(self, reading, 1.05 * now_s)

    monkeypatch.setattr(EnergyMeter, "add", late)
    assert instruments._energy_error(RAILS["Jetson, INA3221"], random.Random(3)) > instruments.ENERGY_SHARE


def test_a_board_in_memory_is_read_as_one_of_files() -> None:
    board = TextBoard(instruments.Text({"/sys/class/hwmon/hwmon1/name": "ina3221\n", "/sys/class/hwmon/x/name": "y"}))
    assert board.folders("/sys/class/hwmon/hwmon*") == ["/sys/class/hwmon/hwmon1"]
    assert (board.text("/sys/class/hwmon/hwmon1/name"), board.text("/sys/none")) == ("ina3221", None)


def test_what_is_printed_says_what_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(iter([Check("a", "b", 1.0, 1.0, "us")]))
    assert not shown(iter([Check("a", "b", 1.0, 1.0, "us"), Check("a", "b", 1.1, 1.0, "us")]))
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["kept", "kept", "BROKEN"]
