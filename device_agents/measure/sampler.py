"""Watches the board while a job runs: device states at a few hertz, energy summed up, other processes' load.

A thread of the agent (asleep almost always). Energy counts only between `begin` and `end` of measured parts.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from device_agents.devices import Reading
from device_agents.measure.energy import EnergyMeter, EnergyUse
from device_agents.measure.power_unit import PowerUnit
from device_agents.wire import DeviceState, PowerRange

INTERVAL_S = 0.2
MAX_STATES = 600
MAX_CLOCK = 1 << 19
"""Samples, of more than a day."""
_TICKS_PER_S = float(os.sysconf("SC_CLK_TCK"))
ROUNDED_S = 0.1
"""Seconds by which the counters of several processes, each in ticks and read one after the other, may disagree."""


class Sampler:
    """Samples `read` every `INTERVAL_S` until closed. The board's power lies within `bounds`.

    It can be used from another thread.
    """

    def __init__(self, read: Callable[[], Reading], bounds: PowerRange, *, interval_s: float = INTERVAL_S) -> None:
        self._read = read
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._states = StateLog()
        self._energy = EnergyMeter(bounds.most_mw)
        self._unit = PowerUnit(bounds)
        self._load = LoadMeter()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(timeout=10.0)

    def watch(self, pid: int) -> None:
        """The process whose CPU time is the job's own."""
        with self._lock:
            self._load.job_pid = pid

    def begin(self) -> None:
        """A measured part starts: energy counts from the next sample on."""
        with self._lock:
            self._energy.is_on = True

    def end(self) -> None:
        """The measured part is over."""
        with self._lock:
            self._energy.is_on = False

    def states(self) -> tuple[DeviceState, ...]:
        """Returns at most `MAX_STATES` samples, evenly thinned."""
        with self._lock:
            return tuple(self._states.samples)

    def clock(self) -> tuple[tuple[float, float], ...]:
        """(when, hertz) of every sample that told a clock, however many."""
        with self._lock:
            return tuple(self._states.clock)

    def energy(self) -> EnergyUse | None:
        """Energy of the measured parts; None without a sensor."""
        with self._lock:
            return self._energy.use()

    def _run(self) -> None:
        while not self._closing.is_set():
            # A sensor that talks nonsense costs its sample, not the watch.
            with contextlib.suppress(ValueError, ArithmeticError):
                reading = self._unit.corrected(self._read())
                with self._lock:
                    self._take(reading)
            self._closing.wait(self._interval_s)

    def _take(self, reading: Reading) -> None:
        self._energy.add(reading, time.monotonic())
        state = DeviceState(
            at=time.time(),
            temperature_c=reading.temperature_c,
            frequency_hz=reading.frequency_hz,
            throttled=reading.throttled,
            power_mw=reading.power_mw,
            load=self._load.cores(),
        )
        self._states.add(state)


class StateLog:
    """Samples in order, at most `MAX_STATES`: of a long run every second one stays, then every fourth."""

    def __init__(self) -> None:
        self.samples: list[DeviceState] = []
        self.clock: list[tuple[float, float]] = []
        """The clock in all samples: what is slow for two seconds is not seen in every fourth."""
        self._stride = 1
        self._count = 0

    def add(self, state: DeviceState) -> None:
        """Adds a sample."""
        if state.frequency_hz and len(self.clock) < MAX_CLOCK:
            self.clock.append((state.at, state.frequency_hz))
        if self._count % self._stride == 0:
            self.samples.append(state)
        else:
            self.samples[-1] = _merged(self.samples[-1], state)
        self._count += 1
        if len(self.samples) > MAX_STATES:
            pairs = zip(self.samples[::2], [*self.samples[1::2], self.samples[-1]])
            self.samples = [_merged(first, second) for first, second in pairs]
            self._stride *= 2


def _merged(remaining: DeviceState, thinned_out: DeviceState) -> DeviceState:
    """A sample that is left out must not hide that the board throttled."""
    return replace(remaining, throttled=True) if thinned_out.throttled else remaining


class LoadMeter:
    """CPU time of processes that are neither the job's nor the agent's, in cores, between two looks.

    None where the counters do not tell it: one fell (a container's `stat` may), the job's time of before its first look
    came all at once, or more than all cores were busy.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.job_pid: int | None = None
        self._proc = proc
        self._last: tuple[float, float, float] | None = None
        """When, busy seconds of all CPUs, and of those what others used."""
        self._job_s: dict[tuple[int, str], float] = {}
        """Seconds by process and its start: numbers of processes come again."""

    def cores(self, now_s: float | None = None) -> float | None:
        """`now_s`: of the monotonic clock; by itself it is read."""
        busy = self._busy_s()
        if busy is None:
            self._last = None
            return None
        busy_s, cpus = busy
        now_s, other_s = time.monotonic() if now_s is None else now_s, busy_s - self._ours_s()
        last, self._last = self._last, (now_s, busy_s, other_s)
        if last is None or now_s <= last[0] or busy_s < last[1]:
            return None
        cores = (other_s - last[2]) / (now_s - last[0])
        slack = ROUNDED_S / (now_s - last[0])
        return max(0.0, cores) if -slack <= cores <= cpus + slack else None

    def _busy_s(self) -> tuple[float, int] | None:
        """user + nice + system + irq + softirq of all CPUs since boot (proc(5); guest time is part of user), and how
        many CPUs there are."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            total, *rows = (self._proc / "stat").read_text().split("\n")
            fields = total.split()[1:]
            cpus = sum(row.startswith("cpu") for row in rows)
            return (sum(map(int, fields[:3])) + sum(map(int, fields[5:7]))) / _TICKS_PER_S, cpus or 1
        return None

    def _ours_s(self) -> float:
        """CPU seconds of the agent and of each process of the job so far, also of those that have ended."""
        times = os.times()
        for pid in self._job_pids():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
                used_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
                self._job_s[pid, fields[19]] = max(used_s, self._job_s.get((pid, fields[19]), 0.0))
        return times.user + times.system + sum(self._job_s.values())

    def _job_pids(self) -> list[int]:
        if self.job_pid is None:
            return []
        with contextlib.suppress(OSError, ValueError):
            children = (self._proc / str(self.job_pid) / "task" / str(self.job_pid) / "children").read_text()
            return [self.job_pid, *map(int, children.split())]
        return [self.job_pid]
