"""Passes, fusion, scheduling and memory planning keep the meaning of a training step, on exactly the planned bytes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.call_passes import call_passes
from compiler.errors import PlanError
from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step, make_programs
from compiler.program.memory import Block, pack, peak_bytes, plan_memory
from compiler.program.program import ProgramName
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.autodiff import differentiate
from compiler.step.loss import attach_loss
from compiler.step.optimizer import add_optimizer
from compiler.step.plan import resolve_plan
from compiler.step.training import TrainingGraph
from compiler.targets import load
from compiler.values import Value
from examples.models import MODELS
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.program_interpreter import Machine
from tests.sample import thinned

PASSES = call_passes(load("x86-64-v4"))
SGD = TrainingSpec.parse({"batch": 2, "optimizer": {"kind": "sgd", "momentum": 0.9, "weight_decay": 0.01}})
ADAMW = TrainingSpec.parse({"batch": 2, "optimizer": {"kind": "adamw", "learning_rate": 0.01}})
RATIO = SparsePlan.parse("{update: [{parameters: ['*.weight'], ratio: 0.4}, {parameters: ['*'], kind: bias}]}")
TINY = {"tokens": 11, "positions": 6, "width": 8, "heads": 2}
CASES: dict[str, tuple[str, dict[str, int], str | SparsePlan, TrainingSpec]] = {
    "mlp": ("mlp", {}, "full", SGD),
    "mlp-adamw-ratio": ("mlp", {}, RATIO, ADAMW),
    "digits": ("small_cnn", {}, "full", ADAMW),
    "digits-ratio": ("small_cnn", {}, RATIO, SGD),
    "mcunet": ("mcunet", {"resolution": 16}, "full", SGD),
    "resnet18": ("resnet18", {"resolution": 16, "width": 4, "classes": 5}, "full", SGD),
    "resnet50-bias": ("resnet50", {"resolution": 16, "width": 2, "classes": 5}, "bias-only", SGD),
    "encoder": ("transformer_encoder", {"tokens": 11, "positions": 6, "width": 8, "heads": 2}, "full", SGD),
    "encoder-last": (
        "transformer_encoder",
        {"tokens": 11, "positions": 6, "width": 8, "heads": 2},
        "last-layer",
        ADAMW,
    ),
}


def _graph(name: str, options: Mapping[str, object]) -> Graph:
    return import_model(MODELS[name](**options), input_shapes={}, batch=2, batch_norm="fold")


def _plan(plan: str | SparsePlan) -> SparsePlan:
    return SparsePlan.of_preset(plan) if isinstance(plan, str) else plan


def _feeds(step: TrainingGraph) -> dict[Value, np.ndarray]:
    rng = np.random.default_rng(5)
    feeds: dict[Value, np.ndarray] = {}
    for name in (*step.data_inputs, step.labels, *step.hyper):
        tensor = step.graph.types[name]
        if name.role == "hyper":
            feeds[name] = np.asarray({"learning_rate": 0.05}.get(name.kind, 0.1), np.float32)
        elif tensor.dtype == "i64":
            feeds[name] = rng.integers(0, 2, tensor.shape)
        else:
            feeds[name] = rng.normal(size=tensor.shape).astype(np.float32)
    return feeds


@pytest.mark.parametrize("case", thinned(sorted(CASES), 4))
def test_program_on_its_arena_means_what_the_plain_graph_means(case: str) -> None:
    name, options, preset, spec = CASES[case]
    plain = _graph(name, options)
    forward = run_passes(plain, FORWARD_PASSES)
    plan = resolve_plan(forward, _plan(preset))
    training = derive_training_step(forward, plan, spec)
    programs, state = make_programs(forward, training, PASSES)
    programs, memory = plan_memory(programs, state, lambda call: 192)
    feeds = _feeds(training)

    exact_step = add_optimizer(differentiate(attach_loss(plain, spec.loss), plan), spec.optimizer, plan)
    zeros = {key: np.zeros(exact_step.graph.types[key].shape, np.float32) for key in exact_step.optimizer_state}
    exact = evaluate_graph(exact_step.graph, {**_feeds(exact_step), **zeros})

    machine = Machine(memory, state, {**forward.arrays, **training.graph.arrays})
    train, infer = programs
    machine.load_state(train)
    logits = machine.run(infer, feeds)[training.logits]
    np.testing.assert_allclose(logits, exact[exact_step.logits], rtol=1e-4, atol=1e-5)
    found = machine.run(train, feeds)
    np.testing.assert_allclose(found[training.loss], exact[exact_step.loss], rtol=1e-5)
    for value, updated in exact_step.updates.items():
        have, want = machine.view(train, value), exact[updated]
        np.testing.assert_allclose(
            have, want, rtol=2e-3, atol=2e-5 * max(1.0, float(np.abs(want).max())), err_msg=str(value)
        )
    for parameter in forward.parameters:
        if parameter not in plan:
            assert np.array_equal(machine.view(train, parameter), forward.arrays[parameter])


@pytest.mark.parametrize("case", ["mcunet", "encoder"])
def test_no_two_live_values_overlap(case: str) -> None:
    name, options, preset, spec = CASES[case]
    forward = run_passes(_graph(name, options), FORWARD_PASSES)
    training = derive_training_step(forward, resolve_plan(forward, _plan(preset)), spec)
    programs, state = make_programs(forward, training, PASSES)
    programs, memory = plan_memory(programs, state, lambda call: 100)
    for program in programs:
        spans = [
            (memory.live[key], memory.placements[key])
            for key in memory.live
            if key[0] == program.name and program.root(key[1]) == key[1]
        ]
        spans += [((i, i), place) for (owner, i), place in memory.workspaces.items() if owner == program.name]
        for (life, place), (other_life, other) in combinations(spans, 2):
            if life[0] <= other_life[1] and other_life[0] <= life[1]:
                end, other_end = place.offset_bytes + place.size_bytes, other.offset_bytes + other.size_bytes
                assert end <= other.offset_bytes or other_end <= place.offset_bytes
            assert place.offset_bytes % 64 == 0
            assert place.offset_bytes + place.size_bytes <= memory.arena_bytes


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=30))
def test_packing_is_valid_and_at_least_the_peak(sizes: list[tuple[int, int, int]]) -> None:
    blocks = [Block(("train", i), 64 * size, first, first + span) for i, (size, first, span) in enumerate(sizes)]
    packed = pack(blocks)
    offsets = packed.offsets
    assert packed.used_bytes >= packed.bound_bytes == peak_bytes(blocks)
    assert packed.used_bytes == max(offset + block.size_bytes for offset, block in zip(offsets, blocks, strict=True))
    for i, j in combinations(range(len(blocks)), 2):
        a, b = blocks[i], blocks[j]
        if a.first <= b.last and b.first <= a.last:
            assert offsets[i] + a.size_bytes <= offsets[j] or offsets[j] + b.size_bytes <= offsets[i]


def test_gradients_die_at_once() -> None:
    """Reordering: a full step never holds all weight-gradients at the same time (and some are never written)."""
    forward = run_passes(_graph("mcunet", {"resolution": 16}), FORWARD_PASSES)
    training = derive_training_step(forward, resolve_plan(forward, _plan("full")), SGD)
    programs, state = make_programs(forward, training, PASSES)
    programs, memory = plan_memory(programs, state, lambda call: 0)
    keys: list[tuple[ProgramName, Value]] = [
        ("train", programs[0].root(value)) for value in training.gradients.values()
    ]
    lives = [memory.live[key] for key in keys if key in memory.live]
    lives = [life for life in lives if life[1] > life[0]]
    alive = max(sum(first <= i <= last for first, last in lives) for i in range(len(programs[0].calls)))
    assert alive < len(lives) / 4


def test_sparse_plan_saves_memory_and_work() -> None:
    forward = run_passes(_graph("mcunet", {"resolution": 32}), FORWARD_PASSES)
    plans = {
        "full": _plan("full"),
        "sparse": SparsePlan.parse("{update: [{parameters: ['blocks.1[01].expand.weight', 'classifier.*']}]}"),
        "half": SparsePlan.parse("{update: [{parameters: ['blocks.1[01].expand.weight'], ratio: 0.5}]}"),
    }
    peak, flops = {}, {}
    for name, plan in plans.items():
        training = derive_training_step(forward, resolve_plan(forward, plan), SGD)
        programs, state = make_programs(forward, training, PASSES)
        placed, memory = plan_memory(programs, state, lambda call: 0)
        peak[name], flops[name] = memory.arena_bytes, sum(call.flops for call in placed[0].calls)
    assert peak["sparse"] < peak["full"] / 2
    assert flops["half"] < flops["sparse"] < flops["full"]


def test_unknown_parameter_names_its_neighbours() -> None:
    with pytest.raises(PlanError, match="did you mean") as caught:
        resolve_plan(_graph("mlp", {}), SparsePlan.parse("{update: [{parameters: ['clasifier.weight']}]}"))
    assert "clasifier.weight" in str(caught.value)


@pytest.mark.parametrize("name", ["mlp", "digits", "mcunet", "encoder"])
def test_sparse_gradients_are_slices_of_full_ones(name: str) -> None:
    """In float64 and through all passes: what a plan keeps is what the full plan computes there."""
    model, options, _, _ = CASES[name]
    forward = run_passes(_graph(model, options), FORWARD_PASSES)
    partial = resolve_plan(forward, RATIO)
    whole = resolve_plan(forward, _plan("full"))
    steps = {key: derive_training_step(forward, plan, SGD) for key, plan in {"part": partial, "full": whole}.items()}
    moments = {}
    for key, step in steps.items():
        zeros = {state: np.zeros(step.graph.types[state].shape) for state in step.optimizer_state}
        values = evaluate_graph(step.graph, {**_feeds(step), **zeros})
        moments[key] = {own: values[step.updates[own]] for own in step.optimizer_state}
    sliced = [parameter for parameter, part in partial.items() if not part.is_whole]
    assert sliced, "the plan must slice something"
    for parameter, part in partial.items():
        full, kept = (moments[key][parameter.state("momentum")] for key in ("full", "part"))
        if not part.is_whole:
            full = np.take(full, range(part.start, part.start + part.size), axis=part.axis)
        np.testing.assert_allclose(kept, full, rtol=1e-9, atol=1e-14)
