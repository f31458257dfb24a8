"""Import rows of the family: spectra."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.compiler.frontend.cases.case import Case, F, floats

REAL, COMPLEX = (F, (2, 6, 5, 1)), (F, (2, 6, 5, 2))
SIGNAL = (F, (2, 20, 1))


def cases() -> Iterator[Case]:
    for signal, kind in ((REAL, "real"), (COMPLEX, "complex")):
        for inverse in (0, 1):
            yield Case("DFT", (signal,), {"inverse": inverse}, label=f"{kind} {inverse}")
            yield Case("DFT", (signal,), {"inverse": inverse, "axis": 2}, label=f"{kind} {inverse} odd")
        for length in (4, 9):
            yield Case("DFT", (signal, np.asarray(length)), label=f"{kind} of {length}")
    for axis in (1, 2):
        yield Case("DFT", (REAL,), {"onesided": 1, "axis": axis}, label=f"one side {axis}")
    yield Case("DFT", (REAL, None, np.asarray(0)), {"onesided": 1}, label="of the first axis", opset=20)
    yield Case("DFT", (REAL,), {"onesided": 1}, label="of the last axis", opset=20)
    yield from _short_time()


def _short_time() -> Iterator[Case]:
    step, length = np.asarray(3), np.asarray(8)
    yield Case("STFT", (SIGNAL, step, floats(8), length))
    yield Case("STFT", (SIGNAL, step, None, length), label="without a window")
    yield Case("STFT", (SIGNAL, step, floats(7)), {"onesided": 0}, label="both sides")
    yield Case("STFT", ((F, (2, 20, 2)), step, floats(8)), {"onesided": 0}, label="complex")
