"""One case through importer and evaluator, and what became of it."""

from __future__ import annotations

import textwrap
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import onnx

from compiler.element_types import ELEMENT_TYPES
from compiler.errors import CompileError, InternalError
from compiler.frontend.file.prescan import DEFAULT_LIMITS
from compiler.frontend.importer import import_model
from compiler.graph import Array, Graph
from compiler.passes import FORWARD_PASSES, find_problem, run_passes
from compiler.values import Value
from tests.compiler.graph_interpreter import evaluate_graph
from tests.onnx_standard.cases import Standard

Kind = Literal["pass", "refused", "wrong", "crashed"]
LINE = 120
MOST_LINES = 3
LIMITS = replace(DEFAULT_LIMITS, folded_bytes=1 << 30)
"""The light models make their weights by ConstantOfShape."""

ROUNDING = {"bfloat16": 1e-2, "float16": 1e-3, "float64": 1e-6, "int8": 1 / 127, "uint8": 1 / 255}
"""Of types that are read as float32: one step of each, of the largest element."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case; `message` is the refusal, the difference, or the traceback."""

    case: Standard
    kind: Kind
    message: str = ""

    @property
    def lines(self) -> int:
        """Lines of the message as a terminal shows it."""
        return sum(max(1, len(textwrap.wrap(line, LINE))) for line in self.message.splitlines())


def run(case: Standard) -> Outcome:
    """Import, evaluate in float64 as imported and after the forward passes, compare."""
    try:
        graph = imported(case)
        for own in (graph, run_passes(graph, FORWARD_PASSES)):
            assert find_problem(own) == ""
            problem = differences(case, own)
            if problem:
                return Outcome(case, "wrong", problem)
    except InternalError:
        return Outcome(case, "crashed", traceback.format_exc())
    except CompileError as refusal:
        return Outcome(case, "refused", str(refusal))
    except Exception:
        return Outcome(case, "crashed", traceback.format_exc())
    return Outcome(case, "pass")


def imported(case: Standard) -> Graph:
    """The case's graph, with BatchNormalization as the file has it."""
    return import_model(case.model, input_shapes={}, batch=case.batch, batch_norm="frozen", limits=LIMITS)


def differences(case: Standard, graph: Graph) -> str:
    """What the graph computes other than the standard says; empty if nothing."""
    values = evaluate_graph(graph, feeds_of(case, graph, graph.inputs))
    declared = {
        value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
        for value in onnx.load_from_string(case.model).graph.output
    }
    for value in graph.outputs:
        name = graph.names[value]
        found, wanted = values[value], np.asarray(case.wanted[name])
        tensor = graph.types[value]
        is_read_so = tensor.dtype == "f32" and declared.get(name) == wanted.dtype.name
        rounding = ROUNDING.get(wanted.dtype.name, 0.0) if is_read_so else 0.0
        with np.errstate(over="ignore"):
            wanted = wanted.astype(np.float32) if rounding else wanted
        if ELEMENT_TYPES[tensor.dtype].label != wanted.dtype.name:
            return f"{name}: type {tensor.dtype}, wanted {wanted.dtype}"
        if not found.shape == tensor.shape == wanted.shape:
            return f"{name}: shape {found.shape} (typed {tensor.shape}), wanted {wanted.shape}"
        if not case.is_random and not close(found, wanted, case, rounding):
            return f"{name}: {_few(found)} wanted {_few(wanted)}"
    return ""


def feeds_of(case: Standard, graph: Graph, inputs: Iterable[Value]) -> dict[Value, Array]:
    """The case's data by the graph's values; what else a step is fed (the seed of its noise) is 1."""
    feeds = {}
    for value in inputs:
        tensor = graph.types[value]
        ones = np.ones(tensor.shape, ELEMENT_TYPES[tensor.dtype].numpy)
        array = np.asarray(case.feeds.get(graph.names.get(value, ""), ones))
        with np.errstate(over="ignore"):
            feeds[value] = array.astype(np.float32) if array.dtype.name in ROUNDING and tensor.dtype == "f32" else array
    return feeds


def close(computed: Array, wanted: Array, case: Standard, rounding: float = 0.0) -> bool:
    """Equal but for the rounding of the standard's own computation; NaN and infinities where they belong."""
    if wanted.dtype.kind in "biu":
        return bool(np.array_equal(computed, wanted))
    exact = wanted.astype(np.float64)
    finite = exact[np.isfinite(exact)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(
        np.allclose(
            computed,
            exact,
            rtol=max(case.rtol, rounding),
            atol=max(case.atol, (rounding or 1e-6) * scale),
            equal_nan=True,
        )
    )


def _few(array: Array) -> str:
    return np.array2string(np.asarray(array).reshape(-1)[:6], precision=5)
