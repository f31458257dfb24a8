"""What an agent measures beside the truth: known times and allocations of real processes here; throttles and energy of
boards made of text, in the formats that the device modules name. Nothing synthetic was read from a board, and it is
labelled so.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from device_agents.devices import Board, DeviceKind, host, jetson, raspberry_pi, snapdragon
from device_agents.execute import run_bundle
from device_agents.measure.energy import EnergyMeter
from device_agents.measure.measurement import judge, measure
from device_agents.measure.sampler import INTERVAL_S, StateLog
from device_agents.wire import Block, DeviceState, Report, RunSettings
from tests.agents.real_step import real_bundle
from tests.agents.test_devices import ORIN_NANO, PI_4, PI_5, SM8550
from tests.thorough.calibration.curves import NEAR, looked_at

SPINS_US = (1_000, 3_000, 10_000)
LEAST_SPIN_US = 1
SPIN_SHARE, SPIN_SLACK_US = 0.01, 20.0
ALLOCATIONS = (16 << 20, 64 << 20, 256 << 20)
ALLOCATION_SHARE, ENERGY_SHARE = 0.03, 0.02
ONSET_SHARE = 0.02
CURVES_A_TRIAL = 10
"""A curve is looked at in some hundredths of a second."""
PROFILE = RunSettings("profile", steps=50)


@dataclass(frozen=True)
class Check:
    """One figure beside what it must be; in the same unit."""

    where: str
    what: str
    found: float
    limit: float
    unit: str

    @property
    def is_kept(self) -> bool:
        return self.found <= self.limit


def checks(trials: int, *, seed: int) -> Iterator[Check]:
    """All of them; `trials` of each board's traces."""
    yield from spins()
    yield from allocations()
    for name, trace in TRACES.items():
        found = [_is_throttled(trace, random.Random(f"{seed}/{name}/{number}"), number) for number in range(trials)]
        yield Check(f"synthetic {name}", "throttled for 2 s or more: missed", found.count((True, False)), 0, "traces")
        yield Check(f"synthetic {name}", "never throttled: called so", found.count((False, True)), 0, "traces")
    for name, rail in RAILS.items():
        errors = [_energy_error(rail, random.Random(f"{seed}/{name}/{number}")) for number in range(trials)]
        yield Check(f"synthetic {name}", "energy: largest error", 100 * max(errors), 100 * ENERGY_SHARE, "%")
    yield from curves(CURVES_A_TRIAL * trials, seed=seed)


def curves(trials: int, *, seed: int) -> Iterator[Check]:
    """Onsets of slow-downs that are injected into curves of sustained runs."""
    found = [looked_at(random.Random(f"{seed}/curve/{number}"), number) for number in range(trials)]
    with_one = sum(one.onset is not None for one in found) or 1
    missed = 100 * sum(one.is_missed for one in found) / with_one
    invented = 100 * sum(one.is_invented for one in found) / max(1, trials - with_one)
    said = f"onset of injected slow-downs: missed, or {NEAR:.0%} off"
    yield Check("synthetic sustained curves", said, missed, 100 * ONSET_SHARE, "%")
    yield Check("synthetic sustained curves", "found where there is none", invented, 100 * ONSET_SHARE, "%")


def profiled(**made: int | bool) -> Report:
    """A real profile run of a bundle of the tests, as an agent starts it."""
    with tempfile.TemporaryDirectory() as folder:
        report = run_bundle(real_bundle(Path(folder), threads=1, **made), PROFILE).report  # type: ignore[arg-type]
    assert report.measurement is not None, report.outcome
    return report


def spins() -> Iterator[Check]:
    """Steps that spin so long by the clock, beside the same step that hardly does."""
    none = _median_us(profiled(slow=True, spin_us=LEAST_SPIN_US))
    for spin_us in SPINS_US:
        error = abs(_median_us(profiled(slow=True, spin_us=spin_us)) - none - spin_us)
        limit = SPIN_SHARE * spin_us + SPIN_SLACK_US
        yield Check("here", f"spin of {spin_us / 1000:g} ms: error of the step's median", error, limit, "us")


def _median_us(report: Report) -> float:
    assert report.measurement is not None
    return report.measurement.median_us


