"""`python -m tests.onnx_standard.gradients`: gradients of the standard's cases beside finite differences."""

from __future__ import annotations

import argparse
import re
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.channels.slices import WHOLE
from compiler.errors import PlanError
from compiler.graph import Array, Graph, Parameter
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.rewriting.builder import GraphBuilder
from compiler.step.autodiff import differentiate
from compiler.step.training import Term, TrainingGraph
from compiler.values import Value
from tests.compiler.graph_interpreter import evaluate_graph
from tests.onnx_standard.cases import Standard, standard_cases
from tests.onnx_standard.run import feeds_of, imported, run

STEP = 1e-6
TOLERANCE = 2e-4
STRAIGHT_THROUGH = frozenset({"DynamicQuantizeLinear", "QuantizeLinear"})
"""Operators that round, whose gradients are those of what they round."""
JUMP = 1e-2
"""A change this large over a step this small is none of a slope."""
RIGHT, BENT, FLAT, UNDEFINED, WRONG = "right", "within its kink", "without a slope", "undefined", "WRONG"


@dataclass(frozen=True)
class Slope:
    """What became of one input's gradient."""

    kind: str
    message: str = ""


def slopes(case: Standard) -> dict[str, Slope]:
    """For each float input of a case that passes: its gradient along a random direction beside finite differences.

    Where the function bends, the gradient must lie between the slopes on both sides; where it is not finite nearby,
    nothing is said.
    """
    if not STRAIGHT_THROUGH.isdisjoint(case.op_types):
        return {}
    graph = imported(case)
    reals = [value for value in graph.inputs if graph.types[value].element.is_real]
    graph = run_passes(_learning(graph, reals), FORWARD_PASSES)
    whole, loss = _with_loss(graph)
    if loss is None or not reals:
        return {}
    feeds = feeds_of(case, graph, (*graph.inputs, *reals))
    feeds = {value: array.astype(np.float64) if value in reals else array for value, array in feeds.items()}
    return {graph.names[target]: _slope(whole, loss, target, feeds) for target in reals}


def _learning(graph: Graph, targets: Sequence[Value]) -> Graph:
    """The graph with these inputs as parameters: passes then keep the paths to them."""
    held = dict(graph.parameters)
    for value in targets:
        name, shape = graph.names[value], graph.types[value].shape
        held[value] = Parameter(name, shape, shape, tuple(range(len(shape))), "weight", name)
    zeros = {value: np.zeros(graph.types[value].shape, np.float32) for value in targets}
    inputs = tuple(value for value in graph.inputs if value not in targets)
    return replace(graph, inputs=inputs, parameters=held, arrays={**graph.arrays, **zeros})


def _with_loss(graph: Graph) -> tuple[Graph, Value | None]:
    """A weighted sum of every float output; weights that no symmetry of the function can hide."""
    b, rng, total = GraphBuilder(graph), np.random.default_rng(5), None
    for output in graph.outputs:
        tensor = graph.types[output]
        if not tensor.element.is_real:
            continue
        weights = rng.uniform(0.5, 1.5, tensor.shape) * rng.choice((-1.0, 1.0), tensor.shape)
        part = b.emit("mul", output, b.constant(weights.astype(np.float32)))
        part = b.emit("reduce_sum", part, axes=tuple(range(len(tensor.shape))), keepdims=False)
        total = part if total is None else b.emit("add", total, part)
    return b.graph_of(graph), total


def _slope(graph: Graph, loss: Value, target: Value, feeds: Mapping[Value, Array]) -> Slope:
    gradient = _gradient(graph, loss, target, feeds)
    x = feeds[target]
    rng = np.random.default_rng(6)
    direction = rng.uniform(0.5, 1.5, x.shape) * rng.choice((-1.0, 1.0), x.shape)
    step = STEP * max(1.0, float(np.abs(x[np.isfinite(x)]).max(initial=0.0)))
    at = [float(evaluate_graph(graph, {**feeds, target: x + turn * step * direction})[loss]) for turn in (-1, 0, 1)]
    if not np.isfinite(at).all() or max(abs(at[2] - at[1]), abs(at[1] - at[0])) > JUMP * max(1.0, abs(at[1])):
        return Slope(UNDEFINED)
    before, after = (at[1] - at[0]) / step, (at[2] - at[1]) / step
    size = max(1.0, abs(before), abs(after), abs(at[1]))
    if gradient is None:
        return Slope(FLAT) if abs(after) + abs(before) <= TOLERANCE * size else Slope(WRONG, f"none, slope {after}")
    found = float((gradient * direction).sum())
    low, high = sorted((before, after))
    if not low - TOLERANCE * size <= found <= high + TOLERANCE * size:
        return Slope(WRONG, f"gradient {found}, slopes {before} and {after}")
    return Slope(RIGHT if high - low <= 2 * TOLERANCE * size else BENT)


def _gradient(graph: Graph, loss: Value, target: Value, feeds: Mapping[Value, Array]) -> Array | None:
    """None if nothing carries a gradient from the loss to the target."""
    terms = (Term("graph", loss, None),)
    step = TrainingGraph(replace(graph, outputs=(loss,)), loss, loss, terms, {}, graph.inputs)
    try:
        training = differentiate(step, {target: WHOLE})
    except PlanError:
        return None
    return evaluate_graph(training.graph, feeds)[training.gradients[target]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="a regular expression over operators and names of cases")
    pattern = re.compile(parser.parse_args().pattern)
    started, counts = time.monotonic(), Counter[str]()
    for case in standard_cases():
        named = pattern.search(case.op_type) or pattern.search(case.name)
        if not named or case.op_type == "light" or case.is_random or run(case).kind != "pass":
            continue
        try:
            found = slopes(case)
        except Exception:
            print(f"{case.name}: {traceback.format_exc()}")
            found = {"": Slope(WRONG, "crashed")}
        for name, slope in found.items():
            counts[slope.kind] += 1
            if slope.kind == WRONG:
                print(f"{case.name}, {name}: {slope.message}")
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()), f"{time.monotonic() - started:.0f} s")
    return int(counts[WRONG] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
