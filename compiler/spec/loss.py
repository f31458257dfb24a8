"""The quantity that a step minimises: one loss of one output, or the weighted sum of several.

A kind of loss is one word of `LossKind`; the fields of `LossTerm` say which kinds take them.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, get_args

from compiler.spec.forms import (
    Integer,
    Json,
    ListOf,
    Number,
    Numbers,
    OneOf,
    Optional,
    Place,
    Text,
    as_mapping,
)
from compiler.spec.records import RecordOf, kind_hint, member, members_of, plain_record, read_record, schema_of

LossKind = Literal["cross_entropy", "next_token", "mse", "l1", "huber", "smooth_l1", "bce_with_logits", "graph"]
"""The kinds of loss, as the functions of these names in `torch.nn.functional`. next_token: cross-entropy of each
position with the label of the next one; smooth_l1: `smooth_l1_loss`; graph: the output is the loss itself.
"""
MEASURED: tuple[LossKind, ...] = tuple(kind for kind in get_args(LossKind) if kind != "graph")
"""The kinds that are measured against labels."""
CLASSIFYING: tuple[LossKind, ...] = ("cross_entropy", "next_token")
"""The kinds whose labels are numbers of classes."""
_ON_PROBABILITIES = "{kind: bce_with_logits, on: probabilities}"
_ON_LOGARITHMS = "kind: cross_entropy, which takes logarithms of probabilities as it takes logits"
SYNONYMS = {
    **dict.fromkeys(("bce", "binary_cross_entropy", "binary_crossentropy"), _ON_PROBABILITIES),
    **dict.fromkeys(("nll", "nll_loss"), _ON_LOGARITHMS),
    **dict.fromkeys(("categorical_crossentropy", "sparse_categorical_crossentropy", "ce"), "kind: cross_entropy"),
    **dict.fromkeys(("binary_cross_entropy_with_logits", "sigmoid"), "kind: bce_with_logits"),
    **dict.fromkeys(("l1_loss", "mae", "mean_absolute_error"), "kind: l1"),
    **dict.fromkeys(("l2", "mean_squared_error", "mse_loss"), "kind: mse"),
}
"""Losses as PyTorch and Keras call them -> as a spec does."""
LABELS = "y"
"""The data set's array of labels, where the spec names none."""
MAX_TERMS = 16
MAX_LABELS = 8


@dataclass(frozen=True)
class LossTerm:
    """A loss: what it is, which output it reads, and against which labels."""

    kind: LossKind = member(OneOf(get_args(LossKind), SYNONYMS), "which loss", default="cross_entropy", always=True)
    output: str = member(
        Text(), "name of the model output that it reads; empty: the only (or first)", default="", always=True
    )
    class_axis: int | None = member(
        Optional(Integer(-8, 7)),
        "the output's axis that holds the classes, from its end if negative; null: the last",
        default=None,
        kinds=("cross_entropy", "bce_with_logits"),
    )
    on: Literal["logits", "probabilities"] | None = member(
        Optional(OneOf(("logits", "probabilities"))),
        "what the output holds; null: as the graph tells",
        default=None,
        kinds=(*CLASSIFYING, "bce_with_logits"),
    )
    batch_axis: int | None = member(
        Optional(Integer(0, 7)),
        "the output's axis that holds the samples; null: as the inputs and the graph tell",
        default=None,
        kinds=MEASURED,
    )
    labels: str = member(
        Text(),
        "the data set's array that it is measured against; next_token: or one of the model's inputs",
        default=LABELS,
        kinds=MEASURED,
    )
    weight: float = member(Number(0.0, 1e12), "what it is multiplied by in a sum", default=1.0)
    reduction: Literal["mean", "sum"] = member(
        OneOf(("mean", "sum")), "mean or sum of what is measured", default="mean", kinds=MEASURED
    )
    ignore_index: int = member(
        Integer(-(1 << 31), (1 << 31) - 1), "a label that counts for nothing", default=-100, kinds=CLASSIFYING
    )
    label_smoothing: float = member(
        Number(0.0, 1.0), "share of each label that is spread over all classes", default=0.0, kinds=CLASSIFYING
    )
    class_weights: tuple[float, ...] = member(
        ListOf(Number(0.0, 1e12), "weights of classes"),
        "what each class counts; [] for all alike",
        default=(),
        kinds=(*CLASSIFYING, "bce_with_logits"),
    )
    pos_weight: tuple[float, ...] = member(
        Numbers(0.0, 1e12, "weights of classes"),
        "what a label of 1 counts: one number, or one for each class",
        default=(),
        kinds=("bce_with_logits",),
    )
    delta: float = member(Number(1e-12, math.inf), "where the parabola turns into lines", default=1.0, kinds=("huber",))
    beta: float = member(
        Number(0.0, math.inf), "where the parabola turns into lines; 0 for none", default=1.0, kinds=("smooth_l1",)
    )

    @property
    def has_labels(self) -> bool:
        """Whether it is measured against an array of the data set."""
        return self.kind != "graph"


TERMS = ListOf(RecordOf(LossTerm), "terms", MAX_TERMS)
ALONE = ("weight",)
"""Fields that a loss that is the only one does not have."""


@dataclass(frozen=True)
class LossSpec(LossTerm):
    """The loss of a spec: its own fields are its only term, unless there are `terms`."""

    terms: tuple[LossTerm, ...] = member(TERMS, "losses that are added up, instead of one", default=())

    @property
    def without(self) -> Collection[str]:
        """Fields that a document with this loss does not have."""
        return tuple(spec_field.called for spec_field in members_of(LossTerm)) if self.terms else ALONE

    @property
    def each(self) -> tuple[LossTerm, ...]:
        """Returns the terms that are added up."""
        return self.terms or (self,)


class LossForm:
    """A loss, or `terms` that are added up."""

    kind = LossSpec

    def read(self, value: object, place: Place) -> LossSpec:
        """The loss. Raises: SpecError."""
        mapping = as_mapping(value, place, kind_hint(LossTerm, value))
        if mapping.get("terms") is None:
            return read_record(LossSpec, mapping, place, without=ALONE)
        other = next((name for name in mapping if name != "terms"), None)
        if other is not None:
            raise place.field(other[:60]).refused(
                "unknown field", "beside `terms` there are none; it belongs to a term"
            )
        at = place.field("terms")
        terms = TERMS.read(mapping["terms"], at)
        if not terms:
            raise at.wrong("a list of at least one term", [])
        arrays = dict.fromkeys(term.labels for term in terms if term.has_labels)
        if len(arrays) > MAX_LABELS:
            raise at.refused(f"{len(arrays)} arrays of labels, the limit is {MAX_LABELS}")
        return LossSpec(terms=terms)

    def plain(self, value: LossSpec) -> Json:
        """Its fields, or its terms."""
        return {"terms": TERMS.plain(value.terms)} if value.terms else plain_record(value)

    def schema(self) -> dict[str, Any]:
        """Returns the schema of one of the kinds, or of a list of terms."""
        several = {**TERMS.schema(), "minItems": 1, "description": "losses that are added up"}
        body = {
            "type": "object",
            "properties": {"terms": several},
            "required": ["terms"],
            "additionalProperties": False,
        }
        return {"oneOf": [*schema_of(LossTerm, without=ALONE)["oneOf"], body]}
