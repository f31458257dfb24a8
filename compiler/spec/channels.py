"""The channels of a parameter that learn: so many of them, or a list, along which of its axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from compiler.spec.forms import Integer, Json, ListOf, Number, OneOf, Optional, Place, as_mapping
from compiler.spec.records import member, members_of, plain_record, read_record, schema_of

Selection = Literal["first", "magnitude", "explicit"]
Along = Literal["input", "output", "heads", "ffn"]
_SHARE = Number(1e-9, 1.0)
_INDICES = ListOf(Integer(0, (1 << 31) - 1), "channel numbers")


@dataclass(frozen=True)
class Channels:
    """A share of the channels, or the channels by number; of heads and hidden units, those of all matches together."""

    ratio: float | None = member(Optional(_SHARE), "the share that learns, at least one", default=None)
    indices: tuple[int, ...] = member(_INDICES, "the ones that learn, by number from 0", default=())
    select: Selection = member(
        OneOf(get_args(Selection)),
        "of a share: the first, or those of the largest L2 norm; explicit with indices",
        default="first",
    )
    along: Along = member(
        OneOf(get_args(Along)),
        "input or output channels, attention heads, or hidden units of a feed-forward block",
        default="input",
    )
    heads: int | None = member(
        Optional(Integer(1, 65536)), "how many heads there are, where the model does not show it", default=None
    )


class ChannelsForm:
    """A share, a list of numbers, or a mapping."""

    kind = Channels

    def read(self, value: object, place: Place) -> Channels:
        """The channels. Raises: the place's error."""
        if isinstance(value, list):
            return self.read({"indices": value}, place)
        if not isinstance(value, Mapping):
            return self.read({"ratio": _SHARE.read(value, place)}, place)
        mapping = as_mapping(value, place)
        channels = read_record(Channels, mapping, place)
        if channels.heads is not None and channels.along != "heads":
            raise place.field("heads").refused(
                f"along: {channels.along} has no heads", "say along: heads, or leave it out"
            )
        if (channels.ratio is None) == (mapping.get("indices") is None):
            raise place.refused("takes one of ratio and indices", "ratio: 0.25 for a quarter; indices: [0, 5] for two")
        if channels.ratio is None:
            return _explicit(channels, mapping, place)
        if channels.select == "explicit":
            raise place.field("select").refused("explicit needs indices", "first or magnitude choose by a ratio")
        return channels

    def plain(self, value: Channels) -> Json:
        """The mapping."""
        return plain_record(value)

    def schema(self) -> dict[str, Json]:
        """A number, an array, or an object for each way to choose, with heads or without."""
        objects = [_object(chosen, heads) for chosen in ("ratio", "indices") for heads in (False, True)]
        return {"anyOf": [_SHARE.schema(), _INDICES.schema(), *objects]}


def _object(chosen: str, heads: bool) -> dict[str, Json]:
    """The mapping with `ratio` or `indices`; along heads, or along anything else."""
    whole = schema_of(Channels)
    fields = dict(whole["properties"])
    del fields["indices" if chosen == "ratio" else "ratio"]
    selections = ["first", "magnitude"] if chosen == "ratio" else ["explicit"]
    fields["select"] = {**fields["select"], "enum": selections, "default": selections[0]}
    fields[chosen] = {**(_SHARE if chosen == "ratio" else _INDICES).schema(), "description": _words(chosen)}
    if heads:
        fields["along"] = {"const": "heads", "description": _words("along")}
    else:
        others = [along for along in get_args(Along) if along != "heads"]
        fields["along"] = {**fields["along"], "enum": others}
        del fields["heads"]
    return {**whole, "properties": fields, "required": [chosen, "along"] if heads else [chosen]}


def _words(name: str) -> str:
    return next(spec_field.words for spec_field in members_of(Channels) if spec_field.name == name)


def _explicit(channels: Channels, mapping: Mapping[str, object], place: Place) -> Channels:
    if mapping.get("select") is not None and channels.select != "explicit":
        raise place.field("select").refused(f"{channels.select} chooses by a ratio", "indices are select: explicit")
    if not channels.indices:
        raise place.field("indices").refused("an empty list learns nothing", "`ratio: 0` of the rule itself freezes")
    if len(set(channels.indices)) < len(channels.indices):
        raise place.field("indices").refused("a number stands there twice")
    return replace(channels, indices=tuple(sorted(channels.indices)), select="explicit")
