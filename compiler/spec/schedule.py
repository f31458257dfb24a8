"""How the learning rate goes on, unless a run is told another way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from compiler.spec.forms import Integer, Number, OneOf
from compiler.spec.records import member

ScheduleKind = Literal["constant", "cosine", "linear"]


@dataclass(frozen=True)
class ScheduleSpec:
    """Learning rates over a run, as the schedules of `transformers` with warm-up define them."""

    kind: ScheduleKind = member(
        OneOf(get_args(ScheduleKind)),
        "how the learning rate goes on after the warm-up",
        default="constant",
        always=True,
    )
    warmup_steps: int = member(Integer(0, 1_000_000_000), "steps in which it rises from 0", default=0, always=True)
    final_ratio: float = member(
        Number(0.0, 1.0),
        "share of the learning rate that is left at the run's end",
        default=0.0,
        always=True,
        kinds=("cosine", "linear"),
    )
