"""Does what `fine_tune` trained of a model come home: the complete state, and the file that ONNX Runtime runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from onnxruntime.capi.onnxruntime_pybind11_state import Fail as RuntimeFailed

from pockfarm.errors import PockfarmError
from tests.round_trip.brought import of_zoo
from tests.round_trip.check import travel

STEPS = 2
DRAWS = 3
"""Batches that are tried until one agrees: at a kink any float32 engine may take the other side."""


@dataclass(frozen=True)
class Travelled:
    """What became of a model. `status`: home, wrong, refused, failed; the figures are those of a `Trip`."""

    model: str
    status: str
    why: str = ""
    board: float = 0.0
    runtime: float = 0.0
    update: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def travelled(name: str) -> Travelled:
    """One model of the zoo through `pockfarm.fine_tune` on this machine, by preset full."""
    try:
        for seed in range(1, DRAWS + 1):
            trip = travel(of_zoo(name, seed=seed), steps=STEPS)[1]
            if not trip.problems:
                break
    except PockfarmError as problem:
        return Travelled(name, "refused", str(problem))
    except RuntimeFailed as problem:
        return Travelled(name, "not exported", f"ONNX Runtime refuses the exporter's file: {problem}")
    status = "wrong" if trip.problems else "home"
    return Travelled(name, status, "; ".join(trip.problems[:6]), trip.board, trip.runtime, trip.update)
