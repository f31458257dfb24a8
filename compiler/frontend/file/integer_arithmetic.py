"""Operators that quantizers write for arithmetic in integers, as arithmetic in real numbers between two roundings.

Rewrites, in the protobuf: a node of `RULES` -> DequantizeLinear of its operands, the operator in real numbers, and
QuantizeLinear of its result under the same name, where it has integers. Requires: operands and scales as the operator's
definition orders them. Ensures: values of the standard's definition, up to the order of a sum. Why: weights are then
stored in one form, which `eight_bits` reads, and what is rounded in a model is rounded in one place.

Source: the standard's definitions, and ONNX Runtime's `ContribOperators.md` for those of the domain com.microsoft.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

from compiler.frontend.file.integer_nodes import Call, Rule, Triple, Writer, make_identity, names_read, operands_of
from compiler.frontend.file.source import free_name
from compiler.frontend.file.stored_tensors import constant_tensor
from compiler.graph import Array

_VENDOR = "com.microsoft"
_READING_BYTES = frozenset({("", "Gather"), ("", "MatMul")})
"""Operators of ordinary files too, which are rewritten only beside a stored tensor of `_BYTES`."""
_BYTES = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT4, onnx.TensorProto.UINT4)


def has_integer_arithmetic(graph: Any) -> bool:
    """Whether a graph (protobuf) has a node that `spell_out` may rewrite."""
    kinds = {(node.domain, node.op_type) for node in graph.node} & RULES.keys()
    return not kinds <= _READING_BYTES or (bool(kinds) and _stores_bytes(graph))


def _stores_bytes(graph: Any) -> bool:
    constants = (constant_tensor(node) for node in graph.node)
    stored = [*graph.initializer, *(tensor for tensor in constants if tensor is not None)]
    return any(tensor.data_type in _BYTES for tensor in stored)


class SpelledOut(NamedTuple):
    """The computations that differ from the file's, a sentence each, and its stored scales, which do not learn."""

    remarks: tuple[str, ...] = ()
    scales: frozenset[str] = frozenset()


def spell_out(graph: Any) -> SpelledOut:
    """Rewrites a graph (protobuf) in place."""
    if not has_integer_arithmetic(graph):
        return SpelledOut()
    writer, read = Writer(graph), set(names_read(graph))
    for node in list(graph.node):
        rule = RULES.get((node.domain, node.op_type))
        if rule is None or not writer.try_rule(rule, Call(node)):
            writer.nodes += [*writer.before.get(node.output[0], ()), node] if node.output else [node]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in _still_read(writer.nodes, graph, read)]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(writer.tensors)
    return SpelledOut(tuple(dict.fromkeys(writer.remarks)), frozenset(writer.scales))


def _still_read(nodes: Sequence[Any], graph: Any, before: Collection[str]) -> list[Any]:
    """Nodes in their order without those whose results were read before, and are no longer."""
    reads = Counter(value.name for value in graph.output)
    reads.update(name for node in nodes for name in operands_of(node))
    remaining: list[Any] = []
    for node in reversed(nodes):
        if any(name in before for name in node.output) and not any(reads[name] for name in node.output):
            reads.subtract(operands_of(node))
        else:
            remaining.append(node)
    return remaining[::-1]


def _linear_conv(writer: Writer, call: Call) -> bool:
    """QLinearConv."""
    x = writer.real(*call.triple(0))
    weight = writer.real(*call.triple(3), axis=writer.axis_of(call.input(4), 0))
    bias = call.input(8)
    if bias:
        scale = writer.product(call.input(1), call.input(4))
        bias = writer.real(bias, scale, "", axis=writer.axis_of(scale, 0))
    y = writer.node("Conv", [x, weight, bias], label=call.node.name, **call.attributes)
    writer.node("QuantizeLinear", [y, call.input(6), call.input(7)], call.node.output[0])
    return True


def _linear_matmul(writer: Writer, call: Call) -> bool:
    """QLinearMatMul."""
    a = writer.real(*call.triple(0))
    b = writer.real(*call.triple(3), axis=writer.axis_of(call.input(4), -1))
    y = writer.node("MatMul", [a, b], label=call.node.name)
    writer.node("QuantizeLinear", [y, call.input(6), call.input(7)], call.node.output[0])
    return True


def _integer(op_type: str, scaled_axis: int) -> Rule:
    """MatMulInteger and ConvInteger: a product of integers, which a Cast and a Mul with the scales follow.

    The weight's scale moves from the Mul to the weight, so that what learns is in the units of the real model, and to
    integers that are added in between.
    """

    def rule(writer: Writer, call: Call) -> bool:
        output = call.node.output[0]
        chain = writer.chain_behind(output)
        if chain is None:
            return False
        combining, casts = chain
        scale = _scale_behind(writer, casts, call.input(1), lambda array: not combining or array.size == 1)
        writer.make_real(combining, output, scale)
        unit = writer.tensor("one", np.ones((), np.float32))
        x = writer.real(call.input(0), unit, call.input(2))
        weight = writer.real(call.input(1), scale or unit, call.input(3), axis=writer.axis_of(scale, scaled_axis))
        writer.node(op_type, [x, weight], output, label=call.node.name, **call.attributes)
        return True

    return rule


