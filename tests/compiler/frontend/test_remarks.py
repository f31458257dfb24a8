"""What the import says of a model whose training would not be what its author meant. Real exports of both exporters."""

from __future__ import annotations

import io
import logging
import warnings
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.errors import ModelError, UnsupportedOperator
from compiler.graph import Graph
from tests.compiler.frontend.onnx_graphs import imported, model_of, node
from tests.models import Exporter, export
from tests.sample import sample

BatchNorm = Literal["fold", "frozen"]


class Net(nn.Module):
    """Two convolutions and a linear layer, each with its norm, and two dropouts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5)
        self.drop, self.fc = nn.Dropout(0.3), nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        return self.fc(self.drop(torch.relu(self.bn2(self.conv2(x))).mean((2, 3))))


def net() -> nn.Module:
    torch.manual_seed(0)
    made = Net()
    for norm in (made.bn, made.bn2):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.running_mean)
        nn.init.normal_(norm.bias)
    return made


def torchscript(model: nn.Module, **options: object) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            torch.onnx.export(
                model,
                (torch.randn(2, 3, 8, 8),),
                buffer,
                dynamo=False,
                input_names=["x"],
                output_names=["logits"],
                **options,
            )
        finally:
            logging.disable(logging.NOTSET)
    return buffer.getvalue()


def said(graph: Graph) -> dict[str, str]:
    """Message by code."""
    assert len({warning.code for warning in graph.warnings}) == len(graph.warnings), "each kind is said once"
    return {warning.code: warning.message for warning in graph.warnings}


def model_with(exporter: Exporter, *, training: bool) -> bytes:
    if exporter == "torchscript" and training:
        return torchscript(net().train(), training=torch.onnx.TrainingMode.PRESERVE)
    return export(net().train(training), (torch.randn(2, 3, 8, 8),), exporter=exporter, dynamic_batch=False)


@pytest.mark.parametrize("batch_norm", ["fold", "frozen"])
@pytest.mark.parametrize("exporter", sample(["dynamo", "dynamo-unoptimized", "torchscript"], ["dynamo", "torchscript"]))
def test_a_norm_that_the_exporter_folded_is_not_kept_in_silence(exporter: Exporter, batch_norm: BatchNorm) -> None:
    found = said(imported(model_with(exporter, training=False), batch_norm=batch_norm))
    if batch_norm == "fold" or exporter == "dynamo-unoptimized":
        assert found == {}
        return
    assert set(found) == {"model.batch_norm_folded"}
    names = "bn, bn2" if exporter == "dynamo" else "conv, conv2"
    assert found["model.batch_norm_folded"].endswith(f"the folded weights learn: {names}")
    assert "2 BatchNorms" in found["model.batch_norm_folded"]


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_the_advice_leaves_the_norms_in_the_file(exporter: Exporter) -> None:
    """What the warning's hint says to do: then `frozen` has its norms, and nothing is said."""
    kept = (
        torchscript(net().eval(), do_constant_folding=False)
        if exporter == "torchscript"
        else export(net().eval(), (torch.randn(2, 3, 8, 8),), exporter="dynamo-unoptimized", dynamic_batch=False)
    )
    graph = imported(kept, batch_norm="frozen")
    assert {"bn.weight", "bn.bias", "bn2.weight", "bn2.bias"} <= set(graph.named_parameters())
    assert graph.warnings == ()


@pytest.mark.parametrize("batch_norm", ["fold", "frozen"])
@pytest.mark.parametrize("exporter", ["dynamo", "dynamo-unoptimized", "torchscript"])
def test_a_net_exported_in_training_mode_is_told(exporter: Exporter, batch_norm: BatchNorm) -> None:
    found = said(imported(model_with(exporter, training=True), batch_norm=batch_norm))
    assert found["model.batch_statistics"].endswith("do not update them: bn, bn2")
    assert found["model.dropout_ignored"].endswith("drops no values: drop")
    assert "1 of them exported in training mode" in found["model.dropout_ignored"]


def test_norms_that_torchscript_exported_in_training_mode_are_told() -> None:
    model = net().train()
    model.drop = nn.Identity()
    exported = torchscript(model, training=torch.onnx.TrainingMode.PRESERVE)
    assert said(imported(exported)).keys() == {"model.batch_statistics"}
    assert said(imported(exported))["model.batch_statistics"].endswith("do not update them: bn, bn2")


