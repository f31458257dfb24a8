"""The training steps of a run: what the binary is told of them, and what it tells, checked against what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from device_agents.job.step_events import CheckpointLeft, Done, Failed, Resumed, StepDone, Validated
from device_agents.wire import (
    DIVERGED,
    Evaluation,
    Past,
    ProtocolError,
    RunSettings,
    Training,
    TrainingOutcome,
    Validation,
    best_step,
)

MAX_REASON = 1000
RATE_SLACK = 1 + 1e-6
"""Slack of a learning rate, which is written with nine digits."""


def scored_samples(samples: int, batch: int) -> Sequence[int]:
    """Returns how many samples an evaluation may have scored: all, or (a loss of the graph's own) those of whole
    batches.
    """
    return (samples, samples - samples % batch)


@dataclass
class TrainingFindings:
    """The state of the training so far. Raises: `ProtocolError`, from all that takes an event that cannot be."""

    settings: RunSettings
    validated: int
    """Samples that a validation is of; 0: none is asked for."""
    batch: int
    steps: int = 0
    learning_rates: list[float] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    outcome: TrainingOutcome = "stopped"
    """The way training ended; `stopped` until the binary has reported another."""
    reason: str = ""
    saved_step: int | None = None
    """The step whose weights the binary left; None: nothing."""

    is_over: bool = False
    """The binary has told how it ended."""

    resumed_step: int | None = None
    """Steps that were done before this attempt."""
    is_expected: bool = True
    """False until a binary that is to go on has said that it does."""

    def go_on(self, past: Past) -> None:
        """Begins where another attempt stood."""
        self.steps = self.resumed_step = past.step
        self.learning_rates, self.validations = list(past.learning_rates), list(past.validations)
        self.is_expected = False

    def past(
        self, key: str, identity: tuple[str, int, str], losses: Sequence[float | None], before: Evaluation | None
    ) -> Past:
        """Returns the history that a checkpoint made now records; `identity`: run, attempt, device; `before`: the
        evaluation of the start.
        """
        return Past(
            key, *identity, self.steps, tuple(losses), tuple(self.learning_rates), tuple(self.validations), before
        )

    def take_resume(self, event: Resumed) -> None:
        self._check(
            not self.is_expected and event.step == self.steps, "resume.step", f"{event.step:,} of {self.steps:,}"
        )
        self.is_expected = True

    def take_checkpoint(self, event: CheckpointLeft) -> None:
        self._check(
            not self.is_over and event.step == self.steps,
            "checkpoint.step",
            f"{event.step:,} after step {self.steps:,}",
        )

    def take_step(self, event: StepDone) -> None:
        self._check(not self.is_over and self.is_expected, "step", "after the end of training, or before it goes on")
        rates_seen, rate, most = len(self.learning_rates), event.learning_rate, self.settings.learning_rate
        self._check(
            rates_seen == (0 if rate is None else self.steps), "step.learning_rate", "is told of some steps only"
        )
        if rate is not None:
            self._check(most is None or rate <= most * RATE_SLACK, "step.learning_rate", f"{rate:g} is not {most}")
            self.learning_rates.append(rate)
        self.steps += 1

    def take_validation(self, event: Validated) -> Validation:
        last = self.validations[-1].step if self.validations else 0
        self._check(self.validated > 0 and not self.is_over, "validation", "none was asked for, or it is over")
        self._check(last < event.step == self.steps, "validation.step", f"{event.step:,} after step {self.steps:,}")
        is_all = event.samples in scored_samples(self.validated, self.batch)
        self._check(is_all, "validation.samples", f"{event.samples:,}, {self.validated:,} are to be scored")
        validation = Validation(event.step, event.samples, event.loss, event.accuracy)
        self.validations.append(validation)
        return validation

    def take_end(self, event: Done) -> None:
        """`done` or `stopped`."""
        self._check(not self.is_over, "done", "twice")
        outcome, patience, count = event.outcome or "completed", self.settings.patience, len(self.validations)
        is_early = outcome == "stopped_early"
        self._check(
            not is_early or (patience is not None and count > patience),
            "outcome",
            f"stopped early after {count:,} validations",
        )
        best = best_step(tuple(self.validations))
        self._check(event.best_step in (None, best), "best_step", f"{event.best_step}, the lowest loss is of {best}")
        saved_step = best if self.settings.save_best and best is not None else self.steps
        self._check(
            event.saved_step in (None, saved_step), "saved_step", f"{event.saved_step}, it should be {saved_step:,}"
        )
        self.outcome, self.saved_step, self.is_over = outcome, saved_step, True

    def take_error(self, event: Failed) -> None:
        """The binary ends with an error, which is an outcome if it says that training diverged."""
        self._check(not self.is_over, "error", "after the end of training")
        is_known = event.code != DIVERGED or event.step in (None, self.steps)
        self._check(is_known, "error.step", f"{event.step} after step {self.steps:,}")
        self.is_over = True
        if event.code == DIVERGED:
            self.diverge(event.message)

    @staticmethod
    def _check(holds: bool, where: str, words: str) -> None:
        if not holds:
            raise ProtocolError(where, words)

    def diverge(self, reason: str) -> None:
        """Only what was best before is left, if that is kept."""
        best = best_step(tuple(self.validations))
        self.outcome, self.reason = "diverged", reason[:MAX_REASON]
        self.saved_step = best if self.settings.save_best else None

    def report(self, *, has_weights: bool) -> Training:
        """Returns the training's part of the report."""
        validations = tuple(self.validations)
        return Training(
            outcome=self.outcome,
            steps=self.steps,
            reason=self.reason,
            learning_rates=tuple(self.learning_rates),
            validations=validations,
            best_step=best_step(validations),
            weights_step=self.saved_step if has_weights else None,
            resumed_step=self.resumed_step,
        )
