"""Models that end with a softmax or sigmoid, and a loss that takes its own: it reads the logits, and says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import pockfarm
from compiler.graph import Array
from tests.compiler.frontend.onnx_graphs import run_onnx

WEIGHT = np.random.default_rng(3).standard_normal((4, 3)).astype(np.float32)
X = np.random.default_rng(5).standard_normal((6, 5, 4)).astype(np.float32)
CONSTANTS = {
    **{name: np.asarray([number]) for name, number in (("start", 0), ("end", 5), ("axes", 1), ("last", -1))},
    **{name: np.asarray(number, np.float32) for name, number in (("low", 0.01), ("half", 0.5), ("high", 0.99))},
}
RATE = 0.5
LAST: dict[str, Any] = {}
FIRST: dict[str, Any] = {"class_axis": 1}


def model_of(tail: Sequence[onnx.NodeProto]) -> bytes:
    """[N, 5, 4] times a weight, `h` [N, 5, 3], then `tail`, which makes `y`."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), *tail]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, ["N", 5, 4])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(array, name) for name, array in {"w": WEIGHT, **CONSTANTS}.items()],
    )
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    )


def swapped(x: str, output: str) -> onnx.NodeProto:
    return helper.make_node("Transpose", [x], [output], perm=[0, 2, 1])


SOFTMAXES: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "softmax": ([helper.make_node("Softmax", ["h"], ["y"])], LAST),
    "softmax of the middle axis": ([swapped("h", "t"), helper.make_node("Softmax", ["t"], ["y"], axis=1)], FIRST),
    "softmax, then turned": ([helper.make_node("Softmax", ["h"], ["p"]), swapped("p", "y")], FIRST),
    "softmaxes, joined": (
        [
            helper.make_node("Split", ["h"], ["h1", "h2"], axis=1, num_outputs=2),
            helper.make_node("Softmax", ["h2"], ["p2"]),
            helper.make_node("Softmax", ["h1"], ["p1"]),
            helper.make_node("Concat", ["p1", "p2"], ["y"], axis=1),
        ],
        LAST,
    ),
    "softmax of more positions": (
        [
            helper.make_node("Concat", ["h", "h"], ["hh"], axis=1),
            helper.make_node("Softmax", ["hh"], ["p"]),
            helper.make_node("Slice", ["p", "start", "end", "axes"], ["y"]),
        ],
        LAST,
    ),
    "softmax, spelled out": (
        [
            helper.make_node("Exp", ["h"], ["e"]),
            helper.make_node("ReduceSum", ["e", "last"], ["t"]),
            helper.make_node("Div", ["e", "t"], ["y"]),
        ],
        LAST,
    ),
    "log softmax": ([helper.make_node("LogSoftmax", ["h"], ["y"])], LAST),
}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_cross_entropy_is_of_the_logits(name: str) -> None:
    tail, options = SOFTMAXES[name]
    labels = np.random.default_rng(6).integers(0, 3, (6, 5))
    weight = torch.tensor(WEIGHT, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(
        (torch.from_numpy(X).double() @ weight).flatten(0, 1), torch.from_numpy(labels).flatten()
    )
    tuned = trained(model_of(tail), labels, {"kind": "cross_entropy", **options})
    agree(tuned, model_of(tail), loss, weight)
    assert ("loss.before_activation" in codes(tuned)) == (name != "log softmax")


SIGMOIDS: dict[str, tuple[list[onnx.NodeProto], Callable[[torch.Tensor], torch.Tensor]]] = {
    "sigmoid": ([helper.make_node("Sigmoid", ["h"], ["y"])], lambda h: h),
    "sigmoid, spelled out": (
        [
            helper.make_node("Constant", [], ["unit"], value_float=1.0),
            helper.make_node("Neg", ["h"], ["n"]),
            helper.make_node("Exp", ["n"], ["e"]),
            helper.make_node("Add", ["e", "unit"], ["t"]),
            helper.make_node("Div", ["unit", "t"], ["y"]),
        ],
        lambda h: h,
    ),
    "a choice of two sigmoids": (
        [
            helper.make_node("Sigmoid", ["h"], ["p"]),
            helper.make_node("Neg", ["h"], ["n"]),
            helper.make_node("Sigmoid", ["n"], ["q"]),
            helper.make_node("GreaterOrEqual", ["p", "half"], ["c"]),
            helper.make_node("Where", ["c", "p", "q"], ["y"]),
        ],
        torch.abs,
    ),
    "a part of it, twice": (
        [
            helper.make_node("Concat", ["h", "h"], ["hh"], axis=1),
            helper.make_node("Sigmoid", ["hh"], ["p"]),
            helper.make_node("Slice", ["p", "start", "end", "axes"], ["s"]),
            helper.make_node("Concat", ["s", "s"], ["y"], axis=-1),
        ],
        lambda h: torch.cat([h, h], -1),
    ),
}


@pytest.mark.parametrize("name", SIGMOIDS)
def test_binary_cross_entropy_is_of_the_logits(name: str) -> None:
    tail, moved = SIGMOIDS[name]
    weight = torch.tensor(WEIGHT, dtype=torch.float64, requires_grad=True)
    logits = moved(torch.from_numpy(X).double() @ weight)
    labels = np.random.default_rng(6).random(tuple(logits.shape)).astype(np.float32)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(labels).double())
    tuned = trained(model_of(tail), labels, {"kind": "bce_with_logits"})
    agree(tuned, model_of(tail), loss, weight)
    assert "loss.before_activation" in codes(tuned)


