"""What a step minimises: one loss of one output, or the weighted sum of several.

A kind of loss is one row in `KINDS`: the fields that it reads beside `output`, `labels` and `weight`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from compiler.errors import SpecError
from compiler.spec.fields import Fields

LossKind = Literal["cross_entropy", "mse", "l1", "huber", "bce_with_logits", "graph"]
"""As the functions of these names in `torch.nn.functional`, averaged. graph: the output is the loss itself."""
KINDS: Mapping[LossKind, tuple[str, ...]] = {
    "cross_entropy": ("class_axis",),
    "mse": (),
    "l1": (),
    "huber": ("delta",),
    "bce_with_logits": (),
    "graph": (),
}
LABELS = "y"
"""The data set's array of labels, where the spec names none."""
MAX_TERMS = 16
MAX_LABELS = 8


@dataclass(frozen=True, slots=True)
class LossTerm:
    """One loss: what it is, which output it reads, and against which labels."""

    kind: LossKind = "cross_entropy"
    output: str = ""
    """Name of the model output it reads; empty: the only (or first) output."""
    class_axis: int | None = None
    """Cross-entropy: the output's axis that holds the classes, from its end if negative; None: the last."""
    labels: str = LABELS
    """The data set's array that it is measured against. A loss that is the graph's own has none."""
    weight: float = 1.0
    """What it is multiplied by in a sum."""
    delta: float = 1.0
    """Huber: where the parabola turns into lines."""

    @property
    def has_labels(self) -> bool:
        """Whether it is measured against an array of the data set."""
        return self.kind != "graph"

    def to_json(self) -> dict[str, object]:
        """Plain data; what has its default is left out, so that a spec without it keeps its digest."""
        told = {"kind": self.kind, "output": self.output}
        plain = LossTerm(self.kind, self.output)
        rest = ("labels", "weight", *KINDS[self.kind])
        return {**told, **{name: getattr(self, name) for name in rest if getattr(self, name) != getattr(plain, name)}}


@dataclass(frozen=True, slots=True)
class LossSpec(LossTerm):
    """The loss of a spec: its own fields are its only term, unless there are `terms`."""

    terms: tuple[LossTerm, ...] = ()

    @property
    def each(self) -> tuple[LossTerm, ...]:
        """What is added up."""
        return self.terms or (self,)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {"terms": [term.to_json() for term in self.terms]} if self.terms else LossTerm.to_json(self)


def read_loss(table: Fields) -> LossSpec:
    """The `loss` of a spec. Raises: SpecError."""
    entries = table.tables("terms")
    if not entries:
        only = _term(table, weight=False)
        return LossSpec(only.kind, only.output, only.class_axis, only.labels, delta=only.delta)
    table.done()
    if len(entries) > MAX_TERMS:
        raise SpecError(f"{len(entries)} terms, the limit is {MAX_TERMS}", where="spec.loss.terms")
    terms = tuple(_term(entry) for entry in entries)
    labels = dict.fromkeys(term.labels for term in terms if term.has_labels)
    if len(labels) > MAX_LABELS:
        raise SpecError(f"{len(labels)} arrays of labels, the limit is {MAX_LABELS}", where="spec.loss.terms")
    return LossSpec(terms=terms)


def _term(table: Fields, *, weight: bool = True) -> LossTerm:
    """What its kind reads; anything else is refused."""
    name = table.choice("kind", get_args(LossKind), default="cross_entropy")
    kind = next(known for known in KINDS if known == name)
    reads = KINDS[kind]
    term = LossTerm(
        kind=kind,
        output=table.text("output", default=""),
        class_axis=table.optional_integer("class_axis", low=-8, high=7) if "class_axis" in reads else None,
        labels=table.text("labels", default=LABELS) or LABELS if kind != "graph" else LABELS,
        weight=table.number("weight", default=1.0, low=0.0, high=1e12) if weight else 1.0,
        delta=table.number("delta", default=1.0, low=1e-12, high=math.inf) if "delta" in reads else 1.0,
    )
    table.done()
    return term
