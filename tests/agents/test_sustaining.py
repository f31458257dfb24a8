"""Mode sustained on this machine, with the real binary, with one that knows no signal, and with those that lie."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from device_agents.errors import Stopped
from device_agents.execute import run_bundle
from device_agents.figures.sustained import window_count
from device_agents.job.execution import Sustaining
from device_agents.job.step_events import MAX_PROCESS_STEPS, StepDone, read_event
from device_agents.job.sustained import SustainedFindings
from device_agents.wire import (
    ProtocolError,
    Report,
    RunSettings,
    Sustained,
    SustainedWindow,
    check_plausible,
    dumps,
    from_json,
    loads,
    to_json,
)
from tests.agents.fake_step import bundle as fake_bundle
from tests.agents.real_step import real_bundle, real_data

SETTINGS = RunSettings("sustained", sustain_s=10.0)
LASTS_S, WINDOW_S, STEP_S = 2000.0, 100.0, 11.0
"""By a clock of steps; far more than what real ones take."""

STEPS = """#!@PYTHON@ -S
import json, os, signal, sys, time
def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)
say("start", arena_bytes=1000, weights_bytes=64, optimizer_bytes=32, threads=1)
for number in range(1, @STEPS@ + 1):
    time.sleep(0.001)
    say("step", step=number, loss=0.5, us=@US@)
