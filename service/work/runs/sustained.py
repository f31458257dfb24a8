"""Runs of mode sustained: what came of one, as the farm works it out from its windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from device_agents.figures.sustained import Curve, curve_of
from device_agents.wire import DeviceState, Sustained, from_json
from service.work.runs.sustained_views import SustainedView, SustainedWindowView


def curve_in(report: Mapping[str, Any]) -> Curve | None:
    """What a recorded report comes to; None if it has no windows."""
    told = report.get("sustained")
    return curve_of(from_json(Sustained, told, "sustained"), _states(report)) if told else None


def view_in(report: Mapping[str, Any]) -> SustainedView | None:
    """The same with its windows, for people."""
    told = report.get("sustained")
    return view(from_json(Sustained, told, "sustained"), _states(report)) if told else None


def _states(report: Mapping[str, Any]) -> list[DeviceState]:
    return [from_json(DeviceState, one) for one in report.get("device_states") or ()]


def view(found: Sustained, states: Sequence[DeviceState]) -> SustainedView:
    """The windows and what they come to, beside what the board said of itself."""
    said = curve_of(found, states)
    windows = [
        SustainedWindowView(
            start_s=number * found.window_s, steps=one.steps, median_us=one.median_us, p90_us=one.p90_us
        )
        for number, one in enumerate(found.windows)
    ]
    return SustainedView(
        protocol=found.protocol,
        ended=found.ended,
        window_s=found.window_s,
        steps=found.steps,
        windows=windows,
        **said.fields,
    )
