"""Import rows of the family: movement."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.compiler.frontend.cases.case import Case, F, X, floats, ints


def cases() -> Iterator[Case]:
    yield Case("Reshape", (X, ints(0, -1)), label="zero-and-minus-one")
    yield Case("Reshape", (X, ints(4, 6)))
    yield Case("Squeeze", ((F, (2, 1, 4, 1)), ints(1, -1)))
    yield Case("Squeeze", ((F, (2, 1, 4, 1)),), label="all")
    yield Case("Unsqueeze", (X, ints(0, -1)))
    yield Case("Flatten", (X,), {"axis": 2})
    yield Case("Flatten", (X,), {"axis": -1}, label="negative")
    yield Case("Flatten", (X,), {"axis": 0}, label="zero")
    yield Case("Transpose", (X,), {"perm": [2, 0, 1]})
    yield Case("Transpose", (X,), label="reverse")
    yield Case("Expand", ((F, (2, 1, 4)), ints(5, 1, 3, 1)))
    yield Case("Tile", (X, ints(2, 1, 3)))
    yield Case("Slice", (X, ints(1, 0), ints(3, 99), ints(1, 2)))
    yield Case("Slice", (X, ints(-3), ints(-1), ints(2)), label="negative-bounds")
    yield Case("Slice", (X, ints(0), ints(9), ints(2), ints(2)), label="step-2")
    yield Case("Slice", (X, ints(-1), ints(-99), ints(2), ints(-1)), label="reverse")
    yield Case("Split", ((F, (2, 6)), ints(1, 2, 3)), {"axis": 1}, outputs=3)
    yield Case("Split", ((F, (2, 7)),), {"axis": 1, "num_outputs": 3}, outputs=3, label="uneven")
    yield Case("Split", ((F, (2, 6)),), {"axis": -1}, outputs=2, opset=13, label="opset-13")
    yield Case("Concat", tuple((F, (2, 1 + number % 2, 3)) for number in range(70)), {"axis": 1}, label="many")
    yield Case("Concat", (X, (F, (2, 2, 4)), floats(2, 1, 4)), {"axis": -2})
    yield Case("Trilu", ((F, (2, 4, 4)),), {"upper": 0})
    yield Case("Trilu", ((F, (2, 4, 4)), np.asarray(1)), label="upper")
    for mode in ("DCR", "CRD"):
        yield Case("DepthToSpace", ((F, (2, 8, 3, 2)),), {"blocksize": 2, "mode": mode}, label=mode)
    yield Case("SpaceToDepth", ((F, (2, 3, 4, 6)),), {"blocksize": 2})
