"""The curve of a sustained run beside curves whose truth is known: when they slow down, by how much, and if at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from device_agents.figures import sustained
from device_agents.figures.intervals import Interval
from device_agents.figures.sustained import curve_of, format_duration, memory, onset_of, slow_down_text
from device_agents.wire import DeviceState, Sustained, SustainedWindow
from tests.sample import sample

COUNT = 600
STEP_US = 1000.0
TRIALS = 200


def told(us: Sequence[float] | np.ndarray, *, window_s: float = 1.0, began_at: float = 1e9) -> Sustained:
    """Windows that steps of these medians fill."""
    windows = tuple(SustainedWindow(max(1, int(0.97e6 * window_s / one)), float(one), float(one)) for one in us)
    return Sustained(window_s, windows, sum(one.steps for one in windows), 8, 2, began_at, "time")


@dataclass(frozen=True)
class Noise:
    """Of windows: a first-order autoregression around the step's time, relative."""

    keeps: float
    deviation: float

    def curve(self, source: np.random.Generator, count: int = COUNT) -> np.ndarray:
        fresh = source.normal(0, self.deviation * np.sqrt(1 - self.keeps**2), count)
        found = np.empty(count)
        last = source.normal(0, self.deviation)
        for at in range(count):
            last = self.keeps * last + fresh[at]
            found[at] = last
        return STEP_US * np.exp(found)


NOISES = (Noise(0.0, 0.003), Noise(0.0, 0.01), Noise(0.6, 0.005), Noise(0.8, 0.01))


def warmed(us: np.ndarray, onset: float, factor: float, takes: float) -> np.ndarray:
    """A board that slows down from `onset` on, up to `factor`, as things get warm: by e^(-t / takes)."""
    since = np.clip(np.arange(len(us)) + 0.5 - onset, 0, None)
    return us * (1 + (factor - 1) * (1 - np.exp(-since / takes)))


@pytest.mark.parametrize("noise", sample(NOISES, [str(NOISES[1])]))
def test_an_onset_is_found_within_a_twentieth(noise: Noise) -> None:
    source, errors, ratios = np.random.default_rng(5), [], []
    for _ in range(TRIALS):
        onset, factor = source.uniform(0.12, 0.6) * COUNT, source.uniform(1.08, 1.5)
        curve = curve_of(told(warmed(noise.curve(source), onset, factor, source.choice([1e-3, 6.0]))))
        assert curve.message.startswith("slows down after ") == (curve.onset_s is not None)
        errors.append(COUNT if curve.onset_s is None else abs(curve.onset_s - onset))
        ratios.append(curve.interval is not None and curve.interval.has(factor))
    assert np.mean(np.array(errors) > COUNT / 20) <= 0.01
    assert np.median(errors) <= COUNT / 50
    assert np.mean(ratios) >= 0.97


@pytest.mark.parametrize("noise", sample(NOISES, [str(NOISES[3])]))
def test_a_slow_ramp_is_found_nearly_as_well(noise: Noise) -> None:
    source, errors = np.random.default_rng(6), []
    for _ in range(TRIALS):
        onset, factor = source.uniform(0.12, 0.5) * COUNT, source.uniform(1.1, 1.5)
        curve = curve_of(told(warmed(noise.curve(source), onset, factor, 0.1 * COUNT)))
        errors.append(COUNT if curve.onset_s is None else abs(curve.onset_s - onset))
    assert np.mean(np.array(errors) > COUNT / 20) <= 0.02


@pytest.mark.parametrize("noise", sample(NOISES, [str(NOISES[3])]))
def test_there_is_none_in_noise_in_brief_dips_and_in_a_little_drift(noise: Noise) -> None:
    source, found, excluded = np.random.default_rng(7), [], []
    for _ in range(TRIALS):
        calm = noise.curve(source)
        dipping = calm.copy()
        for _ in range(4):
            begins = source.integers(0, COUNT - 20)
            dipping[begins : begins + source.integers(2, 15)] *= source.uniform(1.05, 2.0)
        drifting = calm * np.linspace(1.0, 1.019, COUNT)
        recovering = calm.copy()
        recovering[150:300] *= 1.3
        faster = calm * np.where(np.arange(COUNT) < 200, 1.1, 1.0)
        curves = [curve_of(told(us)) for us in (calm, dipping, drifting, recovering, faster)]
        found.append([curve.onset_s is not None for curve in curves])
        excluded.append(curves[0].interval is None or not curves[0].interval.has(1.0))
    assert np.mean(found, axis=0).max() <= 0.01
    assert np.mean(excluded) <= 0.02


def test_no_slow_down_is_said_where_there_is_none() -> None:
    source = np.random.default_rng(8)
    words = [curve_of(told(Noise(0.3, 0.005).curve(source))).message for _ in range(50)]
    none = [word for word in words if word.startswith("no slow-down ")]
    assert len(none) >= 45


