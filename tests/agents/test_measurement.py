"""Statistics against NumPy; each verdict by data made to deserve it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy
import pytest

from device_agents.devices import Reading
from device_agents.figures.one_run import run_interval
from device_agents.measure.measurement import judge, measure, percentile
from device_agents.measure.sampler import LoadMeter, Sampler
from device_agents.wire import BENCH_PROTOCOL, Block, DeviceState, Measurement, PowerRange
from tests.waiting import HANG_S


def measured(*blocks: list[float]) -> Measurement:
    return measure([Block(tuple(block)) for block in blocks], batch=8, warmup_steps=3, threads=2)


def test_figures_are_numpys() -> None:
    rng = numpy.random.default_rng(0)
    data = rng.lognormal(8, 0.05, (5, 30))
    result = measured(*data.tolist())
    medians = numpy.median(data, axis=1)
    assert result.median_us == pytest.approx(numpy.median(medians))
    assert result.p90_us == pytest.approx(numpy.percentile(data, 90))
    assert result.p99_us == pytest.approx(numpy.percentile(data, 99))
    assert result.mean_us == pytest.approx(data.mean())
    assert result.cv_between == pytest.approx(medians.std(ddof=1) / medians.mean())
    assert result.cv_within == pytest.approx(numpy.median(data.std(axis=1, ddof=1) / data.mean(axis=1)))
    assert result.samples_per_second == pytest.approx(8e6 / data.mean())
    interval = run_interval(medians.tolist())
    assert interval is not None
    assert (result.interval_low_us, result.interval_high_us) == tuple(interval)
    assert result.protocol == BENCH_PROTOCOL
    assert result == measured(*data.tolist()), "nothing is drawn"


def test_too_few_blocks_have_no_interval() -> None:
    few = measured([100.0, 101.0], [102.0, 103.0], [99.0, 98.0], [100.0, 100.0])
    assert (few.interval_low_us, few.interval_high_us) == (None, None)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.9, 1.0])
def test_percentile(count: int, fraction: float) -> None:
    values = list(numpy.random.default_rng(count).normal(size=count))
    assert percentile(values, fraction) == pytest.approx(numpy.percentile(values, 100 * fraction))


STEADY = [[100.0, 101.0, 99.0, 100.5]] * 5
CALM = [DeviceState(float(i), frequency_hz=2e9, throttled=False, load=0.01) for i in range(20)]


def clock(shares: dict[int, float]) -> list[DeviceState]:
    """A hundred samples, a fifth of a second apart, of a clock that is so much lower in some."""
    return [DeviceState(n / 5, frequency_hz=2e9 * shares.get(n, 1.0)) for n in range(100)]


@pytest.mark.parametrize(
    ("blocks", "states", "kind"),
    [
        (STEADY, CALM, "valid"),
        (STEADY, [], "valid"),
        ([[100.0, 101.0]], CALM, "noisy"),
        ([[100.0] * 4, [80.0] * 4, [120.0] * 4, [90.0] * 4, [100.0] * 4], CALM, "noisy"),
        ([[50.0, 100.0, 150.0, 100.0]] * 5, CALM, "noisy"),
        ([[100.0 + 3 * i] * 4 for i in range(5)], CALM, "drifting"),
        ([[100.0] * 6 + [120.0] * 6], CALM, "drifting"),
        (STEADY, [*CALM, DeviceState(9.0, throttled=True)], "throttled"),
        (STEADY, [DeviceState(float(i), frequency_hz=2e9 - 3e7 * i) for i in range(20)], "throttled"),
        (STEADY, clock(dict.fromkeys(range(40, 50), 0.8)), "throttled"),
        (STEADY, clock(dict.fromkeys(range(40, 48), 0.8)), "valid"),
        (STEADY, clock(dict.fromkeys(range(6, 9), 0.8))[:9], "throttled"),
        (STEADY, clock({n: 0.8 for n in range(100) if n != 30}), "valid"),
        (STEADY, clock({n: 0.8 for n in range(40, 60) if n != 50}), "throttled"),
        (STEADY, [DeviceState(float(i), load=0.8) for i in range(20)], "disturbed"),
    ],
)
def test_verdicts(blocks: list[list[float]], states: list[DeviceState], kind: str) -> None:
    verdict = judge(measured(*blocks), states, cores=4)
    assert verdict.kind == kind
    assert any(letter.isdigit() for letter in verdict.rule), "the rule gives its figures"


def test_an_emulated_run_is_judged_by_its_function_only() -> None:
    for blocks, states in ((STEADY, CALM), ([[1.0]], []), ([[50.0, 100.0]] * 5, [DeviceState(1.0, throttled=True)])):
        assert judge(measured(*blocks), states, cores=4, is_emulated=True).kind == "function"


def test_sampler_keeps_throttling_and_a_bounded_number_of_states() -> None:
    sampler = Sampler(lambda: Reading(), PowerRange(0.0, 5e6), interval_s=0.001)
    for index in range(3000):
        sampler._take(Reading(temperature_c=float(index), throttled=index == 1501))
    states = sampler.states()
    assert 300 <= len(states) <= 601
    assert any(state.throttled for state in states)
    assert states[0].temperature_c == 0.0


def test_a_broken_sensor_costs_its_sample_and_not_the_watch() -> None:
    readings = iter((Reading(temperature_c=1e300), Reading(temperature_c=float("nan")), Reading(temperature_c=40.0)))
    done = threading.Event()

    def read() -> Reading:
        reading = next(readings, None)
        if reading is None:
            done.set()
        return reading or Reading(temperature_c=41.0)

    with Sampler(read, PowerRange(0.0, 5e6), interval_s=0.001) as sampler:
        assert done.wait(HANG_S)
    assert {state.temperature_c for state in sampler.states()} <= {40.0, 41.0}
    assert sampler.states()[0].temperature_c == 40.0


def test_load_meter_sees_this_machine() -> None:
    meter = LoadMeter()
    assert meter.cores() is None
    sum(range(2_000_000))
    load = meter.cores()
    assert load is None or load >= 0.0


class PlayedProc:
    """A `/proc` of four CPUs, with a job of process 70; seconds become ticks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.meter = LoadMeter(root)
        self.meter.job_pid = 70

    def look(self, now_s: float, *, busy_s: float, job_s: float | None = None, started: int = 5) -> float | None:
        rate = os.sysconf("SC_CLK_TCK")
        rows = [f"cpu  {int(busy_s * rate)} 0 0 999 0 0 0 0 0 0", *(f"cpu{n} 0 0 0 0 0 0 0 0 0 0" for n in range(4))]
        (self.root / "stat").write_text("\n".join([*rows, "intr 1", ""]))
        (self.root / "70").mkdir(exist_ok=True)
        if job_s is not None:
            fields = ["S", *["0"] * 10, str(int(job_s * rate)), "0", *["0"] * 6, str(started), "0"]
            (self.root / "70" / "stat").write_text(f"70 (a step) {' '.join(fields)}")
        return self.meter.cores(now_s)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedProc:
    monkeypatch.setattr(os, "times", lambda: os.times_result((0.0,) * 5))
    return PlayedProc(tmp_path)


