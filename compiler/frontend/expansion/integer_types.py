"""Inputs of narrow integers, such as the bytes of images, as int32 ones.

Rewrites: the element type of an input. Requires: that nodes only move its elements until they are made real numbers;
arithmetic of narrow integers wraps around, which int32 does not. Ensures: what is said of it is one warning. An input
that is used otherwise keeps its type, and the import names it.
"""

from __future__ import annotations

from dataclasses import replace

import onnx

from compiler.frontend.file.moves import Places, reaches_only
from compiler.frontend.file.source import SourceModel, type_label
from compiler.warnings import CompileWarning, few_of

_INT32 = int(onnx.TensorProto.INT32)
_NARROW = frozenset(
    int(code)
    for code in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT16, onnx.TensorProto.UINT16)
)
_DESTINATIONS: Places = dict.fromkeys(("Cast", "CastLike", "DequantizeLinear", "Shape", "Size"), (0,))
"""Operators that make reals of integers, or ask for their shape alone."""


def read_as_int32(source: SourceModel) -> SourceModel:
    """The model with int32 in place of the narrow integers of its inputs; unchanged if it has none."""
    narrow = [value.name for value in source.inputs if value.element_type in _NARROW]
    readers = source.readers(with_outputs=True) if narrow else {}
    changed = [name for name in narrow if reaches_only(name, readers, _DESTINATIONS)]
    if not changed:
        return source
    types = {value.name: type_label(value.element_type) for value in source.inputs}
    inputs = tuple(replace(value, element_type=_INT32) if value.name in changed else value for value in source.inputs)
    warning = CompileWarning(
        "model.integer_type",
        few_of(changed),
        f"holds {' and '.join(sorted({types[name] for name in changed}))}, and is read as int32",
        "give data as integers of any width",
    )
    return replace(source, inputs=inputs, warnings=(*source.warnings, warning))
