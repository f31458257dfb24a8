"""Dropout as evaluation takes it: the values as they are; a training step drops some (`compiler.step.dropout`)."""

from __future__ import annotations

from compiler.graph import TensorType
from compiler.ops.record import Example, OnnxNode, Operator, View, elementwise_cost

DROPOUT = (
    Operator(
        name="dropout",
        attributes=("ratio", "stream", "seed"),
        infer=lambda inputs, attrs: (inputs[0],),
        evaluate=lambda inputs, attrs: (inputs[0].copy(),),
        grad=lambda b, node, d_output, wanted: (d_output,),
        cost=elementwise_cost(0),
        lower=lambda inputs, outputs, attrs: View(),
        to_onnx=lambda node, types: [OnnxNode("Identity", node.inputs, node.outputs)],
        examples=(Example((TensorType("f32", (2, 3, 5)),), {"ratio": 0.25, "stream": 1, "seed": -1}),),
    ),
)
