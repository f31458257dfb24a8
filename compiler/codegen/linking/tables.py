"""`BinaryImage` -> the C source of the tables that the runtime interprets (`compiler/runtime/image.h`).

How tensors lie in memory whose channels are kept in another order than the file's, as the runtime's `pf_axis`.

Hyper-parameters that the runtime feeds a step beside data: a number of a few forms for each, at step t (from 1).

| form | number |
|---|---|
| PF_RATE | the learning rate |
| PF_REST | 1 - base^t |
| PF_REST_ROOT | sqrt(1 - base^t) |
| PF_STEP_POWER | t^base |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod

import numpy as np

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.linking.c_text import c_array, c_list, c_string, c_struct
from compiler.codegen.linking.launches import CodeTables, LaunchTables
from compiler.codegen.linking.losses import check_losses, classes_of, ignored_by, label_name, term_fields
from compiler.element_types import SCRATCH
from compiler.errors import InternalError, SpecError
from compiler.graph import TensorType
from compiler.kernels.alignment import ALIGNMENT_BYTES, aligned
from compiler.kernels.movement import ElementsSpec
from compiler.kernels.spec import GatherSpec, signature
from compiler.program.aliases import storage_of
from compiler.program.program import (
    BinaryImage,
    KernelCall,
    Optimizer,
    Placement,
    Program,
    Region,
    Schedule,
    StateTensor,
)
from compiler.program.state import chosen_channels, label_of
from compiler.spec.optimizer import OptimizerKind
from compiler.step.training import Term
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Form:
    """A row of the table: the form, and its base, if that is a setting of the optimizer or a number."""

    name: str
    base: str | float = 0.0

    def of(self, optimizer: Optimizer) -> tuple[str, float]:
        """The form and the base's value."""
        return self.name, float(getattr(optimizer, self.base) if isinstance(self.base, str) else self.base)


FORMS: Mapping[str, Form] = {
    "learning_rate": Form("PF_RATE"),
    "bias_correction_1": Form("PF_REST", "beta1"),
    "bias_correction_2_sqrt": Form("PF_REST_ROOT", "beta2"),
    "fresh_share": Form("PF_STEP_POWER", "beta2_decay"),
    "inverse_root_step": Form("PF_STEP_POWER", -0.5),
}
"""The form of each number, by the kind of the graph's input. What random generators draw by is no number of a form (see
`pf_program`).
"""

TOLD: Mapping[OptimizerKind, tuple[str, ...]] = {
    "sgd": ("momentum",),
    "adam": ("beta1", "beta2"),
    "adamw": ("beta1", "beta2"),
    "lion": ("beta1", "beta2"),
    "adafactor": ("beta2_decay",),
}
"""The settings that `info` tells, for each kind of optimizer."""


def hyper_rows(optimizer: Optimizer, inputs: Iterable[Value], place: Callable[[Value], str]) -> list[str]:
    """`pf_hyper` of a program: a row for each of its inputs that is such a number."""
    rows = []
    for value in inputs:
        if value.role == "hyper" and value.kind in FORMS:
            form, base = FORMS[value.kind].of(optimizer)
            rows.append(f"{{{form}, {base.hex()}, {place(value)}}}")
    return rows


def setting_rows(optimizer: Optimizer) -> list[str]:
    """`pf_setting`: what `info` tells of the optimizer beside its kind and learning rate."""
    return [f'{{"{name}", {float(getattr(optimizer, name)).hex()}}}' for name in TOLD[optimizer.kind]]


def micro_batch_fields(optimizer: Optimizer) -> dict[str, str]:
    """Returns how many micro-batches a step has, and whose loss is the step's."""
    return {"micro_batches": str(optimizer.micro_batches), "mean_of_labels": str(optimizer.is_mean_of_labels).lower()}


def schedule_fields(schedule: Schedule) -> str:
    """A schedule as the runtime's `pf_schedule`; the steps are a run's."""
    kind, ratio = f"PF_RATE_{schedule.kind.upper()}", schedule.final_ratio.hex()
    return f"{{.kind = {kind}, .warmup_steps = {schedule.warmup_steps}, .final_ratio = {ratio}}}"


