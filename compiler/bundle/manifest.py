"""The manifest: what a bundle is for, what goes in and comes out, and every kernel call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.linking.shared import LIBRARY_ABI
from compiler.kernels.spec import signature
from compiler.program.program import KernelCall, Program, Schedule
from compiler.program.state import label_of
from compiler.settings import BuildSettings
from compiler.spec.documents import TrainingSpec
from compiler.stages import CompiledStep
from compiler.step.loss_scale import loss_scale
from compiler.step.training import IGNORED, Term
from compiler.targets.cpu import OLDEST_GLIBC
from compiler.values import Value

WEIGHING = ("conv2d", "depthwise_conv2d", "matmul")
MOVING = ("reshape", "transpose")
CHECKPOINTS = 1
"""Version of the checkpoints of unfinished runs that the runtime writes and goes on from (run_position.c)."""


def manifest_of(step: CompiledStep, settings: BuildSettings, digests: Mapping[str, str]) -> dict[str, Any]:
    """Returns what the farm and an agent need to know before they unpack a bundle (docs/contracts.md)."""
    plan, spec, target = settings.plan, settings.spec, settings.target
    train = step.programs["train"]
    memory = step.memory
    state_bytes = memory.weights_bytes + memory.optimizer_bytes
    return {
        "digests": dict(digests),
        "target": target.name,
        "device_class": target.device_class,
        "required_features": list(target.required_features),
        "plan": plan.name,
        **_precision(step, spec),
        **_frozen(step),
        "batch": spec.batch * step.optimizer.micro_batches,
        "threads": step.threads,
        "inputs": [{**_tensor(step, train, value), **_weighed(step, value)} for value in step.training.data_inputs],
        "labels": _labels(step, train),
        "outputs": [_tensor(step, step.programs["forward"], step.training.logits)],
        **_losses(step),
        "optimizer": step.optimizer.kind,
        "learning_rate": step.optimizer.learning_rate,
        **_schedule(step.optimizer.schedule),
        "parameters": {"total": _total(step, trained=False), "trained": _total(step, trained=True)},
        "buffers": list(step.forward.buffers()),
        "memory": {
            "arena_bytes": memory.arena_bytes,
            "bound_bytes": memory.bound_bytes,
            "weights_bytes": memory.weights_bytes,
            "optimizer_bytes": memory.optimizer_bytes,
            "peak_bytes": memory.arena_bytes + state_bytes,
        },
        "micro_batches": step.optimizer.micro_batches,
        "checkpoints": CHECKPOINTS,
        **({"library": {"abi": LIBRARY_ABI, "glibc": OLDEST_GLIBC}} if spec.library else {}),
        "kernels": [_kernel(call, step.choices) for call in calls_of_step(step)],
    }


def _precision(step: CompiledStep, spec: TrainingSpec) -> dict[str, object]:
    """Returns the manifest's entries on precision and loss scale; empty where all is f32."""
    precision = spec.precision
    scaled = {"loss_scale": loss_scale(step.training, precision)} if precision.compute == "f16" else {}
    return {} if precision.compute == "f32" else {"precision": precision.compute, **scaled}


def _frozen(step: CompiledStep) -> dict[str, object]:
    """Returns which frozen weights are held in whole numbers (each with its largest relative error), and which are
    not.
    """
    frozen = step.frozen
    if frozen.kind == "f32":
        return {}
    errors = {name: float(f"{error:.3g}") for name, error in frozen.errors.items()}
    eight = {"in_eight_bits": dict(frozen.eight)} if frozen.kind == "int4" else {}
    specs = (call.spec for program in step.programs.values() for call in program.calls)
    rounds = any(getattr(spec, "products", "") == "i8" for spec in specs)
    products = {"products": "int8"} if rounds else {}
    return {"frozen": {"kind": frozen.kind, "errors": errors, **products, **eight, "kept": dict(frozen.unrounded)}}


def _schedule(schedule: Schedule) -> dict[str, object]:
    """Returns the manifest's entry on the learning rate's schedule; empty where the rate stays as it is."""
    return {} if schedule == Schedule() else {"schedule": dataclasses.asdict(schedule)}