def test_warm_up_at_the_beginning_is_no_speed() -> None:
    us = np.concatenate([np.full(8, 2 * STEP_US), np.full(592, STEP_US)])
    curve = curve_of(told(us))
    assert (curve.first_us, curve.sustained_us, curve.ratio, curve.onset_s) == (STEP_US, STEP_US, 1.0, None)


def test_a_board_that_is_fast_for_seconds_slows_down_after_them() -> None:
    us = np.concatenate([np.full(24, STEP_US), np.full(576, 1.4 * STEP_US)])
    curve = curve_of(told(us * np.random.default_rng(9).normal(1, 0.002, 600)))
    assert curve.onset_s == pytest.approx(24, abs=6)
    assert curve.ratio == pytest.approx(1.4, rel=0.01), "the beginning is what was before"


def test_too_few_windows_say_nothing() -> None:
    for us in ([STEP_US], [STEP_US] * 10, [STEP_US] * 5 + [2 * STEP_US] * 5):
        curve = curve_of(told(us))
        assert (curve.interval, curve.onset_s, curve.message) == (None, None, "cannot tell: too few windows")


def test_windows_without_steps_are_passed_over() -> None:
    us = [STEP_US * 1e3] * 40 + [STEP_US * 1.3e3] * 80
    windows = [part for one in us for part in (SustainedWindow(0), SustainedWindow(1, one, one))]
    found = Sustained(1.0, tuple(windows), 120, 8, 2, 1e9, "time")
    curve = curve_of(found)
    assert curve.lasted_s == 240.0
    assert curve.ratio == pytest.approx(1.3)
    assert curve.onset_s == pytest.approx(80, abs=4)
    late = Sustained(1.0, (SustainedWindow(0),) * 9 + (SustainedWindow(1, 9.5e6, 9.5e6),), 1, 8, 2, 1e9, "time")
    assert curve_of(late).message.startswith("cannot tell: too few windows")


def test_steps_that_do_not_fill_the_time_are_told_of() -> None:
    windows = (SustainedWindow(100, 1000.0, 1000.0),) * 100
    curve = curve_of(Sustained(1.0, windows, 10_000, 8, 2, 1e9, "time"))
    assert curve.busy == pytest.approx(0.1)
    assert curve.message.endswith("; its steps fill 10% of the time")


def test_what_the_board_said_stands_beside() -> None:
    us = [STEP_US] * 300 + [1.3 * STEP_US] * 300
    states = [
        DeviceState(1e9 + at, frequency_hz=1.8e9 if at < 290 else 1.4e9, throttled=at >= 290) for at in range(-5, 620)
    ]
    curve = curve_of(told(us), states)
    assert (curve.throttled_s, curve.clock_hz) == (290.0, (1.8e9, 1.4e9))
    assert re.findall(r"[\d,]+ (?:min|s|MHz)\b", curve.board_message) == ["4 min", "50 s", "1,800 MHz", "1,400 MHz"]
    silent = curve_of(told(us), [DeviceState(1e9 + at) for at in range(600)])
    assert (silent.throttled_s, silent.clock_hz, silent.board_message) == (None, None, "")
    assert curve.onset_s == silent.onset_s, "its word decides nothing"


def test_words() -> None:
    assert (
        slow_down_text(1.18, Interval(1.16, 1.2), 250.0, 600.0)
        == "slows down after 4 min 10 s, by 1.18× (1.16 to 1.20×)"
    )
    assert (
        slow_down_text(1.0, Interval(0.99, 1.01), None, 600.0)
        == "no slow-down of 2% or more in 10 min (0.990 to 1.010×)"
    )
    assert slow_down_text(1.1, Interval(1.05, 1.15), None, 600.0).startswith(
        "slower at the end, by 1.10× (1.05 to 1.15×)"
    )
    assert slow_down_text(1.01, Interval(0.97, 1.05), None, 600.0) == "cannot tell (0.97 to 1.05×)"
    assert slow_down_text(1.0, Interval(0.1, 9.0), None, 600.0) == "cannot tell: its times vary too much"
    assert [format_duration(seconds) for seconds in (0.2, 45, 60, 250, 3600)] == [
        "0 s",
        "45 s",
        "1 min",
        "4 min 10 s",
        "60 min",
    ]


def test_memory_of_neighbours_is_known_from_the_values() -> None:
    source = np.random.default_rng(10)
    for keeps in (0.0, 0.5, 0.8):
        values = np.log(Noise(keeps, 0.01).curve(source, 20_000))
        rising = values + np.linspace(0, 5, len(values))
        for one in (values, rising):
            assert memory([list(one)]) == pytest.approx(keeps, abs=0.08)
    assert memory([[1.0] * 50]) == memory([[1.0]]) == 0.0


def test_a_rule_that_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    source = np.random.default_rng(11)
    monkeypatch.setattr(sustained, "PRICE", 0.0)
    monkeypatch.setattr(sustained, "EFFECT", 1e-4)
    wrong = [onset_of(list(Noise(0.8, 0.01).curve(source))) is not None for _ in range(40)]
    assert np.mean(wrong) > 0.1
