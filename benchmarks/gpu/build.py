"""Builds steps for a GPU where none is: models, bundles without weights, and what the steps should come to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from benchmarks import machine
from benchmarks.frameworks.steps import MOMENTUM
from benchmarks.gpu.carried import Carried, CarriedModel, NotAsBuilt, Step, course_name, pack
from benchmarks.gpu.course import Lesson, course_of
from benchmarks.gpu.models import MODELS, GpuModel
from benchmarks.gpu.precisions import PRECISIONS
from benchmarks.gpu.seeded import Arrays, Weight, digest_of, weights_of
from compiler.api import BuildSettings, Bundle, compile_training
from compiler.bundle.archive import STEP, WEIGHTS
from compiler.bundle.content import chunks_of
from compiler.errors import CompileError
from compiler.frontend.importer import import_model
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.plan import resolve_plan
from compiler.targets import load
from compiler.trained.checkpoints import same_bits, tensors_file, tensors_of
from tests.models import export

CACHE = Path("build/bench/kernels")
PLANS = ("full", "sparse")
_EXAMPLES = 2


@dataclass(frozen=True)
class Asked:
    """What is to be built."""

    target: str
    models: Sequence[str]
    batches: Sequence[int]
    plans: Sequence[str]
    precisions: Sequence[str]
    cache: Path = CACHE
    adds: bool = False
    """Whether what the folder holds already stays, but for what is built anew."""


@dataclass(frozen=True)
class Exported:
    """A model with its seeded weights, as module and as file."""

    name: str
    definition: GpuModel
    module: nn.Module
    weights: Arrays
    told: CarriedModel
    onnx: bytes

    @classmethod
    def of(cls, name: str) -> Exported:
        """The model of that name. Its weights are spread as those of the bench's are, each tensor by itself."""
        definition = MODELS[name]
        module = definition.build()
        described = {key: Weight.like(one.detach().numpy()) for key, one in module.named_parameters()}
        weights = weights_of(described)
        with torch.no_grad():
            for key, parameter in module.named_parameters():
                parameter.copy_(torch.from_numpy(weights[key]))
        model = definition.model
        told = CarriedModel(
            definition.inputs, definition.labels, described, digest_of(weights), model.learning_rate, model.is_image
        )
        inputs = tuple(torch.from_numpy(drawn.batch(key, _EXAMPLES)) for key, drawn in definition.inputs.items())
        onnx = export(module, inputs, input_names=tuple(definition.inputs))
        return cls(name, definition, module, weights, told, onnx)

    def plan(self, name: str) -> SparsePlan:
        """The plan of that name."""
        if name != "sparse":
            return SparsePlan.of_preset(name)
        rules = [{"parameters": list(globs), "kind": kind} for globs, kind in self.definition.model.sparse]
        return SparsePlan.parse({"name": name, "update": rules})

    def settings(self, batch: int, plan: str, precision: str, asked: Asked) -> BuildSettings:
        """Of one step: SGD with momentum, as on every side."""
        optimizer = {"kind": "sgd", "learning_rate": self.told.learning_rate, "momentum": MOMENTUM}
        spec = {"batch": batch, "optimizer": optimizer, "precision": dict(PRECISIONS[precision].spec)}
        asked.cache.mkdir(parents=True, exist_ok=True)
        return BuildSettings(self.plan(plan), TrainingSpec.parse(spec), load(asked.target), cache_dir=asked.cache)

    def lesson(self, batch: int, plan: str) -> Lesson:
        """What PyTorch is to do in its place. Raises: CompileError."""
        imported = import_model(self.onnx, input_shapes={}, batch=batch, batch_norm="fold")
        graph = run_passes(imported, FORWARD_PASSES)
        learned = [graph.parameters[value].name for value in resolve_plan(graph, self.plan(plan))]
        feeds = {name: drawn.batch(name, batch) for name, drawn in self.told.inputs.items()}
        labels = self.told.labels.batch("labels", batch)
        rate = self.told.learning_rate
        return Lesson(self.module, learned, rate, feeds, labels, dict(graph.named_parameters()))


