"""Max pooling that says which place of each window was the first maximum, and the gradient from those places.

    max_pool_places  x -> y, words: the places, a byte each (`compiler.kernels.places`)
    max_places_grad  words, d_y -> d_x, of the shape in `shape`: every window's d_y to its place
A window of nothing but -inf has its first place inside the image; of one with NaN, the last NaN's (as in PyTorch).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from compiler.errors import InternalError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.places import WORD_BYTES, holds_places, words_of_sample
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.pooling import WINDOW, onnx_window, padded_images, pool_spec, taps_of, window_of
from compiler.ops.record import (
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    ints,
    reading_cost,
)
from compiler.ops.windows import TO_NCHW, TO_NHWC, output_size
from compiler.values import Value

_SECOND = NotDifferentiable("second derivatives of pooling are not needed by any optimizer here")


def _infer(inputs: Types, attrs: Attrs) -> Types:
    n, h, w, c = inputs[0].shape
    kernel = ints(attrs, "kernel")
    if not holds_places(kernel):
        raise InternalError(f"a place in a window of {kernel} is more than a byte holds")
    size = output_size(h, w, kernel, attrs)
    return (
        TensorType(inputs[0].dtype, (n, *size, c)),
        TensorType("i32", (n, words_of_sample(size, c))),
    )


def _grad_infer(inputs: Types, attrs: Attrs) -> Types:
    words, d_y = inputs
    x = TensorType(d_y.dtype, ints(attrs, "shape"))
    if (d_y, words) != _infer((x,), attrs):
        raise InternalError(f"the gradient of {d_y} from places in {words}")
    return (x,)


def _first_maxima(x: Array, size: tuple[int, ...], attrs: Attrs) -> tuple[Array, Array]:
    """The maxima, and the place of each in its window."""
    images = padded_images(x, attrs, -np.inf)
    inside = padded_images(np.ones((1, x.shape[1], x.shape[2], 1), bool), attrs, False)
    taps = taps_of(images, size, attrs)
    values = np.stack([images[:, rows, columns] for rows, columns in taps])
    there = np.stack([inside[:, rows, columns] for rows, columns in taps])
    y, last = values.max(axis=0), len(taps) - 1
    lost = np.where(np.isnan(y), last - np.argmax(np.isnan(values)[::-1], axis=0), np.argmax(there, axis=0))
    return y, np.where(np.isfinite(y) | (y == np.inf), np.argmax(values, axis=0), lost)


def _places_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    (x,) = inputs
    size = output_size(x.shape[1], x.shape[2], ints(attrs, "kernel"), attrs)
    y, places = _first_maxima(x, (x.shape[0], *size, x.shape[3]), attrs)
    place_bytes = np.zeros((x.shape[0], words_of_sample(size, x.shape[3]) * WORD_BYTES), np.uint8)
    place_bytes[:, : prod(y.shape[1:])] = places.reshape(x.shape[0], -1)
    return y, place_bytes.view("<i4").astype(np.int32)


def _places_of(words: Array, shape: tuple[int, ...]) -> Array:
    """The place of every element of y."""
    place_bytes = np.ascontiguousarray(words.astype("<i4")).view(np.uint8)
    return place_bytes[:, : prod(shape[1:])].reshape(shape)


def _grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    words, d_y = inputs
    _, h, w, _ = shape = ints(attrs, "shape")
    places = _places_of(words, d_y.shape)
    total = padded_images(np.zeros(shape, d_y.dtype), attrs, 0.0)
    for place, (rows, columns) in enumerate(taps_of(total, d_y.shape, attrs)):
        total[:, rows, columns] += np.where(places == place, d_y, 0)
    top, left = ints(attrs, "pads")[:2]
    return (total[:, top : top + h, left : left + w],)


def _grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    shape = b.shape(node.inputs[0])
    return (b.emit("max_places_grad", node.outputs[1], d_output, shape=shape, **window_of(node.attrs)),)


def _along(out: OnnxWriter, axis: int, values: Array) -> str:
    """A constant i64 vector that lies along one of four axes."""
    shape = [1, 1, 1, 1]
    shape[axis] = -1
    return out.add("Constant", value=np.asarray(values, np.int64).reshape(shape))


def _whole(out: OnnxWriter, value: int) -> str:
    return out.add("Constant", value=np.asarray(value, np.int64))


def _places_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    # MaxPool's second output is the flat position of each maximum in the NCHW input: the place is what is left of its
    # row and column less those at which its window begins.
    y, words = node.outputs
    out = OnnxWriter(y)
    kernel, strides, pads = (ints(node.attrs, name) for name in WINDOW)
    (_, h, w, c), (n, oh, ow, _) = types[node.inputs[0]].shape, types[y].shape
    x = out.add("Transpose", node.inputs[0], perm=TO_NCHW)
    maxima, where = out.add_pair("MaxPool", x, **onnx_window(node.attrs))
    out.add("Transpose", maxima, output=y, perm=TO_NHWC)
    flat = out.add("Transpose", out.add("Mod", where, _whole(out, h * w)), perm=TO_NHWC)
    row = out.add("Sub", out.add("Div", flat, _whole(out, w)), _along(out, 1, np.arange(oh) * strides[0] - pads[0]))
    column = out.add("Sub", out.add("Mod", flat, _whole(out, w)), _along(out, 2, np.arange(ow) * strides[1] - pads[1]))
    places = out.add("Add", out.add("Mul", row, _whole(out, kernel[1])), column)
    count = types[words].shape[1]
    flat_places = out.add("Reshape", places, out.ints(n, oh * ow * c))
    rest = count * WORD_BYTES - oh * ow * c
    if rest:
        flat_places = out.add("Pad", flat_places, out.ints(0, 0, 0, rest), _whole(out, 0))
    shifted = out.add("Mul", out.add("Reshape", flat_places, out.ints(n, count, WORD_BYTES)), _factors(out))
    unsigned = out.add("ReduceSum", shifted, out.ints(2), keepdims=0)
    is_negative = out.add("Less", _whole(out, 2**31 - 1), unsigned)
    signed = out.add("Where", is_negative, out.add("Sub", unsigned, _whole(out, 2**32)), unsigned)
    out.add("Cast", signed, output=words, to=types[words].element.onnx)
    return out.nodes


def _factors(out: OnnxWriter) -> str:
    """Returns the factors by which the bytes of a word count."""
    return out.add("Constant", value=256 ** np.arange(WORD_BYTES, dtype=np.int64))


def _grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    # Places back to flat positions in d_x as it lies: scatter d_y there.
    out = OnnxWriter(node.output)
    kernel, strides, pads = (ints(node.attrs, name) for name in WINDOW)
    n, h, w, c = shape = ints(node.attrs, "shape")
    oh, ow = types[node.inputs[1]].shape[1:3]
    words = out.add("Cast", out.add("Unsqueeze", node.inputs[0], out.ints(2)), to=TensorType("i64", ()).element.onnx)
    unsigned = out.add("Mod", words, _whole(out, 2**32))
    place_bytes = out.add("Mod", out.add("Div", unsigned, _factors(out)), _whole(out, 256))
    every = out.add("Reshape", place_bytes, out.ints(n, -1))
    positions = out.add("Slice", every, out.ints(0), out.ints(oh * ow * c), out.ints(1))
    places = out.add("Reshape", positions, out.ints(n, oh, ow, c))
    row, column = out.add("Div", places, _whole(out, kernel[1])), out.add("Mod", places, _whole(out, kernel[1]))
    flat = out.add("Add", out.add("Mul", row, _whole(out, w * c)), out.add("Mul", column, _whole(out, c)))
    starts = (
        np.arange(n) * (h * w * c),
        (np.arange(oh) * strides[0] - pads[0]) * (w * c),
        (np.arange(ow) * strides[1] - pads[1]) * c,
        np.arange(c),
    )
    for axis, start in enumerate(starts):
        flat = out.add("Add", flat, _along(out, axis, start))
    zeros = out.add("Expand", out.scalar(0.0), out.ints(prod(shape)))
    where, d_y = out.add("Reshape", flat, out.ints(-1)), out.add("Reshape", node.inputs[1], out.ints(-1))
    total = out.add("ScatterElements", zeros, where, d_y, axis=0, reduction="add")
    out.add("Reshape", total, out.ints(*shape), output=node.output)
    return out.nodes


_PADDED: dict[str, Any] = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 0, 0, 0)}
_WIDE: dict[str, Any] = {"kernel": (13, 16), "strides": (2, 1), "pads": (0, 0, 0, 0)}
_OVERLAPPING: dict[str, Any] = {"kernel": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0)}
_X, _LARGE = TensorType("f32", (2, 6, 7, 3)), TensorType("f32", (1, 15, 18, 4))


def _grad_example(x: TensorType, attrs: Attrs) -> Example:
    y, words = _infer((x,), attrs)
    return Example((words, y), {**attrs, "shape": x.shape}, (f"bytes:{prod(ints(attrs, 'kernel'))}",))


POOL_PLACES = (
    Operator(
        name="max_pool_places",
        attributes=WINDOW,
        infer=_infer,
        evaluate=_places_evaluate,
        grad=_grad,
        cost=reading_cost(2),
        lower=lambda inputs, outputs, attrs: pool_spec("max_places", inputs[0], outputs[0], attrs),
        to_onnx=_places_onnx,
        examples=(Example((_X,), _PADDED, ("apart",)), Example((_LARGE,), _WIDE, ("apart",))),
    ),
    Operator(
        name="max_places_grad",
        attributes=(*WINDOW, "shape"),
        infer=_grad_infer,
        evaluate=_grad_evaluate,
        grad=_SECOND,
        cost=reading_cost(2),
        lower=lambda inputs, outputs, attrs: pool_spec("places_grad", outputs[0], inputs[1], attrs),
        to_onnx=_grad_onnx,
        examples=(_grad_example(_X, _OVERLAPPING), _grad_example(_LARGE, _WIDE)),
    ),
)
