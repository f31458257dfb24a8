"""Every import row computes what ONNX Runtime computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from compiler.frontend.rows import ROWS
from tests.compiler.frontend.cases import CASES, Case
from tests.compiler.frontend.onnx_graphs import assert_agrees, feeds_for, imported
from tests.compiler.named import evaluate_named


def _batch(case: Case) -> int:
    first = next(operand for operand in case.inputs if isinstance(operand, tuple))
    return int(first[1][0])  # type: ignore[arg-type]


@pytest.mark.parametrize("case", [case for case in CASES if not case.drawn], ids=lambda case: case.name)
def test_row_agrees_with_onnx_runtime(case: Case) -> None:
    model = case.model()
    graph = imported(model, batch=_batch(case))
    feeds = feeds_for(graph, positive=case.positive, integers=case.integers)
    assert_agrees(model, graph, feeds)


def test_every_row_has_a_case() -> None:
    assert set(ROWS) == {case.op_type for case in CASES}


@pytest.mark.parametrize("case", [case for case in CASES if case.op_type == "Attention"], ids=lambda case: case.name)
def test_attention_agrees_with_the_reference_of_the_standard(case: Case) -> None:
    model = case.model()
    graph = imported(model)
    feeds = feeds_for(graph)
    (expected,) = ReferenceEvaluator(onnx.load_from_string(model)).run(None, feeds)
    np.testing.assert_allclose(evaluate_named(graph, feeds)["y0"], expected, rtol=1e-4, atol=1e-5)
