"""One line of a plan: which parameters learn, and how much of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from compiler.spec.forms import Names, Number, OneOf
from compiler.spec.records import member

RuleKind = Literal["any", "weight", "bias"]


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """The parameters that match `parameters` and `kind` learn a `ratio` of their input channels.

    Ratio 0 freezes again what an earlier rule selected.
    """

    parameters: tuple[str, ...] = member(Names(), "names or globs (*, ?, [...]) of parameters", always=True)
    kind: RuleKind = member(
        OneOf(get_args(RuleKind)), "which of those that match: all, weights, or biases", default="any", always=True
    )
    ratio: float = member(
        Number(0.0, 1.0), "share of the input channels that learns, the first ones; 0 freezes", default=1.0, always=True
    )
