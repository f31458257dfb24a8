"""Import rows of the family: elements and slices picked and put by index."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.compiler.frontend.cases.case import Case, F, N, X, floats, ints

PLACES = np.asarray([[[1, -1, 0, 1], [0, 0, 1, 2]], [[0, 2, 2, 1], [1, 2, 0, 0]]])
UPDATES = (F, (2, 2, 4))


def cases() -> Iterator[Case]:
    yield Case("Gather", (X, ints(2, 0, -1)), {"axis": 1})
    yield Case("Gather", (X, np.asarray(-1)), {"axis": 2}, label="scalar")
    yield Case("Gather", (floats(3, 4), (N, (2, 5))), label="embedding")
    yield Case("GatherElements", (X, np.asarray([[[1, -1, 0, 1]], [[0, 2, 2, 1]]])), {"axis": 1})
    yield Case("GatherElements", ((F, (2, 3)), (N, (2, 5))), {"axis": 1}, label="run-time")
    yield Case("GatherElements", ((F, (2, 4, 3)), (N, (2, 3, 5))), {"axis": 2}, label="shorter-index")
    yield Case("GatherND", (X, np.asarray([[1, 2], [0, -1]])))
    yield Case("GatherND", ((F, (3, 4, 5)), (N, (3, 7, 2))), label="run-time")
    yield Case("GatherND", ((F, (2, 3, 4)), (N, (2, 5, 1))), {"batch_dims": 1}, label="batch")
    yield Case("GatherND", ((F, (2, 3, 3, 4)), (N, (2, 3, 2))), {"batch_dims": 1}, label="batch-deep")
    yield from _scatters()
    yield Case("TensorScatter", ((F, (2, 3, 5, 4)), (F, (2, 3, 2, 4)), (N, (2,))), opset=24)
    yield Case("TensorScatter", ((F, (2, 6, 4)), (F, (2, 3, 4)), ints(5, 4)), {"mode": "circular", "axis": 1}, opset=24)
    yield Case("EyeLike", ((F, (3, 4)),), {"k": 1})
    yield Case("EyeLike", ((F, (3, 3)),), {"dtype": 7}, label="whole-numbers")
    yield Case("OneHot", ((N, (2, 3)), np.asarray(4), np.asarray([-1.0, 2.0], np.float32)))
    yield Case("OneHot", ((N, (2, 3)), np.asarray(2), (F, (2,))), {"axis": 1}, label="run-time-values")
    yield Case("Compress", (X, np.asarray([True, False, True])), {"axis": 1})
    yield Case("Compress", (X, np.asarray([False, True, True])), label="flat")
    yield Case("ReverseSequence", ((F, (2, 2, 3)), (N, (2,))), {"time_axis": 0, "batch_axis": 1})
    yield Case("ReverseSequence", ((F, (2, 4)), ints(3, 4)), {"time_axis": 1, "batch_axis": 0}, label="known")


def _scatters() -> Iterator[Case]:
    unique = np.asarray([[[2, 1, 0, 1], [0, 0, 1, 2]], [[0, 2, 2, 1], [1, 0, 0, 0]]])
    yield Case("ScatterElements", (X, unique, UPDATES), {"axis": 1})
    yield Case("ScatterElements", (X, PLACES, UPDATES), {"axis": 1}, label="duplicates")
    yield Case(
        "ScatterElements",
        ((F, (2, 4, 5)), (N, (2, 3, 4)), (F, (2, 3, 4))),
        {"axis": 1, "reduction": "add"},
        label="shorter-index",
    )
    yield Case("ScatterElements", ((F, (3, 4)), (N, (3, 2)), (F, (3, 2))), {"axis": -1}, label="run-time")
    for reduction in ("add", "mul", "max", "min"):
        yield Case("ScatterElements", (X, PLACES, UPDATES), {"axis": 1, "reduction": reduction}, label=reduction)
        yield Case(
            "ScatterND", (X, np.asarray([[1, 2], [1, 2]]), (F, (2, 4))), {"reduction": reduction}, label=reduction
        )
    yield Case("ScatterND", (X, np.asarray([[1, 2], [0, -1]]), (F, (2, 4))))
    yield Case("ScatterND", ((F, (3, 3, 5)), (N, (3, 2, 2)), (F, (3, 2, 5))), {"reduction": "add"}, label="run-time")
    yield Case("ScatterND", ((F, (3, 5)), (N, (3, 1)), (F, (3, 5))), label="run-time-last")
