"""Bits in place of what the backward pass only compares: the same gradients, to the bit, from a 32nd of the bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.ops.masks import BITS, lanes_of
from compiler.passes import CLEAN_UP, FORWARD_PASSES, run_passes
from compiler.passes.save_masks import save_masks
from compiler.rewriting.passes import until_stable
from compiler.rewriting.text import parse_graph
from compiler.spec.documents import LossSpec, SparsePlan
from compiler.step.autodiff import differentiate
from compiler.step.loss import attach_loss
from compiler.step.plan import resolve_plan
from compiler.step.training import TrainingGraph
from compiler.values import Value
from examples.models import MODELS
from tests.compiler.graph_interpreter import evaluate_graph

MODELS_OF_MASKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "mobilenet": ("mobilenet_v2", {"width": 0.35, "resolution": 64, "classes": 10}, "bias-only"),
    "mcunet": ("mcunet", {"resolution": 64}, "bias-only"),
    "resnet50": ("resnet50", {"resolution": 64, "classes": 10, "width": 16}, "bias-only"),
}


def _step(name: str) -> TrainingGraph:
    model, options, plan = MODELS_OF_MASKS[name]
    graph = import_model(MODELS[model](**options), input_shapes={}, batch=2, batch_norm="fold")
    forward = run_passes(graph, FORWARD_PASSES)
    step = differentiate(attach_loss(forward, LossSpec()), resolve_plan(forward, SparsePlan.of_preset(plan)))
    return step.with_graph(run_passes(step.graph, (until_stable(CLEAN_UP),)))


def _feeds(step: TrainingGraph) -> dict[Value, np.ndarray]:
    rng = np.random.default_rng(3)
    types = step.graph.types
    feeds = {value: rng.normal(size=types[value].shape).astype(np.float32) for value in step.data_inputs}
    return {**feeds, step.labels: rng.integers(0, 10, types[step.labels].shape)}


def _kept(graph: Graph) -> dict[Value, int]:
    """Forward values, and words of bits, that the backward pass reads: their bytes."""
    made = {value for node in graph.nodes if node.phase == "forward" for value in node.outputs}
    read = {value for node in graph.nodes if node.phase != "forward" for value in node.inputs}
    return {value: graph.types[value].size_bytes for value in made & read}


@pytest.mark.parametrize("name", sorted(MODELS_OF_MASKS))
def test_gradients_are_the_same_to_the_bit(name: str) -> None:
    step = _step(name)
    masked = run_passes(save_masks(step.graph).subject, (until_stable(CLEAN_UP),))
    assert any(node.op == "inside_bits" for node in masked.nodes)
    exact, found = evaluate_graph(step.graph, _feeds(step)), evaluate_graph(masked, _feeds(step))
    for value in step.gradients.values():
        assert np.array_equal(exact[value], found[value])


@pytest.mark.parametrize("name", sorted(MODELS_OF_MASKS))
def test_less_than_half_is_kept(name: str) -> None:
    graph = _step(name).graph
    masked = run_passes(save_masks(graph).subject, (until_stable(CLEAN_UP),))
    before, after = _kept(graph), _kept(masked)
    assert sum(after.values()) < sum(before.values()) / 2
    selections = [node for node in masked.nodes if node.op == "inside_bits"]
    values = {node.inputs[0] for node in selections}
    assert len(selections) == len(values), "a Clip takes one bit, not one for each of its bounds"
    assert values.isdisjoint(after), "what has bits is not kept too"
    words = sum(masked.types[node.output].size_bytes for node in selections)
    assert BITS * words == sum(masked.types[value].size_bytes for value in values)


def test_what_a_weight_s_gradient_reads_stays_as_it_is() -> None:
    graph = import_model(MODELS["mcunet"](resolution=64), input_shapes={}, batch=2, batch_norm="fold")
    forward = run_passes(graph, FORWARD_PASSES)
    step = differentiate(attach_loss(forward, LossSpec()), resolve_plan(forward, SparsePlan.of_preset("full")))
    assert not save_masks(run_passes(step.graph, (until_stable(CLEAN_UP),))).modified


@pytest.mark.parametrize(("columns", "codes"), [(128, []), (129, ["masks.size"])])
def test_a_size_without_whole_groups_is_declined(columns: int, codes: list[str]) -> None:
    text = (Path(__file__).parents[1] / "goldens" / "save_masks.txt").read_text()
    before = text.split("--- before\n")[1].split("\n--- after")[0].replace("64, 128", f"64, {columns}")
    graph = parse_graph(before + "\n", {})
    assert bool(lanes_of(64 * columns)) == (not codes)
    made = save_masks(graph)
    assert sorted({one.code for one in made.declined}) == codes
    assert made.modified == (not codes)
