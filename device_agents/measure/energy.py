"""Energy of measured parts: counters by their differences, each for itself; power by its integral over time.

Nothing here reads a sensor. What one missed is taken to be like what it told, and that is a note; where it told too
little, or what no such board can use, the energy is left out, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from device_agents.devices.board import Counter, Reading

LEAST_COVERED = 0.5
"""Of the measured time: a sensor that told less gives no energy."""
MOST_MISSED = 0.01
"""Of the measured time: no word is said of less."""
MAX_NOTES = 4


@dataclass(frozen=True)
class EnergyUse:
    """Energy and the time it covers. `total_mj` is None where `notes` say why."""

    total_mj: float | None
    seconds: float
    sensor: str
    notes: tuple[str, ...] = ()


@dataclass
class _Track:
    """What one sensor has told while the meter was on."""

    total_mj: float = 0.0
    seconds: float = 0.0
    last: Counter | float | None = None
    last_s: float = 0.0
    problem: str = ""


class EnergyMeter:
    """Adds up what sensors tell while it is on. No board of the kind draws more than `most_mw`."""

    def __init__(self, most_mw: float) -> None:
        self.is_on = False
        self._most_mw = most_mw
        self._tracks: dict[str, _Track] = {}
        self._last_s: float | None = None
        self._seconds = 0.0
        self._notes: dict[str, None] = {}

    def add(self, reading: Reading, now_s: float) -> None:
        """One look at the sensors, at `now_s` of a clock that only grows."""
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
        """Add what a sensor tells of the time since it last spoke; power is known between two looks in a row only."""
        last, span_s = track.last, now_s - track.last_s
        if isinstance(value, Counter) and isinstance(last, Counter):
            gained_mj, problem = _grown(last, value, span_s * self._most_mw)
        elif isinstance(value, float) and isinstance(last, float) and track.last_s == before_s:
            gained_mj, problem = span_s * (value + last) / 2, ""
        else:
            return
        if problem:
            track.problem = track.problem or f"{problem} in {span_s:.1f} s"
            return
        track.total_mj += gained_mj
        track.seconds += span_s

    def use(self) -> EnergyUse | None:
        """What was used while it was on; None without a sensor."""
        if not self._seconds or not (self._tracks or self._notes):
            return None
        notes = [*self._notes]
        total_mj: float | None = 0.0 if self._tracks else None
        for name, track in self._tracks.items():
            missed_s = self._seconds - track.seconds
            if track.problem or missed_s > MOST_MISSED * self._seconds:
                reason = f" ({track.problem})" if track.problem else ""
                notes.append(f"{name} told the energy of {track.seconds:.1f} of {self._seconds:.1f} s{reason}")
            if track.seconds < LEAST_COVERED * self._seconds:
                total_mj = None
            elif total_mj is not None:
                total_mj += track.total_mj * self._seconds / track.seconds
        return EnergyUse(total_mj, self._seconds, " + ".join(self._tracks), tuple(notes))


def _grown(last: Counter, value: Counter, most_mj: float) -> tuple[float, str]:
    """By how much a counter has grown, or else why that is not known. `most_mj`: what can have been used meanwhile."""
    gained_mj, range_mj = value.value_mj - last.value_mj, value.range_mj
    if gained_mj < 0 and range_mj is None:
        return 0.0, "it went back, and tells no range"
    if range_mj is not None:
        gained_mj += range_mj if gained_mj < 0 else 0.0
        if most_mj >= range_mj:
            return 0.0, "it may have begun anew more than once"
    if not 0 <= gained_mj <= most_mj:
        return 0.0, f"it grew by {gained_mj / 1000:,.0f} J"
    return gained_mj, ""
