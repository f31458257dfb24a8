"""The settings of a model's input: its shape, which axis holds the samples, or the value that it always has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Union

from compiler.spec.forms import Integer, Json, Numbers, OneOf, Place, Shape, as_mapping, near_hint
from compiler.spec.records import member, members_of, plain_record, schema_of

BatchAxis = Union[int, Literal["none"]]
"""none: the input is the same for every sample."""
AskedAxis = Union[BatchAxis, Literal["new"]]
"""new: the input is one sample, and gets an axis in front of it."""


class BatchAxisForm:
    """An axis, or `new`, or null: there is none, which is something else than leaving the field out."""

    axis = Integer(0, 7)
    word = OneOf(("new",))

    def read(self, value: object, place: Place) -> AskedAxis:
        """The axis."""
        if value is None:
            return "none"
        if isinstance(value, str):
            self.word.read(value, place)
            return "new"
        return self.axis.read(value, place)

    def plain(self, value: AskedAxis) -> Json:
        """The axis, `new` or null."""
        return None if value == "none" else value

    def schema(self) -> dict[str, Json]:
        """Returns the schema of any of the three."""
        return {"anyOf": [self.axis.schema(), self.word.schema(), {"type": "null"}]}


@dataclass(frozen=True)
class InputSpec:
    """The settings of one input. None: as the model says."""

    shape: tuple[int, ...] | None = member(Shape(), "its extents, where the model leaves some open", default=None)
    batch_axis: AskedAxis | None = member(
        BatchAxisForm(),
        "the axis that holds the samples, the first by default; new: it is one sample without an axis, which data have "
        "in front (`batch: 1`); null: the same for every sample",
        default=None,
    )
    value: tuple[float, ...] | None = member(
        Numbers(-math.inf, math.inf, "numbers", takes_truth=True),
        "what it always is: a number, true or false, or as many as it has elements; the step then takes no such input",
        default=None,
    )


_FIELDS = {spec_field.called: spec_field for spec_field in members_of(InputSpec)}


class InputForm:
    """A shape, or a mapping with `shape`, `batch_axis` (null: there is none) and `value`."""

    kind = InputSpec

    def read(self, value: object, place: Place) -> InputSpec:
        """Reads the settings. Raises: the place's error."""
        if isinstance(value, list):
            return InputSpec(Shape().read(value, place))
        if not isinstance(value, dict):
            raise place.refused(
                "a shape is a list of 1 to 8 positive integers", "or a mapping with shape, batch_axis and value"
            )
        mapping = as_mapping(value, place)
        other = next((name for name in mapping if name not in _FIELDS), None)
        if other is not None:
            raise place.field(other[:60]).refused("unknown field", near_hint(other, tuple(_FIELDS)))
        stated = {name: value for name, value in mapping.items() if value is not None or name == "batch_axis"}
        return InputSpec(**{name: _FIELDS[name].form.read(value, place.field(name)) for name, value in stated.items()})

    def plain(self, value: InputSpec) -> Json:
        """The shape if it is all that is said."""
        if value.shape is not None and value == InputSpec(value.shape):
            return list(value.shape)
        return plain_record(value)

    def schema(self) -> dict[str, Json]:
        """Either."""
        return {"anyOf": [Shape().schema(), schema_of(InputSpec)]}
