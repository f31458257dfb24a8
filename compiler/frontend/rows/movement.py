"""Import rows: reshapes, transposes, slices, joins and lookups."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.element_types import ELEMENT_TYPES, REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.folds.shapes import reshape_target, slice_bounds, split_sizes, squeeze_axes, unsqueezed
from compiler.frontend.scope import KnownOperand, Operand

MOST_JOINED = 32
"""Tensors that one kernel puts side by side: it takes few operands, and an unrolled loop may give many."""


def _reshape(call: Call) -> Operand:
    return call.reshape(call.value(0), reshape_target(call, call.shape(0)))


def _squeeze(call: Call) -> Operand:
    return call.reshape(call.value(0), squeeze_axes(call, call.shape(0)))


def _unsqueeze(call: Call) -> Operand:
    return call.reshape(call.value(0), unsqueezed(call, call.shape(0)))


def _transpose(call: Call) -> Operand:
    perm = call.attributes.integers("perm") or tuple(reversed(range(call.rank(0))))
    if sorted(perm) != list(range(call.rank(0))):
        call.fail(f"perm {list(perm)} is not a permutation of {call.rank(0)} axes")
    return call.transpose(call.value(0), perm)


def _expand(call: Call) -> Operand:
    target = np.broadcast_shapes(call.shape(0), call.integers(1, "the target shape"))
    value = call.value(0)
    return value if call.shape_of(value) == target else call.emit("broadcast_to", value, shape=target)


def _tile(call: Call) -> Operand:
    """[a, b] tiled (r, s) = [a, b] seen as [1, a, 1, b], broadcast to [r, a, s, b], seen as [r a, s b]."""
    repeats = call.integers(1, "the repeats")
    shape = call.shape(0)
    if len(repeats) != len(shape) or min(repeats, default=1) < 1:
        call.fail(f"repeats {list(repeats)} do not fit rank {len(shape)}")
    repeated = [i for i, count in enumerate(repeats) if count > 1]
    value = call.value(0)
    # One axis at a time keeps the rank within its limit.
    for axis in repeated:
        have = call.shape_of(value)
        spread = call.reshape(value, (*have[:axis], 1, *have[axis:]))
        spread = call.emit("broadcast_to", spread, shape=(*have[:axis], repeats[axis], *have[axis:]))
        value = call.reshape(spread, (*have[:axis], have[axis] * repeats[axis], *have[axis + 1 :]))
    return value


def _slice(call: Call) -> Operand:
    value = call.value(0)
    for axis, start, stop, step in slice_bounds(call, call.shape(0)):
        picked = np.arange(start, stop, step)
        if picked.size == 0:
            return _nothing(call, call.shape_of(value), axis)
        if step == 1:
            value = call.cut(value, axis, start, stop)
        else:
            # A lookup has a gradient for every step, negative ones included.
            value = call.emit("gather", value, call.constant(picked.astype(np.int64)), axis=axis)
    return value


def _split(call: Call) -> tuple[Operand, ...]:
    axis, sizes = split_sizes(call, call.shape(0))
    value = call.value(0)
    ends = np.cumsum(sizes).tolist()
    shape = call.shape_of(value)

    def part(size: int, end: int) -> Operand:
        return call.cut(value, axis, end - size, end) if size else _nothing(call, shape, axis)

    return tuple(part(size, end) for size, end in zip(sizes, ends, strict=True))


def _nothing(call: Call, shape: tuple[int, ...], axis: int) -> KnownOperand:
    """No element along an axis: known at compile time, whatever it is a part of; a Concat leaves it out."""
    empty = np.zeros((*shape[:axis], 0, *shape[axis + 1 :]), ELEMENT_TYPES[call.dtype(0)].numpy)
    return KnownOperand(call.node.name, empty)


def _concat(call: Call) -> Operand:
    axis = call.axis(call.attributes.integer("axis", 0), call.rank(0))
    values = [call.value(i) for i in range(len(call.operands)) if call.shape(i)[axis] > 0]
    while len(values) > 1:
        groups = [values[first : first + MOST_JOINED] for first in range(0, len(values), MOST_JOINED)]
        values = [group[0] if len(group) == 1 else call.emit("concat", *group, axis=axis) for group in groups]
    return values[0]


def _trilu(call: Call) -> Operand:
    """The upper or lower triangle: the rest becomes zero."""
    call.require_dtype(0, REAL)
    offset = int(call.array(1, "the diagonal").reshape(-1)[0]) if call.has(1) else 0
    shape = call.shape(0)
    if len(shape) < 2:
        call.fail("needs a matrix")
    ones = np.ones(shape[-2:], bool)
    keep = np.triu(ones, offset) if call.attributes.integer("upper", 1) else np.tril(ones, offset)
    value = call.value(0)
    return call.emit("where", call.constant(keep), value, call.scalar(0.0, value))


def _depth_to_space(call: Call) -> Operand:
    """Source: ONNX DepthToSpace, modes DCR and CRD."""
    block = call.attributes.integer("blocksize", 1)
    n, c, h, w = _image(call, block > 0)
    mode = call.attributes.text("mode", "DCR")
    if c % (block * block):
        call.fail(f"{c} channels do not split into blocks of {block}")
    rest = c // (block * block)
    split = (n, block, block, rest, h, w) if mode == "DCR" else (n, rest, block, block, h, w)
    perm = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    moved = call.transpose(call.reshape(call.value(0), split), perm)
    return call.reshape(moved, (n, rest, h * block, w * block))


def _space_to_depth(call: Call) -> Operand:
    """Source: ONNX SpaceToDepth; blocks come before the channels (DCR, the only order before opset 27) or behind."""
    block = call.attributes.integer("blocksize", 1)
    n, c, h, w = _image(call, block > 0)
    if h % block or w % block:
        call.fail(f"{h} x {w} does not split into blocks of {block}")
    split = (n, c, h // block, block, w // block, block)
    mode = call.attributes.text("mode", "DCR")
    perm = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = call.transpose(call.reshape(call.value(0), split), perm)
    return call.reshape(moved, (n, c * block * block, h // block, w // block))


def _image(call: Call, valid: bool) -> tuple[int, int, int, int]:
    shape = call.shape(0)
    if len(shape) != 4 or not valid:
        call.fail("needs a tensor [N, C, H, W] and a positive block size")
    return (shape[0], shape[1], shape[2], shape[3])


ROWS: Mapping[str, Rule] = {
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _reshape,
    "Reshape": _reshape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
