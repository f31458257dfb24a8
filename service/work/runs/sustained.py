"""Runs of mode sustained: what came of one, as the farm works it out from its windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from device_agents.figures.sustained import Curve, curve_of
from device_agents.wire import DeviceState, Sustained, from_json
from service.work.runs.sustained_views import SustainedView, SustainedWindowView


def curve_in(report: Mapping[str, Any]) -> Curve | None:
    """Returns what a recorded report comes to; None if it has no windows."""
    section = report.get("sustained")
    return curve_of(from_json(Sustained, section, "sustained"), _states(report)) if section else None


def view_in(report: Mapping[str, Any]) -> SustainedView | None:
    """Returns the sustained measurement of a report with its windows, for people."""
    section = report.get("sustained")
    return view(from_json(Sustained, section, "sustained"), _states(report)) if section else None


def _states(report: Mapping[str, Any]) -> list[DeviceState]:
    return [from_json(DeviceState, state) for state in report.get("device_states") or ()]


def view(sustained: Sustained, states: Sequence[DeviceState]) -> SustainedView:
    """Returns the windows and their evaluation, beside what the board reported about itself."""
    curve = curve_of(sustained, states)
    windows = [
        SustainedWindowView(
            start_s=number * sustained.window_s, steps=window.steps, median_us=window.median_us, p90_us=window.p90_us
        )
        for number, window in enumerate(sustained.windows)
    ]
    return SustainedView(
        protocol=sustained.protocol,
        ended=sustained.ended,
        window_s=sustained.window_s,
        steps=sustained.steps,
        windows=windows,
        **curve.fields,
    )