def _scale_behind(writer: Writer, ends: Sequence[Any], weight: str, fits: Callable[[Array], bool]) -> str:
    """The weight's stored scale, taken out of the Mul behind the one end of a product; empty where none fits."""
    result = ends[0].output[0]
    scalings = writer.readers.get(result, []) if len(ends) == 1 and weight in writer.stored else []
    if len(scalings) != 1 or scalings[0].op_type != "Mul":
        return ""
    scaling = scalings[0]
    factors = [name for name in scaling.input if name != result]
    product = writer.makers.get(factors[0]) if len(factors) == 1 and writer.array(factors[0]) is None else None
    if product is not None:
        factors = list(product.input) if product.op_type == "Mul" else []
    scales = [(name, array) for name in factors if (array := writer.array(name)) is not None]
    if len(scales) != 1:
        return ""
    scale, array = scales[0]
    writer.scales.add(scale)
    if not fits(array):
        return ""
    if product is None:
        make_identity(scaling, result)
    else:  # it may have other readers, such as a bias in its units
        del scaling.input[:]
        scaling.input.extend([result, *(name for name in factors if name != scale)])
    return str(scale)


def _dynamic_matmul(writer: Writer, call: Call) -> bool:
    """DynamicQuantizeMatMul(A, B, scale of B, zero point of B, bias)."""
    a = call.input(0)
    steps, scale, zero = (free_name(f"{a}:{part}", writer.names) for part in ("steps", "scale", "zero"))
    writer.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", [a], [steps, scale, zero]))
    return _scaled_matmul(
        writer, call, (steps, scale, zero), (call.input(1), call.input(2), call.input(3)), call.input(4)
    )


