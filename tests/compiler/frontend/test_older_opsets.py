"""Opsets 7 to 12: each operator that was written otherwise, beside ONNX Runtime; whole nets beside their modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from compiler.errors import UnsupportedOperator
from tests.compiler.frontend.onnx_graphs import assert_agrees, imported, model_of, node
from tests.compiler.frontend.test_cuts_and_ties import assert_gradients
from tests.models import export

PICTURES = (2, 3, 4, 6)
SCALES = np.asarray([1, 1, 2, 1.5], np.float32)
Case = tuple[int, str, Sequence[str], Mapping[str, Any], Mapping[str, Any]]
"""Opset, operator, inputs, attributes, initializers."""
CASES: Mapping[str, Case] = {
    "squeeze": (11, "Squeeze", ["row"], {"axes": [1]}, {}),
    "squeeze without axes": (11, "Squeeze", ["row"], {}, {}),
    "unsqueeze": (9, "Unsqueeze", ["x"], {"axes": [0, 5]}, {}),
    "sum": (12, "ReduceSum", ["x"], {"axes": [1, -1], "keepdims": 0}, {}),
    "sum of all": (7, "ReduceSum", ["x"], {"keepdims": 0}, {}),
    "split": (11, "Split", ["x"], {"split": [1, 5], "axis": 3}, {}),
    "split evenly": (7, "Split", ["x"], {"axis": 3}, {}),
    "clip": (9, "Clip", ["x"], {"min": -0.5, "max": 0.25}, {}),
    "clip below": (7, "Clip", ["x"], {"min": 0.0}, {}),
    "pad": (10, "Pad", ["x"], {"pads": [0, 0, 1, 2, 0, 0, 3, 0], "value": 1.5}, {}),
    "pad by reflection": (7, "Pad", ["x"], {"pads": [0, 0, 1, 2, 0, 0, 1, 0], "mode": "reflect"}, {}),
    "slice": (9, "Slice", ["x"], {"starts": [1, -3], "ends": [3, 100], "axes": [2, 3]}, {}),
    "slice of the first axes": (7, "Slice", ["x"], {"starts": [0, 1], "ends": [2, 3]}, {}),
    "top k": (9, "TopK", ["x"], {"k": 2}, {}),
    "dropout": (10, "Dropout", ["x"], {"ratio": 0.3}, {}),
    "upsample by an attribute": (8, "Upsample", ["x"], {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 3.0]}, {}),
    "upsample": (9, "Upsample", ["x", "scales"], {"mode": "nearest"}, {"scales": SCALES}),
    "upsample linearly": (9, "Upsample", ["x", "scales"], {"mode": "linear"}, {"scales": SCALES}),
    "resize": (10, "Resize", ["x", "scales"], {"mode": "nearest"}, {"scales": SCALES}),
    "resize linearly": (10, "Resize", ["x", "scales"], {"mode": "linear"}, {"scales": SCALES}),
    "resize smaller": (10, "Resize", ["x", "scales"], {}, {"scales": np.asarray([1, 1, 0.5, 0.5], np.float32)}),
    "resize to odd sizes": (10, "Resize", ["x", "scales"], {}, {"scales": np.asarray([1, 1, 0.75, 1.6], np.float32)}),
    "softmax of all axes": (11, "Softmax", ["x"], {}, {}),
    "softmax of the last axes": (9, "Softmax", ["x"], {"axis": 2}, {}),
    "softmax of the last axis": (12, "Softmax", ["x"], {"axis": -1}, {}),
    "log softmax": (11, "LogSoftmax", ["x"], {"axis": 1}, {}),
    "hardmax": (11, "Hardmax", ["x"], {"axis": 2}, {}),
    "scatter": (
        9,
        "Scatter",
        ["x", "places", "updates"],
        {"axis": 3},
        {"places": np.asarray([[[[5, 0]]]]), "updates": np.asarray([[[[7.0, 8.0]]]], np.float32)},
    ),
    "norm": (
        8,
        "BatchNormalization",
        ["x", "s", "b", "m", "v"],
        {"spatial": 1},
        {name: np.asarray([0.5, 1.0, 2.0], np.float32) for name in "sbmv"},
    ),
    "pool": (7, "MaxPool", ["x"], {"kernel_shape": [2, 2], "strides": [2, 2]}, {}),
    "mean pool": (9, "AveragePool", ["x"], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_operator_means_what_its_version_says(name: str) -> None:
    opset, op_type, inputs, attributes, stored = CASES[name]
    outputs = ["y", "z"] if op_type in ("Split", "TopK") else ["y"]
    model = model_of(
        [node(op_type, inputs, outputs, **attributes)],
        {"x": ("f32", PICTURES)} if "x" in inputs else {"row": ("f32", (2, 1, 5))},
        outputs if op_type == "Split" else ["y"],
        stored,
        opset=opset,
        infer_shapes=False,
    )
    graph = imported(model)
    assert_agrees(model, graph)
    (warning,) = [warning for warning in graph.warnings if warning.code == "model.older_opset"]
    assert f"opset {opset}," in warning.message


def test_branches_are_read_in_the_models_version() -> None:
    branches = {
        name: onnx.helper.make_graph([node("Clip", ["x"], ["c"], max=most)], name, [], [onnx.ValueInfoProto(name="c")])
        for name, most in (("then_branch", 0.25), ("else_branch", -0.25))
    }
    nodes = [node("If", ["always"], ["y"], **branches)]
    stored = {"always": np.asarray(True)}
    model = model_of(nodes, {"x": ("f32", (2, 3))}, ["y"], stored, opset=10, infer_shapes=False)
    assert_agrees(model, imported(model))


class Old(nn.Module):
    """What exporters of a few years ago wrote in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.ReLU6(), nn.Upsample(scale_factor=2))
        self.drop, self.rnn, self.head = nn.Dropout(), nn.LSTM(8, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = nn.functional.pad(self.body(x), (1, 1, 0, 0)).mean(dim=1)[:, :, 1:-1]
        states, _ = self.rnn(torch.log_softmax(rows[:, ::1, :8], dim=1))
        return self.head(self.drop(states).sum(dim=1))


@pytest.mark.parametrize("opset", [9, 11])
def test_a_net_learns_as_its_module(opset: int) -> None:
    torch.manual_seed(0)
    module, x = Old().eval(), torch.randn(2, 3, 4, 4)
    model = export(module, (x,), exporter="torchscript", opset=opset, dynamic_batch=False)
    graph = imported(model)
    assert_agrees(model, graph)
    assert set(graph.named_parameters()) == {name for name, _ in module.named_parameters()}
    assert_gradients(graph, module, x)


@pytest.mark.parametrize(
    ("opset", "nodes", "place"),
    [
        (6, [node("Relu", ["x"], ["y"])], "model"),
        (8, [node("BatchNormalization", ["x", *"abcd"], ["y"], spatial=0)], "BatchNormalization"),
    ],
)
def test_what_is_older_is_refused(opset: int, nodes: list[onnx.NodeProto], place: str) -> None:
    stored = dict.fromkeys("abcd", np.ones(3, np.float32))
    model = model_of(nodes, {"x": ("f32", (2, 3))}, ["y"], stored, opset=opset, infer_shapes=False)
    with pytest.raises(UnsupportedOperator) as refusal:
        imported(model)
    assert place in refusal.value.where
    assert "opset 18" in refusal.value.hint


@pytest.mark.parametrize(
    ("producer", "advice"),
    [
        ("tf2onnx", "python -m tf2onnx.convert"),
        ("PaddlePaddle", "paddle2onnx --opset_version 18"),
        ("pytorch", "torch.onnx.export"),
        ("of my own", "export again in opset 18"),
    ],
)
def test_what_is_too_old_is_refused_in_the_words_of_its_exporter(producer: str, advice: str) -> None:
    model = onnx.load_from_string(model_of([node("Relu", ["x"], ["y"])], {"x": ("f32", (2, 3))}, ["y"]))
    model.producer_name = producer
    model.opset_import[0].version = 6
    with pytest.raises(UnsupportedOperator) as refused:
        imported(model.SerializeToString())
    assert advice in refused.value.hint
