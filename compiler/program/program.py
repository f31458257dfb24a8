"""The way from kernels to bytes: the typed values that scheduling, memory planning, code generation and linking hand
on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from compiler.graph import Parameter, Phase, TensorType
from compiler.kernels.alignment import ALIGNMENT_BYTES
from compiler.kernels.spec import KernelSpec
from compiler.program.aliases import Aliases, root_of
from compiler.spec.optimizer import OptimizerKind
from compiler.step.training import Term
from compiler.values import Names, Value, name_of

Region = Literal["weights", "optimizer", "arena"]
Space = Literal["host", "device", "unified"]
"""The kind of memory: a CPU's own; an accelerator's own, which the host reaches by copies; or one that both reach. A
binary's kernels run in one of them.
"""
ProgramName = Literal["train", "forward", "accumulate"]
"""accumulate: a micro-batch of a step before its last one, whose gradients are kept for that one."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel applied to values, in the operand order of its spec (inputs, outputs)."""

    spec: KernelSpec
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    layer: str
    """The ONNX node it comes from, by the name that people know. `compiler.program.state` says what it does there."""
    phase: Phase
    flops: int
    bytes_read: int
    bytes_written: int
    parameter: str = ""
    """The parameter whose gradient or update it makes, by the name that people know; empty: of none."""
    updates: bool = False
    """Whether it updates the parameter with the gradient as it makes it."""
    parts: int = 1
    """The number of parts of the batch that the call is cut into; this one runs number `part` of them, counted from
    0.
    """
    part: int = 0
    sum_of: int = 0
    """The number of parts whose sums over the batch it adds; 0: it is no such sum."""
    again: bool = False
    """Whether it makes anew in the backward pass what the forward pass has made: arithmetic that saves memory."""
    strips: int = 1
    """The number of strips of hidden channels that the call is cut into; this one is number `strip` of them, counted
    from 0.
    """
    strip: int = 0


StateRole = Literal["parameter", "optimizer", "constant", "accumulator"]
"""accumulator: gradients of the micro-batches of a step, which no checkpoint holds."""


@dataclass(frozen=True, slots=True)
class ViewOrder:
    """Along `count` view axes from `axis` on, taken as one, place i holds the file's channel `channels[i]`."""

    axis: int
    count: int
    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor that outlives a step: a parameter, optimizer state, or a constant.

    Its inside layout is `file.reshape(view_shape).transpose(perm)`, with channels in the order that `orders` says; see
    `Parameter`. Optimizer state is kept and written in inside layout (perm is the identity), since its shape may be a
    channel slice; in files its channels ascend by their number in the file's parameter.
    """

    value: Value
    name: str
    """The name in checkpoints, where no two tensors have the same (see `compiler.program.state`); a copy's is its
    original's.
    """
    type: TensorType
    role: StateRole
    file_shape: tuple[int, ...]
    view_shape: tuple[int, ...]
    perm: tuple[int, ...]
    trained: bool = False
    """True for a parameter that the step updates (wholly or in part) and for all optimizer state."""
    packed: bool = False
    """True if the inside layout is the one in which matrix products read panels."""
    orders: tuple[ViewOrder, ...] = ()
    channels: tuple[tuple[int, ...], ...] = ()
    """The author's channels that optimizer state is of, by axis, where these are not the first."""
    copy_of: Value | None = None
    """The tensor that this one repeats in another layout: loaded from the same tensor of a file, never written."""

    @property
    def lies_in_file(self) -> bool:
        """Whether a bundle's file holds it as memory does: bytes of frozen weights, which may be mapped from there."""
        return self.type.dtype == "i8"

    @property
    def is_mapped(self) -> bool:
        """Whether it stands side by side with others in file and memory, without a gap for alignment."""
        return self.lies_in_file and self.type.size_bytes % ALIGNMENT_BYTES == 0

    @property
    def mapped_order(self) -> tuple[bool, str]:
        """Returns the key by which tensors of one element type are ordered, in file and memory: those that are mapped
        first, by name.
        """
        return not self.is_mapped, self.name if self.is_mapped else ""


