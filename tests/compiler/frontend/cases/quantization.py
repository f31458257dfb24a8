"""Import rows that round to integers and come back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.compiler.frontend.cases.case import Case, X, floats, scalar

WHOLE = ("i32", (2, 3))


def cases() -> Iterator[Case]:
    scales = np.abs(floats(3)) / 50
    yield Case("QuantizeLinear", (X, scalar(0.02)), label="without a zero point")
    yield Case("QuantizeLinear", (X, scalar(0.01), np.asarray(128, np.uint8)), label="saturates")
    yield Case("QuantizeLinear", (X, scales, np.asarray([0, 3, -5], np.int8)), {"axis": 1}, label="along an axis")
    yield Case("QuantizeLinear", (X, scalar(1e-4), np.asarray(-7, np.int16)), opset=21, label="sixteen bits")
    yield Case("DequantizeLinear", (WHOLE, scalar(0.3)))
    yield Case("DequantizeLinear", (WHOLE, scales), {"axis": 1}, label="along an axis")
    yield Case("DynamicQuantizeLinear", (X,), outputs=3)
    yield Case("DynamicQuantizeLinear", (X,), outputs=3, positive=True, label="of one sign")
