"""Parameters that an optimizer treats otherwise than the rest: groups, as frameworks have them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from compiler.spec.forms import Names, Number, OneOf, Optional
from compiler.spec.records import member

GroupKind = Literal["any", "weight", "bias", "vector"]
"""vector: what has one axis or none (biases, scales and shifts of norms), whatever it is called."""


@dataclass(frozen=True)
class ParameterGroup:
    """The parameters that match `parameters` and `kind` take these settings; what is null stays as it was."""

    parameters: tuple[str, ...] = member(Names(), "names or globs (*, ?, [...]) of parameters", default=("*",))
    kind: GroupKind = member(
        OneOf(get_args(GroupKind)),
        "which of those that match: all, weights, biases, or vectors (one axis at most: biases and norms)",
        default="any",
    )
    weight_decay: float | None = member(
        Optional(Number(0.0, math.inf)), "in place of the optimizer's; 0: none", default=None
    )
    learning_rate_factor: float | None = member(
        Optional(Number(0.0, math.inf)), "the learning rate, whatever it is at a step, times this", default=None
    )