Axis = tuple[int, int, tuple[int, ...]]
"""(extent, stride, offsets): of an axis of the file; without offsets, by the stride."""


class OrderTables:
    """C arrays of the axes of tensors; equal tables of offsets are there once."""

    def __init__(self, states: Sequence[StateTensor]) -> None:
        self.lines: list[str] = []
        self._offsets: dict[tuple[int, ...], str] = {}
        self._fields = {state.value: self._written(number, state) for number, state in enumerate(states)}

    def fields(self, state: StateTensor) -> dict[str, str]:
        """Returns the fields of a `pf_state` that describe the orders."""
        return self._fields[state.value]

    def _written(self, number: int, state: StateTensor) -> dict[str, str]:
        if not state.orders:
            return {}
        rows = []
        for extent, stride, offsets in axes_of(state):
            if offsets and offsets not in self._offsets:
                self._offsets[offsets] = f"offsets_{len(self._offsets)}"
                listed = ", ".join(map(str, offsets))
                self.lines.append(f"static const int64_t {self._offsets[offsets]}[] = {{{listed}}};\n")
            rows.append(f"{{{extent}, {stride}, {self._offsets.get(offsets, 'NULL')}}}")
        self.lines.append(f"static const pf_axis axes_{number}[] = {{{', '.join(rows)}}};\n")
        return {"axes": f"axes_{number}", "axis_count": str(len(rows))}


def axes_of(state: StateTensor) -> list[Axis]:
    """The file's axes, outermost first."""
    strides = _strides(state)
    orders = {order.axis: order for order in state.orders}
    axes: list[Axis] = []
    axis = 0
    while axis < len(strides):
        order = orders.get(axis)
        if order is None:
            axes.append((state.view_shape[axis], strides[axis], ()))
            axis += 1
            continue
        axis_range = slice(axis, axis + order.count)
        places = np.unravel_index(np.argsort(order.channels), state.view_shape[axis_range])
        steps = sum(
            (place * stride for place, stride in zip(places, strides[axis_range], strict=True)), start=np.int64(0)
        )
        axes.append((len(order.channels), 0, tuple(int(step) for step in np.asarray(steps))))
        axis += order.count
    return axes


def _strides(state: StateTensor) -> list[int]:
    """Returns how far apart neighbours along each view axis are in memory, in elements."""
    inside = [state.view_shape[axis] for axis in state.perm]
    strides = [0] * len(inside)
    for place, axis in enumerate(state.perm):
        strides[axis] = prod(inside[place + 1 :])
    return strides


MAX_INPUTS = 16
MAX_OPERANDS = 64
NOWHERE = "PF_NOWHERE"
_INDEX_OPERAND = {"gather": 1, "max": 1, "mul": 1}
"""The input that holds the positions, for kernels that look up or scatter, if it is not the first."""
SAME_ALIGNMENT = f'_Static_assert(PF_ALIGNMENT == {ALIGNMENT_BYTES}, "the runtime and the compiler align alike");\n'


def table_source(image: BinaryImage, kernels: Mapping[str, CompiledKernel]) -> str:
    """C source that defines `pf_image_data`.

    `kernels` is keyed by `signature(call.spec)`.
    Raises: InternalError if a call, value or place contradicts the plan; SpecError if an input or output does not have
    the batch as its first axis.
    """
    return _Tables(image, kernels).source()


