"""Import rows of the family: Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.compiler.frontend.cases.case import Case, F, floats


def cases() -> Iterator[Case]:
    real, both = (F, (2, 6, 5, 1)), (F, (2, 6, 5, 2))
    yield Case("DFT", (real,))
    yield Case("DFT", (real,), {"onesided": 1, "axis": 2}, label="one-sided")
    yield Case("DFT", (both,), {"axis": -2}, label="complex")
    yield Case("DFT", (both,), {"axis": 1, "inverse": 1}, label="inverse")
    yield Case("DFT", (real, np.asarray(4)), {"axis": 1}, label="shorter")
    yield Case("DFT", (both, np.asarray(8)), {"axis": 1}, label="longer")
    yield Case("DFT", (real, None, np.asarray(1)), {"onesided": 1}, opset=20, label="axis-as-input")
    signal = (F, (2, 20, 1))
    yield Case("STFT", (signal, np.asarray(4), floats(8)))
    yield Case("STFT", (signal, np.asarray(3), None, np.asarray(6)), {"onesided": 0}, label="whole")
    yield Case("STFT", ((F, (2, 20)), np.asarray(4), floats(8)), label="of two axes")
