"""Norms: their gradients against finite differences in float64, and what ONNX Runtime does not run."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.errors import ModelError
from compiler.graph import Array, Graph
from compiler.values import Value
from tests.compiler.frontend.cases import Case, scaling
from tests.compiler.frontend.cases import normalization as plain
from tests.compiler.frontend.cases.case import IMAGE, X, floats
from tests.compiler.frontend.onnx_graphs import feeds_for, imported
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import evaluate_named
from tests.compiler.passes.gradients import with_gradients

NORMS = [case for case in (*plain.cases(), *scaling.cases()) if "oftmax" not in case.op_type]
BATCH_NORM = Case("BatchNormalization", (IMAGE, *(floats(4, seed=seed) for seed in range(4))), {"training_mode": 1}, 3)


def _loss(graph: Graph, feeds: dict[Value, Array]) -> float:
    return float((evaluate_graph(graph, feeds)[graph.outputs[0]] ** 2).sum())


@pytest.mark.parametrize("case", [*NORMS, BATCH_NORM], ids=lambda case: case.name)
def test_gradients_agree_with_finite_differences(case: Case) -> None:
    """Of the sum of the first output's squares. (Shares such as 1 / count are float32 constants: hence 1e-5.)"""
    graph = imported(case.model())
    rng = np.random.default_rng(3)
    start = {graph.inputs[0]: rng.standard_normal(graph.types[graph.inputs[0]].shape) + 0.3}
    start |= {name: rng.standard_normal(graph.types[name].shape) for name in graph.parameters}
    targets = (graph.inputs[0], *graph.parameters)
    whole = with_gradients(graph, targets)
    values = evaluate_graph(whole, start)
    for target, gradient in zip(targets, whole.outputs[1:], strict=True):
        direction = rng.standard_normal(start[target].shape)
        low, high = ({**start, target: start[target] + sign * 1e-5 * direction} for sign in (-1, 1))
        numeric = (_loss(graph, high) - _loss(graph, low)) / 2e-5
        assert float((values[gradient] * direction).sum()) == pytest.approx(numeric, rel=1e-5, abs=1e-5)


def test_a_length_of_zero_gives_zeros_and_no_gradient() -> None:
    for p in (1, 2):
        graph = imported(Case("LpNormalization", (X,), {"p": p}).model())
        data = np.zeros((2, 3, 4))
        data[0, 0] = (3, 0, 4, 0)
        whole = with_gradients(graph, graph.inputs)
        values = evaluate_graph(whole, {graph.inputs[0]: data})
        length = 7 if p == 1 else 5
        np.testing.assert_allclose(values[whole.outputs[0]][0, 0], np.array([3, 0, 4, 0]) / length)
        assert not values[whole.outputs[0]][1].any()
        assert not values[whole.outputs[1]][1].any()
        assert np.isfinite(values[whole.outputs[1]]).all()


@pytest.mark.parametrize("size", [2, 4])
def test_a_response_over_an_even_number_of_channels(size: int) -> None:
    """One more behind than before; ONNX Runtime takes odd sizes, ONNX's own evaluator sums the first images' only."""
    graph = imported(Case("LRN", (IMAGE,), {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 2.0}).model())
    feeds = feeds_for(graph)
    x = feeds["x0"].astype(np.float64)
    around = [slice(max(0, c - (size - 1) // 2), c + size // 2 + 1) for c in range(x.shape[1])]
    squares = np.stack([(x[:, part] ** 2).sum(axis=1) for part in around], axis=1)
    wanted = x / (2.0 + 0.3 / size * squares) ** 0.6
    np.testing.assert_allclose(evaluate_named(graph, feeds)["y0"], wanted, rtol=1e-5)


@pytest.mark.parametrize(("opset", "numbers", "told"), [(18, 4, "group"), (21, 2, "channel")])
def test_scale_and_bias_of_the_other_opset_are_refused(opset: int, numbers: int, told: str) -> None:
    columns = floats(numbers), floats(numbers)
    case = Case("GroupNormalization", (IMAGE, *columns), {"num_groups": 2}, opset=opset)
    with pytest.raises(ModelError, match=f"one number per {told}"):
        imported(case.model())
