"""Checks of what an attempt cannot have found, by what the farm itself knows: what was asked, of which bundles, since
when.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from device_agents.figures.rounds import may_end, order_of, rounds_of
from device_agents.figures.sustained import window_count
from device_agents.figures.warm_up import allowance
from device_agents.wire import (
    EFFECT,
    REAL_CLASSES,
    SUSTAIN_SHARE,
    Comparison,
    ProtocolError,
    Report,
    RunSettings,
    Sustained,
)
from service.artefacts.bundles.service import Built
from service.store.database.models import Attempt, Run

Times = TypeVar("Times", Comparison, Sustained)
CLOCK_SLACK = 1.05
CLOCK_SLACK_S = 300.0
"""The farm's own clock may have been set meanwhile."""


def check_possible(
    report: Report, run: Run, attempt: Attempt, bundle: Built, *, others: Sequence[str], now: float
) -> None:
    """Raises: `ProtocolError` naming the field."""
    settings = run.settings
    if report.mode != settings.reported_mode:
        raise ProtocolError("mode", f"{report.mode!r}, and the run is of mode {settings.reported_mode!r}")
    is_set_back = now < attempt.created_at  # the farm's own clock, and it cannot tell how long ago that was
    since_s = math.inf if is_set_back else (now - attempt.created_at) * CLOCK_SLACK + CLOCK_SLACK_S
    for name in ("run_s", "transfer_s"):
        if getattr(report, name) > since_s:
            message = f"{getattr(report, name):,.0f} s, and the attempt began {now - attempt.created_at:,.0f} s ago"
            raise ProtocolError(name, message)
    if report.mode in ("train", "profile"):
        _check_count("losses", len(report.losses), settings.steps)
        _check_count(
            "measurement.step_us", len(report.measurement.step_us) if report.measurement else 0, settings.steps
        )
    batch = bundle.manifest.get("batch")
    if report.measurement is not None and isinstance(batch, int) and report.measurement.batch != batch:
        raise ProtocolError("measurement.batch", f"{report.measurement.batch:,}, and the bundle's is {batch:,}")
    if settings.mode == "compare":
        _check_comparison(report, settings, (bundle.digest, *others))
    if settings.mode == "sustained":
        _check_sustained(report, settings, batch)


def _required_times(report: Report, where: str, times: Times | None) -> Times | None:
    """Returns the times of a run made for them; they may be missing if the run failed, and no emulator has any."""
    if times is None and report.outcome.state == "succeeded":
        raise ProtocolError(where, f"missing from a run of mode {report.mode} that succeeded")
    if times is not None and report.measurement_class not in REAL_CLASSES:
        raise ProtocolError(where, f"of a device that is {report.measurement_class}: its times say nothing")
    return times


def _check_comparison(report: Report, settings: RunSettings, bundles: tuple[str, ...]) -> None:
    """Checks that the bundles took turns in the order that the seed determines, for as many steps as the settings ask
    for.
    """
    comparison = _required_times(report, "comparison", report.comparison)
    if comparison is None:
        return
    if comparison.bundles != bundles:
        raise ProtocolError("comparison.bundles", "others than those that were to take turns")
    if comparison.steps != settings.steps:
        raise ProtocolError("comparison.steps", f"{comparison.steps:,}, and {settings.steps:,} were asked for")
    expected_steps = settings.steps + allowance(settings.steps)
    for number, process in enumerate(comparison.processes):
        if len(process.step_us) != expected_steps:
            message = f"{len(process.step_us):,} steps, and each process makes {expected_steps:,}"
            raise ProtocolError(f"comparison.processes[{number}].step_us", message)
    rounds = rounds_of(comparison.processes, bundles=len(bundles), steps=comparison.steps)
    for number, round_ in enumerate(rounds):
        if round_.order != order_of(number, bundles=len(bundles), seed=settings.seed):
            raise ProtocolError("comparison.processes", f"round {number} is in another order than the seed says")
    if comparison.ended == "known" and not may_end(rounds, bundles=len(bundles), effect=settings.effect or EFFECT):
        raise ProtocolError("comparison.ended", "known, and its rounds leave it open")


def _check_sustained(report: Report, settings: RunSettings, batch: object) -> None:
    """Checks that the windows are those into which the duration is split, and that none is missing if the run ended
    because its time was over.
    """
    sustained = _required_times(report, "sustained", report.sustained)
    if sustained is None:
        return
    if isinstance(batch, int) and sustained.batch != batch:
        raise ProtocolError("sustained.batch", f"{sustained.batch:,}, and the bundle's is {batch:,}")
    own_s = (report.own_limits or {}).get("run_s", math.inf)
    lasts_s = min(settings.sustained_s, SUSTAIN_SHARE * own_s)
    count = window_count(lasts_s)
    if not math.isclose(sustained.window_s, lasts_s / count, rel_tol=1e-6):
        raise ProtocolError(
            "sustained.window_s", f"{sustained.window_s:g}, and {lasts_s:,g} s have windows of {lasts_s / count:g} s"
        )
    if len(sustained.windows) > count or (sustained.ended == "time" and len(sustained.windows) < count):
        raise ProtocolError("sustained.windows", f"{len(sustained.windows):,}, and {lasts_s:,g} s have {count:,}")
    if sustained.ended == "cut" and report.outcome.state == "succeeded":
        raise ProtocolError("sustained.ended", "cut, and the run succeeded")


def _check_count(where: str, count: int, requested: int) -> None:
    if count > requested:
        raise ProtocolError(where, f"{count:,} steps, and {requested:,} were asked for")
