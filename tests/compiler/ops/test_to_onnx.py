"""What each operator exports to, run by ONNX Runtime against the operator's own NumPy meaning."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from compiler.export.onnx_model import to_model_proto_bytes
from compiler.ops import OPERATORS
from compiler.ops.record import Example, NamedNode, Operator
from tests.compiler.ops.draw import draw_inputs, single_node

CASES = [
    pytest.param(record, example, id=f"{record.name}-{i}")
    for record in OPERATORS.values()
    for i, example in enumerate(record.examples)
]


@pytest.mark.parametrize(("record", "example"), CASES)
def test_exported_nodes_agree_with_evaluate(record: Operator, example: Example) -> None:
    builder, inputs, outputs = single_node(record, example)
    (node,) = builder.nodes
    names, results = tuple(map(str, inputs)), tuple(map(str, outputs))
    types = {str(value): tensor for value, tensor in builder.types.items()}
    model = to_model_proto_bytes(
        nodes=record.to_onnx(NamedNode(node.op, names, results, node.attrs), types),
        inputs={name: types[name] for name in names},
        outputs={name: types[name] for name in results},
        initializers={},
        name="single",
    )
    feeds = [x.astype(np.float32) if x.dtype.kind == "f" else x for x in draw_inputs(example)]
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    found = session.run(list(results), dict(zip(names, feeds, strict=True)))
    wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in feeds]
    for have, want in zip(found, record.evaluate(wide, example.attrs), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)
