"""Import rows: random numbers. What a node draws depends on the seed, the step and the node; see `compiler.ops.random`.

Nothing flows back through a draw; mean, scale and bounds are applied to it by ordinary nodes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from compiler.element_types import ELEMENT_TYPES, REAL, emitted_of_onnx
from compiler.errors import LimitExceeded
from compiler.frontend.call import Call, Result, Rule
from compiler.frontend.scope import Operand
from compiler.values import Value

Finish = Callable[[Call, Value], Value]
_F32 = ELEMENT_TYPES["f32"].onnx


def key_of(call: Call) -> Value:
    """Returns the key by which the node draws: of its own seed, or the run's."""
    scope = call.scope
    seed, step = scope.random_input("random_seed"), scope.random_input("random_step")
    node_seed = _own_seed(call)
    if node_seed is not None:
        seed = call.constant(np.asarray(node_seed, np.int64))
    scope.random_nodes += 1
    return call.emit("random_key", seed, step, stream=scope.random_nodes)


def _own_seed(call: Call) -> int | None:
    """The node's `seed`, a float, as a whole number: its bits."""
    if "seed" not in call.attributes:
        return None
    (bits,) = struct.unpack("<I", struct.pack("<f", call.attributes.number("seed", 0.0)))
    return int(bits)


def draws(call: Call, op: str, shape: tuple[int, ...]) -> Value:
    """A tensor of independent draws. Raises: LimitExceeded, before anything is made."""
    if any(extent < 1 for extent in shape):
        call.fail(f"draws {list(shape)}; each extent must be 1 or more")
    if prod(shape) > min(call.scope.limits.tensor_elements, 2**31 - 1):
        raise LimitExceeded(f"draws {list(shape)}, {prod(shape):,} numbers", where=call.node.where)
    return call.emit(op, key_of(call), shape=shape)


def _shaped(op: str, finish: Finish) -> Rule:
    """RandomNormal, RandomUniform: the shape is an attribute."""

    def rule(call: Call) -> Operand:
        _require_f32(call, call.attributes.integer("dtype", _F32))
        shape = call.attributes.integers("shape")
        if shape is None:
            call.fail("has no shape")
        return finish(call, draws(call, op, shape))

    return rule


def _like(op: str, finish: Finish) -> Rule:
    """RandomNormalLike, RandomUniformLike: the shape, and the type unless it is given, are the operand's."""

    def rule(call: Call) -> Operand:
        if "dtype" in call.attributes:
            _require_f32(call, call.attributes.integer("dtype", _F32))
        else:
            call.require_dtype(0, REAL)
        return finish(call, draws(call, op, call.shape(0)))

    return rule


def _require_f32(call: Call, code: int) -> None:
    if code != _F32:
        call.unsupported(
            f"draws numbers of ONNX type {code}; supported: {_F32} (float32)", "export the model in float32"
        )


def _normal(call: Call, value: Value) -> Value:
    mean, scale = call.attributes.number("mean", 0.0), call.attributes.number("scale", 1.0)
    return _moved(call, value, scale, mean)


def _uniform(call: Call, value: Value) -> Value:
    low, high = call.attributes.number("low", 0.0), call.attributes.number("high", 1.0)
    return _moved(call, value, high - low, low)


def _moved(call: Call, value: Value, scale: float, offset: float) -> Value:
    scaled = value if scale == 1.0 else call.emit("mul", value, call.scalar(scale, value))
    return scaled if offset == 0.0 else call.emit("add", scaled, call.scalar(offset, value))


def _bernoulli(call: Call) -> Operand:
    """1 with the probability that the input gives, else 0. Source: ONNX Bernoulli (22)."""
    call.require_dtype(0, REAL)
    code = call.attributes.integer("dtype", _F32)
    element = emitted_of_onnx(code)
    if element is None:
        # Not `unsupported`: the standard's body of this operator, tried next, would draw another type in silence.
        call.fail(f"draws values of ONNX type {code}, which no kernel holds", "export the model in float32")
    below = call.emit("less", draws(call, "random_uniform", call.shape(0)), call.value(0))
    return below if element.name == "bool" else call.emit("cast", below, to=element.name)


def _dropout(call: Call) -> Result:
    """Left out, unless the spec says `dropout: train`; so or so, evaluation drops nothing. A mask, if read, keeps all.

    Whether the node was exported in training mode matters only where others were (`compiler.frontend.modes`).
    Source: ONNX Dropout (13, 22).
    """
    ratio = _ratio(call)
    seed = call.attributes.integer("seed", 0) % (1 << 48) if "seed" in call.attributes else -1
    y: Operand = call.operand(0)
    if call.scope.dropout == "train" and ratio > 0 and call.node.outputs[0] not in call.scope.evaluated:
        call.require_dtype(0, REAL)
        call.scope.random_nodes += 1
        y = call.emit("dropout", call.value(0), ratio=ratio, stream=call.scope.random_nodes, seed=seed)
    if not any(call.node.outputs[1:]):
        return y
    unknown = call.emit("is_nan", call.value(0))
    return y, call.emit("or", unknown, call.emit("not", unknown))


def _ratio(call: Call) -> float:
    """The share that is dropped; it matters only where it is."""
    call.attributes.ignore("ratio")
    if call.scope.dropout != "train":
        return 0.0
    ratio = float(call.array(1, "the ratio").reshape(-1)[0]) if call.has(1) else 0.5
    if not 0 <= ratio < 1:
        call.fail(f"drops a share of {ratio:g}; it must be 0 or more, and less than 1")
    return ratio


ROWS: Mapping[str, Rule] = {
    "Bernoulli": _bernoulli,
    "Dropout": _dropout,
    "RandomNormal": _shaped("random_normal", _normal),
    "RandomNormalLike": _like("random_normal", _normal),
    "RandomUniform": _shaped("random_uniform", _uniform),
    "RandomUniformLike": _like("random_uniform", _uniform),
}
