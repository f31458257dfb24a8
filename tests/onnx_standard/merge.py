"""Many of the standard's cases in one model: one flat input, one flat output, so that one binary runs them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compiler.graph import Array
from tests.onnx_standard.cases import FLOAT_TYPES, Standard

OWN = "own"
"""A parameter that the merged model adds, so that there is something to train."""
_AT_ONCE = 8


@dataclass(frozen=True)
class Merged:
    """`data` is [1, M]; the elements of case i's outputs are `places[i]` of the model's output [1, N]."""

    model: bytes
    data: Array
    places: Mapping[str, tuple[tuple[str, slice], ...]]


def can_merge(case: Standard) -> bool:
    """Float32 and what float32 holds exactly, no sub-graphs, no other domains, nothing random; finite data."""
    model = onnx.load_from_string(case.model)
    kinds = {attribute.type for node in model.graph.node for attribute in node.attribute}
    arrays = [*case.feeds.values(), *case.wanted.values()]
    return (
        case.is_float
        and not case.is_random
        and case.element_types <= FLOAT_TYPES
        and onnx.AttributeProto.GRAPH not in kinds
        and len(model.opset_import) == 1
        and not model.functions
        and all(bool(np.isfinite(array).all()) for array in case.feeds.values())
        and all(array.dtype.kind in "fb" or int(np.abs(array).max(initial=0)) < 1 << 24 for array in arrays)
    )


def merged(cases: Sequence[Standard]) -> Merged:
    """One model of cases of one opset."""
    nodes: list[onnx.NodeProto] = []
    stored: list[TensorProto] = []
    pieces: list[Array] = []
    results: list[str] = []
    places: dict[str, tuple[tuple[str, slice], ...]] = {}
    end = 0
    for number, case in enumerate(cases):
        graph = _renamed(onnx.load_from_string(case.model).graph, f"case{number}_")
        stored += graph.initializer
        for value in graph.input:
            array = np.asarray(case.feeds[value.name.removeprefix(f"case{number}_")])
            start = sum(piece.size for piece in pieces)
            nodes += _given(value, start, array, stored)
            pieces.append(array.reshape(-1).astype(np.float32))
        nodes += graph.node
        found = []
        for value in graph.output:
            name = value.name.removeprefix(f"case{number}_")
            size = int(np.asarray(case.wanted[name]).size)
            nodes += _taken(value.name, size, stored)
            results.append(f"{value.name}_flat")
            found.append((name, slice(end, end + size)))
            end += size
        places[case.name] = tuple(found)
    nodes += _joined(results, stored)
    data = np.concatenate([*pieces, np.zeros(1, np.float32)])[None]
    graph = helper.make_graph(
        nodes,
        "merged",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", data.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", end + 1])],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", cases[0].opset)], ir_version=10)
    return Merged(model.SerializeToString(), data, places)


def _renamed(graph: onnx.GraphProto, prefix: str) -> onnx.GraphProto:
    for value in (*graph.initializer, *graph.input, *graph.output):
        value.name = prefix + value.name
    for node in graph.node:
        node.name = f"{prefix}{node.name or node.op_type}"
        for names in (node.input, node.output):
            renamed = [prefix + name if name else "" for name in names]
            del names[:]
            names.extend(renamed)
    kept = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in kept]
    del graph.input[:]
    graph.input.extend(inputs)
    return graph


def _given(value: onnx.ValueInfoProto, start: int, array: Array, stored: list[TensorProto]) -> Iterator[onnx.NodeProto]:
    """The case's input, out of the flat one."""
    name, shape = value.name, np.asarray(array.shape, np.int64)
    ends = (("from", [start]), ("to", [start + array.size]), ("axis", [1]))
    stored += [numpy_helper.from_array(np.asarray(number, np.int64), f"{name}_{which}") for which, number in ends]
    stored.append(numpy_helper.from_array(shape, f"{name}_shape"))
    cut = ["x", *(f"{name}_{which}" for which, _ in ends)]
    yield helper.make_node("Slice", cut, [f"{name}_cut"], name=f"{name}_cut")
    kind = value.type.tensor_type.elem_type
    target = name if kind == TensorProto.FLOAT else f"{name}_real"
    yield helper.make_node("Reshape", [f"{name}_cut", f"{name}_shape"], [target], name=f"{name}_reshape")
    if target != name:
        yield helper.make_node("Cast", [target], [name], name=f"{name}_cast", to=kind)


def _taken(name: str, size: int, stored: list[TensorProto]) -> Iterator[onnx.NodeProto]:
    """A case's output, flat and real."""
    stored.append(numpy_helper.from_array(np.asarray([1, size], np.int64), f"{name}_size"))
    yield helper.make_node("Cast", [name], [f"{name}_real"], name=f"{name}_real", to=TensorProto.FLOAT)
    yield helper.make_node("Reshape", [f"{name}_real", f"{name}_size"], [f"{name}_flat"], name=f"{name}_flat")


def _batched(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE)]


def _joined(results: Sequence[str], stored: list[TensorProto]) -> Iterator[onnx.NodeProto]:
    """All of them in a row, and behind them the parameter that learns."""
    stored.append(numpy_helper.from_array(np.full((1, 1), 0.5, np.float32), OWN))
    level, depth = list(results), 0
    while len(level) > 1:
        above = []
        for number, group in enumerate(_batched(level)):
            above.append(f"joined_{depth}_{number}")
            yield helper.make_node("Concat", list(group), [above[-1]], name=above[-1], axis=1)
        level, depth = above, depth + 1
    for which, place in (("from", 0), ("to", 1), ("axis", 1)):
        stored.append(numpy_helper.from_array(np.asarray([place], np.int64), f"own_{which}"))
    yield helper.make_node("Slice", ["x", "own_from", "own_to", "own_axis"], ["own_x"], name="own_x")
    yield helper.make_node("Mul", ["own_x", OWN], ["own_y"], name="own_y")
    yield helper.make_node("Concat", [level[0], "own_y"], ["y"], name="y", axis=1)
