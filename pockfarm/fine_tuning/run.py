"""The length and the settings of a training, as one `RunSettings`; and remarks on a run that trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from device_agents.wire import MAX_STEPS, ProtocolError, RunSettings, held_out, settings_of
from pockfarm.errors import Diverged, UsageError
from pockfarm.fine_tuning.trainer import Run
from pockfarm.suggestions import did_you_mean
from pockfarm.values import CompileWarning, optional_number, part, text

ELSEWHERE = {
    "lr": "did you mean 'learning_rate'?",
    "batch": "the spec says it: spec={'batch': 8}",
    "batch_size": "the spec says it: spec={'batch': 8}",
    "optimizer": "the spec says it: spec={'optimizer': {'kind': 'adam'}}",
    "loss": "the spec says it: spec={'loss': {'kind': 'mse'}}",
    "device": "this machine trains on its processor, client.fine_tune on a device of a farm",
    "weights": "training begins from the model's own: load them into it first",
}
"""Other programs' names of settings, and where they are set here."""


def check_settings(
    steps: int | None, epochs: float | None, settings_given: Mapping[str, Any], *, has_validation_data: bool
) -> None:
    """Refuse what no model or data could make right. Raises: UsageError."""
    if steps is not None and epochs is not None:
        raise UsageError("steps and epochs both say how long to train", hint="give one")
    if epochs is not None and not (isinstance(epochs, (int, float)) and epochs > 0):
        raise UsageError(f"epochs must be a number above 0, got {epochs!r}")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int)):
        raise UsageError(f"steps must be a whole number, got {steps!r}")
    if steps is not None and not 1 <= steps <= MAX_STEPS:
        raise UsageError(f"steps must be 1 to {MAX_STEPS:,}, got {steps}")
    names = [name for name, setting in settings_of(RunSettings).items() if "train" in setting.modes]
    for name in settings_given.keys() - set(names):
        raise UsageError("no such setting", where=name, hint=ELSEWHERE.get(name) or did_you_mean(name, names))
    try:
        settings = RunSettings(mode="train", **{"steps": steps or 1, **settings_given})
        settings.check_validation("validation_data", is_given=has_validation_data)
    except ProtocolError as problem:
        raise UsageError.of_protocol(problem) from None


def settings_of_run(
    steps: int | None, epochs: float | None, settings_given: Mapping[str, Any], samples: int, batch: int
) -> RunSettings:
    """An epoch is as many steps as take what learns once: what is held out does not. Raises: UsageError."""
    if steps is None:
        learning = samples - held_out(samples, settings_given.get("validation") or 0.0)
        steps = max(1, math.ceil((epochs or 1) * learning / batch))
        if steps > MAX_STEPS:
            raise UsageError(f"{epochs or 1:g} epochs are {steps:,} steps, a run has {MAX_STEPS:,} at most")
    try:
        return RunSettings(mode="train", **{**settings_given, "steps": steps})
    except ProtocolError as problem:
        raise UsageError.of_protocol(problem) from None


def steps_kept(run: Run, requested: int) -> int:
    """Steps that what is left has learned from; a farm of earlier versions does not tell."""
    weights_step = optional_number(part(run.report, "training"), "weights_step")
    return requested if weights_step is None else int(weights_step)


def diverged(report: Mapping[str, Any]) -> Diverged | None:
    """The error that says so, of a report of training that diverged; None for another."""
    training = part(report, "training")
    if text(training, "outcome") != "diverged":
        return None
    steps = optional_number(training, "steps") or 0
    message = f"training diverged at step {steps:.0f}: {text(training, 'reason')}"
    return Diverged(message, report)


def check_left(run: Run) -> None:
    """Raises: Diverged, if the run left no weights because of that."""
    problem = diverged(run.report)
    if problem is not None and not run.checkpoint.exists():
        raise problem


def told_of(run: Run) -> tuple[CompileWarning, ...]:
    """That the weights which are left are not of the end of training that went well."""
    problem = diverged(run.report)
    if problem is None:
        return ()
    step = optional_number(part(run.report, "training"), "weights_step") or 0
    hint = f"the state is that of step {step:.0f}, the best that was validated before"
    return (CompileWarning("fine_tune.diverged", "training", str(problem), hint),)
