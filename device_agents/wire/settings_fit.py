"""Remarks on a run's settings that are odd beside what its bundle says: they may be meant, or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from device_agents.wire.data_fit import Remark
from device_agents.wire.settings import RunSettings


def remarks(settings: RunSettings, manifest: Mapping[str, Any], *, goes_on: bool) -> tuple[Remark, ...]:
    """Returns remarks on the settings of mode train: a warm-up that the run does not come out of.

    `goes_on`: it starts from weights that have steps behind them, which count; how many is known where they lie.
    """
    if settings.mode != "train" or goes_on:
        return ()
    warmup, steps = _warmup_steps(settings, manifest), settings.schedule_steps or settings.steps
    if not warmup or warmup < steps:
        return ()
    message = f"the learning rate rises over {warmup} steps, and there are {steps}: no step has all of it"
    return (Remark("run.only-warmup", "warmup_steps", message, "give fewer warmup_steps, or more steps"),)


def _warmup_steps(settings: RunSettings, manifest: Mapping[str, Any]) -> int:
    if settings.warmup_steps is not None:
        return settings.warmup_steps
    schedule = manifest.get("schedule")
    steps = schedule.get("warmup_steps", 0) if isinstance(schedule, Mapping) else 0
    return steps if isinstance(steps, int) else 0
