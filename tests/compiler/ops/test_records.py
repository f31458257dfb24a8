"""Every field of every operator record, checked against `evaluate`, finite differences and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.canonical import canonical
from compiler.ops import FAMILIES, OPERATORS
from compiler.ops.record import Example, NotDifferentiable, Operator, View
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.ops.draw import as_graph, draw_inputs, single_node

CASES = [
    pytest.param(record, example, id=f"{record.name}-{i}")
    for record in OPERATORS.values()
    for i, example in enumerate(record.examples)
]
DIFFERENTIABLE = [
    case
    for case in CASES
    if isinstance(case.values[0], Operator) and not isinstance(case.values[0].grad, NotDifferentiable)
]


def test_list_is_complete_and_names_are_unique() -> None:
    names = [record.name for family in FAMILIES for record in family]
    assert sorted(names) == sorted(OPERATORS)
    assert len(names) == len(set(names))
    assert all(record.examples for record in OPERATORS.values())


@pytest.mark.parametrize(("record", "example"), CASES)
def test_infer_agrees_with_evaluate(record: Operator, example: Example) -> None:
    results = record.evaluate(draw_inputs(example), example.attrs)
    types = record.infer(example.inputs, example.attrs)
    assert [result.shape for result in results] == [tensor.shape for tensor in types]
    real = not example.inputs or any(tensor.dtype == "f32" for tensor in example.inputs)
    for result, tensor in zip(results, types, strict=True):
        # Of whole numbers alone an operator cannot tell that the run's reals are float64.
        expected = np.dtype("f8") if tensor.dtype == "f32" and real else ELEMENT_TYPES[tensor.dtype].numpy
        assert result.dtype == expected
    assert set(example.attrs) == set(record.attributes)


@pytest.mark.parametrize(("record", "example"), CASES)
def test_evaluate_keeps_single_precision(record: Operator, example: Example) -> None:
    inputs = [x.astype(np.float32) if x.dtype.kind == "f" else x for x in draw_inputs(example)]
    for result, tensor in zip(
        record.evaluate(inputs, example.attrs), record.infer(example.inputs, example.attrs), strict=True
    ):
        assert result.dtype == ELEMENT_TYPES[tensor.dtype].numpy


@pytest.mark.parametrize(("record", "example"), DIFFERENTIABLE)
def test_gradient_agrees_with_finite_differences(record: Operator, example: Example) -> None:
    builder, names, results = single_node(record, example)
    wanted = tuple(tensor.dtype == "f32" for tensor in example.inputs)
    seed = builder.fresh()
    builder.types[seed] = builder.types[results[0]]
    rule = record.grad
    assert not isinstance(rule, NotDifferentiable)
    grads = rule(builder, builder.nodes[0], seed, wanted)
    graph = as_graph(builder, (*names, seed), results)
    inputs = draw_inputs(example)
    rng = np.random.default_rng(7)
    weights = rng.normal(size=builder.types[results[0]].shape)
    values = evaluate_graph(graph, dict(zip(names, inputs, strict=True)) | {seed: weights})
    checked = 0
    for position, name in enumerate(grads):
        if not wanted[position] or name is None:
            continue
        checked += 1
        direction = rng.normal(size=example.inputs[position].shape)
        analytic = float((values[name] * direction).sum())
        assert values[name].shape == example.inputs[position].shape
        numeric = _directional(record, example, inputs, position, direction, weights)
        assert analytic == pytest.approx(numeric, rel=2e-6, abs=2e-7), f"input {position} of {record.name}"
    assert checked, "an operator with a gradient must give one for some input"


def _directional(
    record: Operator,
    example: Example,
    inputs: list[np.ndarray],
    position: int,
    direction: np.ndarray,
    weights: np.ndarray,
) -> float:
    step = 1e-6

    def value(sign: float) -> float:
        moved = list(inputs)
        moved[position] = inputs[position] + sign * step * direction
        return float((record.evaluate(moved, example.attrs)[0] * weights).sum())

    return (value(1.0) - value(-1.0)) / (2 * step)


@pytest.mark.parametrize(("record", "example"), CASES)
def test_cost_counts_what_is_moved(record: Operator, example: Example) -> None:
    outputs = record.infer(example.inputs, example.attrs)
    cost = record.cost(example.inputs, outputs, example.attrs)
    assert cost.flops >= 0
    if not isinstance(record.lower(example.inputs, outputs, example.attrs), View):
        assert 0 < cost.bytes_written <= sum(tensor.size_bytes for tensor in outputs)
        assert cost.bytes_read > 0


@pytest.mark.parametrize(("record", "example"), CASES)
def test_lower_gives_a_stable_spec(record: Operator, example: Example) -> None:
    outputs = record.infer(example.inputs, example.attrs)
    first, second = (record.lower(example.inputs, outputs, example.attrs) for _ in range(2))
    assert first == second
    assert canonical(first) == canonical(second)
    assert hash(first) == hash(second)
