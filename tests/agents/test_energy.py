"""Energy from counters and power sensors, against the energy that a board used; impossible values never count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from device_agents.devices import Counter, Reading
from device_agents.devices.board import to_celsius, to_hertz
from device_agents.measure.energy import EnergyMeter, EnergyUse
from device_agents.measure.power_unit import PowerUnit
from device_agents.wire import PowerRange, power_range

MOST_MW = 5e6
RANGE_MJ = 262_143_328.85
PHONE = PowerRange(100.0, 25_000.0)


def used(readings: Sequence[Reading], *, step_s: float = 1.0) -> EnergyUse | None:
    """What a meter makes of looks at equal distances, that is on throughout."""
    meter = EnergyMeter(MOST_MW)
    meter.is_on = True
    for number, reading in enumerate(readings):
        meter.add(reading, number * step_s)
    return meter.use()


def counting(*zones: Sequence[float | None], range_mj: float | None = RANGE_MJ) -> list[Reading]:
    """Looks at counters, a row of values for each; None where a zone could not be read."""
    looks: list[Reading] = []
    for values in zip(*zones, strict=True):
        counters: Mapping[str, Counter] = {
            f"rapl package-{zone}": Counter(value, range_mj) for zone, value in enumerate(values) if value is not None
        }
        looks.append(Reading(counters=counters))
    return looks


def total_of(use: EnergyUse | None) -> float:
    assert use is not None
    assert use.total_mj is not None
    return use.total_mj


def test_power_is_integrated_only_while_it_is_on() -> None:
    meter = EnergyMeter(MOST_MW)
    for second in range(10):
        meter.is_on = 2 <= second <= 6
        meter.add(Reading(power_mw=1000.0 + 100 * second, power_sensor="rail"), float(second))
    use = meter.use()
    assert total_of(use) == pytest.approx(np.trapezoid([1200, 1300, 1400, 1500, 1600, 1700]))
    assert use == EnergyUse(total_of(use), 5.0, "rail")


def test_zones_add_up_and_each_begins_anew_for_itself() -> None:
    """Two packages of 200 W and 100 W; the first passes its range twice, hours apart, and the second once."""
    seconds = np.arange(0, 4000.0)
    first, second = (RANGE_MJ - 1e6 + 2e5 * seconds) % RANGE_MJ, (5e6 + 1e5 * seconds) % RANGE_MJ
    use = used(counting(first.tolist(), second.tolist()))
    assert total_of(use) == pytest.approx(3999 * 3e5, rel=1e-9)
    assert use is not None
    assert use.notes == ()
    assert use.sensor == "rapl package-0 + rapl package-1"


def test_a_zone_that_is_readable_late_adds_nothing_of_what_it_counted_before() -> None:
    use = used(counting([1e5 * second for second in range(11)], [None, *(9e7 + 2e5 * second for second in range(10))]))
    assert total_of(use) == pytest.approx(10 * 3e5)
    assert use is not None
    assert use.notes == ("rapl package-1 covers 9.0 of 10.0 s: the rest is estimated from it",)


def test_a_zone_that_is_gone_for_a_look_loses_nothing() -> None:
    values: list[float | None] = [1e5 * second for second in range(11)]
    values[4] = None
    use = used(counting(values))
    assert total_of(use) == pytest.approx(10 * 1e5)
    assert use is not None
    assert use.notes == ()


def test_a_zone_that_disappears_is_estimated_from_its_mean_with_a_note() -> None:
    use = used(counting([1e5 * second if second < 8 else None for second in range(11)]))
    assert total_of(use) == pytest.approx(10 * 1e5)
    assert use is not None
    assert use.notes == ("rapl package-0 covers 7.0 of 10.0 s: the rest is estimated from it",)


def test_a_sensor_that_covers_less_than_half_gives_a_reason_and_no_energy() -> None:
    use = used(counting([1e5 * second if second < 4 else None for second in range(11)]))
    assert use is not None
    assert use.total_mj is None
    assert use.notes == ("rapl package-0 covers 3.0 of 10.0 s: too little for an energy",)


def test_a_counter_without_a_range_that_goes_back_costs_that_interval_alone() -> None:
    values = [1e5 * second % 6.5e5 for second in range(11)]
    use = used(counting(values, range_mj=None))
    assert total_of(use) == pytest.approx(10 * 1e5)
    assert use is not None
    reason = "the counter went back, and has no range within 1.0 s"
    assert use.notes == (f"rapl package-0 covers 9.0 of 10.0 s ({reason}): the rest is estimated from it",)


def test_a_counter_that_jumps_by_more_than_the_machine_draws_costs_that_interval() -> None:
    values = [1e5 * second + (9.0003e7 if second >= 5 else 0.0) for second in range(11)]
    use = used(counting(values))
    assert total_of(use) == pytest.approx(10 * 1e5)
    assert use is not None
    assert "the counter advanced by 90,103 J within 1.0 s" in use.notes[0]


def test_a_pause_in_which_a_counter_may_have_begun_anew_more_than_once_is_not_counted() -> None:
    use = used(counting([0.0, 1e5, 2e5]), step_s=60.0)
    assert use is not None
    assert use.total_mj is None
    assert "more than once" in use.notes[0]


def test_no_sensor_is_none_not_zero() -> None:
    assert used([Reading(), Reading()]) is None


def of_battery(*values_mw: float) -> list[Reading]:
    """The corrected readings of a phone's battery."""
    unit = PowerUnit(PHONE)
    return [unit.corrected(Reading(power_mw=value_mw, power_sensor="battery")) for value_mw in values_mw]