def units(*outputs: str) -> list[onnx.NodeProto]:
    return [helper.make_node("Constant", [], [name], value_float=1.0) for name in outputs]


SIGMOID = helper.make_node("Sigmoid", ["h"], ["p"])
PROBABILITIES: dict[str, tuple[list[onnx.NodeProto], Callable[[torch.Tensor], torch.Tensor]]] = {
    "clipped": (
        [SIGMOID, helper.make_node("Clip", ["p", "low", "high"], ["y"])],
        lambda h: h.sigmoid().clamp(0.01, 0.99),
    ),
    "product": ([SIGMOID, helper.make_node("Mul", ["p", "p"], ["y"])], lambda h: h.sigmoid().square()),
    "softmax": ([helper.make_node("Softmax", ["h"], ["y"])], lambda h: h.softmax(-1)),
    "the rest": ([*units("unit"), SIGMOID, helper.make_node("Sub", ["unit", "p"], ["y"])], lambda h: 1 - h.sigmoid()),
    "of a tangent": (
        [
            *units("unit"),
            helper.make_node("Mul", ["h", "half"], ["s"]),
            helper.make_node("Tanh", ["s"], ["t"]),
            helper.make_node("Add", ["t", "unit"], ["u"]),
            helper.make_node("Mul", ["u", "half"], ["y"]),
        ],
        lambda h: ((h / 2).tanh() + 1) / 2,
    ),
    "a piece of a line": ([helper.make_node("HardSigmoid", ["h"], ["y"])], lambda h: (0.2 * h + 0.5).clamp(0, 1)),
}


@pytest.mark.parametrize("name", PROBABILITIES)
def test_binary_cross_entropy_is_of_the_probabilities(name: str) -> None:
    tail, shares = PROBABILITIES[name]
    weight = torch.tensor(WEIGHT, dtype=torch.float64, requires_grad=True)
    given = shares(torch.from_numpy(X).double() @ weight)
    labels = np.random.default_rng(6).random((6, 5, 3)).astype(np.float32)
    loss = torch.nn.functional.binary_cross_entropy(given, torch.from_numpy(labels).double())
    tuned = trained(model_of(tail), labels, {"kind": "bce_with_logits"})
    agree(tuned, model_of(tail), loss, weight)
    assert "loss.on_probabilities" in codes(tuned)


def mean_of_softmaxes(h: torch.Tensor) -> torch.Tensor:
    return (h.softmax(-1) + (-h).softmax(-1)) / 2


