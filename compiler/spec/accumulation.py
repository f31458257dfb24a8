"""The settings of steps of several micro-batches: how many, and what their gradients and losses are the mean of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from compiler.spec.forms import Integer, Json, OneOf, Place, as_mapping
from compiler.spec.records import member, plain_record, read_record, schema_of

MeanOver = Literal["micro_batches", "labels"]


@dataclass(frozen=True)
class AccumulateSpec:
    """Micro-batches of a step, and over what it averages."""

    steps: int = member(Integer(1, 4096), "micro-batches of a step, of `batch` samples each", default=1)
    mean: MeanOver = member(
        OneOf(get_args(MeanOver)),
        "what counts the same: each micro-batch; or each label of the step, so that ignored labels and weights of "
        "classes count as in a batch of all of them",
        default="micro_batches",
    )


class AccumulateForm:
    """A number of micro-batches, or a mapping with `steps` and `mean`."""

    kind = AccumulateSpec
    steps = Integer(1, 4096)

    def read(self, value: object, place: Place) -> AccumulateSpec:
        """Reads the settings. Raises: the place's error."""
        if isinstance(value, dict):
            return read_record(AccumulateSpec, as_mapping(value, place), place)
        return AccumulateSpec(self.steps.read(value, place))

    def plain(self, value: AccumulateSpec) -> Json:
        """The number if it is all that is said."""
        return value.steps if value == AccumulateSpec(value.steps) else plain_record(value)

    def schema(self) -> dict[str, Any]:
        """Either."""
        return {"anyOf": [self.steps.schema(), schema_of(AccumulateSpec)]}
