"""Numbers that are no weights stay as they are under presets, whatever they are called; a rule lets them learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
import torch

from compiler.graph import Array, Graph
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.spec.documents import SparsePlan
from compiler.step.plan import decide_plan
from tests.compiler.frontend.onnx_graphs import Shape, imported, model_of, node

Case = tuple[Sequence[onnx.NodeProto], dict[str, tuple[str, Shape]], Mapping[str, Array]]
ROWS: dict[str, tuple[str, Shape]] = {"x": ("f32", (2, 8))}
SOUND: dict[str, tuple[str, Shape]] = {"x": ("f32", (2, 1, 256))}
WEIGHT = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
SQUARE = np.random.default_rng(5).standard_normal((8, 8))
LENGTH = 64
TIME = np.arange(LENGTH)
WINDOW = np.hanning(LENGTH)


def floats(array: Array | float) -> Array:
    return np.asarray(array, np.float32)


def waves(function: object, count: int = 33) -> Array:
    """The rows of a windowed Fourier transform."""
    return np.stack([WINDOW * function(2 * np.pi * k * TIME / LENGTH) for k in range(count)])  # type: ignore[operator]


def bands(count: int, width: int) -> Array:
    """Triangles of growing width, as of the mel scale."""
    edges = np.geomspace(1, width - 1, count + 2)
    grid = np.arange(width)
    return np.stack(
        [
            np.clip(np.minimum((grid - a) / (b - a), (c - grid) / (c - b)), 0, None)
            for a, b, c in zip(edges[:-2], edges[1:-1], edges[2:], strict=True)
        ]
    )


def stem(kernel: Array) -> Case:
    nodes = [
        node("Conv", ["x", "c"], ["h"], strides=[16]),
        node("Tanh", ["h"], ["t"]),
        node("ReduceMean", ["t", "last"], ["m"], keepdims=0),
        node("MatMul", ["m", "w"], ["y"]),
    ]
    weight = np.random.default_rng(1).standard_normal((len(kernel), 3))
    return nodes, SOUND, {"c": floats(kernel[:, None]), "w": floats(weight), "last": np.asarray([2])}


def guarded(*nodes: onnx.NodeProto, number: float = 1e-10) -> Case:
    return (
        [node("MatMul", ["x", "w"], ["h"]), node("Mul", ["h", "h"], ["s"]), *nodes],
        ROWS,
        {"w": WEIGHT, "c": floats(number)},
    )


def product(weight: Array) -> Case:
    nodes = [node("Abs", ["x"], ["a"]), node("MatMul", ["a", "c"], ["h"]), node("MatMul", ["h", "w"], ["y"])]
    tail = np.random.default_rng(1).standard_normal((weight.shape[1], 3))
    return nodes, {"x": ("f32", (2, weight.shape[0]))}, {"c": floats(weight), "w": floats(tail)}


def normalised(*nodes: onnx.NodeProto, number: Array) -> Case:
    """Images whose data meets numbers before any layer; `p` holds them."""
    nodes = (*nodes, node("Flatten", ["p"], ["f"]), node("MatMul", ["f", "w"], ["y"]))
    weight = np.random.default_rng(1).standard_normal((12, 3))
    return nodes, {"x": ("f32", (2, 3, 2, 2))}, {"c": floats(number), "w": floats(weight)}


def binned(bins: Array) -> Case:
    """A detector's head: the mean of bins by their probabilities."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Reshape", ["h", "shape"], ["r"]),
        node("Softmax", ["r"], ["p"], axis=1),
        node("Conv", ["p", "c"], ["y"]),
    ]
    weight = np.random.default_rng(1).standard_normal((8, 64))
    return (
        nodes,
        ROWS,
        {"w": floats(weight), "shape": np.asarray([2, 16, 4, 1]), "c": floats(bins.reshape(1, 16, 1, 1))},
    )


