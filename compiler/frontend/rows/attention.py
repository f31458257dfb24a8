"""Import rows: attention and rotary embedding of opset 23 and later, as matrix products and softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from compiler.element_types import REAL
from compiler.errors import ModelShapeError
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class _Heads:
    """Sizes of one attention: batch, query heads, key/value heads, query and key positions, head width."""

    batch: int
    query: int
    key_value: int
    positions: int
    keys: int
    width: int


def _attention(call: Call) -> Operand:
    """softmax(scale Q K' + mask) V per head; grouped key/value heads are shared by several query heads.

    A query that sees no key gives zeros.
    Shapes: Q, K, V are [B, heads, T, D], or [B, T, heads D] with `q_num_heads` and `kv_num_heads`.
    Source: ONNX Attention, opset 23 and later; where text and runtimes differ, its reference implementation.
    """
    call.only_outputs(1)
    for index in range(3):
        call.require_dtype(index, REAL)
    if any(call.has(index) for index in (4, 5, 6)):
        call.unsupported("a key/value cache is not supported", "export the model without past keys and values")
    if call.attributes.integer("qk_matmul_output_mode", 0) or call.attributes.integer("softmax_precision", 1) != 1:
        call.unsupported("qk_matmul_output_mode and softmax_precision other than the defaults are not supported")
    flat = call.rank(0) == 3
    q, k, v = (_split_heads(call, i) for i in range(3))
    heads = _sizes(call, q, k)
    grouped = _grouped(call, q, heads), _grouped(call, k, heads), _grouped(call, v, heads)
    y = _attend(call, *grouped, heads)
    depth = call.shape_of(y)[-1]
    y = call.reshape(y, (heads.batch, heads.query, heads.positions, depth))
    if not flat:
        return y
    return call.reshape(call.transpose(y, (0, 2, 1, 3)), (heads.batch, heads.positions, heads.query * depth))


def _split_heads(call: Call, index: int) -> Value:
    """[B, T, heads D] -> [B, heads, T, D]."""
    value, shape = call.value(index), call.shape(index)
    if len(shape) == 4:
        return value
    count = call.attributes.integer("q_num_heads" if index == 0 else "kv_num_heads", 0)
    if len(shape) != 3 or count < 1 or shape[2] % count:
        raise ModelShapeError(f"{list(shape)} does not split into {count} heads", where=call.node.where)
    split = call.reshape(value, (shape[0], shape[1], count, shape[2] // count))
    return call.transpose(split, (0, 2, 1, 3))


def _sizes(call: Call, q: Value, k: Value) -> _Heads:
    call.attributes.ignore("q_num_heads", "kv_num_heads")
    (batch, query, positions, width), (_, key_value, keys, _) = call.shape_of(q), call.shape_of(k)
    if query % key_value:
        raise ModelShapeError(f"{query} query heads do not share {key_value} key heads", where=call.node.where)
    return _Heads(batch, query, key_value, positions, keys, width)


def _grouped(call: Call, value: Value, heads: _Heads) -> Value:
    """[B, heads, T, D] -> [B, kv heads, heads per kv head, T, D], so that key/value heads broadcast."""
    if heads.query == heads.key_value:
        return value
    batch, count, positions, width = call.shape_of(value)
    return call.reshape(value, (batch, heads.key_value, count // heads.key_value, positions, width))


def _attend(call: Call, q: Value, k: Value, v: Value, heads: _Heads) -> Value:
    scale = call.attributes.number("scale", 1 / sqrt(heads.width))
    scores = call.emit("matmul", q, k, transpose_a=False, transpose_b=True)
    scores = call.emit("mul", scores, call.scalar(scale, scores))
    cap = call.attributes.number("softcap", 0.0)
    if cap > 0:
        scaled = call.emit("mul", scores, call.scalar(1 / cap, scores))
        scores = call.emit("mul", call.emit("tanh", scaled), call.scalar(cap, scores))
    scores = _masked(call, scores, heads)
    return call.emit("matmul", call.emit("safe_softmax", scores), v, transpose_a=False, transpose_b=False)


def _masked(call: Call, scores: Value, heads: _Heads) -> Value:
    low = call.scalar(-np.inf, scores)
    if call.attributes.integer("is_causal", 0):
        visible = call.constant(np.tril(np.ones((heads.positions, heads.keys), bool)))
        scores = call.emit("where", visible, scores, low)
    if not call.has(3):
        return scores
    call.require_dtype(3, ("bool", *REAL))
    mask = _mask_by_group(call, _padded_mask(call, heads.keys), heads)
    return call.emit("where", mask, scores, low) if call.dtype(3) == "bool" else call.emit("add", scores, mask)


def _padded_mask(call: Call, keys: int) -> Value:
    """The mask, which hides the keys that it has no column for: an extent of 1 is not broadcast along this axis."""
    mask, shape = call.value(3), call.shape(3)
    missing = keys - shape[-1] if shape else 0
    if missing <= 0:
        return mask
    fill = np.zeros((), bool) if call.dtype(3) == "bool" else np.asarray(-np.inf, np.float32)
    hidden = call.constant(np.full((*shape[:-1], missing), fill))
    return call.emit("concat", mask, hidden, axis=len(shape) - 1)


def _mask_by_group(call: Call, mask: Value, heads: _Heads) -> Value:
    """The mask, [..., heads or 1, T, S], beside scores that may carry a group axis."""
    shape = call.shape_of(mask)
    if heads.query == heads.key_value or len(shape) < 3:
        return mask
    if shape[-3] == 1:
        return call.reshape(mask, (*shape[:-3], 1, 1, *shape[-2:]))
    return call.reshape(mask, (*shape[:-3], heads.key_value, heads.query // heads.key_value, *shape[-2:]))


def _rotary(call: Call) -> Operand:
    """(x1, x2) -> (x1 cos - x2 sin, x1 sin + x2 cos) on the first `rotary_embedding_dim` elements of each head.

    Source: ONNX RotaryEmbedding, opset 23; x is [B, heads, T, D] or [B, T, heads D] with `num_heads`.
    """
    call.require_dtype(0, REAL)
    shape = call.shape(0)
    heads = call.attributes.integer("num_heads", 0)
    x = call.value(0)
    if len(shape) == 3:
        if heads < 1 or shape[2] % heads:
            raise ModelShapeError(f"{list(shape)} does not split into {heads} heads", where=call.node.where)
        x = call.reshape(x, (shape[0], shape[1], heads, shape[2] // heads))
    else:
        x = call.transpose(x, (0, 2, 1, 3))
    y = _rotated(call, x)
    return call.reshape(y, shape) if len(shape) == 3 else call.transpose(y, (0, 2, 1, 3))


def _rotated(call: Call, x: Value) -> Value:
    """x: [B, T, heads, D]."""
    shape = call.shape_of(x)
    width = call.attributes.integer("rotary_embedding_dim", 0) or shape[3]
    if width % 2 or width > shape[3]:
        call.fail(f"rotary_embedding_dim {width} of heads of width {shape[3]}")
    cos, sin = (_positions(call, index, shape, width // 2) for index in (1, 2))
    turned, rest = call.cut(x, 3, 0, width), shape[3] - width
    if call.attributes.integer("interleaved", 0):
        pairs = call.reshape(turned, (*shape[:3], width // 2, 2))
        first, second = (call.reshape(call.cut(pairs, 4, i, i + 1), (*shape[:3], width // 2)) for i in (0, 1))
    else:
        first, second = call.cut(turned, 3, 0, width // 2), call.cut(turned, 3, width // 2, width)
    real = call.emit("sub", call.emit("mul", first, cos), call.emit("mul", second, sin))
    imaginary = call.emit("add", call.emit("mul", first, sin), call.emit("mul", second, cos))
    if call.attributes.integer("interleaved", 0):
        parts = [call.reshape(part, (*shape[:3], width // 2, 1)) for part in (real, imaginary)]
        joined = call.reshape(call.emit("concat", *parts, axis=4), (*shape[:3], width))
    else:
        joined = call.emit("concat", real, imaginary, axis=3)
    return call.emit("concat", joined, call.cut(x, 3, width, shape[3]), axis=3) if rest else joined


def _positions(call: Call, index: int, shape: tuple[int, ...], half: int) -> Value:
    """The cosine or sine table as [B or 1, T, 1, half]; tables are constants, they do not learn."""
    constant = call.known_operand(index)
    table = call.value(index) if constant is None else call.constant(constant.array)
    if call.has(3):
        table = call.emit("gather", table, call.value(3), axis=0)
    have = call.shape_of(table)
    if have[-2:] != (shape[1], half):
        raise ModelShapeError(f"table {list(have)} does not fit {shape[1]} positions of {half}", where=call.node.where)
    return call.reshape(table, (have[0] if len(have) == 3 else 1, shape[1], 1, half))


ROWS: Mapping[str, Rule] = {"Attention": _attention, "RotaryEmbedding": _rotary}
