"""Import rows of the family: convolution."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiler.frontend.cases.case import IMAGE, Case, F, floats
from tests.compiler.frontend.onnx_graphs import Shape

ROW: tuple[str, Shape] = (F, (2, 6, 9))
VOLUME: tuple[str, Shape] = (F, (2, 4, 5, 6, 7))
MODES = ("SAME_UPPER", "SAME_LOWER", "VALID")


def cases() -> Iterator[Case]:
    yield from _images()
    yield from _grouped()
    yield from _rows()
    yield from _volumes()
    yield from _transposed()
    yield from _transposed_rows_and_volumes()


def _images() -> Iterator[Case]:
    bias = floats(5)
    yield Case("Conv", (IMAGE, floats(5, 4, 3, 3), bias), {"pads": [1, 0, 2, 1], "strides": [2, 1]})
    yield Case("Conv", (IMAGE, floats(5, 4, 3, 3)), {"dilations": [2, 1]}, label="dilated-no-bias")
    yield Case("Conv", (IMAGE, floats(5, 4, 1, 1), bias), label="1x1")
    yield Case("Conv", (IMAGE, floats(4, 1, 3, 5), floats(4)), {"group": 4, "pads": [1, 2, 1, 2]}, label="depthwise")
    for mode in MODES:
        made = {"auto_pad": mode, "strides": [2, 2]}
        yield Case("Conv", (IMAGE, floats(5, 4, 3, 4), bias), made, label=mode)
    yield Case("Conv", (IMAGE, (F, (2, 4, 3, 3))), label="run-time-weight")


def _grouped() -> Iterator[Case]:
    wide: tuple[str, Shape] = (F, (1, 16, 5, 4))
    yield Case("Conv", (IMAGE, floats(6, 2, 3, 3), floats(6)), {"group": 2, "strides": [2, 1]}, label="groups")
    yield Case("Conv", (wide, floats(16, 8, 3, 3)), {"group": 2, "pads": [1, 1, 1, 1]}, label="wide-groups")
    yield Case("Conv", (wide, floats(32, 2, 3, 3), floats(32)), {"group": 8}, label="joined-groups")
    yield Case("Conv", (wide, floats(24, 2, 1, 1)), {"group": 8}, label="groups-1x1")
    yield Case("Conv", ((F, (8, 16, 5, 4)), (F, (8, 2, 3, 3))), {"group": 8}, label="run-time-groups")
    yield Case("Conv", (IMAGE, floats(12, 1, 3, 3), floats(12)), {"group": 4}, label="multiplied")
    yield Case("Conv", ((F, (4, 4, 7, 6)), (F, (4, 1, 3, 3))), {"group": 4}, label="run-time-depthwise")


def _rows() -> Iterator[Case]:
    pads = {"pads": [2, 1], "strides": [2]}
    yield Case("Conv", (ROW, floats(5, 6, 3), floats(5)), pads, label="1-d")
    yield Case("Conv", (ROW, floats(5, 6, 1)), label="1-d-point")
    yield Case("Conv", (ROW, floats(6, 1, 3), floats(6)), {"group": 6, "dilations": [2]}, label="1-d-depthwise")
    yield Case("Conv", (ROW, floats(9, 2, 3), floats(9)), {"group": 3}, label="1-d-groups")
    yield Case("Conv", ((F, (4, 6, 9)), (F, (4, 6, 3)), (F, (4,))), pads, label="1-d-run-time-weight")
    for mode in MODES:
        yield Case("Conv", (ROW, floats(5, 6, 4)), {"auto_pad": mode, "strides": [2]}, label=f"1-d-{mode}")


def _volumes() -> Iterator[Case]:
    moved = {"pads": [1, 0, 2, 1, 1, 0], "strides": [2, 1, 2]}
    yield Case("Conv", (VOLUME, floats(3, 4, 3, 2, 3), floats(3)), moved, label="3-d")
    yield Case("Conv", (VOLUME, floats(3, 4, 2, 2, 2)), {"dilations": [3, 2, 1]}, label="3-d-dilated")
    yield Case("Conv", (VOLUME, floats(3, 4, 2, 3, 3)), {"dilations": [2, 1, 1], **moved}, label="3-d-both")
    yield Case("Conv", (VOLUME, floats(3, 4, 1, 1, 1), floats(3)), label="3-d-point")
    yield Case("Conv", (VOLUME, floats(6, 2, 2, 2, 3), floats(6)), {"group": 2, **moved}, label="3-d-groups")
    yield Case("Conv", (VOLUME, floats(4, 1, 3, 3, 3)), {"group": 4, **moved}, label="3-d-depthwise")
    yield Case("Conv", (VOLUME, floats(8, 1, 2, 3, 3)), {"group": 4}, label="3-d-multiplied")
    yield Case("Conv", (VOLUME, (F, (2, 4, 2, 2, 2))), label="3-d-run-time-weight")
    same = {"auto_pad": "SAME_UPPER", "strides": [2, 2, 2]}
    yield Case("Conv", (VOLUME, floats(3, 4, 3, 2, 3)), same, label="3-d-same")


def _transposed() -> Iterator[Case]:
    op, w, bias = "ConvTranspose", floats(4, 5, 3, 3), floats(5)
    yield Case(op, (IMAGE, w, bias), {"strides": [2, 3]})
    yield Case(op, (IMAGE, w), {"pads": [1, 0, 2, 1], "dilations": [2, 1]}, label="pads")
    yield Case(op, (IMAGE, w, bias), {"strides": [2, 3], "output_padding": [1, 2]}, label="output-padding")
    yield Case(op, (IMAGE, w), {"strides": [2, 2], "output_shape": [14, 13]}, label="output-shape")
    yield Case(op, (IMAGE, w), {"strides": [2, 2], "output_shape": [16, 13]}, label="larger-output-shape")
    for mode in MODES:
        yield Case(op, (IMAGE, floats(4, 5, 3, 4)), {"auto_pad": mode, "strides": [2, 2]}, label=mode)
    yield Case(op, (IMAGE, floats(4, 3, 3, 2), floats(6)), {"group": 2, "strides": [2, 1]}, label="groups")
    yield Case(op, (IMAGE, floats(4, 1, 3, 3), floats(4)), {"group": 4, "strides": [2, 2]}, label="depthwise")
    yield Case(op, (IMAGE, floats(4, 1, 3, 3)), {"group": 2}, label="summed-depthwise")
    yield Case(op, (IMAGE, floats(4, 3, 3, 3)), {"group": 4}, label="multiplied")
    yield Case(op, ((F, (4, 4, 7, 6)), (F, (4, 4, 3, 3)), (F, (4,))), {"strides": [2, 2]}, label="run-time-weight")
    yield Case(op, (IMAGE, floats(4, 5, 1, 1), bias), label="1x1")
    yield Case(op, (IMAGE, floats(4, 5, 1, 2)), {"strides": [3, 4]}, label="stride-above-kernel")


def _transposed_rows_and_volumes() -> Iterator[Case]:
    op, moved = "ConvTranspose", {"strides": [2, 1, 2], "pads": [1, 0, 2, 1, 1, 0]}
    yield Case(op, (ROW, floats(6, 4, 3), floats(4)), {"strides": [2], "pads": [1, 0]}, label="1-d")
    yield Case(op, (ROW, floats(6, 1, 3)), {"group": 6, "output_padding": [1], "strides": [3]}, label="1-d-depthwise")
    yield Case(op, (VOLUME, floats(4, 3, 3, 2, 3), floats(3)), moved, label="3-d")
    yield Case(op, (VOLUME, floats(4, 3, 2, 2, 2)), {"dilations": [3, 2, 1]}, label="3-d-dilated")
    yield Case(op, (VOLUME, floats(4, 2, 2, 2, 3), floats(4)), {"group": 2, **moved}, label="3-d-groups")
    yield Case(op, (VOLUME, floats(4, 1, 3, 3, 3)), {"group": 4, **moved}, label="3-d-depthwise")
    extra = {**moved, "output_padding": [1, 0, 1]}
    yield Case(op, (VOLUME, floats(4, 3, 3, 2, 3)), extra, label="3-d-output-padding")
