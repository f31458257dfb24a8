"""What a sustained run's report says of its curve, in rows for a terminal and for Markdown."""

from __future__ import annotations

from device_agents.figures.sustained import curve_of, spoken
from device_agents.wire import DeviceState, ProtocolError, Sustained, from_json
from pockfarm.table import figure, time_of
from pockfarm.values import Json, part, parts


def curve_medians(report: Json) -> list[float]:
    """The median of each window that has steps, in microseconds; empty of another mode."""
    found = [one.get("median_us") for one in parts(part(report, "sustained"), "windows")]
    return [float(us) for us in found if isinstance(us, (int, float))]


def curve_rows(report: Json) -> list[tuple[str, str]]:
    """The step at first and over the last third, whether it slows down, what the board said; empty of another mode."""
    told = part(report, "sustained")
    if not told:
        return []
    try:
        found = from_json(Sustained, told, "sustained")
        curve = curve_of(found, [from_json(DeviceState, one) for one in parts(report, "device_states")])
    except ProtocolError as problem:
        return [("curve", f"cannot be read: {problem}")]
    many = f"{figure(found.steps, 0)} steps in {spoken(curve.lasted_s)}, batch {found.batch}, {found.threads} threads"
    first, sustained = (time_of(us) for us in (curve.first_us, curve.sustained_us))
    return [
        ("step", f"{first} at first, {sustained} sustained; {many}"),
        ("curve", curve.says if found.ended == "time" else f"{curve.says}; it was ended before"),
        ("board", curve.board_says or "said nothing of throttling or of its clock"),
        ("protocol", found.protocol),
    ]
