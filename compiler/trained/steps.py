"""Makes again, of the new elements of the author's tensors, what an exporter made of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from compiler.errors import ModelError
from compiler.origins import Reading
from compiler.tensors import Array

_OPSET = 18
_OPERATORS = frozenset(
    (
        "Add",
        "Concat",
        "Exp",
        "Expand",
        "Gather",
        "Log",
        "Mul",
        "Neg",
        "Reciprocal",
        "ReduceSum",
        "Reshape",
        "Sigmoid",
        "Tanh",
        "Transpose",
        "Unsqueeze",
    )
)
"""Operators that repairs are made of; a bundle that asks for anything else is not one of ours."""
_IR = 8


def tensor_from_steps(reading: Reading, tensors: Mapping[str, Array]) -> Array:
    """The tensor that the reading's steps make. Raises: ModelError for steps that no repair has."""
    strange = [step.op_type for step in reading.steps if step.op_type not in _OPERATORS]
    if strange:
        raise ModelError(
            f"is made by {strange[0]!r}", where=f"tensor {reading.tensor!r}", hint="build the bundle again"
        )
    inputs = {name: tensors[name] for name in (reading.tensor, *reading.others)}
    fixed = {
        constant.name: np.asarray(constant.elements, constant.dtype).reshape(constant.shape)
        for constant in reading.constants
    }
    graph = helper.make_graph(
        [helper.make_node(step.op_type, step.inputs, [step.output], **dict(step.attributes)) for step in reading.steps],
        "steps",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in inputs.items()],
        [helper.make_tensor_value_info(reading.steps[-1].output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in fixed.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    (tensor,) = ReferenceEvaluator(model).run(None, inputs)
    return np.asarray(tensor)