def test_load_is_what_neither_job_nor_agent_used(proc: PlayedProc) -> None:
    assert proc.look(0.0, busy_s=1000.0, job_s=3.0) is None
    assert proc.look(2.0, busy_s=1005.0, job_s=7.0) == pytest.approx(0.5)
    assert proc.look(4.0, busy_s=1009.0, job_s=11.0) == pytest.approx(0.0)


def test_a_process_number_that_comes_again_takes_nothing_back(proc: PlayedProc) -> None:
    proc.look(0.0, busy_s=1000.0, job_s=900.0)
    assert proc.look(2.0, busy_s=1002.0, job_s=2.0, started=90_000) == pytest.approx(0.0)


def test_counters_that_cannot_be_cost_their_own_interval(proc: PlayedProc) -> None:
    proc.look(0.0, busy_s=1000.0, job_s=3.0)
    assert proc.look(2.0, busy_s=40.0, job_s=7.0) is None, "it fell: a container's stat began anew"
    assert proc.look(4.0, busy_s=44.0, job_s=10.0) == pytest.approx(0.5), "the next one counts again"
    assert proc.look(6.0, busy_s=90_044.0, job_s=10.0) is None, "more than four CPUs have"
    (proc.root / "stat").write_text("nonsense")
    assert proc.meter.cores(8.0) is None
    assert proc.look(10.0, busy_s=90_046.0, job_s=12.0) is None, "there is nothing to compare with"
    assert proc.look(12.0, busy_s=90_050.0, job_s=14.0) == pytest.approx(1.0)


def test_a_job_that_is_seen_late_is_not_subtracted_from_others_all_at_once(proc: PlayedProc) -> None:
    proc.look(0.0, busy_s=1000.0)
    assert proc.look(2.0, busy_s=1008.0, job_s=500.0) is None
    assert proc.look(4.0, busy_s=1016.0, job_s=506.0) == pytest.approx(1.0)