@dataclass(frozen=True, slots=True)
class Program:
    """Kernel calls in order (of the graph, then of execution) over values.

    `aliases` maps a value to the storage that it shares. What must hold is in `compiler.program.verify`.
    """

    name: ProgramName
    calls: tuple[KernelCall, ...]
    types: Mapping[Value, TensorType]
    inputs: tuple[Value, ...]
    """Data inputs in the model's order, then (train) the label input, then hyper-parameters."""
    outputs: tuple[Value, ...]
    """train, accumulate: the loss, then the logits; forward: the logits."""
    aliases: Aliases = field(default_factory=dict)
    updates: tuple[Value, ...] = ()
    """The new values of parameters and optimizer state, in the storage of what they replace."""
    state: tuple[Value, ...] = ()
    """Values that calls read or write that were there before: parameters, constants, optimizer state."""

    ordered: bool = True
    """Whether calls stand in an order in which they can run; if not, it is for `schedule` to find one."""
    names: Names = field(default_factory=dict)
    """The model's names for its values."""

    @property
    def retained(self) -> frozenset[Value]:
        """Root values that must be in memory at the end."""
        return frozenset(map(self.root, (*self.outputs, *self.updates)))

    def root(self, value: Value) -> Value:
        """The value that owns the storage of `value`."""
        return root_of(self.aliases, value)

    def name_of(self, value: Value) -> str:
        """Returns the text that people read where the value is meant."""
        return name_of(value, self.names)

    def trimmed(self) -> Program:
        """Returns the same program without types, aliases and names of values that nothing touches."""
        pending = [value for call in self.calls for value in (*call.inputs, *call.outputs)]
        pending += (*self.inputs, *self.outputs, *self.updates, *self.state)
        touched: set[Value] = set()
        while pending:
            value = pending.pop()
            if value not in touched:
                touched.add(value)
                pending += [self.aliases[value].value] if value in self.aliases else []
        reachable = touched | {value.root for value in touched}
        return replace(
            self,
            types={value: tensor for value, tensor in self.types.items() if value in touched},
            aliases={value: alias for value, alias in self.aliases.items() if value in touched},
            names={value: name for value, name in self.names.items() if value in reachable},
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """The place where a value lives: a byte range in one region of a memory space, at an aligned offset."""

    region: Region
    offset_bytes: int
    size_bytes: int
    space: Space = "host"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Byte-exact storage of all values of all programs of one binary.

    `placements` is keyed by (program name, value); state tensors appear under both programs at the same place.
    `workspaces` is keyed by (program name, call index). `live` gives, for the arena picture, (first, last) call index.
    """

    placements: Mapping[tuple[ProgramName, Value], Placement]
    workspaces: Mapping[tuple[ProgramName, int], Placement]
    live: Mapping[tuple[ProgramName, Value], tuple[int, int]]
    weights_bytes: int
    optimizer_bytes: int
    arena_bytes: int
    bound_bytes: int
    """The most bytes of the arena alive at one call, in the chosen order of calls: no packing of them is smaller."""
    space: Space = "host"
    """The memory where all of it lies."""

    def moved(self, space: Space) -> MemoryPlan:
        """Returns the same plan in another memory."""
        if space == self.space:
            return self
        return replace(
            self,
            placements={key: replace(place, space=space) for key, place in self.placements.items()},
            workspaces={key: replace(place, space=space) for key, place in self.workspaces.items()},
            space=space,
        )

    @property
    def gap(self) -> float:
        """Returns the arena's excess over the bound, as a share of the bound."""
        return self.arena_bytes / self.bound_bytes - 1 if self.bound_bytes else 0.0

    @property
    def needed_bytes(self) -> int:
        """Returns the bytes of all memory that a step takes, apart from its code."""
        return self.arena_bytes + self.weights_bytes + self.optimizer_bytes


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rates of a run, unless it is told otherwise: up from 0, then down to a share of the learning rate."""

    kind: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: int = 0
    final_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Optimizer settings that the binary needs at run time (defaults of its options).

    Units: none. The hyper-parameter `learning_rate` is `learning_rate` or the command line's; what the runtime fills
    the others with at step t is in `compiler.codegen.linking.tables`.
    """

    kind: OptimizerKind
    learning_rate: float
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    beta2_decay: float = -0.8
    micro_batches: int = 1
    """The micro-batches of a step: all but the last are runs of the program `accumulate`."""
    schedule: Schedule = Schedule()
    is_mean_of_labels: bool = False
    """Whether the loss of a step's last micro-batch is that of all, by their labels; else theirs are averaged."""


@dataclass(frozen=True, slots=True)
class BinaryImage:
    """A binary's image: what linking needs to make one executable, apart from the compiled kernels."""

    programs: Mapping[ProgramName, Program]
    plan: MemoryPlan
    state: tuple[StateTensor, ...]
    data_inputs: tuple[Value, ...]
    label_arrays: Mapping[Value, str]
    loss: Value
    logits: Value
    terms: tuple[Term, ...]
    optimizer: Optimizer
    threads: int
    """Default (and most) threads; split reductions are planned for this many."""
    identity: Mapping[str, str]
    """Digests and names that `info` prints: model, plan, spec, compiler, target."""
    batch_axes: Mapping[Value, int | None] = field(default_factory=dict)
    """The batch axes of inputs, labels and outputs whose samples do not lie along the first axis; None: nowhere."""


__all__ = [
    "BinaryImage",
    "KernelCall",
    "MemoryPlan",
    "Optimizer",
    "Parameter",
    "Phase",
    "Placement",
    "Program",
    "ProgramName",
    "Region",
    "Schedule",
    "StateTensor",
]