@dataclass(frozen=True)
class _Tables:
    image: BinaryImage
    kernels: Mapping[str, CompiledKernel]

    @cached_property
    def _codes(self) -> CodeTables:
        return CodeTables(self._kernel(call) for program in self._programs() for call in program.calls)

    def source(self) -> str:
        used = [self._kernel(call) for program in self._programs() for call in program.calls]
        symbols = sorted({kernel.symbol for kernel in used if kernel.is_called})
        parts = [
            '#include "image.h"\n',
            SAME_ALIGNMENT,
            *(f"extern pf_kernel_fn __tvm_ffi_{symbol};\n" for symbol in symbols),
            self._codes.source(),
            *(self._program_tables(program) for program in self._programs()),
            self._states(),
            c_array("pf_setting", "settings", setting_rows(self.image.optimizer)),
            self._identity(),
            self._image(),
        ]
        return "".join(parts)

    def _programs(self) -> tuple[Program, ...]:
        return tuple(self.image.programs.values())

    def _kernel(self, call: KernelCall) -> CompiledKernel:
        try:
            return self.kernels[signature(call.spec)]
        except KeyError:
            raise InternalError(f"no compiled kernel for {label_of(call)}", where=label_of(call)) from None

    # ------------------------------------------------------------------------------------------------------ places

    def _region_offset(self, region: Region) -> int:
        plan = self.image.plan
        weights_end = aligned(plan.weights_bytes)
        optimizer_end = weights_end + aligned(plan.optimizer_bytes)
        return {"weights": 0, "optimizer": weights_end, "arena": optimizer_end}[region]

    def _total_bytes(self) -> int:
        return self._region_offset("arena") + self.image.plan.arena_bytes

    def _absolute(self, place: Placement, needed_bytes: int, where: str) -> int:
        """Offset in the one mapping. Raises: InternalError if the place is not inside its region or too small."""
        if place.space != self.image.plan.space:
            raise InternalError(f"{place} is not in the memory of this step, {self.image.plan.space}", where=where)
        plan = self.image.plan
        region_bytes = {"weights": plan.weights_bytes, "optimizer": plan.optimizer_bytes, "arena": plan.arena_bytes}
        end = place.offset_bytes + place.size_bytes
        if place.offset_bytes % ALIGNMENT_BYTES or place.offset_bytes < 0 or end > region_bytes[place.region]:
            raise InternalError(
                f"{place} is not inside {region_bytes[place.region]} bytes, aligned to {ALIGNMENT_BYTES}", where=where
            )
        if place.size_bytes < needed_bytes:
            raise InternalError(f"{place} is too small for {needed_bytes} bytes", where=where)
        return self._region_offset(place.region) + place.offset_bytes

    def _place(self, program: Program, value: Value) -> int:
        placements = self.image.plan.placements
        size_bytes = program.types[value].size_bytes
        placement = placements.get((program.name, value))
        if placement is not None:
            return self._absolute(placement, size_bytes, program.name_of(value))
        shared = storage_of(program.aliases, value)
        owner = placements.get((program.name, shared.value))
        if owner is None:
            raise InternalError(
                f"the memory plan has no place for {program.name_of(value)!r}", where=f"{program.name} program"
            )
        rest = Placement(owner.region, owner.offset_bytes + shared.offset_bytes, owner.size_bytes - shared.offset_bytes)
        return self._absolute(rest, size_bytes, program.name_of(value))

    def _place_or_nowhere(self, program: Program, value: Value) -> str:
        """Returns where the runtime writes an input; nowhere if the plan leaves it out because no call reads it."""
        placed = (program.name, program.root(value)) in self.image.plan.placements
        if value not in program.inputs or not (placed or _is_read(program, value)):
            return NOWHERE
        return str(self._place(program, value))

    # ---------------------------------------------------------------------------------------------------- programs

    def _program_tables(self, program: Program) -> str:
        operands: list[str] = []
        calls: list[str] = []
        launches = LaunchTables(self._codes)
        for index, call in enumerate(program.calls):
            label, call_operands = label_of(call), self._operands(program, index, call)
            if len(call_operands) > MAX_OPERANDS:
                raise InternalError(f"{len(call_operands)} operands, the limit is {MAX_OPERANDS}", where=label)
            kernel = self._kernel(call)
            function = f"__tvm_ffi_{kernel.symbol}" if kernel.is_called else "NULL"
            first, count = launches.add(kernel)
            calls.append(
                f"{{{c_string(label)}, {c_string(call.phase)}, {function}, {len(operands)}, {len(call_operands)}, "
                f"{call.flops}u, {call.bytes_read}u, {call.bytes_written}u, {first}, {count}}}"
            )
            operands += call_operands
        return (
            c_array("pf_operand", f"{program.name}_operands", operands)
            + launches.source(program.name)
            + c_array("pf_call", f"{program.name}_calls", calls)
            + c_array("pf_hyper", f"{program.name}_hyper", self._hyper(program))
        )

    def _hyper(self, program: Program) -> list[str]:
        return hyper_rows(self.image.optimizer, program.inputs, partial(self._place_or_nowhere, program))

    def _operands(self, program: Program, index: int, call: KernelCall) -> list[str]:
        rows = [
            f"{{{self._place(program, value)}u, {program.types[value].size}, {program.types[value].element.c_name}}}"
            for value in (*call.inputs, *call.outputs)
        ]
        workspace_bytes = self._kernel(call).workspace_bytes
        if workspace_bytes:
            place, label = self.image.plan.workspaces.get((program.name, index)), label_of(call)
            if place is None:
                raise InternalError(f"no workspace of {workspace_bytes} bytes is planned", where=label)
            elements = workspace_bytes // SCRATCH.item_bytes
            rows.append(f"{{{self._absolute(place, workspace_bytes, label)}u, {elements}, {SCRATCH.c_name}}}")
        return rows

    def _program(self, program: Program) -> str:
        inputs = ", ".join(self._place_or_nowhere(program, name) for name in self.image.data_inputs)
        is_train = program.name != "forward"
        labels = self.image.label_arrays if is_train else ()
        random = {
            value.kind: self._place_or_nowhere(program, value)
            for value in program.inputs
            if value.role == "hyper" and value.kind in _RANDOM
        }
        fields = {
            "calls": f"{program.name}_calls",
            "call_count": str(len(program.calls)),
            "operands": f"{program.name}_operands",
            "launches": f"{program.name}_launches",
            "arguments": f"{program.name}_arguments",
            "inputs": f"{{{inputs}}}",
            "labels": f"{{{', '.join(self._place_or_nowhere(program, name) for name in labels) or NOWHERE}}}",
            "loss": str(self._place(program, program.outputs[0])) if is_train else NOWHERE,
            "logits": NOWHERE if is_train else str(self._place(program, self.image.logits)),
            "hyper": f"{program.name}_hyper",
            "hyper_count": str(len(self._hyper(program))),
            **dict.fromkeys(_RANDOM, NOWHERE),
            **random,
        }
        return c_struct(fields)

    # ------------------------------------------------------------------------------------------------------- state

    def _states(self) -> str:
        """Widest elements first, so that each tensor of a checkpoint is aligned to its element; else in model order."""
        order = sorted(self._kept_state(), key=lambda tensor: (-tensor.type.element.item_bytes, *tensor.mapped_order))
        tables = OrderTables(order)
        return "".join(tables.lines) + c_array("pf_state", "states", [self._state(state, tables) for state in order])

    def _kept_state(self) -> list[StateTensor]:
        """Returns the state that outlives a step: no checkpoint knows the accumulators."""
        return [state for state in self.image.state if state.role != "accumulator"]

    def _accumulators(self) -> tuple[int, int]:
        """Returns where the first accumulator is, and how many bytes lie from there to the end of the region."""
        places = [self._state_offset(state) for state in self.image.state if state.role == "accumulator"]
        end = self._region_offset("optimizer") + self.image.plan.optimizer_bytes
        start = min(places, default=end)
        if any(self._state_offset(state) >= start for state in self._kept_state()):
            raise InternalError("accumulators are not the end of the optimizer's region", where="memory")
        return start, end - start

    def _state(self, state: StateTensor, tables: OrderTables) -> str:
        shape = tuple(state.view_shape[axis] for axis in state.perm)
        if sorted(state.perm) != list(range(len(state.view_shape))) or shape != state.type.shape:
            raise InternalError(f"perm {state.perm} of {state.view_shape} is not {state.type}", where=state.name)
        if TensorType(state.type.dtype, state.file_shape).size != state.type.size:
            raise InternalError(f"file shape {state.file_shape} is not {state.type}", where=state.name)
        moved = [axis for axis in state.perm if state.view_shape[axis] != 1]
        if state.lies_in_file:
            plain = tuple(range(len(shape)))
            state = replace(state, file_shape=shape, view_shape=shape, perm=plain)
            moved = []
        fields = {
            "file_name": c_string(state.name),
            "role": f"PF_{state.role.upper()}",
            "dtype": state.type.element.c_name,
            "trained": str(state.trained).lower(),
            "permuted": str(bool(state.orders) or moved != sorted(moved)).lower(),
            "copy": str(state.copy_of is not None).lower(),
            "file_rank": str(len(state.file_shape)),
            "view_rank": str(len(state.view_shape)),
            "file_shape": c_list(state.file_shape, state.name),
            "view_shape": c_list(state.view_shape, state.name),
            "perm": c_list(state.perm, state.name),
            **tables.fields(state),
            "count": str(state.type.size),
            "offset": str(self._state_offset(state)),
        }
        return c_struct(fields)

    def _state_offset(self, state: StateTensor) -> int:
        places = {
            self.image.plan.placements[name, state.value]
            for name in self.image.programs
            if (name, state.value) in self.image.plan.placements
        }
        if len(places) != 1:
            raise InternalError(f"has {len(places)} places in the memory plan, not one", where=state.name)
        (place,) = places
        return self._absolute(place, state.type.size_bytes, state.name)

    # ------------------------------------------------------------------------------------------------------- image

    def _identity(self) -> str:
        rows = [f"{{{c_string(key)}, {c_string(value)}}}" for key, value in sorted(self.image.identity.items())]
        return c_array("pf_identity", "identity", rows)

    def _batch_axis(self, value: Value) -> int | None:
        return self.image.batch_axes.get(value, 0)

    def _batch(self) -> int:
        shapes = {self._name(value): self._type(value).shape for value in self.image.data_inputs}
        axes = [(self._type(value).shape, self._batch_axis(value)) for value in self.image.data_inputs]
        batches = {shape[axis] if axis < len(shape) else 0 for shape, axis in axes if axis is not None}
        if len(batches) != 1 or 0 in batches:
            raise SpecError(
                f"the first axis of every input must be the batch, or the one that the spec names; they are {shapes}",
                where="spec.inputs",
                hint="say where, as in inputs: {x: {batch_axis: 1}}; null for the same in every sample",
            )
        return int(batches.pop())

    def _name(self, value: Value) -> str:
        return self.image.programs["train"].name_of(value)

    def _type(self, value: Value) -> TensorType:
        tensor_type = next((program.types[value] for program in self._programs() if value in program.types), None)
        if tensor_type is None:
            raise InternalError("has no type", where=self._name(value))
        return tensor_type

    def _index_limit(self, value: Value) -> int:
        """Rows of the smallest table that the input indexes directly; 0 if it indexes none."""
        rows = [
            call.spec.rows
            for program in self._programs()
            for call in program.calls
            if isinstance(call.spec, GatherSpec | ElementsSpec)
            and _same_bytes_as(program, call.inputs[_INDEX_OPERAND.get(call.spec.kind, 0)]) == value
        ]
        limits = [*rows, classes_of(self.image, value, self._type)]
        return min((limit for limit in limits if limit), default=0)

    def _label(self, value: Value, batch: int) -> str:
        limit, name = classes_of(self.image, value, self._type), label_name(self.image, value)
        return self._tensor(value, batch=batch, index_limit=limit, name=name)

    def _answer(self, value: Value, batch: int) -> str:
        """An output; a loss that the graph itself computes is one number, and of no sample."""
        return self._tensor(value, batch=None if self._type(value).size == 1 and self._is_loss(value) else batch)

    def _is_loss(self, value: Value) -> bool:
        return any(term.output == value and term.labels is None for term in self.image.terms)

    def _term(self, term: Term, batch: int) -> str:
        forward = self.image.programs["forward"]
        offset = str(self._place(forward, term.output))
        return c_struct(term_fields(self.image, term, self._answer(term.output, batch), offset, self._type))

    def _tensor(self, value: Value, *, batch: int | None, index_limit: int = 0, name: str = "") -> str:
        tensor, name = self._type(value), name or self._name(value)
        axis = self._batch_axis(value)
        shape = () if batch is None else tensor.shape if axis != 0 else _with_batch(tensor.shape, batch, name)
        fields = {
            "name": c_string(name),
            "dtype": tensor.element.c_name,
            "rank": str(len(shape)),
            "shape": c_list(shape, name),
            "batch_axis": str(-1 if axis is None else axis),
            "count": str(tensor.size),
            "index_limit": str(index_limit),
            "ignored": str(ignored_by(self.image, value)),
        }
        return c_struct(fields)

    def _image(self) -> str:
        image, batch = self.image, self._batch()
        if len(image.data_inputs) > MAX_INPUTS:
            raise SpecError(f"{len(image.data_inputs)} inputs, the limit is {MAX_INPUTS}", where="model inputs")
        check_losses(image, self._type, self._name)
        if image.threads < 1:
            raise InternalError(f"threads is {image.threads}, it must be 1 or more", where="threads")
        tensors = [
            self._tensor(data_input, batch=batch, index_limit=self._index_limit(data_input))
            for data_input in image.data_inputs
        ]
        accumulators, accumulator_bytes = self._accumulators()
        sizes = (image.plan.weights_bytes, image.plan.optimizer_bytes, image.plan.arena_bytes)
        programs: dict[str, str] = {program.name: self._program(program) for program in self._programs()}
        fields = {
            **programs,
            "states": "states",
            "channels": c_string(chosen_channels(image.state)),
            "state_count": str(len(self._kept_state())),
            "inputs": f"{{{', '.join(tensors)}}}",
            "input_count": str(len(tensors)),
            "batch": str(batch),
            "labels": f"{{{', '.join(self._label(array, batch) for array in image.label_arrays) or '{0}'}}}",
            "label_count": str(len(image.label_arrays)),
            "logits": self._answer(image.logits, batch),
            "terms": f"{{{', '.join(self._term(term, batch) for term in image.terms)}}}",
            "term_count": str(len(image.terms)),
            "optimizer": c_string(image.optimizer.kind),
            "learning_rate": image.optimizer.learning_rate.hex(),
            "settings": "settings",
            "setting_count": str(len(setting_rows(image.optimizer))),
            "schedule": schedule_fields(image.optimizer.schedule),
            **micro_batch_fields(image.optimizer),
            "accumulator_offset": str(accumulators),
            "accumulator_bytes": str(accumulator_bytes),
            "threads": str(image.threads),
            "sizes": f"{{{', '.join(map(str, sizes))}}}",
            "optimizer_offset": str(self._region_offset("optimizer")),
            "arena_offset": str(self._region_offset("arena")),
            "total_bytes": str(self._total_bytes()),
            "identity": "identity",
            "identity_count": str(len(image.identity)),
            **self._codes.fields,
        }
        return f"const pf_image pf_image_data = {c_struct(fields)};\n"


_RANDOM = ("random_seed", "random_step")


def _is_read(program: Program, value: Value) -> bool:
    return any(program.root(operand) == value for call in program.calls for operand in call.inputs)


def _same_bytes_as(program: Program, value: Value) -> Value:
    """The value that `value` is a mere view of; an in-place result shares storage too, but not its contents."""
    outputs = {output for call in program.calls for output in call.outputs}
    while value in program.aliases and value not in outputs:
        value = program.aliases[value].value
    return value


def _with_batch(shape: tuple[int, ...], batch: int, name: str) -> tuple[int, ...]:
    """The shape with the batch first: `batch * t` becomes two axes, batch and t; a batch of one is its sample."""
    if shape and shape[0] == batch:
        return shape
    if batch == 1:
        return (1, *shape)
    if shape and shape[0] and shape[0] % batch == 0:
        return (batch, shape[0] // batch, *shape[1:])
    raise SpecError(f"shape {shape} does not begin with the batch ({batch})", where=name)
