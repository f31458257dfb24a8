"""A line of a plan: which parameters learn, and how much of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from compiler.spec.channels import Channels, ChannelsForm
from compiler.spec.forms import Integer, Json, Names, Number, OneOf, Optional, Place, as_mapping
from compiler.spec.records import member, plain_record, read_record, schema_of

RuleKind = Literal["any", "weight", "bias"]
MAX_LAYERS = 100_000
"""No model has as many: it has at most half as many nodes."""
MAX_SPANS = 1_000
_SPAN = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")


class LayerNumbers:
    """Layers by number: from 0 in forward order, from the end if negative, or a span as text (`4-7`, both included)."""

    def read(self, value: object, place: Place) -> tuple[tuple[int, int], ...]:
        """Spans of a first and a last number."""
        entries = value if isinstance(value, list) else [value]
        if not entries or len(entries) > MAX_SPANS:
            raise place.wrong("layer numbers, or spans such as 4-7", value)
        return tuple(self._span(entry, place) for entry in entries)

    def _span(self, entry: object, place: Place) -> tuple[int, int]:
        if type(entry) is int and -MAX_LAYERS <= entry < MAX_LAYERS:
            return entry, entry
        match = _SPAN.fullmatch(entry) if isinstance(entry, str) else None
        if match is None or int(match[1]) > int(match[2]):
            raise place.wrong("layer numbers, or spans such as 4-7", entry)
        return int(match[1]), int(match[2])

    def plain(self, value: tuple[tuple[int, int], ...]) -> Json:
        """Numbers, and spans as text."""
        return [first if first == last else f"{first}-{last}" for first, last in value]

    def schema(self) -> dict[str, Json]:
        """An integer, a span, or some of them."""
        entry = {
            "anyOf": [
                {"type": "integer", "minimum": -MAX_LAYERS, "maximum": MAX_LAYERS - 1},
                {"type": "string", "pattern": f"^{_SPAN.pattern}$"},
            ]
        }
        several = {"type": "array", "items": entry, "minItems": 1, "maxItems": MAX_SPANS}
        return {"anyOf": [*entry["anyOf"], several]}


@dataclass(frozen=True)
class UpdateRule:
    """A rule: what one of the selectors names, and `kind` lets through, learns a `ratio` of its input channels.

    Ratio 0 freezes again what an earlier rule selected. A layer is a matrix product or convolution with a weight of
    its own, and the bias that is added to what it makes.
    """

    parameters: tuple[str, ...] = member(Names(), "names or globs (*, ?, [...]) of parameters", default=())
    modules: tuple[str, ...] = member(
        Names(),
        "paths of modules, or globs of them: all parameters below (`encoder.layer.11`, `layers.[45]`)",
        default=(),
    )
    layers: tuple[tuple[int, int], ...] = member(
        LayerNumbers(),
        "layers by number: from 0 in forward order, from the end if negative; `4-7` is a span",
        default=(),
    )
    last_biases: int | None = member(
        Integer(1, MAX_LAYERS), "the biases of so many last layers in forward order", default=None
    )
    kind: RuleKind = member(
        OneOf(get_args(RuleKind)), "which of those that match: all, weights, or biases", default="any", always=True
    )
    ratio: float = member(
        Number(0.0, 1.0), "share of the input channels that learns, the first ones; 0 freezes", default=1.0, always=True
    )
    channels: Channels | None = member(
        Optional(ChannelsForm()),
        "which channels learn, where not the first input channels; instead of ratio",
        default=None,
    )


SELECTORS = ("parameters", "modules", "layers", "last_biases")
"""Fields of a rule of which it has one."""


class RuleForm:
    """A rule with one selector."""

    kind = UpdateRule

    def read(self, value: object, place: Place) -> UpdateRule:
        """The rule."""
        rule = read_record(UpdateRule, value, place)
        selectors = [name for name in SELECTORS if _is_given(as_mapping(value, place), name)]
        if len(selectors) != 1:
            message = f"{' and '.join(selectors)} stand in one rule" if selectors else "nothing is selected"
            raise place.refused(message, f"a rule has one of {', '.join(SELECTORS)}")
        if rule.channels is not None and rule.ratio != 1.0:
            message = "stands beside ratio, which says the same of the first input channels"
            raise place.field("channels").refused(message, "leave one of them out")
        return rule

    def plain(self, value: UpdateRule) -> Json:
        """Its fields."""
        return plain_record(value)

    def schema(self) -> dict[str, Json]:
        """An object that has one of the selectors."""
        selected = [{"required": [name]} for name in SELECTORS]
        return {**schema_of(UpdateRule), "oneOf": selected}


def _is_given(rule: Mapping[str, object], name: str) -> bool:
    return rule.get(name) is not None
