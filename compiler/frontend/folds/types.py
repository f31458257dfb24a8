"""Element types and shapes that operators ask for, whether or not their operand is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from compiler.element_types import ELEMENT_TYPES
from compiler.frontend.call import Call
from compiler.frontend.file.source import type_label
from compiler.graph import Array
from compiler.values import Value

NUMPY_OF_ONNX: Mapping[int, str] = {
    1: "f4",
    2: "u1",
    3: "i1",
    4: "u2",
    5: "i2",
    6: "i4",
    7: "i8",
    9: "?",
    10: "f2",
    11: "f8",
    12: "u4",
    13: "u8",
}


def cast_target(call: Call) -> np.dtype[Any]:
    """The element type that Cast or CastLike asks for; only the type of CastLike's second operand matters."""
    call.attributes.ignore("saturate", "round_mode")
    if call.node.op_type == "CastLike":
        like = call.operand(1)
        return ELEMENT_TYPES[call.dtype(1)].numpy if isinstance(like, Value) else like.array.dtype
    code = call.attributes.integer("to", 0)
    if code not in NUMPY_OF_ONNX:
        call.unsupported(f"a cast to {type_label(code)} is not supported", "export the model in float32")
    return np.dtype(NUMPY_OF_ONNX[code])


def shape_vector(call: Call, shape: tuple[int, ...]) -> Array:
    """The result of `Shape`, whose operand need not be known."""
    start, end = call.attributes.integer("start", 0), call.attributes.integer("end", len(shape))
    return np.asarray(shape[slice(start, end)], np.int64)
