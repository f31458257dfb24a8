"""Train programs of small models, before any repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.call_passes import call_passes
from compiler.frontend.importer import import_model
from compiler.frontend.scope import BatchNormMode
from compiler.graph import Array
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step, make_programs
from compiler.program.program import Program, StateTensor
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.plan import resolve_plan
from compiler.targets import load
from compiler.values import Value
from examples.models import MODELS

PASSES = call_passes(load("x86-64-v4"))
BATCH = 4
FULL = SparsePlan.of_preset("full")
CASES: Mapping[str, tuple[str, Mapping[str, int], SparsePlan]] = {
    "digits": ("small_cnn", {}, FULL),
    "mcunet": ("mcunet", {"resolution": 32}, FULL),
    "mcunet-bias": ("mcunet", {"resolution": 32}, SparsePlan.of_preset("bias-only")),
    "resnet18": ("resnet18", {"resolution": 32, "width": 8, "classes": 5}, FULL),
    "resnet18-batch-statistics": ("resnet18", {"resolution": 32, "width": 8, "classes": 5, "batch_norm": True}, FULL),
    "encoder": ("transformer_encoder", {"tokens": 11, "positions": 8, "width": 16, "heads": 2}, FULL),
}


@dataclass(frozen=True, slots=True)
class SmallStep:
    """A scheduled train program, its state, and the arrays that state starts from."""

    train: Program
    state: tuple[StateTensor, ...]
    arrays: Mapping[Value, Array]


def small_step(case: str) -> SmallStep:
    """The step of one of `CASES`."""
    name, options, plan = CASES[case]
    spec = TrainingSpec.parse({"batch": BATCH, "optimizer": {"kind": "sgd", "momentum": 0.9}})
    mode: BatchNormMode = "train" if "batch_norm" in options else "fold"
    graph = import_model(MODELS[name](**options), input_shapes={}, batch=BATCH, batch_norm=mode)
    forward = run_passes(graph, FORWARD_PASSES)
    training = derive_training_step(forward, resolve_plan(forward, plan), spec)
    programs, state = make_programs(forward, training, PASSES)
    return SmallStep(programs[0], state, {**forward.arrays, **training.graph.arrays})