say("done", peak_rss_bytes=4096, steps=@STEPS@)
"""


@dataclass
class StepClock:
    """Goes on by `step_s` with each step that is heard of, however long that took."""

    step_s: float = STEP_S
    passed_s: float = 0.0
    began_s: float = field(default_factory=time.monotonic)

    def monotonic(self) -> float:
        return self.began_s + self.passed_s

    def time(self) -> float:
        return time.time()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StepClock:
    """Twenty windows by this clock."""
    clock, take = StepClock(), Sustaining._take

    def take_later(self: Sustaining, us: float) -> None:
        clock.passed_s += clock.step_s
        take(self, us)

    monkeypatch.setattr(Sustaining, "_take", take_later)
    monkeypatch.setattr("device_agents.job.execution.time", clock)
    monkeypatch.setattr("device_agents.job.execution.lasts_s", lambda *_: LASTS_S)
    monkeypatch.setattr("device_agents.figures.sustained.LEAST_WINDOW_S", WINDOW_S)
    return clock


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_bundle(tmp_path_factory.mktemp("real"), slow=True)


def stepping(folder: Path, *, steps: int = 1_000_000, us: float = 1.0, then: str = "") -> Path:
    """A bundle whose binary does no more than that, and dies of signals."""
    text = STEPS.replace("@PYTHON@", sys.executable).replace("@STEPS@", str(steps)).replace("@US@", str(us))
    text = text.replace("for number", f"{then}\nfor number")
    path = folder / "fake.pfb"
    path.write_bytes(fake_bundle(step=text.encode()))
    return path


@pytest.mark.usefixtures("clock")
def test_a_process_goes_on_until_its_time_is_over(real: Path) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    result = run_bundle(real, SETTINGS, notify=lambda kind, **said: told.append((kind, said)))
    assert result.error is None
    report = result.report
    found = report.sustained
    assert found is not None
    assert (found.window_s, len(found.windows), found.ended) == (WINDOW_S, round(LASTS_S / WINDOW_S), "time")
    assert found.steps == sum(window.steps for window in found.windows)
    times = [window.median_us for window in found.windows if window.median_us is not None]
    assert min(times) >= 900.0, "its steps take a millisecond by the clock"
    assert found.steps == math.ceil(LASTS_S / STEP_S)
    assert report.started_at <= found.began_at <= report.finished_at
    assert (report.measurement, report.verdict, report.losses) == (None, None, ()), "it is no measurement that ranks"
    assert report.memory.peak_rss_bytes, "the signal ends it with its last event"
    assert loads(Report, dumps(report)) == report
    fractions = [fields["fraction"] for kind, fields in told if kind == "progress"]
    assert fractions == sorted(fractions)
    assert not [kind for kind, _ in told if kind == "step"], "millions of steps are no events"


@pytest.mark.usefixtures("clock")
def test_samples_may_be_a_data_set_or_made_up(real: Path, tmp_path: Path) -> None:
    result = run_bundle(real, SETTINGS, data=real_data(tmp_path / "data.npz"))
    assert (result.error, result.report.sustained is not None) == (None, True)


@pytest.mark.usefixtures("clock", "scripts_for_binaries")
def test_a_binary_that_dies_of_the_signal_has_ended_rightly(tmp_path: Path) -> None:
    result = run_bundle(stepping(tmp_path), SETTINGS)
    assert result.error is None
    assert result.report.sustained is not None
    assert result.report.sustained.ended == "time"


@pytest.mark.usefixtures("clock", "scripts_for_binaries")
def test_a_binary_that_ignores_the_signal_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_agents.job.step.GRACE_S", 0.3)
    file = stepping(tmp_path, then="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    assert run_bundle(file, SETTINGS).error is None


@pytest.mark.usefixtures("scripts_for_binaries")
def test_steps_longer_than_a_window_leave_windows_without_one(tmp_path: Path, clock: StepClock) -> None:
    clock.step_s = 350.0
    found = run_bundle(stepping(tmp_path), SETTINGS).report.sustained
    assert found is not None
    assert [place for place, one in enumerate(found.windows) if one.steps] == [0, 3, 7, 10, 14, 17]
    assert [one for one in found.windows if one.steps == 0] == [SustainedWindow(0)] * 14


@pytest.mark.usefixtures("scripts_for_binaries")
def test_no_step_in_all_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_agents.job.execution.lasts_s", lambda *_: 0.2)
    report = run_bundle(stepping(tmp_path, then="time.sleep(600)"), SETTINGS).report
    assert (report.outcome.code, report.sustained) == ("step.incomplete", None)


@pytest.mark.usefixtures("clock", "scripts_for_binaries")
@pytest.mark.parametrize(
    ("made", "code"),
    [
        ({"steps": 50}, "step.incomplete"),
        ({"us": 1e12}, "step.output"),
        ({"us": -1.0}, "step.output"),
        ({"then": "sys.exit(4)"}, "limits.step"),
        ({"then": "os.kill(os.getpid(), signal.SIGTERM)"}, "step.killed"),
    ],
)
def test_a_binary_that_ends_early_or_lies_fails(tmp_path: Path, made: dict[str, Any], code: str) -> None:
    report = run_bundle(stepping(tmp_path, **made), SETTINGS).report
    assert report.outcome.code == code
    assert report.sustained is None or report.sustained.ended == "cut"


@pytest.mark.usefixtures("clock", "scripts_for_binaries")
def test_a_binary_that_talks_too_much_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_agents.job.execution.OUTPUT_BYTES_PER_S", 1)
    outcome = run_bundle(stepping(tmp_path), SETTINGS).report.outcome
    assert (outcome.code, "bytes of output" in outcome.message) == ("step.output", True)


def test_one_that_is_ended_leaves_its_whole_windows(real: Path, clock: StepClock) -> None:
    clock.step_s = 1.0

    def stop() -> Stopped | None:
        return Stopped("test", "enough", cause="infra") if clock.passed_s > 2 * WINDOW_S else None

    report = run_bundle(real, SETTINGS, should_stop=stop).report
    assert report.outcome.code == "test"
    assert report.sustained is not None
    assert report.sustained.ended == "cut"
    assert 2 <= len(report.sustained.windows) < LASTS_S / WINDOW_S


def test_times_of_an_emulated_board_are_not_sustained(tmp_path: Path) -> None:
    file = real_bundle(tmp_path, target="raspberry-pi-4", required_features=[])
    outcome = run_bundle(file, SETTINGS, runner="qemu-aarch64-static").report.outcome
    assert (outcome.cause, outcome.code) == ("user", "sustained.emulated")


def test_settings_that_cannot_be() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"sustain_s": 9.0}, "sustain_s: must be 10.0 to 3,600.0"),
        ({"sustain_s": 3601.0}, "sustain_s"),
        ({"time_limit_s": 700.0}, "time_limit_s: must be left out, or at least 750: 600 s are to be sustained"),
        ({"sustain_s": 100.0, "time_limit_s": 100.0}, "at least 125"),
    )
    for given, words in cases:
        with pytest.raises(ProtocolError, match=words):
            RunSettings("sustained", **given)
    assert RunSettings("sustained", sustain_s=100.0, time_limit_s=125.0).sustained_s == 100.0
    assert RunSettings("profile", time_limit_s=10.0).time_limit_s == 10.0


def test_windows_are_six_hundred_or_of_a_second() -> None:
    assert [window_count(lasts_s) for lasts_s in (0.5, 10, 10.5, 599, 600, 601, 3600)] == [
        1,
        10,
        10,
        599,
        600,
        600,
        600,
    ]


def test_steps_count_for_the_window_in_which_they_were_heard_of() -> None:
    found = SustainedFindings(batch=4, count=3, window_s=1.0)
    assert found.report() is None
    for us, at_s in ((10.0, 0.1), (30.0, 0.2), (20.0, 0.9), (99.0, 2.5), (5.0, 3.1)):
        found.take(us, at_s)
    assert found.windows == [SustainedWindow(3, 20.0, 28.0), SustainedWindow(0), SustainedWindow(1, 99.0, 99.0)]
    assert found.steps == 4


@pytest.mark.usefixtures("clock")
def test_what_cannot_be_is_no_sustained_run(real: Path) -> None:
    report = run_bundle(real, SETTINGS).report
    report = replace(report, run_s=LASTS_S + 1, finished_at=report.finished_at + LASTS_S)
    sustained = report.sustained
    assert sustained is not None
    check_plausible(report, device_of(report))
    told = to_json(sustained)
    one = told["windows"][0]
    changes: tuple[dict[str, Any], ...] = (
        {"window_s": 0.0},
        {"window_s": 4000.0},
        {"windows": []},
        {"steps": told["steps"] + 1},
        {"batch": 0},
        {"threads": -1},
        {"ended": "soon"},
        {"protocol": "sustained/9"},
        {"began_at": -1.0},
        {"windows": [one] * 3601},
        {"windows": [{**one, "median_us": None}], "steps": one["steps"]},
        {"windows": [{"steps": 0, "median_us": 5.0, "p90_us": 5.0}], "steps": 0},
        {"windows": [{"steps": 5, "median_us": 5.0, "p90_us": 4.0}], "steps": 5},
        {"windows": [{"steps": 5, "median_us": 1e-300, "p90_us": 4.0}], "steps": 5},
        {"windows": [{"steps": 1000, "median_us": 1e6, "p90_us": 1e6}], "steps": 1000},
        {"windows": [{"steps": 0}], "steps": 0},
        {"windows": [{"steps": -1}], "steps": -1},
    )
    for change in changes:
        with pytest.raises(ProtocolError):
            from_json(Sustained, {**told, **change})
    with pytest.raises(ProtocolError, match="sustained"):
        replace(report, mode="profile")
    assert report.sustained is not None
    for other, where in (
        (replace(report, run_s=0.5), "sustained.windows"),
        (replace(report, sustained=replace(sustained, began_at=report.finished_at + 900)), "sustained.began_at"),
        (replace(report, sustained=replace(sustained, began_at=report.started_at - 900)), "sustained.began_at"),
    ):
        with pytest.raises(ProtocolError, match=where):
            check_plausible(other, device_of(other))


def device_of(report: Report) -> Any:
    """A board on which nothing else is impossible."""

    class Board:
        measurement_class = report.measurement_class
        memory_bytes = 1 << 40

    return Board()


def test_a_step_that_is_seen_at_a_glance_is_the_same_as_one_that_is_parsed() -> None:
    lines = (
        b'{"event":"step","step":%d,"loss":%s,"us":%s}' % text
        for text in (
            (1, b"null", b"1"),
            (7, b"-1.5e-07", b"2.25"),
            (MAX_PROCESS_STEPS, b"0.30000000000000004", b"1e3"),
        )
    )
    for line in lines:
        spaced = line.replace(b",", b", ")
        assert read_event(line) == read_event(spaced)
        assert isinstance(read_event(line), StepDone)
    for wrong in (b'{"event":"step","step":%s,"loss":1,"us":1}' % step for step in (b"0", b"9999999999", b"-1", b"01")):
        with pytest.raises(ProtocolError):
            read_event(wrong)
    for wrong in (b'{"event":"step","step":1,"loss":1,"us":%s' % rest for rest in (b"0}", b"-1}", b"1e999}", b"1}x")):
        with pytest.raises(ProtocolError):
            read_event(wrong)
