"""`pockfarm exec --export`: with the model beside it, its own parameters come back, as `fine_tune` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import pockfarm
from compiler.graph import Array
from pockfarm.cli import main
from pockfarm.errors import Failed
from tests.models import export
from tests.pockfarm.fake_farm import Answer, fake_farm

SPEC = {"batch": 4, "optimizer": {"learning_rate": 0.1}}


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))
    with torch.no_grad():
        layers[1].running_mean.uniform_(-1, 1)
        layers[1].running_var.uniform_(0.5, 2)
    return layers.eval()


@pytest.fixture
def files(tmp_path: Path) -> Mapping[str, Path]:
    """A model whose norm is folded, its bundle, and data."""
    paths = {name: tmp_path / name for name in ("net.onnx", "net.pfb", "data.npz")}
    x = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    paths["net.onnx"].write_bytes(
        export(net(), (x,), input_names=("x",), output_names=("scores",), exporter="dynamo-unoptimized")
    )
    np.savez(paths["data.npz"], x=x.numpy(), y=np.asarray([0, 1, 2, 1]))
    spec = "{batch: 4, optimizer: {learning_rate: 0.1}}"
    assert main(["build", str(paths["net.onnx"]), "--spec", spec, "--out", str(paths["net.pfb"])]) == 0
    return paths


def trained(files: Mapping[str, Path], out: Path, *options: object) -> None:
    common = ["exec", files["net.pfb"], "train", "--data", files["data.npz"], "--steps", 3, "--export", out]
    assert main([str(word) for word in (*common, *options)]) == 0


def by_fine_tune(files: Mapping[str, Path]) -> pockfarm.FineTuned:
    with np.load(files["data.npz"]) as data:
        return pockfarm.fine_tune(files["net.onnx"], None, dict(data), spec=SPEC, steps=3)


def outputs(model: Path | bytes, x: Array) -> Array:
    session = onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model))
    return np.asarray(session.run(["scores"], {"x": x})[0])


def test_the_models_own_parameters_come_back(files: Mapping[str, Path], tmp_path: Path) -> None:
    trained(files, tmp_path / "own.safetensors", "--model", files["net.onnx"])
    wanted = by_fine_tune(files)
    state = load_file(tmp_path / "own.safetensors")
    assert state.keys() == set(wanted)
    assert {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"} <= state.keys()
    for name, tensor in state.items():
        np.testing.assert_array_equal(tensor, wanted[name])


def test_the_model_itself_comes_back_trained(files: Mapping[str, Path], tmp_path: Path) -> None:
    trained(files, tmp_path / "out.onnx", "--model", files["net.onnx"])
    before, after = onnx.load(files["net.onnx"]), onnx.load(tmp_path / "out.onnx")
    assert list(before.graph.node) == list(after.graph.node)
    with np.load(files["data.npz"]) as data:
        x = data["x"]
    answers = outputs(tmp_path / "out.onnx", x)
    np.testing.assert_allclose(answers, outputs(by_fine_tune(files).onnx, x), rtol=1e-6)
    assert np.abs(answers - outputs(files["net.onnx"], x)).max() > 1e-3


def test_without_the_model_folded_norms_are_named(
    files: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    trained(files, tmp_path / "step.safetensors")
    assert "0.weight" in load_file(tmp_path / "step.safetensors")
    message = capsys.readouterr().err
    assert "0.weight" in message
    assert "--model MODEL.onnx" in message


def test_another_model_is_refused_before_anything_is_trained(
    files: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = onnx.load(files["net.onnx"])
    other.doc_string = "of another day"
    onnx.save(other, tmp_path / "other.onnx")
    for model, out, message in (
        (tmp_path / "other.onnx", tmp_path / "out.safetensors", "the bundle is of another model"),
        (tmp_path / "none.onnx", tmp_path / "out.safetensors", "none.onnx: No such file"),
        (files["net.onnx"], tmp_path / "no folder" / "out.safetensors", "there is no folder"),
    ):
        common = ["exec", str(files["net.pfb"]), "train", "--data", str(files["data.npz"]), "--steps", "1"]
        capsys.readouterr()
        assert main([*common, "--export", str(out), "--model", str(model)]) == 2
        text = capsys.readouterr().err
        assert message in text
        assert "step" not in text.replace(str(tmp_path), "")
        assert not out.exists()


def test_training_that_diverges_writes_nothing_and_says_so(
    files: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.safetensors"
    common = ["exec", str(files["net.pfb"]), "train", "--data", str(files["data.npz"]), "--steps", "50"]
    capsys.readouterr()
    status = main([*common, "--learning-rate", "1e9", "--export", str(out), "--model", str(files["net.onnx"])])
    assert status == Failed.exit_code
    assert "diverged" in capsys.readouterr().out
    assert not out.exists()


def test_a_farms_run_gives_them_too(
    files: Mapping[str, Path], tmp_path: Path, loopback: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(files, tmp_path / "step.safetensors")
    trained(files, tmp_path / "wanted.safetensors", "--model", files["net.onnx"])
    with fake_farm() as farm:
        monkeypatch.setenv("POCKFARM_URL", farm.url)
        monkeypatch.setenv("POCKFARM_API_KEY", "key-1")
        digest = "sha256:" + "b" * 64
        farm.on("GET", "/runs/run_0", Answer(200, {"id": "run_0", "state": "succeeded", "bundle_digest": digest}))
        farm.on("GET", "/runs/run_0/weights", Answer(200, (tmp_path / "step.safetensors").read_bytes()))
        farm.on("GET", f"/bundles/{digest}", Answer(200, files["net.pfb"].read_bytes()))
        out = tmp_path / "out.safetensors"
        assert main(["weights", "run_0", "--out", str(out), "--model", str(files["net.onnx"])]) == 0
    assert out.read_bytes() == (tmp_path / "wanted.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("options", "advice"),
    [(("--model", "net.onnx"), "--export F.safetensors"), (("--export", "out.onnx"), "--model MODEL.onnx")],
    ids=["nowhere to go", "no model"],
)
def test_what_is_missing_is_named(
    files: Mapping[str, Path], capsys: pytest.CaptureFixture[str], options: tuple[str, ...], advice: str
) -> None:
    common = ["exec", str(files["net.pfb"]), "train", "--data", str(files["data.npz"]), "--steps", "1"]
    assert main([*common, *options]) == 2
    assert advice in capsys.readouterr().err
