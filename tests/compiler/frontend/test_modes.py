"""Norms and dropouts in evaluation mode in a file where others train. Real exports of both exporters."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.frontend.test_remarks import net, said, torchscript
from tests.models import export

BOTH = ("dynamo-unoptimized", "torchscript")


def file_of(module: nn.Module, exporter: str) -> bytes:
    if exporter == "torchscript":
        return torchscript(module, training=torch.onnx.TrainingMode.PRESERVE)
    return export(module, (torch.randn(2, 3, 8, 8),), exporter="dynamo-unoptimized", dynamic_batch=False)


@pytest.mark.parametrize("exporter", BOTH)
@pytest.mark.parametrize("still", [["bn"], ["bn", "bn2"], []], ids=["some", "all", "none"])
def test_norms_in_evaluation_mode_keep_their_statistics(still: list[str], exporter: str) -> None:
    """With all of them, the dropout alone tells that the file was exported for training."""
    module = net().train()
    for name in still:
        module.get_submodule(name).eval()
    graph = imported(file_of(module, exporter), batch_norm="train", dropout="train")
    training = [name for name in ("bn", "bn2") if name not in still]
    assert set(graph.buffers()) == {f"{name}.{part}" for name in training for part in ("running_mean", "running_var")}
    assert {f"{name}.{part}" for name in ("bn", "bn2") for part in ("weight", "bias")} <= set(graph.named_parameters())
    assert sum(node.op == "dropout" for node in graph) == 1
    assert ("model.in_evaluation" in said(graph)) is bool(still)
    assert said(graph).get("model.in_evaluation", "").endswith(", ".join(still))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_spec_decides_where_all_are_alike(mode: Literal["eval", "train"]) -> None:
    for exporter in BOTH:
        graph = imported(file_of(net().train(mode == "train"), exporter), batch_norm="train")
        assert len(graph.buffers()) == 4
        assert "model.in_evaluation" not in said(graph)


def test_a_dropout_in_evaluation_mode_beside_norms_that_train_drops_nothing() -> None:
    """TorchScript leaves it out; a file may hold it with a third input that says so."""
    proto = onnx.load_from_string(file_of(net().train(), "torchscript"))
    (drop,) = (node for node in proto.graph.node if node.op_type == "Dropout")
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray(False), "still"))
    drop.input[2] = "still"
    graph = imported(proto.SerializeToString(), batch_norm="train", dropout="train")
    assert not [node for node in graph if node.op == "dropout"]
    assert len(graph.buffers()) == 4
    assert set(said(graph)) == {"model.in_evaluation"}
