"""What a user asks for: the sparse plan (which parameters learn) and the training spec (loss, optimizer, batch).

Both are read from JSON or YAML, checked field by field, and have one canonical JSON text whose SHA-256 identifies them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from compiler.errors import PlanError, SpecError
from compiler.spec.fields import Fields
from compiler.spec.loss import LossSpec, LossTerm, read_loss
from compiler.spec.reading import read_mapping

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,60}")
PRESETS = ("full", "bias-only", "last-layer", "frozen")
RuleKind = Literal["any", "weight", "bias"]


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """One line of a plan: the parameters that match `parameters` and `kind` learn a `ratio` of their input channels.

    `parameters` are names or globs (`*`, `?`, `[...]`). Ratio 0 freezes again what an earlier rule selected.
    """

    parameters: tuple[str, ...]
    kind: RuleKind = "any"
    ratio: float = 1.0

    def to_json(self) -> dict[str, object]:
        """Plain data, all defaults written out."""
        return {"parameters": list(self.parameters), "kind": self.kind, "ratio": self.ratio}


@dataclass(frozen=True, slots=True)
class SparsePlan:
    """Which slices of which parameters learn: a preset, then rules, later ones overriding earlier ones.

    Source: sparse back-propagation schemes of PockEngine (arXiv 2310.17752, section 3).
    """

    name: str
    preset: str = "frozen"
    rules: tuple[UpdateRule, ...] = ()
    frozen: tuple[str, ...] = ()
    """Names or globs of what never learns, whatever the rules say; a model need not have them."""

    @classmethod
    def of_preset(cls, preset: str) -> SparsePlan:
        """The plan that is nothing but a preset (`full`, `bias-only`, `last-layer`)."""
        return cls.parse({"name": preset, "preset": preset})

    @classmethod
    def parse(cls, source: str | bytes | Mapping[str, object]) -> SparsePlan:
        """Read a plan from JSON or YAML text, a preset's name, or plain data.

        Raises: PlanError naming the field, what it holds and what it may hold.
        """
        if isinstance(source, str) and source.strip() in PRESETS:
            source = {"name": source.strip(), "preset": source.strip()}
        elif isinstance(source, str) and _WORD.fullmatch(source.strip()):
            raise PlanError(f"no preset is called {source.strip()!r}; there are: {', '.join(PRESETS)}", where="plan")
        table = Fields(read_mapping(source, "plan", PlanError), "plan", PlanError)
        preset = table.choice("preset", PRESETS, default="frozen")
        rules = tuple(_rule(entry) for entry in table.tables("update"))
        frozen = table.texts("frozen", default=())
        plan = cls(name=table.text("name", default=preset), preset=preset, rules=rules, frozen=frozen)
        table.done()
        if plan.preset == "frozen" and not any(rule.ratio > 0 for rule in rules):
            raise PlanError(
                "the plan trains nothing", where="plan.update", hint="add a rule under `update`, or set `preset: full`"
            )
        return plan

    def canonical_json(self) -> str:
        """One text for one meaning (the name is part of it)."""
        body: dict[str, object] = {
            "name": self.name,
            "preset": self.preset,
            "update": [rule.to_json() for rule in self.rules],
            # Left out when empty: a plan that does not use it keeps its digest.
            **({"frozen": list(self.frozen)} if self.frozen else {}),
        }
        return _canonical(body)

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of the canonical text."""
        return _digest(self.canonical_json())


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """SGD (torch.optim.SGD semantics) or AdamW (decoupled weight decay, arXiv 1711.05101)."""

    kind: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


OPTIMIZER_FIELDS = {
    "sgd": ("kind", "learning_rate", "momentum", "weight_decay"),
    "adamw": ("kind", "learning_rate", "weight_decay", "beta1", "beta2", "eps"),
}
"""What each kind reads: the canonical text holds these and no others, so that it can be parsed again."""


