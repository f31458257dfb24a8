"""Import rows of the family: pooling."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiler.frontend.cases.case import IMAGE, Case, F, floats, ints
from tests.compiler.frontend.onnx_graphs import Shape

ROW: tuple[str, Shape] = (F, (2, 3, 9))
VOLUME: tuple[str, Shape] = (F, (2, 3, 5, 6, 7))


def cases() -> Iterator[Case]:
    window = {"kernel_shape": [3, 3], "strides": [2, 2]}
    for op in ("MaxPool", "AveragePool"):
        yield Case(op, (IMAGE,), {**window, "pads": [1, 0, 1, 1]})
        yield Case(op, (IMAGE,), {**window, "ceil_mode": 1}, label="ceil")
        yield Case(op, (IMAGE,), {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1}, label="ceil-drop")
        yield Case(op, (IMAGE,), {**window, "auto_pad": "SAME_UPPER"}, label="same")
        yield from _ranks(op)
        dilated = {"kernel_shape": [2, 3], "dilations": [3, 2], "pads": [1, 2, 0, 2]}
        yield Case(op, (IMAGE,), dilated, label="dilated", opset=19)
        yield Case(op, (IMAGE,), {**dilated, "strides": [2, 2], "ceil_mode": 1}, label="dilated-ceil", opset=19)
        flat = {"kernel_shape": [2, 2, 2], "dilations": [2, 1, 3], "strides": [1, 2, 1]}
        yield Case(op, (VOLUME,), flat, label="dilated-3-d", opset=19)
        beyond = {"kernel_shape": [40, 3], "strides": [40, 2], "ceil_mode": 1}
        yield Case(op, (IMAGE,), beyond, label="longer than the image")
        yield Case(op, (IMAGE,), {"kernel_shape": [9, 8], "pads": [1, 1, 1, 1]}, label="over the whole image")
    yield Case("AveragePool", (IMAGE,), {**window, "pads": [1, 1, 1, 1], "count_include_pad": 1}, label="counted")
    yield from _counted()
    yield from _norms()
    yield from _positions()
    yield Case("Col2Im", ((F, (2, 12, 12)), ints(4, 5), ints(2, 2)))
    moved = {"strides": [2, 1], "pads": [1, 0, 1, 2], "dilations": [1, 2]}
    yield Case("Col2Im", ((F, (2, 12, 12)), ints(6, 5), ints(2, 3)), moved, label="moved")
    yield Case("Col2Im", ((F, (2, 16, 12)), ints(3, 3, 4), ints(2, 2, 2)), label="3-d")


def _ranks(op: str) -> Iterator[Case]:
    row = {"kernel_shape": [3], "strides": [2]}
    yield Case(op, (ROW,), {**row, "pads": [1, 1]}, label="1-d")
    yield Case(op, (ROW,), {"kernel_shape": [4], "strides": [3], "ceil_mode": 1}, label="1-d-ceil")
    volume = {"kernel_shape": [3, 2, 3], "strides": [2, 1, 2]}
    yield Case(op, (VOLUME,), {**volume, "pads": [1, 0, 1, 0, 1, 1]}, label="3-d")
    yield Case(op, (VOLUME,), {**volume, "ceil_mode": 1}, label="3-d-ceil")
    yield Case(op, (VOLUME,), {**volume, "auto_pad": "SAME_LOWER"}, label="3-d-same")


def _counted() -> Iterator[Case]:
    """Rounded up, a window may hang over the padding: what lies beyond it is not counted."""
    more = {"count_include_pad": 1, "ceil_mode": 1}
    image = {"kernel_shape": [3, 2], "strides": [3, 3], "pads": [1, 0, 1, 1], **more}
    yield Case("AveragePool", (IMAGE,), image, label="counted-ceil", opset=19)
    whole = {"kernel_shape": [20, 8], "strides": [20, 8], "pads": [1, 0, 2, 2], **more}
    yield Case("AveragePool", (IMAGE,), whole, label="counted-longer", opset=19)
    volume = {"kernel_shape": [3, 2, 3], "strides": [3, 1, 2], "pads": [1, 0, 1, 0, 1, 1], **more}
    yield Case("AveragePool", (VOLUME,), volume, label="counted-3-d-ceil", opset=19)
    dilated = {"kernel_shape": [2, 3], "dilations": [3, 2], "pads": [1, 2, 0, 2], "count_include_pad": 1}
    yield Case("AveragePool", (IMAGE,), dilated, label="counted-dilated", opset=19)


def _norms() -> Iterator[Case]:
    window = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    yield Case("LpPool", (IMAGE,), window)
    yield Case("LpPool", (IMAGE,), {**window, "p": 1}, label="1")
    yield Case("LpPool", (IMAGE,), {**window, "p": 3}, label="3")
    yield Case("LpPool", (IMAGE,), {"kernel_shape": [9, 2], "pads": [1, 0, 1, 0]}, label="over a whole axis")
    yield Case("LpPool", (ROW,), {"kernel_shape": [3]}, label="1-d")
    yield Case("LpPool", (VOLUME,), {"kernel_shape": [2, 2, 2], "strides": [2, 1, 1]}, label="3-d")
    yield Case("GlobalLpPool", (IMAGE,))
    yield Case("GlobalLpPool", (VOLUME,), {"p": 3}, label="3-d")


def _positions() -> Iterator[Case]:
    window = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    yield Case("MaxPool", (IMAGE,), window, outputs=2, label="positions")
    yield Case("MaxPool", (IMAGE,), {**window, "storage_order": 1}, outputs=2, label="positions-by-columns")
    yield Case("MaxPool", (ROW,), {"kernel_shape": [3], "strides": [2]}, outputs=2, label="positions-1-d")
    yield Case("MaxPool", (VOLUME,), {"kernel_shape": [2, 2, 3]}, outputs=2, label="positions-3-d")
    pooled = floats(1, 1, 2, 2), ints(5, 7, 13, 15).reshape(1, 1, 2, 2)
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    yield Case("MaxUnpool", ((F, pooled[0].shape), pooled[1]), window)
