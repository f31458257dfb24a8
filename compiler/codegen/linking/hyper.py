"""Hyper-parameters that the runtime feeds a step beside data: a number of a few forms for each, at step t (from 1).

| form | number |
|---|---|
| PF_RATE | the learning rate |
| PF_REST | 1 - base^t |
| PF_REST_ROOT | sqrt(1 - base^t) |
| PF_STEP_POWER | t^base |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from compiler.program.program import Optimizer, Schedule
from compiler.spec.optimizer import OptimizerKind
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Form:
    """A row of the table: the form, and its base, if that is a setting of the optimizer or a number."""

    name: str
    base: str | float = 0.0

    def of(self, optimizer: Optimizer) -> tuple[str, float]:
        """The form and the base's value."""
        return self.name, float(getattr(optimizer, self.base) if isinstance(self.base, str) else self.base)


FORMS: Mapping[str, Form] = {
    "learning_rate": Form("PF_RATE"),
    "bias_correction_1": Form("PF_REST", "beta1"),
    "bias_correction_2_sqrt": Form("PF_REST_ROOT", "beta2"),
    "fresh_share": Form("PF_STEP_POWER", "beta2_decay"),
    "inverse_root_step": Form("PF_STEP_POWER", -0.5),
}
"""By the kind of the graph's input. What random generators draw by is no number of a form (see `pf_program`)."""

TOLD: Mapping[OptimizerKind, tuple[str, ...]] = {
    "sgd": ("momentum",),
    "adam": ("beta1", "beta2"),
    "adamw": ("beta1", "beta2"),
    "lion": ("beta1", "beta2"),
    "adafactor": ("beta2_decay",),
}
"""The settings that `info` tells, for each kind of optimizer."""


def hyper_rows(optimizer: Optimizer, inputs: Iterable[Value], place: Callable[[Value], str]) -> list[str]:
    """`pf_hyper` of a program: a row for each of its inputs that is such a number."""
    rows = []
    for value in inputs:
        if value.role == "hyper" and value.kind in FORMS:
            form, base = FORMS[value.kind].of(optimizer)
            rows.append(f"{{{form}, {base.hex()}, {place(value)}}}")
    return rows


def setting_rows(optimizer: Optimizer) -> list[str]:
    """`pf_setting`: what `info` tells of the optimizer beside its kind and learning rate."""
    return [f'{{"{name}", {float(getattr(optimizer, name)).hex()}}}' for name in TOLD[optimizer.kind]]


def micro_batch_fields(optimizer: Optimizer) -> dict[str, str]:
    """How many micro-batches a step has, and whose loss is the step's."""
    return {"micro_batches": str(optimizer.micro_batches), "mean_of_labels": str(optimizer.is_mean_of_labels).lower()}


def schedule_fields(schedule: Schedule) -> str:
    """A schedule as the runtime's `pf_schedule`; the steps are a run's."""
    kind, ratio = f"PF_RATE_{schedule.kind.upper()}", schedule.final_ratio.hex()
    return f"{{.kind = {kind}, .warmup_steps = {schedule.warmup_steps}, .final_ratio = {ratio}}}"