def build(folder: Path, asked: Asked) -> Carried:
    """Build what is asked for into a folder, and say so line by line; what the compiler refuses is told and left out.

    Raises: NotAsBuilt for a bundle that does not hold the weights that were exported.
    """
    carried = _folder(folder, asked)
    for name in asked.models:
        exported = Exported.of(name)
        carried.models[name] = exported.told
        for batch in asked.batches:
            for plan in asked.plans:
                _build_plan(carried, exported, batch, plan, asked)
    carried.save()
    return carried


def _folder(folder: Path, asked: Asked) -> Carried:
    """What steps are added to."""
    if not asked.adds:
        capability = str(getattr(load(asked.target), "capability", ""))
        carried = Carried(folder, asked.target, capability, machine.commit())
        carried.clear()
        return carried
    carried = replace(Carried.load(folder), commit=machine.commit())
    if carried.target != asked.target:
        raise NotAsBuilt(f"{folder} holds steps for {carried.target}, and none for {asked.target} are added to them")
    return carried


def _build_plan(carried: Carried, exported: Exported, batch: int, plan: str, asked: Asked) -> None:
    """The steps of all precisions, and what they should come to."""
    built = [
        step for precision in asked.precisions if (step := _built(carried, exported, batch, plan, precision, asked))
    ]
    if not built:
        return
    started = time.monotonic()
    name = course_name(exported.name, batch, plan)
    course = course_of(exported.lesson(batch, plan))
    course.save(carried.course_path(name))
    print(f"{name:36} losses {' '.join(f'{one:.6f}' for one in course.losses)}, float64, {_since(started)}", flush=True)
    carried.steps.extend(built)


def _built(carried: Carried, exported: Exported, batch: int, plan: str, precision: str, asked: Asked) -> Step | None:
    started = time.monotonic()
    step = Step(exported.name, batch, plan, precision, {}, 1.0, "")
    carried.drop(step.name)
    try:
        bundle = compile_training(exported.onnx, exported.settings(batch, plan, precision, asked))
    except CompileError as problem:
        carried.refused[step.name] = " ".join(str(problem).split())
        print(f"{step.name:36} left out: {carried.refused[step.name]}", flush=True)
        return None
    strip(carried, exported, bundle, step.name)
    size = carried.step_path(step.name).stat().st_size
    print(f"{step.name:36} {size / 1e3:7.0f} kB packed, {_since(started)}", flush=True)
    manifest = bundle.manifest
    return replace(
        step, memory=dict(manifest["memory"]), loss_scale=float(manifest.get("loss_scale", 1.0)), bundle=bundle.digest
    )


def strip(carried: Carried, exported: Exported, bundle: Bundle, name: str) -> None:
    """Keep a bundle's binary and constants. Raises: NotAsBuilt if its other tensors are not the exported weights."""
    held = tensors_of(b"".join(chunks_of(bundle.members[WEIGHTS])))
    constants = {key: array for key, array in held.items() if key not in exported.weights}
    odd = [key for key in constants if not key.startswith("constant.")]
    odd += [key for key, array in exported.weights.items() if key not in held or not same_bits(held[key], array)]
    if odd:
        raise NotAsBuilt(f"{name}: {odd[0]} is not in the bundle as it was exported, and could not be made elsewhere")
    if constants:  # with a small parameter: a binary takes no file without one
        least = min(exported.weights, key=lambda key: exported.weights[key].size)
        held = {**constants, least: exported.weights[least]}
        pack(carried.constants_path(name), b"".join(tensors_file(held, {"step": "0"})))
    pack(carried.step_path(name), b"".join(chunks_of(bundle.members[STEP])))


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"


def summary(carried: Carried) -> Iterator[str]:
    """What is in the folder, in words."""
    yield (
        f"{carried.folder}: {len(carried.steps)} steps of {len(carried.models)} models for {carried.target}, "
        f"{carried.size_bytes / 2**20:.1f} MiB"
    )
    if carried.refused:
        yield f"left out: {len(carried.refused)} ({', '.join(carried.refused)})"
