"""Low-rank adapters as part of a plan: which layers learn a product of two small matrices beside a frozen weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from compiler.spec.forms import Flag, Integer, Names, Number, OneOf
from compiler.spec.records import member

AdapterKind = Literal["lora", "dora"]
AdapterExport = Literal["merged", "peft"]
ALL_LINEAR = "all-linear"
"""A target: every linear layer but the last."""


@dataclass(frozen=True)
class AdapterSpec:
    """y = W x + alpha / rank * B A x: A and B learn, W does not.

    Source: LoRA (arXiv 2106.09685), DoRA (arXiv 2402.09353), rank-stabilised scaling (arXiv 2312.03732).
    """

    targets: tuple[str, ...] = member(
        Names(), "layers by path or its end, parameters by name, globs of either, or all-linear"
    )
    rank: int = member(Integer(1, 4096), "rows of A and columns of B", default=8)
    alpha: float = member(Number(0.0, 1e6), "the product counts alpha / rank", default=8.0)
    kind: AdapterKind = member(
        OneOf(get_args(AdapterKind)), "dora: a magnitude for each output learns too", default="lora"
    )
    rslora: bool = member(Flag(), "the product counts alpha / sqrt(rank)", default=False)
    seed: int = member(Integer(0, (1 << 63) - 1), "of A's first elements", default=0)
    export: AdapterExport = member(
        OneOf(get_args(AdapterExport)), "merged into the weights that come back, or peft: kept apart", default="merged"
    )
