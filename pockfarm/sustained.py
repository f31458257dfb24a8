"""The curve in a sustained run's report, as rows for a terminal and for Markdown."""

from __future__ import annotations

from device_agents.figures.sustained import curve_of, format_duration
from device_agents.wire import DeviceState, ProtocolError, Sustained, from_json
from pockfarm.table import figure, time_of
from pockfarm.values import Json, part, parts


def curve_medians(report: Json) -> list[float]:
    """The median of each window that has steps, in microseconds; empty of another mode."""
    medians = [window.get("median_us") for window in parts(part(report, "sustained"), "windows")]
    return [float(us) for us in medians if isinstance(us, (int, float))]


def curve_rows(report: Json) -> list[tuple[str, str]]:
    """The step at first and over the last third, whether it slows down, what the board said; empty of another mode."""
    block = part(report, "sustained")
    if not block:
        return []
    try:
        measured = from_json(Sustained, block, "sustained")
        curve = curve_of(measured, [from_json(DeviceState, state) for state in parts(report, "device_states")])
    except ProtocolError as problem:
        return [("curve", f"cannot be read: {problem}")]
    steps, threads = figure(measured.steps, 0), measured.threads
    many = f"{steps} steps in {format_duration(curve.lasted_s)}, batch {measured.batch}, {threads} threads"
    first, sustained = (time_of(us) for us in (curve.first_us, curve.sustained_us))
    return [
        ("step", f"{first} at first, {sustained} sustained; {many}"),
        ("curve", curve.message if measured.ended == "time" else f"{curve.message}; it was ended before"),
        ("board", curve.board_message or "said nothing of throttling or of its clock"),
        ("protocol", measured.protocol),
    ]
