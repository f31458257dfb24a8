"""Energy of measured parts: counters by their differences, each for itself; power by its integral over time.

No sensor is read here. Time that a sensor did not cover counts with its mean over the rest, and a note says so. If it
covered too little, or only values that no such board can reach, there is no energy, and the notes give the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from device_agents.devices.board import Counter, Reading

LEAST_COVERED = 0.5
"""Share of the measured time that a sensor has to cover."""
UNREMARKABLE = 0.01
"""Share of the measured time that a sensor may miss without a note."""
MAX_NOTES = 4


@dataclass(frozen=True)
class EnergyUse:
    """Energy and the time it covers. `total_mj` is None where `notes` give a reason."""

    total_mj: float | None
    seconds: float
    sensor: str
    notes: tuple[str, ...] = ()


@dataclass
class _Track:
    """The energy that one sensor has measured while the meter was on, and its last value."""

    total_mj: float = 0.0
    seconds: float = 0.0
    last: Counter | float | None = None
    last_s: float = 0.0
    problem: str = ""


class EnergyMeter:
    """Adds up sensors' values while it is on. No board of the kind draws more than `most_mw`."""

    def __init__(self, most_mw: float) -> None:
        self.is_on = False
        self._most_mw = most_mw
        self._tracks: dict[str, _Track] = {}
        self._last_s: float | None = None
        self._seconds = 0.0
        self._notes: dict[str, None] = {}

    def add(self, reading: Reading, now_s: float) -> None:
        """Adds a reading of the sensors, at `now_s` of a monotonic clock."""
        before_s, self._last_s = self._last_s, now_s if self.is_on else None
        if before_s is None and not self.is_on:
            return
        self._seconds += now_s - before_s if before_s is not None else 0.0
        values: dict[str, Counter | float] = dict(reading.counters)
        if not values and reading.power_mw is not None:
            values[reading.power_sensor or "unnamed"] = reading.power_mw
        for name, value in values.items():
            track = self._tracks.setdefault(name, _Track())
            if before_s is not None:
                self._extend(track, value, before_s, now_s)
            track.last, track.last_s = value, now_s
        if len(self._notes) < MAX_NOTES:
            self._notes |= dict.fromkeys(reading.notes)
        if not self.is_on:
            for track in self._tracks.values():
                track.last = None

    def _extend(self, track: _Track, value: Counter | float, before_s: float, now_s: float) -> None:
        """Adds the energy since a counter's last value, or between two consecutive readings of a power."""
        last, span_s = track.last, now_s - track.last_s
        if isinstance(value, Counter) and isinstance(last, Counter):
            gained_mj, problem = _difference(last, value, span_s * self._most_mw)
        elif isinstance(value, float) and isinstance(last, float) and track.last_s == before_s:
            gained_mj, problem = span_s * (value + last) / 2, ""
        else:
            return
        if problem:
            track.problem = track.problem or f"{problem} within {span_s:.1f} s"
            return
        track.total_mj += gained_mj
        track.seconds += span_s

    def use(self) -> EnergyUse | None:
        """The energy used while it was on; None without a sensor."""
        if not self._seconds or not (self._tracks or self._notes):
            return None
        notes = [*self._notes]
        total_mj: float | None = 0.0 if self._tracks else None
        for name, track in self._tracks.items():
            is_usable = track.seconds >= LEAST_COVERED * self._seconds
            if track.problem or self._seconds - track.seconds > UNREMARKABLE * self._seconds:
                effect = "the rest is estimated from it" if is_usable else "too little for an energy"
                reason = f" ({track.problem})" if track.problem else ""
                notes.append(f"{name} covers {track.seconds:.1f} of {self._seconds:.1f} s{reason}: {effect}")
            if not is_usable:
                total_mj = None
            elif total_mj is not None:
                total_mj += track.total_mj * self._seconds / track.seconds
        return EnergyUse(total_mj, self._seconds, " + ".join(self._tracks), tuple(notes))


def _difference(last: Counter, value: Counter, most_mj: float) -> tuple[float, str]:
    """Returns how far a counter has advanced, or else why that is unknown. The board cannot have used more than
    `most_mj`.
    """
    gained_mj, range_mj = value.value_mj - last.value_mj, value.range_mj
    if gained_mj < 0 and range_mj is None:
        return 0.0, "the counter went back, and has no range"
    if range_mj is not None:
        gained_mj += range_mj if gained_mj < 0 else 0.0
        if most_mj >= range_mj:
            return 0.0, "the counter may have wrapped more than once"
    if not 0 <= gained_mj <= most_mj:
        return 0.0, f"the counter advanced by {gained_mj / 1000:,.0f} J"
    return gained_mj, ""
