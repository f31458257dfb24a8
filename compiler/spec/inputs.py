"""What a spec says of a model's input: its shape, and which axis holds the samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from compiler.spec.forms import Integer, Json, Place, Shape, as_mapping, near_hint

BatchAxis = int | Literal["none"]
"""none: the input is the same for every sample."""
_AXIS = Integer(0, 7)
_FIELDS = ("shape", "batch_axis")


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Of one input. None: as the model says."""

    shape: tuple[int, ...] | None = None
    batch_axis: BatchAxis | None = None


class InputForm:
    """A shape, or a mapping with `shape` and `batch_axis`, of which null says that there is none."""

    def read(self, value: object, place: Place) -> InputSpec:
        """What is said. Raises: the place's error."""
        if isinstance(value, list):
            return InputSpec(Shape().read(value, place))
        if not isinstance(value, dict):
            raise place.refused(
                "a shape is a list of 1 to 8 positive integers", "or a mapping with shape and batch_axis"
            )
        given = as_mapping(value, place)
        other = next((name for name in given if name not in _FIELDS), None)
        if other is not None:
            raise place.field(other[:60]).refused("unknown field", near_hint(other, _FIELDS))
        shape, axis = given.get("shape"), given.get("batch_axis", "")
        return InputSpec(
            None if shape is None else Shape().read(shape, place.field("shape")),
            None if axis == "" else "none" if axis is None else _AXIS.read(axis, place.field("batch_axis")),
        )

    def plain(self, value: InputSpec) -> Json:
        """The shape if it is all that is said."""
        if value.batch_axis is None:
            return list(value.shape) if value.shape is not None else {}
        told: dict[str, Any] = {"batch_axis": None if value.batch_axis == "none" else value.batch_axis}
        return told if value.shape is None else {"shape": list(value.shape), **told}

    def schema(self) -> dict[str, Json]:
        """Either."""
        words = "the axis that holds the samples, the first by default; null: the same for every sample"
        axis = {"anyOf": [_AXIS.schema(), {"type": "null"}], "description": words}
        fields = {"shape": Shape().schema(), "batch_axis": axis}
        body = {"type": "object", "properties": fields, "additionalProperties": False}
        return {"anyOf": [Shape().schema(), body]}
