"""The optimizer of a spec: one record, whose fields say which kinds take them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from compiler.spec.forms import Number, OneOf
from compiler.spec.records import member

OptimizerKind = Literal["sgd", "adamw"]


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """SGD (torch.optim.SGD semantics) or AdamW (decoupled weight decay, arXiv 1711.05101)."""

    kind: OptimizerKind = member(OneOf(get_args(OptimizerKind)), "the rule of the update", default="sgd", always=True)
    learning_rate: float = member(
        Number(0.0, math.inf), "what a run takes unless it is told another", default=0.01, always=True,
        defaults={"adamw": 1e-3},
    )  # fmt: skip
    momentum: float = member(
        Number(0.0, 1.0), "share of the last update that goes on", default=0.0, always=True, kinds=("sgd",)
    )
    weight_decay: float = member(
        Number(0.0, math.inf), "SGD: L2 penalty; AdamW: decoupled, times the learning rate", default=0.0, always=True,
        defaults={"adamw": 0.01},
    )  # fmt: skip
    beta1: float = member(
        Number(0.0, 0.999999), "decay of the first moment", default=0.9, always=True, kinds=("adamw",)
    )
    beta2: float = member(
        Number(0.0, 0.9999999), "decay of the second moment", default=0.999, always=True, kinds=("adamw",)
    )
    eps: float = member(
        Number(1e-30, 1.0), "added to the root of the second moment", default=1e-8, always=True, kinds=("adamw",)
    )