def _matmul_to_real(writer: Writer, call: Call) -> bool:
    """MatMulIntegerToFloat(A, B, scale of A, scale of B, zero point of A, zero point of B, bias)."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (call.input(index) for index in range(7))
    return _scaled_matmul(writer, call, (a, a_scale, a_zero), (b, b_scale, b_zero), bias)


def _scaled_matmul(writer: Writer, call: Call, a: Triple, b: Triple, bias: str) -> bool:
    x = writer.real(*a)
    weight = writer.real(*b, axis=writer.axis_of(b[1], -1))
    name, output = call.node.name, call.node.output[0]
    if bias:
        writer.node("Add", [writer.node("MatMul", [x, weight], label=name), bias], output)
    else:
        writer.node("MatMul", [x, weight], output, label=name)
    return True


def _gemm(writer: Writer, call: Call) -> bool:
    """QGemm(A, scale, zero, B, scale, zero, C, scale of the result, its zero)."""
    a = writer.real(*call.triple(0))
    axis = 0 if call.attributes.get("transB", 0) else 1
    b = writer.real(*call.triple(3), axis=writer.axis_of(call.input(4), axis))
    c = call.input(6)
    if c:
        scale = writer.product(call.input(1), call.input(4))
        c = writer.real(c, scale, "", axis=writer.axis_of(scale, -1))
    result = call.node.output[0]
    y = writer.node("Gemm", [a, b, c], "" if call.input(7) else result, label=call.node.name, **call.attributes)
    if call.input(7):
        writer.node("QuantizeLinear", [y, call.input(7), call.input(8)], result)
    return True


def _operands(op_type: str, count: int) -> Rule:
    """An operator of `count` operands, each with its scale and zero point, then those of the result."""

    def rule(writer: Writer, call: Call) -> bool:
        reals = [writer.real(*call.triple(3 * operand)) for operand in range(count)]
        y = writer.node(op_type, reals, label=call.node.name, **call.attributes)
        writer.node("QuantizeLinear", [y, *call.triple(3 * count)[:2]], call.node.output[0])
        return True

    return rule


def _pool(op_type: str) -> Rule:
    """A pool of images whose channels come first."""
    pooled = _operands(op_type, 1)

    def rule(writer: Writer, call: Call) -> bool:
        attributes = [entry for entry in call.node.attribute if entry.name == "channels_last"]
        if attributes and attributes[0].i:
            return False
        for entry in attributes:
            call.node.attribute.remove(entry)
        return pooled(writer, call)

    return rule


def _concat(writer: Writer, call: Call) -> bool:
    """QLinearConcat(scale of the result, its zero, then each operand with both of its own)."""
    reals = [writer.real(*call.triple(first)) for first in range(2, len(call.node.input), 3)]
    y = writer.node("Concat", reals, label=call.node.name, **call.attributes)
    writer.node("QuantizeLinear", [y, call.input(0), call.input(1)], call.node.output[0])
    return True


def _lstm(writer: Writer, call: Call) -> bool:
    """DynamicQuantizeLSTM: LSTM's operands, W and R with their last two axes exchanged, then scales and zero points.

    The kernel also rounds what it multiplies with the weights, at each step of the sequence; here that stays real.
    """
    weights = [_weight_of_rows(writer, call, place, first) for place, first in ((1, 8), (2, 10))]
    if "" in weights:
        return False
    operands = [call.input(0), *weights, *(call.input(index) for index in range(3, 8))]
    while not operands[-1]:
        operands.pop()
    node = onnx.helper.make_node("LSTM", operands, list(call.node.output), name=call.node.name, **call.attributes)
    writer.nodes.append(node)
    writer.remarks.append("a quantized LSTM rounds what it multiplies at each step, which is computed in float32 here")
    return True


def _weight_of_rows(writer: Writer, call: Call, place: int, first: int) -> str:
    """An LSTM's weight [directions, rows, width] of one in eight bits, [directions, width, rows]; empty if not stored.

    One scale for each row of each direction does not fit DequantizeLinear's one axis: arithmetic says it.
    """
    names = call.input(place), call.input(first), call.input(first + 1)
    arrays = [array for name in names if (array := writer.array(name)) is not None]
    if len(arrays) != len(names):
        return ""
    stored, *steps = arrays
    rows = writer.tensor(f"{names[0]}:rows", stored.transpose(0, 2, 1))
    scale, zero = (
        writer.tensor(f"{name}:rows", array.astype(np.float32).reshape(len(stored), -1, 1))
        for name, array in zip(names[1:], steps, strict=True)
    )
    whole = writer.node("Cast", [rows], to=onnx.TensorProto.FLOAT)
    return writer.node("Mul", [writer.node("Sub", [whole, zero]), scale])


def _gather(writer: Writer, call: Call) -> bool:
    """Gathers from a stored tensor in eight bits, in front of what makes its rows real: of an embedding.

    The rows come from the real numbers instead, which are a weight in eight bits like others.
    """
    data, rows = call.input(0), call.node.output[0]
    if writer.stored_bytes(data) is None or not (steps := writer.scaling_behind(call)):
        return False
    scaled = rows
    for step, operands in steps:
        data = writer.node(step.op_type, [name or data for name in operands], label=step.name, **Call(step).attributes)
        make_identity(step, scaled)
        scaled = step.output[0]
    writer.node("Gather", [data, call.input(1)], rows, label=call.node.name, **call.attributes)
    return True


def _matmul(writer: Writer, call: Call) -> bool:
    """MatMul with a stored matrix in eight bits that is cast, or also transposed, before it, and scaled behind it."""
    weight, kinds = call.input(1), list[str]()
    for _ in range(2):
        maker = writer.makers.get(weight)
        if maker is not None and maker.op_type in ("Cast", "Transpose"):
            kinds.append(maker.op_type)
            weight = maker.input[0]
    stored = writer.stored_bytes(weight)
    if stored is None or stored.ndim != 2 or sorted(kinds) not in (["Cast"], ["Cast", "Transpose"]):
        return False
    axis = 1 - kinds.count("Transpose")
    width = stored.shape[axis]
    scale = _scale_behind(
        writer, [call.node], weight, lambda array: array.size == max(array.shape[-1:], default=1) in (1, width)
    )
    if not scale:
        return False
    real = writer.real(weight, scale, "", axis=writer.axis_of(scale, axis))
    matrix = writer.node("Transpose", [real]) if len(kinds) > 1 else real
    writer.node("MatMul", [call.input(0), matrix], call.node.output[0], label=call.node.name)
    return True


RULES: Mapping[tuple[str, str], Rule] = {
    ("", "ConvInteger"): _integer("Conv", 0),
    ("", "Gather"): _gather,
    ("", "MatMul"): _matmul,
    ("", "MatMulInteger"): _integer("MatMul", -1),
    ("", "QLinearConv"): _linear_conv,
    ("", "QLinearMatMul"): _linear_matmul,
    (_VENDOR, "DynamicQuantizeLSTM"): _lstm,
    (_VENDOR, "DynamicQuantizeMatMul"): _dynamic_matmul,
    (_VENDOR, "MatMulIntegerToFloat"): _matmul_to_real,
    (_VENDOR, "QGemm"): _gemm,
    (_VENDOR, "QLinearAdd"): _operands("Add", 2),
    (_VENDOR, "QLinearAveragePool"): _pool("AveragePool"),
    (_VENDOR, "QLinearConcat"): _concat,
    (_VENDOR, "QLinearGlobalAveragePool"): _pool("GlobalAveragePool"),
    (_VENDOR, "QLinearLeakyRelu"): _operands("LeakyRelu", 1),
    (_VENDOR, "QLinearMul"): _operands("Mul", 2),
    (_VENDOR, "QLinearSigmoid"): _operands("Sigmoid", 1),
}