@pytest.mark.thorough
def test_transformers_in_training_mode_name_a_few_of_their_dropouts() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).train()
    graph = imported(export(model, (torch.randn(2, 5, 8),), dynamic_batch=False))
    (message,) = [warning.message for warning in graph.warnings if warning.code == "model.dropout_ignored"]
    assert message.count(",") <= 4
    assert " more" in message


IMAGE = {"x": ("f32", ("batch", 3, 5, 5))}


@pytest.mark.parametrize(
    ("ratio", "mode", "words"),
    [
        (0.5, None, "1 Dropout nodes do nothing"),
        (0.5, True, "in training mode"),
        (0.0, True, None),
        (0.5, False, "do nothing"),
    ],
)
def test_a_dropout_that_would_drop_something_is_told(ratio: float, mode: bool | None, words: str | None) -> None:
    stored = {"ratio": np.asarray(ratio, np.float32)} | ({} if mode is None else {"mode": np.asarray(mode)})
    graph = imported(
        model_of([node("Dropout", ["x", *stored], ["h"]), node("Relu", ["h"], ["y"])], IMAGE, initializers=stored)
    )
    if words is None:
        assert graph.warnings == ()
    else:
        assert words in said(graph)["model.dropout_ignored"]


def test_a_norm_with_outputs_for_its_statistics_is_in_training_mode() -> None:
    names = ("scale", "bias", "mean", "var")
    stored = {name: np.linspace(0.5, 1.5, 3, dtype=np.float32) for name in names}
    made = [node("BatchNormalization", ["x", *names], ["y", "new_mean", "new_var"], training_mode=1)]
    graph = imported(model_of(made, IMAGE, initializers=stored))
    assert "make_y" in said(graph)["model.batch_statistics"]


def test_damaged_constants_are_told_and_damaged_parameters_refused() -> None:
    """Nothing else would say that the model is broken. Infinity may be a mask."""
    values = {"onnx::Mul_7": [np.nan], "mask": [0.0, -np.inf, 0.0], "good": [1.0, 2.0, 3.0]}
    stored = {name: np.asarray(value, np.float32) for name, value in values.items()}
    nodes = [
        node("Mul", ["x", "onnx::Mul_7"], ["a"]),
        node("Add", ["a", "mask"], ["b"]),
        node("Mul", ["b", "good"], ["y"]),
    ]
    found = said(imported(model_of(nodes, {"x": ("f32", ("batch", 3))}, initializers=stored)))
    assert set(found) == {"model.not_a_number"}
    assert found["model.not_a_number"].endswith(": onnx::Mul_7")
    stored["good"][1] = np.nan
    with pytest.raises(ModelError, match=r"parameter 'good': holds NaN"):
        imported(model_of(nodes, {"x": ("f32", ("batch", 3))}, initializers=stored))


def test_inputs_and_tensors_that_nothing_reads_are_told_once() -> None:
    stored = {"w": np.ones((4, 4), np.float32)} | {f"spare{i}": np.ones(2, np.float32) for i in range(50)}
    inputs = {"x": ("f32", ("batch", 4)), "unread": ("f32", ("batch", 2))}
    found = said(imported(model_of([node("MatMul", ["x", "w"], ["y"])], inputs, initializers=stored)))
    assert found["model.unused_input"].endswith(": unread")
    assert found["model.unused_tensor"].startswith("50 stored tensors")
    assert found["model.unused_tensor"].endswith("spare0, spare1, spare2 and 47 more")


@pytest.mark.parametrize(("places", "said"), [([0, 2, 2], True), ([0, 2, -1], True), ([0, 2, 1], False)])
def test_updates_that_overwrite_each_other_are_said(places: list[int], said: bool) -> None:
    index = np.asarray(places)[None].repeat(2, axis=0)
    nodes = [node("ScatterElements", ["x", "i", "x"], ["y"], axis=1)]
    graph = imported(model_of(nodes, {"x": ("f32", ("batch", 3))}, initializers={"i": index}))
    assert ("model.repeated_positions" in [warning.code for warning in graph.warnings]) is said


def test_a_mean_that_the_exporter_drops_is_refused() -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.scatter_reduce(1, torch.tensor([[0, 1, 1], [2, 2, 0]]), x, reduce="mean")

    model = export(Mean().eval(), (torch.randn(2, 3),), dynamic_batch=False)
    with pytest.raises(UnsupportedOperator, match=r"\(ScatterElements\): .*, 'mean'\)"):
        imported(model)
