"""One or more small models per import row, each with a run-time input, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from compiler.graph import Array
from tests.compiler.frontend.onnx_graphs import Shape, model_of, node

F, N, B = "f32", "i64", "bool"


@dataclass(frozen=True)
class Case:
    """A single-node model: operator, run-time inputs (type, shape), known inputs, attributes."""

    op_type: str
    inputs: tuple[tuple[str, Shape] | Array | None, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 18
    label: str = ""
    positive: bool = False
    integers: int = 3
    drawn: bool = False
    """Its values are random: no other engine draws the same."""

    @property
    def name(self) -> str:
        """The test's id."""
        return f"{self.op_type}{'-' if self.label else ''}{self.label}"

    def model(self) -> bytes:
        """The model's bytes; inputs are x0, x1 ..., outputs y0, y1 ..."""
        run_time, known, names = {}, {}, []
        for i, operand in enumerate(self.inputs):
            names.append("" if operand is None else f"x{i}")
            if isinstance(operand, np.ndarray):
                known[f"x{i}"] = operand
            elif operand is not None:
                run_time[f"x{i}"] = operand
        outputs = [f"y{i}" for i in range(self.outputs)]
        made = node(self.op_type, names, outputs, **self.attributes)
        return model_of([made], run_time, outputs, known, opset=self.opset)


def floats(*shape: int, seed: int = 7) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.asarray(values, np.int64)


def scalar(value: float) -> Array:
    return np.asarray(value, np.float32)


X: tuple[str, Shape] = (F, (2, 3, 4))
ROW: tuple[str, Shape] = (F, (2, 1, 4))
IMAGE: tuple[str, Shape] = (F, (2, 4, 7, 6))
