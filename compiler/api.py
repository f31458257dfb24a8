"""The compiler as a library: model bytes, plan and spec in; a bundle out."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from compiler.bundle.archive import (
    KERNELS,
    REPORT,
    REPORT_SCHEMA,
    STEP,
    TRAINING,
    WEIGHTS,
    Bundle,
    make_bundle,
    sha256_of,
    to_json,
)
from compiler.bundle.checkpoint import write_checkpoint
from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.linking.link import link_binary
from compiler.export.training import export_training
from compiler.graph import Array
from compiler.identity import compiler_identity
from compiler.kernels.spec import signature
from compiler.pipeline import compile_step
from compiler.program.labels import label_of
from compiler.program.program import BinaryImage, KernelCall, Program, ProgramName
from compiler.rewriting.passes import Declined, Trace
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.stage_text import text_after
from compiler.stages import CompiledStep
from compiler.targets import Target
from compiler.targets import load as load_target
from compiler.tuning.build import build_tuning
from compiler.tuning.catalogue import catalogue_of
from compiler.tuning.table import NO_TUNING, TuningEntry, TuningTable, choices_digest
from compiler.values import Value
from compiler.warnings import MAX_CHARACTERS, presentable, printable

MAX_STEP_BYTES = 2_000_000


def compile_training(model: bytes, settings: BuildSettings) -> Bundle:
    """Derive, optimize, plan and build the training step of an ONNX model for one target.

    Same model, plan, spec, target, compiler and measured schedules give the same bytes.
    Raises: CompileError; its kinds say who must act, its text what and where (see `compiler.errors`).
    """
    step = compile_step(model, settings)
    digests = {
        "model": f"sha256:{sha256_of(model)}",
        "plan": settings.plan.digest,
        "spec": settings.spec.digest,
        "compiler": f"sha256:{compiler_identity()}",
    }
    if step.choices:
        digests["tuning"] = choices_digest(step.choices)
    board = settings.target
    with tempfile.TemporaryDirectory(prefix="pockfarm-link-") as folder:
        binary = link_binary(make_image(step, digests, board.name), step.kernels, board, work_dir=Path(folder))
    report = to_json(compile_report(step, len(binary)))
    settings.progress("bundle", 0.95)
    files = {
        STEP: binary,
        WEIGHTS: initial_checkpoint(step),
        TRAINING: export_training(step.training),
        REPORT: report,
        KERNELS: catalogue_of(
            step.programs["train"].calls, board, threads=step.threads, version=compiler_identity()
        ).to_json(),
    }
    manifest = _manifest(step, settings.plan, settings.spec, board, digests)
    bundle = replace(make_bundle(manifest, files), warnings=presentable(step.warnings))
    settings.progress("done", 1.0)
    return bundle


def make_image(step: CompiledStep, digests: Mapping[str, str], target: str) -> BinaryImage:
    """What the linker needs of a compiled step."""
    return BinaryImage(
        programs=step.programs,
        plan=step.memory,
        state=step.state,
        data_inputs=step.training.data_inputs,
        label_input=step.training.labels,
        loss=step.training.loss,
        logits=step.training.logits,
        loss_kind=step.training.loss_kind,
        optimizer=step.optimizer,
        threads=step.threads,
        identity={**digests, "target": target},
    )


def initial_checkpoint(step: CompiledStep) -> bytes:
    """The model's own weights in file layout, and the constants that the step reads, as safetensors."""
    arrays = {**step.forward.arrays, **step.training.graph.arrays}
    tensors: dict[str, Array] = {}
    for tensor in step.state:
        if tensor.copy_of is not None:
            continue
        if tensor.role == "parameter":
            tensors[tensor.name] = step.forward.parameters[tensor.value].to_file(arrays[tensor.value])
        elif tensor.role == "constant":
            tensors[tensor.name] = np.ascontiguousarray(arrays[tensor.value]).reshape(tensor.file_shape)
    return write_checkpoint(tensors, {"step": "0"})


def _manifest(
    step: CompiledStep, plan: SparsePlan, spec: TrainingSpec, target: Target, digests: Mapping[str, str]
) -> dict[str, Any]:
    train = step.programs["train"]
    memory = step.memory
    state_bytes = memory.weights_bytes + memory.optimizer_bytes
    return {
        "digests": dict(digests),
        "target": target.name,
        "device_class": target.device_class,
        "required_features": list(target.required_features),
        "plan": plan.name,
        "batch": spec.batch,
        "threads": step.threads,
        "inputs": [_tensor(train, value) for value in step.training.data_inputs],
        "labels": _tensor(train, step.training.labels),
        "outputs": [_tensor(train, step.training.logits)],
        "loss": step.training.loss_kind,
        "optimizer": step.optimizer.kind,
        "learning_rate": step.optimizer.learning_rate,
        "parameters": {"total": _total(step, trained=False), "trained": _total(step, trained=True)},
        "memory": {
            "arena_bytes": memory.arena_bytes,
            "weights_bytes": memory.weights_bytes,
            "optimizer_bytes": memory.optimizer_bytes,
            "peak_bytes": memory.arena_bytes + state_bytes,
        },
        "kernels": [_kernel(call, step.choices) for call in train.calls],
    }