@pytest.mark.parametrize(
    ("driver_mw", "factor"), [(3400.0, ""), (3.4, "1,000"), (3.4e-3, "1,000,000"), (3.4e6, "0.001")]
)
def test_a_power_in_another_unit_is_read_in_the_only_one_that_fits(driver_mw: float, factor: str) -> None:
    (reading,) = of_battery(driver_mw)
    assert reading.power_mw == pytest.approx(3400.0)
    assert len(reading.notes) == bool(factor)
    assert not factor or f"multiplied by {factor}:" in reading.notes[0]


@pytest.mark.parametrize("driver_mw", [0.0, -3400.0, 40.0, 60_000.0])
def test_a_power_that_fits_in_no_unit_is_left_out_with_its_reason(driver_mw: float) -> None:
    readings = of_battery(driver_mw, driver_mw)
    assert readings[0].power_mw is None
    assert readings[0].notes[0].startswith("values of battery are left out: ")
    use = used(readings)
    assert use is not None
    assert use.total_mj is None
    assert use.notes == readings[0].notes


def test_the_unit_is_the_same_for_a_whole_run() -> None:
    """A value of 20 mW fits as 20 W, but not in the unit of those before it."""
    assert [reading.power_mw for reading in of_battery(3400.0, 20.0, 3500.0)] == [3400.0, None, 3500.0]


def test_the_unit_of_a_board_without_a_least_power_is_not_guessed() -> None:
    reading = PowerUnit(PowerRange(0.0, 5e6)).corrected(Reading(power_mw=9e6, power_sensor="meter"))
    assert reading.power_mw is None


@pytest.mark.parametrize("device_class", ["raspberry-pi-3", "raspberry-pi-5", "jetson-agx-orin", "snapdragon-8-gen-2"])
def test_a_board_draws_less_than_a_thousand_times_its_least(device_class: str) -> None:
    bounds = power_range(device_class, "hardware")
    assert bounds is not None
    assert 0 < bounds.least_mw < bounds.most_mw < 1000 * bounds.least_mw
    assert power_range(device_class, "emulated") is None


@pytest.mark.parametrize(
    ("value", "celsius"),
    [(45_500, 45.5), (455, 45.5), (45, 45.0), (-5000, -5.0), (0, None), (-60_000, None), (10**9, None)],
)
def test_temperatures_in_other_units_are_degrees(value: int, celsius: float | None) -> None:
    assert to_celsius(value) == celsius


@pytest.mark.parametrize(
    ("value", "hertz"),
    [(1_800_000, 1.8e9), (1800, 1.8e9), (1_800_000_000, 1.8e9), (0, None), (-1, None), (10**12, None)],
)
def test_clocks_in_other_units_are_hertz(value: int, hertz: float | None) -> None:
    assert to_hertz(value) == hertz
