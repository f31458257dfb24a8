"""The optimizer of a spec: one record, whose fields say which kinds take them.

Parameters that an optimizer treats otherwise than the rest: groups, as frameworks have them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from compiler.spec.forms import Flag, ListOf, Names, Number, OneOf, Optional
from compiler.spec.records import RecordOf, member

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


OptimizerKind = Literal["sgd", "adamw", "adam", "adafactor", "lion"]
_MOMENTS = ("adamw", "adam", "lion")
FLOAT32_EPSILON = 2.0**-23
MAX_GROUPS = 64


@dataclass(frozen=True)
class OptimizerSpec:
    """SGD, Adam, AdamW and Adafactor as in `torch.optim`; Lion as in its paper (arXiv 2302.06675)."""

    kind: OptimizerKind = member(OneOf(get_args(OptimizerKind)), "the rule of the update", default="sgd", always=True)
    learning_rate: float = member(
        Number(0.0, math.inf),
        "what a run takes unless it is told another",
        default=0.01,
        always=True,
        defaults={"adamw": 1e-3, "adam": 1e-3, "lion": 1e-4},
    )
    momentum: float = member(
        Number(0.0, 1.0), "share of the last update that goes on", default=0.0, always=True, kinds=("sgd",)
    )
    nesterov: bool = member(Flag(), "the gradient is taken as if the momentum had moved", default=False, kinds=("sgd",))
    weight_decay: float = member(
        Number(0.0, math.inf),
        "SGD, Adam: L2 penalty; the others: decoupled, times the learning rate",
        default=0.0,
        always=True,
        defaults={"adamw": 0.01},
    )
    beta1: float = member(
        Number(0.0, 0.999999),
        "decay of the first moment; Lion: share of the momentum in the direction",
        default=0.9,
        always=True,
        kinds=_MOMENTS,
    )
    beta2: float = member(
        Number(0.0, 0.9999999),
        "decay of the second moment; Lion: of the momentum",
        default=0.999,
        always=True,
        kinds=_MOMENTS,
        defaults={"lion": 0.99},
    )
    eps: float = member(
        Number(1e-30, 1.0), "added to the root of the second moment", default=1e-8, always=True, kinds=("adamw", "adam")
    )
    beta2_decay: float = member(
        Number(-10.0, 0.0),
        "step t takes t ** beta2_decay of the new second moment",
        default=-0.8,
        always=True,
        kinds=("adafactor",),
    )
    eps1: float = member(
        Number(1e-15, 1.0),
        "least root of the second moment; torch: None",
        default=FLOAT32_EPSILON,
        always=True,
        kinds=("adafactor",),
    )
    eps2: float = member(
        Number(0.0, math.inf),
        "least size of a parameter that steps are measured by",
        default=1e-3,
        always=True,
        kinds=("adafactor",),
    )
    clip_threshold: float = member(
        Number(1.0, math.inf),
        "root mean square above which an update is scaled down",
        default=1.0,
        always=True,
        kinds=("adafactor",),
    )
    groups: tuple[ParameterGroup, ...] = member(
        ListOf(RecordOf(ParameterGroup), "groups", MAX_GROUPS),
        "settings of some parameters; later ones override",
        default=(),
    )
    clip_norm: float | None = member(
        Optional(Number(1e-30, math.inf)),
        "most that the norm of all gradients together may be; null: anything",
        default=None,
    )
