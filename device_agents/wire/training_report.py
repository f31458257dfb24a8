"""The report of a run of mode train beside its losses: wire types of `device_agents.wire`. Standard library only."""

import math
from dataclasses import dataclass, field
from typing import Literal, Optional

from device_agents.wire.codec import SENT_IF_SET, check, check_loss
from device_agents.wire.settings import MAX_STEPS

TrainingOutcome = Literal["completed", "stopped_early", "diverged", "stopped"]
"""The way training ended, which is not how the run did.

`completed`: all steps. `stopped_early`: the validation loss got no better for as long as the user's patience.
`diverged`: the loss was no finite number any more, or exploded. `stopped`: from outside, or with the process; the run's
own ending says why.
"""
DIVERGED = "train.diverged"
"""The code of the binary's error when training diverges."""
MAX_REASON_CHARACTERS = 1000
MAX_SAMPLES = 1 << 62


@dataclass(frozen=True)
class Validation:
    """Scores on the samples that were held out, between two steps."""

    step: int
    """Steps of this run that were done."""
    samples: int
    loss: float
    accuracy: Optional[float] = None
    """0..1; null unless the loss is a cross-entropy."""

    def __post_init__(self) -> None:
        check(1 <= self.step <= MAX_STEPS, "step", f"1 to {MAX_STEPS:,}")
        check(1 <= self.samples <= MAX_SAMPLES, "samples", "at least 1")
        check_loss("loss", self.loss)
        check(self.accuracy is None or 0 <= self.accuracy <= 1, "accuracy", "0 to 1")


@dataclass(frozen=True)
class Training:
    """The course of the training steps of a run."""

    outcome: TrainingOutcome
    steps: int
    """The number of steps that were done. Of `diverged` the last is the one at which it showed."""
    reason: str = ""
    """Why it diverged."""
    learning_rates: tuple[float, ...] = ()
    """The learning rate of each step, in order; empty from a binary that does not tell."""
    validations: tuple[Validation, ...] = ()
    best_step: Optional[int] = None
    """The step of the validation with the lowest loss; null without one."""
    weights_step: Optional[int] = None
    """The step of the run after which the weights that it left were taken; null: it left none."""
    resumed_step: Optional[int] = field(default=None, metadata=SENT_IF_SET)
    """The attempt went on after so many steps, from a checkpoint of an earlier one; null: it began with the first."""

    def __post_init__(self) -> None:
        check(0 <= self.steps <= MAX_STEPS, "steps", f"0 to {MAX_STEPS:,}")
        check(len(self.reason) <= MAX_REASON_CHARACTERS, "reason", f"at most {MAX_REASON_CHARACTERS:,} characters")
        check(len(self.learning_rates) in (0, self.steps), "learning_rates", "one of each step, or none")
        check(min(self.learning_rates, default=0.0) >= 0, "learning_rates", "at least 0")
        numbers = [validation.step for validation in self.validations]
        check(numbers == sorted(set(numbers)), "validations", "in the order of their steps")
        check(not numbers or numbers[-1] <= self.steps, "validations", "of steps that were done")
        check(
            self.resumed_step is None or 1 <= self.resumed_step <= self.steps, "resumed_step", "of steps that were done"
        )
        check(self.best_step == best_step(self.validations), "best_step", "the validation with the lowest loss")
        check(self.weights_step in (None, self.steps, self.best_step), "weights_step", "the last step, or the best")


def held_out(samples: int, share: float) -> int:
    """Returns how many of the samples, the last of them, are held out for validation."""
    return math.floor(samples * share + 0.5)


def best_step(validations: "tuple[Validation, ...]") -> Optional[int]:
    """The first of the validations with the lowest loss; None without one."""
    return min(validations, key=lambda validation: (validation.loss, validation.step)).step if validations else None