def allocations() -> Iterator[Check]:
    """Weights that are so many bytes larger, in the peak of the process."""
    none = profiled().memory.peak_rss_bytes or 0
    for size in ALLOCATIONS:
        found = (profiled(spare_elements=size // 4).memory.peak_rss_bytes or 0) - none
        error = 100 * abs(found / size - 1)
        yield Check("here", f"{size >> 20} MiB more: error of the peak", error, 100 * ALLOCATION_SHARE, "%")


@dataclass(frozen=True)
class Trace:
    """A board of text whose clock, or whose word for it, changes as it throttles."""

    kind: DeviceKind
    files: Mapping[str, str]
    throttled: Callable[[bool], tuple[Mapping[str, str], Mapping[str, str]]] = lambda _: ({}, {})
    """Files and outputs of tools that say it."""
    is_by_clock: bool = False
    """Nothing says it but the clock, which falls."""


@dataclass
class Text:
    """Files and tools of a board, in memory."""

    files: dict[str, str] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)


class TextBoard(Board):
    """A board whose files are in memory: thousands of looks a second."""

    def __init__(self, text: Text) -> None:
        super().__init__(Path("/nowhere"), lambda argv, _: text.tools.get(" ".join(argv)))
        object.__setattr__(self, "_text", text)

    def text(self, path: str) -> str | None:
        found = self._text.files.get(path)  # type: ignore[attr-defined]
        return None if found is None else found.strip("\0 \t\r\n")

    def folders(self, pattern: str) -> list[str]:
        depth = pattern.count("/")
        known = {"/".join(path.split("/")[: depth + 1]) for path in self._text.files}  # type: ignore[attr-defined]
        return sorted(path for path in known if Path(path).match(pattern))


def _pi_word(is_on: bool) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return {}, {"vcgencmd get_throttled": f"throttled=0x{0x50000 | (0x4 if is_on else 0):x}\n"}


def _pi_file(is_on: bool) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return {"/sys/devices/platform/soc/soc:firmware/get_throttled": "50002" if is_on else "50000"}, {}


def _cooling(is_on: bool) -> tuple[Mapping[str, str], Mapping[str, str]]:
    device = "/sys/class/thermal/cooling_device0"
    return {f"{device}/type": "cpufreq-cpu0\n", f"{device}/cur_state": f"{3 if is_on else 0}\n"}, {}


def _android(is_on: bool) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return {"/system/build.prop": "x"}, {"dumpsys thermalservice": f"Thermal Status: {2 if is_on else 0}\n"}


TRACES: Mapping[str, Trace] = {
    "Raspberry Pi 4, vcgencmd": Trace(raspberry_pi.KIND, PI_4, _pi_word),
    "Raspberry Pi 5, sysfs word": Trace(raspberry_pi.KIND, PI_5, _pi_file),
    "Raspberry Pi 4, clock alone": Trace(raspberry_pi.KIND, PI_4, is_by_clock=True),
    "Jetson, cooling device": Trace(jetson.KIND, ORIN_NANO, _cooling),
    "Jetson, clock alone": Trace(jetson.KIND, ORIN_NANO, is_by_clock=True),
    "Snapdragon, cooling device": Trace(snapdragon.KIND, SM8550, _cooling),
    "Snapdragon, Android": Trace(snapdragon.KIND, SM8550, _android),
    "Snapdragon, clock alone": Trace(snapdragon.KIND, SM8550, is_by_clock=True),
}
"""Beside the formats that the device modules name."""
CALM = measure([Block((100.0, 101.0, 99.0, 100.5))] * 5, batch=8, warmup_steps=0, threads=2)
CLOCK = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"


def _is_throttled(trace: Trace, source: random.Random, number: int) -> tuple[bool, bool]:
    """(whether the board was throttled for 2 s or more, whether the verdict says so)."""
    lasts_s = source.choice((10.0, 60.0, 240.0, 1200.0)) * source.uniform(0.8, 1.2)
    takes_s = source.choice((2.0, 2.5, source.uniform(2.0, min(60.0, lasts_s / 2))))
    begins_s = source.uniform(0.0, lasts_s - takes_s)
    depth, is_hurt = source.uniform(0.5, 0.85), number % 2 == 0
    text, log = Text(dict(trace.files)), StateLog()
    board, now_s = TextBoard(text), 0.0
    dip_s = -1.0  # when the last dip of the governor's ends, of a second at most: that is no throttle
    while now_s < lasts_s:
        is_on = is_hurt and begins_s <= now_s < begins_s + takes_s
        dip_s = now_s + source.uniform(0.2, 1.0) if now_s > dip_s + 1.0 and source.random() < 0.01 else dip_s
        share = depth if is_on and trace.is_by_clock else 0.7 if now_s < dip_s else 1.0
        for core in (0, 1):
            text.files[CLOCK.format(core)] = f"{1_800_000 * share * (1 + source.gauss(0, 0.02)):.0f}\n"
        files, tools = trace.throttled(is_on)
        text.files.update(files)
        text.tools.update(tools)
        reading = trace.kind.read(board)
        log.add(DeviceState(1e9 + now_s, reading.temperature_c, reading.frequency_hz, reading.throttled))
        now_s += INTERVAL_S * source.uniform(0.9, 1.3)
    return is_hurt, judge(CALM, log.samples, cores=4, clock=log.clock).kind == "throttled"


Rail = tuple[DeviceKind, Mapping[str, str], Callable[[float, float, Text], None]]
"""A board, its files, and how it tells of power now (mW) and energy so far (mJ)."""


def _ina3221(power_mw: float, _: float, text: Text) -> None:
    text.files["/sys/class/hwmon/hwmon1/curr1_input"] = f"{power_mw / 5:.0f}\n"


def _tegrastats(power_mw: float, _: float, text: Text) -> None:
    for name in [name for name in text.files if "hwmon" in name]:
        del text.files[name]
    text.tools["tegrastats --interval 100"] = f"cpu@47.9C VDD_IN {power_mw:.0f}mW/{power_mw:.0f}mW\n"


def _pmic(power_mw: float, _: float, text: Text) -> None:
    core = (power_mw / 1000 - 0.37) / 0.8
    text.tools["vcgencmd pmic_read_adc"] = (
        f"     3V7_WL_SW_A current(0)=0.10000000A\n   VDD_CORE_A current(7)={core:.8f}A\n"
        "     3V7_WL_SW_V volt(8)=3.70000000V\n   VDD_CORE_V volt(15)=0.80000000V\n"
    )


def _battery(power_mw: float, _: float, text: Text) -> None:
    text.files["/sys/class/power_supply/battery/current_now"] = f"{-power_mw / 4 * 1000:.0f}\n"


def _rapl(_: float, energy_mj: float, text: Text) -> None:
    text.files["/sys/class/powercap/intel-rapl:0/energy_uj"] = f"{1000 * energy_mj:.0f}\n"


RAILS: Mapping[str, Rail] = {
    "Jetson, INA3221": (jetson.KIND, ORIN_NANO, _ina3221),
    "Jetson, tegrastats": (jetson.KIND, ORIN_NANO, _tegrastats),
    "Raspberry Pi 5, PMIC": (raspberry_pi.KIND, PI_5, _pmic),
    "Snapdragon, battery": (snapdragon.KIND, SM8550, _battery),
    "host, RAPL": (host.KIND, {"/sys/class/powercap/intel-rapl:0/name": "package-0\n"}, _rapl),
}
SLICE_S = 0.001
MOST_MW = 1e5
"""Above what any of the rails carries."""


def _energy_error(rail: Rail, source: random.Random) -> float:
    """Of the sum of a run of half a minute, relative: power that swings by the second, loads that come and go."""
    kind, files, tell = rail
    text, meter = Text(dict(files)), EnergyMeter(MOST_MW)
    board, next_s, energy_mj, told_mj = TextBoard(text), 0.0, 0.0, []
    swing, period_s, phase = source.uniform(0.1, 0.5), source.uniform(2.0, 9.0), source.uniform(0, 6)
    rests = {second for second in range(30) if source.random() < 0.2}
    meter.is_on = True
    for tick in range(round(30 / SLICE_S)):
        now_s = tick * SLICE_S
        power_mw = 4000 * (1 + swing * math.sin(2 * math.pi * now_s / period_s + phase))
        power_mw *= 0.5 if int(now_s) in rests else 1.0
        if now_s >= next_s:
            tell(power_mw, energy_mj, text)
            meter.add(kind.read(board), now_s)
            told_mj.append(energy_mj)
            next_s = now_s + INTERVAL_S * source.uniform(0.9, 1.3)
        energy_mj += power_mw * SLICE_S
    use = meter.use()
    assert use is not None, "the sensor was read"
    assert use.total_mj is not None, use.notes
    return abs(use.total_mj / (told_mj[-1] - told_mj[0]) - 1)


def shown(found: Iterator[Check]) -> bool:
    """Print each; whether all are kept."""
    are_kept = True
    for one in found:
        word = "kept" if one.is_kept else "BROKEN"
        said = f"{one.found:.3g} {one.unit}"
        print(f"{one.where:36} {one.what:52} {said:>14} at most {one.limit:g} {word}", flush=True)
        are_kept = are_kept and one.is_kept
    return are_kept