def _tensor(program: Program, value: Value) -> dict[str, object]:
    tensor = program.types[value]
    return {"name": program.name_of(value), "dtype": tensor.dtype, "shape": list(tensor.shape)}


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
    types = step.forward.types
    if not trained:
        return sum(types[value].size for value in step.forward.parameters)
    total = 0
    for value, part in step.plan.items():
        size = types[value].size
        total += size if part.is_whole else size // types[value].shape[part.axis] * part.size
    return total


def compile_report(step: CompiledStep, step_bytes: int) -> dict[str, Any]:
    """Counts and the arena's picture. Stage times are not part of it: a bundle's bytes may not depend on a clock."""
    train = step.programs["train"]
    return {
        "schema": REPORT_SCHEMA,
        "arena": {"arena_bytes": step.memory.arena_bytes, "values": _arena_values(step, "train")},
        "graph": {
            "forward nodes": len(step.forward.nodes),
            "training nodes": len(step.training.graph.nodes),
            "kernel calls": len(train.calls),
            "distinct kernels": len(step.kernels),
            "kernels scheduled by measurement": len(step.choices),
            "executable bytes": step_bytes,
        },
        "groups": _groups(train),
        "notes": _notes(step, step_bytes),
        "warnings": [warning.to_json() for warning in presentable(step.warnings)],
        "declined": _declined(step.trace),
    }


def _declined(trace: Trace) -> list[dict[str, object]]:
    """Where rewrites did not fire: by pass and reason how often, and the first place as an example."""
    found: dict[tuple[str, str], list[Declined]] = {}
    for name, one in trace.declined():
        found.setdefault((name, one.code), []).append(one)
    return [
        {"pass": name, "code": code, "count": len(same), "where": printable(same[0].where, MAX_CHARACTERS["where"]),
         "needs": same[0].needs}
        for (name, code), same in sorted(found.items())
    ]  # fmt: skip


def _groups(program: Program) -> list[dict[str, int]]:
    """Runs of calls that go part by part of the batch: inclusive positions among the program's calls."""
    groups: list[dict[str, int]] = []
    for parts, run in itertools.groupby(enumerate(program.calls), key=lambda item: item[1].parts):
        positions = [position for position, _ in run]
        if parts > 1:
            groups.append({"first": positions[0], "last": positions[-1], "parts": parts})
    return groups


def _arena_values(step: CompiledStep, name: ProgramName) -> list[dict[str, object]]:
    own, last_call = step.programs[name], len(step.programs[name].calls) - 1
    values = []
    for (program, value), (first, last) in sorted(step.memory.live.items()):
        place = step.memory.placements[program, value]
        if program == name and own.root(value) == value:
            lives = (max(first, 0), min(last, last_call))
            values.append(_arena_value(own.name_of(value), place.offset_bytes, place.size_bytes, *lives))
    for (program, index), place in sorted(step.memory.workspaces.items()):
        if program == name:
            label = f"workspace of {label_of(own.calls[index])}"
            values.append(_arena_value(label, place.offset_bytes, place.size_bytes, index, index))
    return values


def _arena_value(name: str, offset_bytes: int, size_bytes: int, first: int, last: int) -> dict[str, object]:
    return {"name": name, "offset_bytes": offset_bytes, "size_bytes": size_bytes, "first": first, "last": last}


def _notes(step: CompiledStep, step_bytes: int) -> list[str]:
    notes = []
    if step_bytes > MAX_STEP_BYTES:
        notes.append(f"the executable has {step_bytes:,} bytes, above the goal of {MAX_STEP_BYTES:,}")
    packed = [tensor for tensor in step.state if tensor.packed]
    if packed:
        copies_bytes = sum(tensor.type.size_bytes for tensor in packed if tensor.copy_of is not None)
        notes.append(
            f"{len(packed)} frozen weights are stored packed, {copies_bytes:,} bytes of them beside the unpacked ones"
        )
    repeated = round(sum(1 / call.parts for call in step.programs["train"].calls if call.again))
    if repeated:
        notes.append(f"{repeated} forward kernels run again in the backward pass: what they make is not kept")
    learning = [step.forward.parameters[value] for value in step.plan]
    created = [parameter.name for parameter in learning if parameter.created]
    if created:
        notes.append(
            f"{len(created)} parameters that the exporter had dropped or merged were created, such as {created[0]}"
        )
    return notes


__all__ = [
    "MAX_STEP_BYTES", "NO_TUNING", "BuildSettings", "TuningEntry", "TuningTable", "build_tuning", "compile_report",
    "compile_training", "initial_checkpoint", "load_target", "make_image", "text_after",
]  # fmt: skip