def elementwise(operator: str, number: Array, *tail: onnx.NodeProto) -> Case:
    """[2, 6, 8] by a weight, then with the numbers."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node(operator, ["h", "c"], ["g" if tail else "y"]), *tail]
    return (
        nodes,
        {"x": ("f32", (2, 6, 8))},
        {"w": floats(SQUARE), "c": floats(number)},
    )


def blurred(kernel: Array) -> Case:
    """A filter for each channel, behind a layer."""
    nodes = [node("Conv", ["x", "w"], ["h"]), node("Conv", ["h", "c"], ["y"], group=4)]
    weight = np.random.default_rng(1).standard_normal((4, 3, 1, 1))
    return nodes, {"x": ("f32", (2, 3, 6, 6))}, {"w": floats(weight), "c": floats(kernel)}


TRIANGLE = np.tril(np.ones((6, 8)))
ANGLES = np.arange(6)[:, None] / 10000 ** (np.arange(8) // 2 / 4)
GRID = np.tile(np.arange(4), 2) + 8 * np.arange(6)[:, None]


STAYS: dict[str, tuple[Case, str]] = {
    "before a logarithm": (guarded(node("Add", ["s", "c"], ["g"]), node("Log", ["g"], ["y"])), "1e-10 keeps"),
    "before a root, through a view": (
        guarded(
            node("Add", ["c", "s"], ["g"]), node("Transpose", ["g"], ["v"]), node("Sqrt", ["v"], ["y"]), number=1e-5
        ),
        "1e-05 keeps",
    ),
    "a division of the data": (
        normalised(node("Div", ["x", "c"], ["p"]), number=np.asarray(255.0)),
        "before any layer",
    ),
    "means of its channels": (
        normalised(
            node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]),
            node("Sub", ["t", "c"], ["p"]),
            number=np.asarray([0.4, 0.5, 0.6]),
        ),
        "before any layer",
    ),
    "bins": (binned(np.arange(16)), "in order"),
    "middles of bins": (binned(np.arange(16) + 0.5), "in order"),
    "times": (elementwise("Add", np.linspace(0, 1, 48).reshape(6, 8)), "in order"),
    "a table of positions": (elementwise("Add", np.where(np.arange(8) % 2, np.cos(ANGLES), np.sin(ANGLES))), "sines"),
    "cosines of a rotation": (elementwise("Mul", np.cos(ANGLES)), "sines"),
    "frequencies of a rotation": (elementwise("Mul", 10000.0 ** -(np.arange(8) / 8)), "powers"),
    "slopes": (elementwise("Mul", 2.0 ** -np.arange(1, 9)), "powers"),
    "places of a grid": (elementwise("Add", GRID - 0.5), "grid"),
    "strides": (elementwise("Mul", np.repeat([8.0, 16.0, 32.0], [1, 2, 5])), "strides"),
    "a mask that is multiplied": (elementwise("Mul", TRIANGLE), "zeros and ones"),
    "a mask that is added": (elementwise("Add", -100 * (1 - TRIANGLE)), "one low number"),
    "a blur": (blurred(np.broadcast_to(np.outer([1, 2, 1], [1, 2, 1]) / 16, (4, 1, 3, 3))), "one filter"),
    "cosines": (stem(waves(np.cos)), "waves"),
    "cosines and sines": (stem(np.concatenate([waves(np.cos), -waves(np.sin)])), "waves"),
    "bands": (product(bands(20, 128).T), "bands"),
}
STAYS |= {
    f"{number:.6g}": (guarded(node("Mul", ["s", "c"], ["y"]), number=number), "a round number by itself")
    for number in (
        -2.0,
        0.5,
        1e-3,
        1.702,
        0.044715,
        1 / 255,
        1 / 127.5,
        math.tau,
        8**-0.5,
        768**-0.5,
        (2 / math.pi) ** 0.5,
    )
}
LEARNS: dict[str, Case] = {
    "an addend": guarded(node("Add", ["s", "c"], ["y"]), number=0.00831072),
    "a large addend": guarded(node("Add", ["s", "c"], ["g"]), node("Log", ["g"], ["y"]), number=0.5103926),
    "a scale": guarded(node("Mul", ["s", "c"], ["y"]), number=2.659271),
    "a slope that has an axis": elementwise("Mul", np.asarray([0.25])),
    "filters that have learned": stem(torch.nn.init.orthogonal_(torch.empty(33, LENGTH)).numpy()),
    "a scale of a few channels behind a layer": guarded(
        node("Relu", ["s"], ["r"]), node("Mul", ["r", "c"], ["y"]), number=1.013872
    ),
    "a scale of many features": (
        [node("Mul", ["x", "c"], ["h"]), node("MatMul", ["h", "w"], ["y"])],
        ROWS,
        {"c": floats(np.linspace(0.5, 1.6, 8)), "w": WEIGHT},
    ),
    "a matrix of zeros and ones": product(np.random.default_rng(2).random((128, 20)) < 0.5),
    "a scale of zeros": elementwise("Mul", np.zeros(8)),
    "a bias of zeros and ones": elementwise("Add", np.repeat([0.0, 1.0], 4)),
    "whole numbers": elementwise("Add", np.random.default_rng(3).integers(-3, 4, (6, 8))),
    "numbers that are nearly even": elementwise(
        "Add", np.linspace(0, 1, 48).reshape(6, 8) + 1e-3 * np.cos(np.arange(8))
    ),
    "a table that has learned": elementwise("Add", np.sin(ANGLES) + 0.01 * np.random.default_rng(3).random((6, 8))),
    "filters that differ": blurred(np.random.default_rng(3).random((4, 1, 3, 3))),
    "bins that have learned": binned(np.arange(16) + 0.01 * np.random.default_rng(3).standard_normal(16)),
    "a matrix of no sign": product(np.random.default_rng(2).standard_normal((128, 20))),
    "a matrix of one sign": product(np.abs(np.random.default_rng(2).standard_normal((128, 20)))),
}


def graph_of(case: Case) -> Graph:
    nodes, inputs, stored = case
    return run_passes(imported(model_of(nodes, inputs, ["y"], stored, infer_shapes=False)), FORWARD_PASSES)


def learning(graph: Graph, **plan: object) -> tuple[set[str], dict[str, str]]:
    decided = decide_plan(graph, SparsePlan.parse({"name": "a plan", **plan}))
    return {graph.parameters[value].name for value in decided.updates}, {
        warning.code: warning.message for warning in decided.warnings
    }


@pytest.mark.parametrize("name", STAYS)
def test_what_is_no_weight_stays_and_its_reason_is_given(name: str) -> None:
    case, reason = STAYS[name]
    names, messages = learning(graph_of(case), preset="full")
    assert names == {"w"}
    assert messages["plan.fixed_numbers"].startswith("preset full leaves out c: ")
    assert reason in messages["plan.fixed_numbers"]


@pytest.mark.parametrize("name", ["before a logarithm", "bins"])
def test_a_rule_that_names_it_lets_it_learn_and_that_is_said(name: str) -> None:
    names, messages = learning(graph_of(STAYS[name][0]), preset="full", update=[{"parameters": "c"}])
    assert names == {"w", "c"}
    assert "plan.fixed_numbers" not in messages
    assert messages["plan.fixed_numbers_learn"].startswith("c: ")


@pytest.mark.parametrize("name", LEARNS)
def test_what_may_be_a_weight_learns(name: str) -> None:
    names, messages = learning(graph_of(LEARNS[name]), preset="full")
    assert names == {"w", "c"}
    assert not messages.keys() & {"plan.fixed_numbers", "plan.fixed_numbers_learn"}


def test_data_that_are_added_to_themselves_again_and_again_are_looked_at_once() -> None:
    """As a tree the last sum has 2 ** 60 leaves."""
    sums = [node("Add", [f"h{number}", f"h{number}"], [f"h{number + 1}"]) for number in range(1, 60)]
    last = [node("Sub", ["h60", "c"], ["p"])]
    case = normalised(node("Add", ["x", "x"], ["h1"]), *sums, *last, number=np.asarray(0.5))
    assert learning(graph_of(case), preset="full")[0] == {"w"}


def test_the_last_layer_is_the_last_that_learns() -> None:
    assert learning(graph_of(STAYS["bins"][0]), preset="last-layer")[0] == {"w"}
