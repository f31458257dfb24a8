"""`dropout: train`: with the masks that a step draws, PyTorch in float64 takes the same steps; `infer` drops none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compiler.api import BuildSettings, compile_training
from compiler.errors import ModelError
from compiler.ops import OPERATORS
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.onnx_checks import same_on_onnx_runtime
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.compiler.frontend.onnx_graphs import imported, model_of, node
from tests.models import export

BATCH, RATE, RATIOS = 6, 0.1, (0.25, 0.6)


class Net(nn.Module):
    """Its masks are its own, or, to compare, given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(10, 40), nn.Linear(40, 20), nn.Linear(20, 3)])
        self.drops = nn.ModuleList([nn.Dropout(ratio) for ratio in RATIOS])
        self.given: Iterator[torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, drop, ratio in zip(self.layers, self.drops, RATIOS, strict=False):
            x = torch.tanh(layer(x))
            x = drop(x) if self.given is None else x * next(self.given) / (1 - ratio)
        return self.layers[2](x)


def masks(seed: int, step: int) -> Iterator[torch.Tensor]:
    for stream, (width, ratio) in enumerate(zip((40, 20), RATIOS, strict=True), 1):
        (key,) = OPERATORS["random_key"].evaluate([np.asarray(seed), np.asarray(step)], {"stream": stream})
        (u,) = OPERATORS["random_uniform"].evaluate([key], {"shape": (BATCH, width)})
        yield torch.from_numpy(u >= ratio).double()


def test_steps_agree_and_evaluation_drops_nothing(tmp_path: Path, kernel_cache: Path) -> None:
    torch.manual_seed(0)
    net = Net().train()
    settings = BuildSettings(
        plan=SparsePlan.parse("full"),
        spec=TrainingSpec.parse(
            {"batch": BATCH, "dropout": "train", "optimizer": {"kind": "sgd", "learning_rate": RATE}}
        ),
        target=load(native_target()),
        cache_dir=kernel_cache,
        jobs=1,
    )
    model = export(net, (torch.randn(BATCH, 10),), exporter="dynamo-unoptimized", dynamic_batch=False)
    binary = StepBinary.unpack(compile_training(model, settings), tmp_path)
    start = {name: tensor.detach().numpy() for name, tensor in net.named_parameters()}
    rng = np.random.default_rng(2)
    x, labels = rng.normal(size=(4 * BATCH, 10)).astype(np.float32), rng.integers(0, 3, 4 * BATCH)
    data = binary.write_data({"input": x}, labels)
    losses, after = binary.train(start, 4, data, batch_seed=9)
    exact = Net().double()
    exact.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
    for step in range(4):
        part = slice(step * BATCH, (step + 1) * BATCH)
        exact.given = masks(9, step + 1)
        loss = F.cross_entropy(exact(torch.from_numpy(x[part]).double()), torch.from_numpy(labels[part]))
        exact.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in exact.parameters():
                parameter -= RATE * parameter.grad
        assert losses[step] == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in exact.named_parameters():
        moved = parameter.detach().numpy() - start[name]
        assert np.linalg.norm(after[name] - start[name] - moved) <= 1e-4 * np.linalg.norm(moved), name
    binary.run("infer", "--weights", tmp_path / "after.safetensors", "--out", tmp_path / "y.npy", *data[:2])
    exact.given = None
    with torch.no_grad():
        wanted = exact.eval()(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-4, atol=1e-5)
    still = ("--steps", 1, "--learning-rate", 0, "--batch-seed", 9, "--validation", 0.25)
    events = binary.run("train", "--weights", tmp_path / "after.safetensors", *data, *still)
    loss = F.cross_entropy(torch.from_numpy(wanted[-BATCH:]), torch.from_numpy(labels[-BATCH:])).item()
    (validation,) = (event for event in events if event["event"] == "validation")
    assert validation["loss"] == pytest.approx(loss, rel=1e-5), "no mask, though the step beside it drew some"
    same_on_onnx_runtime(binary, data, seed=9)


def test_what_is_dropped_is_told_only_where_it_is_not() -> None:
    made = node("Dropout", ["x", "ratio", "mode"], ["y"])
    model = model_of(
        [made],
        {"x": ("f32", ("batch", 3))},
        initializers={"ratio": np.asarray(0.5, np.float32), "mode": np.asarray(True)},
    )
    assert [warning.code for warning in imported(model).warnings] == ["model.dropout_ignored"]
    graph = imported(model, dropout="train")
    assert not graph.warnings
    assert [made.op for made in graph] == ["dropout"]


def test_a_model_without_dropout_is_told() -> None:
    graph = imported(model_of([node("Relu", ["x"], ["y"])], {"x": ("f32", ("batch", 3))}), dropout="train")
    assert [warning.code for warning in graph.warnings] == ["model.no_dropout"]


def test_a_ratio_that_drops_all_is_refused() -> None:
    made = node("Dropout", ["x", "ratio"], ["y"])
    model = model_of([made], {"x": ("f32", ("batch", 3))}, initializers={"ratio": np.asarray(1.0, np.float32)})
    with pytest.raises(ModelError, match="drops a share of 1"):
        imported(model, dropout="train")
