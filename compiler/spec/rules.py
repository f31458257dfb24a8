"""One line of a plan: which parameters learn, and how much of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from compiler.spec.channels import Channels, ChannelsForm
from compiler.spec.forms import Names, Number, OneOf, Optional, Place
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
    channels: Channels | None = member(
        Optional(ChannelsForm()), "which channels learn, where not the first input channels; instead of ratio",
        default=None,
    )  # fmt: skip


def check_rules(rules: Sequence[UpdateRule], place: Place) -> None:
    """Raises: the place's error for a rule whose fields do not go together."""
    for number, rule in enumerate(rules):
        if rule.channels is not None and rule.ratio != 1.0:
            raise (
                place.item(number)
                .field("channels")
                .refused(
                    "stands beside ratio, which says the same of the first input channels", "leave one of them out"
                )
            )
