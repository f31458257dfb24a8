"""A user's documents: the sparse plan (which parameters learn) and the training spec (loss, optimizer, batch).

Both are read from JSON or YAML, checked field by field, and have one canonical JSON text whose SHA-256 identifies them.
What a field may hold is said where it stands (`compiler.spec.records`).

How the learning rate goes on, unless a run is told another way.

The settings of steps of several micro-batches: how many, and what their gradients and losses are the mean of.

Low-rank adapters as part of a plan: which layers learn a product of two small matrices beside a frozen weight.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from compiler.errors import PlanError, SpecError
from compiler.spec.forms import (
    ByName,
    Flag,
    Groups,
    Integer,
    Json,
    ListOf,
    Names,
    Number,
    OneOf,
    Optional,
    Place,
    Text,
    as_mapping,
    near_hint,
)
from compiler.spec.inputs import BatchAxis, InputForm, InputSpec
from compiler.spec.loss import LossForm, LossSpec, LossTerm
from compiler.spec.optimizer import OptimizerSpec
from compiler.spec.precision import PrecisionSpec
from compiler.spec.reading import read_mapping
from compiler.spec.records import RecordOf, member, plain_record, read_record, schema_of
from compiler.spec.rules import RuleForm, UpdateRule
from compiler.spec.schemes import EVERY_PRESET, PRESETS, Scheme

AdapterKind = Literal["lora", "dora"]
AdapterExport = Literal["merged", "peft"]
ALL_LINEAR = "all-linear"
"""A target: every linear layer but the last."""


@dataclass(frozen=True)
class AdapterSpec:
    """y = W x + alpha / rank * B A x: A and B learn, W does not.

    Source: LoRA (arXiv 2106.09685), DoRA (arXiv 2402.09353), rank-stabilised scaling (arXiv 2312.03732).
    """

    targets: tuple[str, ...] = member(
        Names(), "layers by path or its end, parameters by name, globs of either, or all-linear"
    )
    rank: int = member(Integer(1, 4096), "rows of A and columns of B", default=8)
    alpha: float = member(Number(0.0, 1e6), "the product counts alpha / rank", default=8.0)
    kind: AdapterKind = member(
        OneOf(get_args(AdapterKind)), "dora: a magnitude for each output learns too", default="lora"
    )
    rslora: bool = member(Flag(), "the product counts alpha / sqrt(rank)", default=False)
    seed: int = member(Integer(0, (1 << 63) - 1), "of A's first elements", default=0)
    export: AdapterExport = member(
        OneOf(get_args(AdapterExport)), "merged into the weights that come back, or peft: kept apart", default="merged"
    )


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


ScheduleKind = Literal["constant", "cosine", "linear"]


@dataclass(frozen=True)
class ScheduleSpec:
    """Learning rates over a run, as the schedules of `transformers` with warm-up define them."""

    kind: ScheduleKind = member(
        OneOf(get_args(ScheduleKind)),
        "how the learning rate goes on after the warm-up",
        default="constant",
        always=True,
    )
    warmup_steps: int = member(Integer(0, 1_000_000_000), "steps in which it rises from 0", default=0, always=True)
    final_ratio: float = member(
        Number(0.0, 1.0),
        "share of the learning rate that is left at the run's end",
        default=0.0,
        always=True,
        kinds=("cosine", "linear"),
    )


_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,60}")


@dataclass(frozen=True)
class SparsePlan:
    """The slices of parameters that learn: a preset, a scheme, then rules, later ones overriding earlier ones.

    Source: sparse back-propagation schemes of PockEngine (arXiv 2310.17752, section 3).
    """

    name: str = member(Text(), "what people call it; empty: the preset's name", default="", always=True)
    preset: str = member(OneOf(EVERY_PRESET), "what learns before the rules", default="frozen", always=True)
    rules: tuple[UpdateRule, ...] = member(
        ListOf(RuleForm(), "mappings"),
        "later rules override earlier ones",
        default=(),
        called="update",
        always=True,
    )
    frozen: tuple[str, ...] = member(
        Names(), "names or globs of what never learns, whatever the rules say; a model need not have them", default=()
    )
    create_biases: tuple[str, ...] = member(
        Names(),
        "layers without a bias that get one, zeros: by path or its end, weights by name, or globs of either",
        default=(),
    )
    lora: AdapterSpec | None = member(
        Optional(RecordOf(AdapterSpec)), "low-rank adapters, which learn beside frozen weights", default=None
    )
    scheme: Scheme | None = member(
        Optional(RecordOf(Scheme)), "a published scheme with figures of one's own, after the preset", default=None
    )

    @classmethod
    def of_preset(cls, preset: str) -> SparsePlan:
        """The plan that is nothing but a preset (`full`, `bias-only`, `last-layer`)."""
        return cls.parse({"name": preset, "preset": preset})

    @classmethod
    def parse(cls, source: str | bytes | Mapping[str, object]) -> SparsePlan:
        """Reads a plan from JSON or YAML text, a preset's name, or plain data.

        Raises: PlanError naming the field, what it holds and what it may hold.
        """
        if isinstance(source, str) and source.strip() in EVERY_PRESET:
            source = {"name": source.strip(), "preset": source.strip()}
        elif isinstance(source, str) and _WORD.fullmatch(source.strip()):
            presets, hint = ", ".join(EVERY_PRESET), near_hint(source.strip(), EVERY_PRESET)
            raise PlanError(f"no preset is called {source.strip()!r}; there are: {presets}", where="plan", hint=hint)
        mapping = dict(read_mapping(source, "plan", PlanError))
        if mapping.get("name") in (None, ""):
            mapping["name"] = mapping.get("preset") or ("lora" if mapping.get("lora") else "frozen")
        plan = read_record(cls, mapping, Place("plan", PlanError))
        chooses = any(rule.ratio > 0 for rule in plan.rules) or plan.scheme is not None or plan.lora is not None
        if plan.preset == "frozen" and not chooses:
            raise PlanError(
                "the plan trains nothing",
                where="plan.update",
                hint="create_biases makes them, and what learns stands "
                "beside it: `preset: bias-only`, or a rule under `update`"
                if plan.create_biases
                else "add a rule under `update`, or set `preset: full`",
            )
        return plan

    def canonical_json(self) -> str:
        """Returns the canonical text: the same for the same meaning (the name is part of it)."""
        return _canonical(plain_record(self))

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of the canonical text."""
        return _digest(self.canonical_json())