BatchNormMode = Literal["fold", "frozen", "train"]
"""fold: into the layer before; frozen: scale and shift learn, statistics stay; train: statistics of each batch."""
BATCH_NORM_MODES: tuple[BatchNormMode, ...] = get_args(BatchNormMode)


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """How the training step is built. Units: `memory_limit_bytes` in bytes."""

    batch: int = 8
    loss: LossSpec = field(default_factory=LossSpec)
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    batch_norm: BatchNormMode = "fold"
    dropout: Literal["ignore", "train"] = "ignore"
    """ignore: nothing is dropped; train: as the model says, in training steps."""
    tied: tuple[tuple[str, ...], ...] = ()
    """Groups of initializers that are one parameter each, where the file does not tell."""
    untied: tuple[str, ...] = ()
    """Initializers that are a parameter of its own for each of their readers, where the file does not tell."""
    convolutions: Literal["fast", "direct"] = "fast"
    """direct: no Winograd, whose rounding error is up to three times that of direct convolution."""
    threads: int | None = None
    memory_limit_bytes: int | None = None
    """None: the target's memory refuses what is larger, and nothing is slowed down to need less."""

    @classmethod
    def parse(cls, source: str | bytes | Mapping[str, object]) -> TrainingSpec:
        """Read a spec from JSON or YAML text or plain data; an empty one gives the defaults.

        Raises: SpecError naming the field, what it holds and what it may hold.
        """
        table = Fields(read_mapping(source, "spec", SpecError), "spec", SpecError)
        spec = cls(
            batch=table.integer("batch", default=8, low=1, high=65536),
            loss=read_loss(table.table("loss")),
            optimizer=_optimizer(table.table("optimizer")),
            inputs=_inputs(table.mapping("inputs")),
            batch_norm=_batch_norm(table),
            dropout="train" if table.choice("dropout", ("ignore", "train"), default="ignore") == "train" else "ignore",
            convolutions="direct"
            if table.choice("convolutions", ("fast", "direct"), default="fast") == "direct"
            else "fast",
            tied=table.groups("tied"),
            untied=table.texts("untied", default=()),
            threads=table.optional_integer("threads", low=1, high=256),
            memory_limit_bytes=table.optional_integer("memory_limit_bytes", low=1, high=1 << 50),
        )
        table.done()
        return spec

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes bound by the user, by input name."""
        return dict(self.inputs)

    def canonical_json(self) -> str:
        """One text for one meaning."""
        optimizer = self.optimizer
        body: dict[str, object] = {
            "batch": self.batch,
            "loss": self.loss.to_json(),
            "optimizer": {name: getattr(optimizer, name) for name in OPTIMIZER_FIELDS[optimizer.kind]},
            "inputs": {name: list(shape) for name, shape in self.inputs},
            "batch_norm": self.batch_norm,
            "convolutions": self.convolutions,
            "threads": self.threads,
            "memory_limit_bytes": self.memory_limit_bytes,
            # Left out when empty: a spec that does not use them keeps its digest.
            **({"tied": [list(group) for group in self.tied]} if self.tied else {}),
            **({"untied": list(self.untied)} if self.untied else {}),
            **({"dropout": self.dropout} if self.dropout != "ignore" else {}),
        }
        return _canonical(body)

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of the canonical text."""
        return _digest(self.canonical_json())


def _rule(entry: Fields) -> UpdateRule:
    kind = entry.choice("kind", ("any", "weight", "bias"), default="any")
    rule = UpdateRule(
        parameters=entry.texts("parameters"),
        kind="weight" if kind == "weight" else "bias" if kind == "bias" else "any",
        ratio=entry.number("ratio", default=1.0, low=0.0, high=1.0),
    )
    entry.done()
    return rule


def _batch_norm(table: Fields) -> BatchNormMode:
    chosen = table.choice("batch_norm", BATCH_NORM_MODES, default="fold")
    return next(mode for mode in BATCH_NORM_MODES if mode == chosen)


def _optimizer(table: Fields) -> OptimizerSpec:
    if table.choice("kind", ("sgd", "adamw"), default="sgd") == "sgd":
        optimizer = OptimizerSpec(
            kind="sgd",
            learning_rate=table.number("learning_rate", default=0.01, low=0.0, high=math.inf),
            momentum=table.number("momentum", default=0.0, low=0.0, high=1.0),
            weight_decay=table.number("weight_decay", default=0.0, low=0.0, high=math.inf),
        )
    else:
        optimizer = OptimizerSpec(
            kind="adamw",
            learning_rate=table.number("learning_rate", default=1e-3, low=0.0, high=math.inf),
            weight_decay=table.number("weight_decay", default=0.01, low=0.0, high=math.inf),
            beta1=table.number("beta1", default=0.9, low=0.0, high=0.999999),
            beta2=table.number("beta2", default=0.999, low=0.0, high=0.9999999),
            eps=table.number("eps", default=1e-8, low=1e-30, high=1.0),
        )
    table.done()
    return optimizer


def _inputs(entries: Mapping[str, object]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    shapes = []
    for name, value in sorted(entries.items()):
        where = f"spec.inputs.{name}"
        if not isinstance(value, list) or not value or len(value) > 8:
            raise SpecError("a shape is a list of 1 to 8 positive integers", where=where)
        if not all(type(extent) is int and 0 < extent < 1 << 31 for extent in value):
            raise SpecError(f"every extent is a positive integer, got {value}", where=where)
        shapes.append((name, tuple(value)))
    return tuple(shapes)


def _canonical(body: Mapping[str, object]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


__all__ = ["OPTIMIZER_FIELDS", "PRESETS", "LossSpec", "LossTerm", "OptimizerSpec", "SparsePlan", "TrainingSpec",
           "UpdateRule"]  # fmt: skip
