"""Published schemes of sparse updates: what learns by the place that a layer has in a block, whatever its name is.

A scheme with its own figures stands under `scheme`; one that was published for a family of models is a preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from compiler.spec.forms import Flag, Integer, Json, ListOf, Number, OneOf
from compiler.spec.records import member

SchemeKind = Literal["bottlenecks", "transformer"]
"""bottlenecks: the first point-wise convolution of a block (1x1, spatial, 1x1). transformer: the linears of attention
and the first of the feed-forward part."""
MAX_BLOCKS = 10_000


@dataclass(frozen=True)
class Scheme:
    """A choice of the linears of some blocks that learn. Blocks are counted from the end of the model.

    Source: PockEngine (arXiv 2310.17752), section 3.
    """

    kind: SchemeKind = member(OneOf(get_args(SchemeKind)), "what a block is, and which of its weights learn")
    weight_blocks: int = member(Integer(0, MAX_BLOCKS), "in so many blocks the weights learn", default=4)
    bias_blocks: int = member(
        Integer(0, MAX_BLOCKS), "in so many last blocks, and behind them, the biases learn", default=6
    )
    skip_blocks: int = member(
        Integer(0, MAX_BLOCKS), "so many blocks at the end are left out before `weight_blocks` are counted", default=0
    )
    ratios: tuple[float, ...] = member(
        ListOf(Number(0.0, 1.0), "ratios", MAX_BLOCKS),
        "share of the input channels in each of the `weight_blocks`, in forward order; none: all",
        default=(),
    )
    head: bool = member(Flag(), "whether the last layer learns, whole", default=True)


PRESETS = ("full", "bias-only", "last-layer", "frozen")
"""Presets that select parameters by what they are."""
_BLOCKS = "bottlenecks"
NAMED: Mapping[str, Mapping[str, Json]] = {
    "pockengine-mcunet": {
        "scheme": {"kind": _BLOCKS, "weight_blocks": 4, "skip_blocks": 3, "bias_blocks": 7, "ratios": [1, 1, 0.5, 1]}
    },
    "pockengine-mobilenetv2": {"scheme": {"kind": _BLOCKS, "weight_blocks": 7, "bias_blocks": 7}},
    "pockengine-resnet50": {"scheme": {"kind": _BLOCKS, "weight_blocks": 8, "bias_blocks": 8}},
    "pockengine-bert": {"scheme": {"kind": "transformer", "weight_blocks": 4, "bias_blocks": 6}},
    "pockengine-distilbert": {"scheme": {"kind": "transformer", "weight_blocks": 2, "bias_blocks": 3}},
    "pockengine-llama": {"scheme": {"kind": "transformer", "weight_blocks": 5, "bias_blocks": 5}},
    "tiny-training-mcunet": {
        "update": [
            {"last_biases": 22},
            {"layers": [21, 24, 27, 30], "kind": "weight"},
            {"layers": [36], "kind": "weight", "ratio": 0.125},
            {"layers": [39], "kind": "weight", "ratio": 0.25},
        ]
    },
}
"""Published schemes by name: what a plan of this name has in place of the preset. The ancestor's counts layers."""
EVERY_PRESET = (*PRESETS, *NAMED)