TWO = [
    helper.make_node("Neg", ["h"], ["n"]),
    helper.make_node("Softmax", ["h"], ["p0"]),
    helper.make_node("Softmax", ["n"], ["p1"]),
]
CLASSES: dict[str, tuple[list[onnx.NodeProto], Callable[[torch.Tensor], torch.Tensor]]] = {
    "mean": ([*TWO, helper.make_node("Mean", ["p0", "p1"], ["y"])], mean_of_softmaxes),
    "sum of halves": (
        [*TWO, helper.make_node("Add", ["p0", "p1"], ["s"]), helper.make_node("Mul", ["s", "half"], ["y"])],
        mean_of_softmaxes,
    ),
    "reduced": (
        [
            *TWO,
            *(helper.make_node("Unsqueeze", [f"p{number}", "axes"], [f"u{number}"]) for number in (0, 1)),
            helper.make_node("Concat", ["u0", "u1"], ["u"], axis=1),
            helper.make_node("ReduceMean", ["u", "axes"], ["y"], keepdims=0),
        ],
        mean_of_softmaxes,
    ),
    "shares of a sum": (
        [
            SIGMOID,
            helper.make_node("ReduceSum", ["p", "last"], ["t"]),
            helper.make_node("Div", ["p", "t"], ["y"]),
        ],
        lambda h: h.sigmoid() / h.sigmoid().sum(-1, keepdim=True),
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_cross_entropy_is_of_the_probabilities(name: str) -> None:
    tail, shares = CLASSES[name]
    labels = np.random.default_rng(6).integers(0, 3, (6, 5))
    weight = torch.tensor(WEIGHT, dtype=torch.float64, requires_grad=True)
    given = shares(torch.from_numpy(X).double() @ weight)
    loss = torch.nn.functional.nll_loss(given.log().flatten(0, 1), torch.from_numpy(labels).flatten())
    tuned = trained(model_of(tail), labels, {"kind": "cross_entropy"})
    agree(tuned, model_of(tail), loss, weight)
    assert "loss.on_probabilities" in codes(tuned)


def test_a_module_clamps_its_probabilities() -> None:
    """Whose bounds are operators of their own: PyTorch's slope on them is another than that of a file's Clip."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Sigmoid())

    class Clamped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).clamp(1e-6, 1 - 1e-6)

    module, x = Clamped(), torch.from_numpy(X[:, 0])
    labels = torch.from_numpy(np.random.default_rng(6).random((6, 3)).astype(np.float32))
    wanted = torch.nn.functional.binary_cross_entropy(module(x), labels).item()
    spec = {"batch": 6, "loss": {"kind": "bce_with_logits"}, "optimizer": {"learning_rate": RATE}}
    tuned = pockfarm.fine_tune(module, x, (x, labels), spec=spec, steps=1)
    assert tuned.losses[0] == pytest.approx(wanted, rel=1e-5)
    assert "loss.on_probabilities" in codes(tuned)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_probability_of_0_or_1_costs_as_much_as_in_pytorch(label: float) -> None:
    model = model_of([helper.make_node("HardSigmoid", ["h"], ["y"], alpha=100.0)])
    (given,) = run_onnx(model, ["y"], {"x": X})
    labels = np.full((6, 5, 3), label, np.float32)
    loss = torch.nn.functional.binary_cross_entropy(torch.from_numpy(given), torch.from_numpy(labels))
    tuned = trained(model, labels, {"kind": "bce_with_logits"})
    assert tuned.losses[0] == pytest.approx(loss.item(), rel=1e-5)
    assert np.isfinite(tuned["w"]).all()


@pytest.mark.parametrize("holds", ["logits", "probabilities"])
def test_the_spec_says_what_an_output_holds(holds: str) -> None:
    """Of numbers that are neither, to the graph: nothing is taken for something else, and nothing is warned of."""
    model = model_of([helper.make_node("Relu", ["h"], ["y"])])
    labels = np.random.default_rng(6).integers(0, 3, (6, 5))
    weight = torch.tensor(WEIGHT, dtype=torch.float64, requires_grad=True)
    given = (torch.from_numpy(X).double() @ weight).relu()
    logits = given if holds == "logits" else given.clamp(min=2.0**-126).log()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(labels).flatten())
    tuned = trained(model, labels, {"kind": "cross_entropy", "on": holds})
    agree(tuned, model, loss, weight)
    assert not [code for code in codes(tuned) if code.startswith("loss.")]


def test_on_logits_reads_a_sigmoid_as_it_is() -> None:
    labels = np.random.default_rng(6).random((6, 5, 3)).astype(np.float32)
    model = model_of([helper.make_node("Sigmoid", ["h"], ["y"])])
    weight = torch.tensor(WEIGHT, dtype=torch.float64, requires_grad=True)
    given = (torch.from_numpy(X).double() @ weight).sigmoid()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(given, torch.from_numpy(labels).double())
    tuned = trained(model, labels, {"kind": "bce_with_logits", "on": "logits"})
    agree(tuned, model, loss, weight)
    assert not [code for code in codes(tuned) if code.startswith("loss.")]


def test_other_softmaxes_are_the_models_own() -> None:
    """One over positions: the loss reads what it gives."""
    model = model_of([helper.make_node("Softmax", ["h"], ["y"], axis=1)])
    labels = np.random.default_rng(6).integers(0, 3, (6, 5))
    weight = torch.tensor(WEIGHT, dtype=torch.float64, requires_grad=True)
    answers = (torch.from_numpy(X).double() @ weight).softmax(1)
    loss = torch.nn.functional.cross_entropy(answers.flatten(0, 1), torch.from_numpy(labels).flatten())
    tuned = trained(model, labels, {"kind": "cross_entropy"})
    agree(tuned, model, loss, weight)
    assert "loss.before_activation" not in codes(tuned)
    assert "loss.of_shares" in codes(tuned)


def trained(model: bytes, labels: Array, loss: dict[str, Any]) -> pockfarm.FineTuned:
    settings = {"batch": 6, "loss": loss, "optimizer": {"learning_rate": RATE}}
    return pockfarm.fine_tune(model, None, {"x": X, "y": labels}, spec=settings, steps=1)


def agree(tuned: pockfarm.FineTuned, model: bytes, loss: torch.Tensor, weight: torch.Tensor) -> None:
    """The loss and the step are PyTorch's; what the file answers are probabilities as before."""
    loss.backward()
    assert weight.grad is not None
    assert tuned.losses[0] == pytest.approx(loss.item(), rel=1e-6)
    np.testing.assert_allclose(tuned["w"] - WEIGHT, -RATE * weight.grad.numpy(), rtol=1e-4, atol=3e-6)
    (before,), (after,) = run_onnx(model, ["y"], {"x": X}), run_onnx(tuned.onnx, ["y"], {"x": X})
    assert before.shape == after.shape
    assert [node.op_type for node in onnx.load_from_string(tuned.onnx).graph.node] == [
        node.op_type for node in onnx.load_from_string(model).graph.node
    ]


def codes(tuned: pockfarm.FineTuned) -> set[str]:
    return {warning.code for warning in tuned.warnings}