BatchNormMode = Literal["fold", "frozen", "train"]
"""fold: into the layer before; frozen: scale and shift learn, statistics stay; train: statistics of each batch."""


@dataclass(frozen=True)
class TrainingSpec:
    """The way the training step is built. Units: `memory_limit_bytes` in bytes."""

    batch: int = member(Integer(1, 65536), "samples of a step", default=8, always=True)
    loss: LossSpec = member(LossForm(), "what is minimised", default=LossSpec(), always=True)
    optimizer: OptimizerSpec = member(
        RecordOf(OptimizerSpec), "how it is minimised", default=OptimizerSpec(), always=True
    )
    schedule: ScheduleSpec = member(
        RecordOf(ScheduleSpec), "how the learning rate goes on; a run may be told otherwise", default=ScheduleSpec()
    )
    accumulate: AccumulateSpec = member(
        AccumulateForm(),
        "micro-batches of a step, of `batch` samples each; their gradients are averaged",
        default=AccumulateSpec(),
    )
    inputs: tuple[tuple[str, InputSpec], ...] = member(
        ByName(InputForm()),
        "of inputs: shapes where the model leaves some open, where samples lie, values that they always have",
        default=(),
        always=True,
    )
    batch_norm: BatchNormMode = member(
        OneOf(get_args(BatchNormMode)),
        "fold into the layer before; frozen statistics; train as in model.train()",
        default="fold",
        always=True,
    )
    dropout: Literal["ignore", "train"] = member(
        OneOf(("ignore", "train")),
        "ignore: nothing is dropped; train: as the model says, in training steps",
        default="ignore",
    )
    tied: tuple[tuple[str, ...], ...] = member(
        Groups(), "groups of initializers that are one parameter each, where the file does not tell", default=()
    )
    untied: tuple[str, ...] = member(
        Names(), "initializers that are a parameter of its own for each of their readers", default=()
    )
    quantized: Literal["frozen", "dequantize"] = member(
        OneOf(("frozen", "dequantize")),
        "weights that the file stores in eight bits: frozen as they are stored; dequantize: read as real numbers, so "
        "that they learn",
        default="frozen",
    )
    convolutions: Literal["fast", "direct"] = member(
        OneOf(("fast", "direct")),
        "direct: no Winograd, whose rounding error is up to three times as large",
        default="fast",
        always=True,
    )
    precision: PrecisionSpec = member(
        RecordOf(PrecisionSpec), "in which types the step holds its numbers", default=PrecisionSpec()
    )
    threads: int | None = member(
        Optional(Integer(1, 256)), "the most that a run uses; null: the target's cores", default=None, always=True
    )
    memory_limit_bytes: int | None = member(
        Optional(Integer(1, 1 << 50)),
        "null: the target's memory refuses what is larger, and nothing is slowed down to need less",
        default=None,
        always=True,
    )
    library: bool = member(
        Flag(),
        "the bundle also holds the step as a shared library for apps, with its header and an example",
        default=False,
    )

    @classmethod
    def parse(cls, source: str | bytes | Mapping[str, object]) -> TrainingSpec:
        """Reads a spec from JSON or YAML text or plain data; an empty one gives the defaults.

        Raises: SpecError naming the field, what it holds and what it may hold.
        """
        return read_record(cls, read_mapping(source, "spec", SpecError), Place("spec", SpecError))

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes bound by the user, by input name; with the axis that is new, if there is one."""
        return {
            name: (1, *entry.shape) if entry.batch_axis == "new" else entry.shape
            for name, entry in self.inputs
            if entry.shape is not None and entry.value is None
        }

    def sample_axes(self) -> tuple[str, ...]:
        """The inputs that get an axis for their one sample."""
        return tuple(name for name, entry in self.inputs if entry.batch_axis == "new" and entry.value is None)

    def batch_axes(self) -> dict[str, BatchAxis]:
        """Returns where the user says that samples lie, by input name."""
        return {
            name: 0 if entry.batch_axis == "new" else entry.batch_axis
            for name, entry in self.inputs
            if entry.batch_axis is not None and entry.value is None
        }

    def input_values(self) -> dict[str, tuple[float, ...]]:
        """Values that the user gives to inputs for good, by input name."""
        return {name: entry.value for name, entry in self.inputs if entry.value is not None}

    def canonical_json(self) -> str:
        """Returns the canonical text: the same for the same meaning."""
        return _canonical(plain_record(self))

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of the canonical text."""
        return _digest(self.canonical_json())


def _canonical(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


__all__ = [
    "EVERY_PRESET",
    "PRESETS",
    "LossSpec",
    "LossTerm",
    "OptimizerSpec",
    "Scheme",
    "SparsePlan",
    "TrainingSpec",
    "UpdateRule",
]
