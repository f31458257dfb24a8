"""Runs of mode sustained: what came of one, as the farm works it out from its windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from device_agents.figures.sustained import Curve, curve_of
from device_agents.wire import DeviceState, Sustained, from_json
from service.runs.sustained_views import SustainedView, SustainedWindowView


def told_in(report: Mapping[str, Any]) -> Sustained | None:
    """The windows in a recorded report; None if it is of another mode, or has none."""
    told = report.get("sustained")
    return from_json(Sustained, told, "sustained") if told else None


def curve(found: Sustained, states: Sequence[DeviceState]) -> Curve:
    """What they come to, beside what the board said of itself."""
    return curve_of(found, states)


def curve_in(report: Mapping[str, Any]) -> Curve | None:
    """Of a recorded report; None if it has no windows."""
    found = told_in(report)
    return curve(found, [from_json(DeviceState, one) for one in report.get("device_states") or ()]) if found else None


def view_in(report: Mapping[str, Any]) -> SustainedView | None:
    """Both, for people."""
    found, said = told_in(report), curve_in(report)
    return view(found, said) if found is not None and said is not None else None


def view(found: Sustained, said: Curve) -> SustainedView:
    """The windows and what they come to."""
    windows = [
        SustainedWindowView(start_s=number * found.window_s, steps=one.steps, median_us=one.median_us,
                            p90_us=one.p90_us)
        for number, one in enumerate(found.windows)
    ]  # fmt: skip
    return SustainedView(protocol=found.protocol, ended=found.ended, window_s=found.window_s, steps=found.steps,
                         windows=windows, **said.fields)  # fmt: skip
