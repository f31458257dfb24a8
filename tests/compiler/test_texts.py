"""Graphs and programs as text and back, exactly: every example model at every stage, and every operator's examples."""

from __future__ import annotations

from dataclasses import fields
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.call_passes import call_passes, run_call_passes
from compiler.errors import InternalError
from compiler.frontend.importer import import_model
from compiler.graph import Array, Graph, Node, TensorType
from compiler.ops.record import Example, Operator, View
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step, make_programs
from compiler.placement.attempts import attempts
from compiler.program.lowering import lower
from compiler.program.program import Program
from compiler.program.text import parse_program, program_text
from compiler.rewriting.text import arrays_by_digest, graph_text, parse_graph
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.plan import resolve_plan
from compiler.targets import load
from compiler.values import Value
from examples.models import MODELS
from tests.compiler.ops.draw import as_graph, single_node
from tests.compiler.ops.test_records import CASES
from tests.sample import sample

TARGET = load("raspberry-pi-4")
RATIO = SparsePlan.parse("{update: [{parameters: ['*.weight'], ratio: 0.4}, {parameters: ['*'], kind: bias}]}")
ADAMW = TrainingSpec.parse({"batch": 4, "optimizer": {"kind": "adamw"}})
SMALL: dict[str, dict[str, Any]] = {
    "mobilenet_v2": {"resolution": 64, "width": 0.35},
    "mcunet": {"resolution": 64},
    "resnet18": {"resolution": 32},
    "resnet50": {"resolution": 32, "width": 8},
}


def assert_same_graph(found: Graph, graph: Graph) -> None:
    """Equal to the bit, and in the same order; where tensors came from is no part of a text."""
    for own in fields(Graph):
        if own.name == "origins":
            continue
        one, other = getattr(found, own.name), getattr(graph, own.name)
        if own.name == "arrays":
            assert list(one) == list(other)
            assert [_bits(array) for array in one.values()] == [_bits(array) for array in other.values()]
        else:
            assert one == other, own.name
    assert list(found.parameters) == list(graph.parameters)


def _bits(array: Array) -> tuple[str, tuple[int, ...], bytes]:
    return (array.dtype.str, array.shape, array.tobytes())


def check_graph(graph: Graph) -> None:
    text = graph_text(graph)
    found = parse_graph(text, arrays_by_digest(graph))
    assert_same_graph(found, graph)
    assert graph_text(found) == text


def check_program(program: Program) -> None:
    text = program_text(program)
    assert parse_program(text) == program
    assert program_text(parse_program(text)) == text


@pytest.mark.parametrize("name", sample(sorted(MODELS), ["transformer_encoder"]))
def test_a_model_survives_at_every_stage(name: str) -> None:
    graph = import_model(MODELS[name](**SMALL.get(name, {})), input_shapes={}, batch=4, batch_norm="fold")
    check_graph(graph)
    forward = run_passes(graph, FORWARD_PASSES)
    check_graph(forward)
    training = derive_training_step(forward, resolve_plan(forward, RATIO), ADAMW)
    check_graph(training.graph)
    for stop in (0, -3, None):  # lowered; fused, in no order yet; scheduled
        programs, _ = make_programs(forward, training, call_passes(TARGET)[:stop])
        for program in programs:
            check_program(program)
    for attempt in islice(attempts(programs, 4, TARGET), 1, 9, 7):
        for program in programs:
            check_program(run_call_passes(program, attempt.passes))


@pytest.mark.parametrize(("record", "example"), CASES)
def test_every_operators_example_survives(record: Operator, example: Example) -> None:
    graph = as_graph(*single_node(record, example))
    check_graph(graph)
    if not isinstance(record.lower(example.inputs, tuple(graph.types[v] for v in graph.outputs), example.attrs), View):
        check_program(lower(graph, "forward", inputs=graph.inputs, outputs=graph.outputs))


@settings(max_examples=200)
@given(st.lists(st.floats(width=32), max_size=8), st.text(), st.text(min_size=1))
def test_any_numbers_and_names_survive(numbers: list[float], layer: str, name: str) -> None:
    tensor = TensorType("f32", (len(numbers),))
    x, y = Value(0), Value(1, "hyper", "rate").state("momentum").part(0, 2)
    node = Node("identity", (x,), (y,), layer=layer)
    types, arrays = {x: tensor, y: tensor}, {x: np.asarray(numbers, np.float32)}
    check_graph(Graph((node,), (), (x,), types, arrays, names={x: name}, next_number=2))


def test_small_constants_are_written_out_and_weights_are_not() -> None:
    c, w, n = Value(0), Value(1), Value(2)
    types = {c: TensorType("f32", (2,)), w: TensorType("f32", (9,)), n: TensorType("f32", ())}
    arrays: dict[Value, Array] = {
        c: np.asarray([0.1, -np.inf], np.float32),
        w: np.ones(9, np.float32),
        n: np.asarray(np.nan, np.float32),
    }
    text = graph_text(Graph((), (), (c,), types, arrays))
    assert "constant %0: f32[2] = (0.1, -inf)\n" in text
    assert 'constant %1: f32[9] = "sha256:' in text
    assert text.count("\n") == 5


@pytest.mark.parametrize(
    "line",
    ["%1: f32[2]", "imput %0: f32[2]", "input x", "input %x: f32[2]", "output", "%1: f32[2] = exp(%0) layer=", '"'],
)
def test_a_line_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(InternalError, match=r"line 3: .* cannot be read"):
        parse_graph(f"graph\n  input %0: f32[2]\n  {line}\n", {})
    with pytest.raises(InternalError, match=r"line 3: .* cannot be read"):
        parse_program(f"program train\n  input %0: f32[2]\n  {line}\n")


def test_another_first_line_is_refused() -> None:
    with pytest.raises(InternalError, match="the first line should be 'graph'"):
        parse_graph("program train\n", {})