def calls_of_step(step: CompiledStep) -> Iterator[KernelCall]:
    """The rows of a profile: calls of the train program, then those of the other micro-batches, each with its work."""
    yield from step.programs["train"].calls
    others = step.optimizer.micro_batches - 1
    for call in step.programs["accumulate"].calls if others else ():
        yield replace(
            call,
            flops=others * call.flops,
            bytes_read=others * call.bytes_read,
            bytes_written=others * call.bytes_written,
        )


def _labels(step: CompiledStep, train: Program) -> object:
    """Describes the labels: one tensor if there is one array and it has the labels' usual name, else a list by the
    arrays' names.
    """
    if step.training.plain_labels:
        return {**_tensor(step, train, step.training.labels), **_classes(step, step.training.labels)}
    return [
        {**_tensor(step, train, value), "name": name, **_classes(step, value)}
        for value, name in step.training.label_arrays.items()
    ]


def _classes(step: CompiledStep, labels: Value) -> dict[str, object]:
    """Returns how many classes the labels may name, and which label counts for nothing if it is not the usual one."""
    terms = [term for term in step.training.terms if term.labels == labels and term.classifies]
    if not terms:
        return {}
    types = step.programs["forward"].types
    shapes = [(types[term.output].shape or (1,), term.class_axis) for term in terms]
    classes = min(shape[-1 if axis is None else axis] for shape, axis in shapes)
    return {"classes": classes} if terms[0].ignored == IGNORED else {"classes": classes, "ignored": terms[0].ignored}


def _weighed(step: CompiledStep, value: Value) -> dict[str, object]:
    """Whether a layer with weights reads an input as it is: nothing in the model scales it before."""
    reads = [node for node in step.forward.nodes if value in node.inputs]
    moved = [node.output for node in reads if node.op in MOVING]
    is_weighed = any(node.op in WEIGHING for node in reads) or any(_weighed(step, moved_value) for moved_value in moved)
    return {"weighed": True} if is_weighed else {}


def _losses(step: CompiledStep) -> dict[str, object]:
    """The kind of the loss, or of each that is added up."""
    terms, arrays, name_of = step.training.terms, step.training.label_arrays, step.forward.name_of
    if len(terms) == 1:
        return {"loss": terms[0].kind}

    def labels_of(term: Term) -> str | None:
        """The data set's array, or the model's input."""
        return None if term.labels is None else arrays.get(term.labels) or name_of(term.labels)

    listed = [
        {"kind": term.kind, "output": name_of(term.output), "weight": term.weight, "labels": labels_of(term)}
        for term in terms
    ]
    return {"loss": "sum", "terms": listed}


def _tensor(step: CompiledStep, program: Program, value: Value) -> dict[str, object]:
    """Its samples lie along the first axis where no `batch_axis` says otherwise."""
    tensor, axes = program.types[value], step.training.batch_axes
    description: dict[str, object] = {
        "name": program.name_of(value),
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
    }
    return {**description, "batch_axis": axes[value]} if value in axes else description


def _kernel(call: KernelCall, choices: Mapping[str, Choice]) -> dict[str, object]:
    return {
        "name": label_of(call),
        "phase": call.phase,
        "kind": type(call.spec).__name__.removesuffix("Spec").lower(),
        "flops": call.flops,
        "bytes_read": call.bytes_read,
        "bytes_written": call.bytes_written,
        "schedule": choices.get(signature(call.spec), DEFAULT).text or "default",
        "parts": call.parts,
        "again": call.again,
    }


def _total(step: CompiledStep, *, trained: bool) -> int:
    """Number of elements of all parameters, or of those (slices) that learn."""
    if not trained:
        return sum(parameter.size for parameter in step.forward.parameters.values() if parameter.may_learn)
    types, total = step.forward.types, 0
    for value, part in step.plan.items():
        size = types[value].size
        total += size if part.is_whole else size // types[value].shape[part.axis] * part.size
    return total
