"""What the rules of axes allow is true of what operators mean: free axes in another order, results in that order."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import pytest

from compiler.axes.facts import Alike, Axis, Fact, Shapes
from compiler.axes.rules import RULES
from compiler.axes.walk import Cut, Walk
from compiler.channels.atoms import Atom
from compiler.channels.coupling import Coupling
from compiler.graph import Array, Graph, Node
from compiler.ops import OPERATORS
from compiler.ops.record import Example, Operator
from compiler.values import Value
from tests.compiler.ops.draw import draw_inputs, single_node

CASES = [
    pytest.param(OPERATORS[name], example, id=f"{name}-{number}")
    for name in RULES
    for number, example in enumerate(OPERATORS[name].examples)
]
FREE = (
    "attention",
    "concat",
    "conv2d",
    "conv2d_input_grad",
    "depthwise_conv2d",
    "matmul",
    "reshape",
    "slice",
    "softmax",
)
"""Rules that would be of no use if they fixed everything."""


def coupled(record: Operator, example: Example) -> tuple[Coupling, Node]:
    """The axes of one node, whose operands are free."""
    builder, _, _ = single_node(record, example)
    (node,) = builder.nodes
    return Coupling(Graph((node,), (), (), builder.types)), node


def drawn_orders(coupling: Coupling, node: Node) -> dict[Atom, np.ndarray]:
    rng = np.random.default_rng(7)
    atoms = (
        atom
        for value in (*node.inputs, *node.outputs)
        for axis in range(len(coupling.axes(value)))
        for atom in coupling.factors(value, axis)
    )
    return {atom: rng.permutation(atom.extent) for atom in dict.fromkeys(atoms) if not atom.pinned}


def in_order(coupling: Coupling, orders: dict[Atom, np.ndarray], value: Value, array: Array) -> Array:
    """An operand or a result with its free factors in the orders drawn."""
    for axis in range(array.ndim):
        own = coupling.factors(value, axis)
        places = np.arange(prod(atom.extent for atom in own)).reshape([atom.extent for atom in own])
        for factor, atom in enumerate(own):
            places = places.take(orders[atom], axis=factor) if atom in orders else places
        array = array.take(places.reshape(-1), axis=axis)
    return array


def differs(record: Operator, example: Example) -> bool:
    """Whether the operator on reordered operands means anything else than its results, reordered."""
    coupling, node = coupled(record, example)
    orders, operands = drawn_orders(coupling, node), draw_inputs(example)
    with np.errstate(all="ignore"):
        plain = record.evaluate(operands, example.attrs)
        moved = record.evaluate(
            [in_order(coupling, orders, value, one) for value, one in zip(node.inputs, operands, strict=True)],
            example.attrs,
        )
    wanted = (in_order(coupling, orders, value, one) for value, one in zip(node.outputs, plain, strict=True))
    return not all(np.allclose(a, b, 1e-9, 1e-9, equal_nan=True) for a, b in zip(moved, wanted, strict=True))


@pytest.mark.parametrize(("record", "example"), CASES)
def test_free_axes_may_be_in_any_order(record: Operator, example: Example) -> None:
    assert not differs(record, example)


@pytest.mark.parametrize("name", FREE)
def test_rules_leave_something_free(name: str) -> None:
    assert any(drawn_orders(*coupled(OPERATORS[name], example)) for example in OPERATORS[name].examples)


def test_a_rule_that_allows_too_much_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(node: Node, shapes: Shapes) -> Iterator[Fact]:
        for axis in range(len(shapes(node.output))):
            yield Alike(Axis(node.inputs[0], axis), Axis(node.output, axis))

    for name in ("cumulative_sum", "linear_scan"):
        monkeypatch.setitem(RULES, name, wrong)
        assert any(differs(OPERATORS[name], example) for example in OPERATORS[name].examples), name


def test_what_nobody_thought_through_is_pinned_and_unknown() -> None:
    for name in ("top_k", "dropout", "gather_elements"):
        assert name not in RULES
        coupling, node = coupled(OPERATORS[name], OPERATORS[name].examples[0])
        assert not drawn_orders(coupling, node)
        walk = Walk(coupling.graph)
        assert list(walk.behind(walk.whole(node.outputs[0], 0))) == ["unknown"]


@pytest.mark.parametrize(("record", "example"), CASES)
def test_following_an_axis_back_ends_in_axes_of_operands(record: Operator, example: Example) -> None:
    """Of the same extent, but for what is cut or joined."""
    builder, inputs, outputs = single_node(record, example)
    walk = Walk(Graph(tuple(builder.nodes), inputs, outputs, builder.types))
    for value in outputs:
        for axis in range(len(walk.shape(value))):
            for step in walk.behind(walk.whole(value, axis)):
                if isinstance(step, str):
                    continue
                assert step.value in inputs
                assert isinstance(step, Cut) or walk.shape(step.value)[step.axis] % step.extent == 0
