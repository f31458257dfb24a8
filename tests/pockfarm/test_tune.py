"""`pockfarm tune`: one command from a model and its data to the trained model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from pockfarm import cli
from tests.models import export

BATCH, FEATURES, CLASSES, STEPS = 8, 4, 3, 5


@pytest.fixture
def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(FEATURES, CLASSES)


@pytest.fixture
def folder(tmp_path: Path, module: torch.nn.Module) -> Path:
    """A model as PyTorch exports it, and a batch of data: whatever the order of samples, each step takes all."""
    (tmp_path / "net.onnx").write_bytes(export(module, (torch.zeros(BATCH, FEATURES),)))
    random = np.random.default_rng(0)
    x = random.standard_normal((BATCH, FEATURES)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    return tmp_path


def train(module: torch.nn.Module, data: Path, learning_rate: float) -> list[float]:
    """Trains the module itself by plain SGD, and returns its losses."""
    arrays = np.load(data)
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate)
    losses = []
    for _ in range(STEPS):
        loss = torch.nn.functional.cross_entropy(module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def tune(folder: Path, *options: str) -> int:
    return cli.main(["tune", str(folder / "net.onnx"), "--data", str(folder / "d.npz"), "--spec", "batch: 8", *options])


def test_the_model_comes_back_as_pytorch_trains_it(
    folder: Path, module: torch.nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "trained.onnx"
    options = ["--epochs", str(STEPS), "--learning-rate", "0.5", "--out", str(out), "--json"]
    assert tune(folder, *options) == 0
    summary = json.loads(capsys.readouterr().out)
    losses = train(module, folder / "d.npz", 0.5)
    assert (summary["model"], summary["outcome"]) == (str(out), "completed")
    np.testing.assert_allclose(summary["losses"], losses, rtol=1e-5)
    trained = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(out).graph.initializer}
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(trained[name], parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_without_out_the_trained_model_lies_beside_the_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(folder) == 0
    text = capsys.readouterr().out
    assert "loss " in text
    assert f"{folder / 'net-tuned.onnx'}: " in text
    onnx.checker.check_model(onnx.load(folder / "net-tuned.onnx"))


def test_a_place_that_cannot_be_written_is_named_before_anything_is_compiled(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(folder, "--out", str(folder / "none" / "out.onnx")) == 2
    assert f"--out {folder / 'none' / 'out.onnx'}" in capsys.readouterr().err


def test_what_the_compiler_warns_of_is_printed_and_part_of_the_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(folder, "--spec", "{batch: 8, dropout: train}", "--json") == 0
    printed = capsys.readouterr()
    assert [warning["code"] for warning in json.loads(printed.out)["warnings"]] == ["model.no_dropout"]
    assert "warning: spec.dropout" in printed.err


@pytest.mark.parametrize("missing", ["net.onnx", "d.npz"])
def test_a_file_that_is_missing_is_named_before_anything_is_compiled(
    folder: Path, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / missing).unlink()
    assert tune(folder) == 2
    assert f"{missing}: no such file" in capsys.readouterr().err
