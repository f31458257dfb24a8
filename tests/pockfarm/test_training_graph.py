"""`pockfarm export-training-graph`: the files it writes train in ONNX Runtime, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

from compiler.bundle import training_files
from examples.models import MODELS
from examples.training_graph import TrainingGraph
from pockfarm import cli

BATCH = 4


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(MODELS["mlp"](features=9, hidden=64))
    return path


def _exported(model: Path, *words: str) -> Path:
    out = model.with_name("step.onnx")
    spec = f"batch: {BATCH}\noptimizer: {{kind: adamw, learning_rate: 0.01}}"
    assert cli.main(["export-training-graph", str(model), "--spec", spec, "--out", str(out), *words]) == 0
    return out


def _losses(graph: TrainingGraph, steps: int = 12) -> list[float]:
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((BATCH, 9)).astype(np.float32), rng.integers(0, 10, BATCH)
    return [graph.step({"input": x}, labels) for _ in range(steps)]


def test_what_is_written_trains(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = _exported(model, "--plan", "last-layer")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        str(out),
        str(model.with_name("step.state.safetensors")),
    ]
    graph = TrainingGraph(out)
    losses = _losses(graph)
    assert losses[-1] < 0.5 * losses[0]
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(model).graph.initializer}
    weights = graph.weights()
    assert set(weights) == {"fc3.weight", "fc3.bias"}
    assert all(weights[name].shape == stored[name].shape for name in weights)
    assert not any(np.array_equal(weights[name], stored[name]) for name in weights)


def test_a_rate_of_the_loops_own_is_followed(model: Path) -> None:
    """Warm-up from 0: the first step changes nothing, the second does."""
    graph = TrainingGraph(_exported(model, "--plan", "last-layer"))
    before, changed = graph.weights(), []
    for graph.learning_rate in (0.0, 0.01):
        _losses(graph, steps=1)
        changed.append(any(not np.array_equal(array, before[name]) for name, array in graph.weights().items()))
    assert changed == [False, True]


def test_large_frozen_weights_lie_beside_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _losses(TrainingGraph(_exported(model, "--plan", "last-layer")))
    monkeypatch.setattr(training_files, "EMBEDDED_BYTES", 1 << 10)
    out = _exported(model, "--plan", "last-layer")
    data = out.with_name("step.onnx.data")
    assert data.stat().st_size >= 4 * (9 * 64 + 64 * 64)
    assert out.stat().st_size + data.stat().st_size < 1.2 * (4 * (9 * 64 + 64 * 64) + out.stat().st_size)
    onnx.checker.check_model(str(out), full_check=True)
    assert _losses(TrainingGraph(out)) == whole


def test_frozen_weights_may_be_inputs(model: Path) -> None:
    out = _exported(model, "--plan", "last-layer", "--frozen", "inputs")
    inputs = {one.name for one in onnx.load(out).graph.input}
    assert {"fc1.weight", "fc2.weight", "fc3.weight"} <= inputs
    assert {"fc1.weight", "fc3.weight"} <= set(load_file(out.with_name("step.state.safetensors")))
    losses = _losses(TrainingGraph(out))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("net.onnx", "--out", "step"), "the name ends in .onnx"),
        (("net.onnx", "--out", "net.onnx"), "is the model itself"),
        (("net.onnx", "--out", "nowhere/step.onnx"), "nowhere/step.onnx: No such file or directory"),
        (("nothing.onnx", "--out", "step.onnx"), "nothing.onnx: No such file or directory"),
        (("net.onnx", "--out", "step.onnx", "--plan", "ful"), "ful"),
    ],
)
def test_what_cannot_be_written_is_said(
    model: Path,
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(model.parent)
    before = model.read_bytes()
    assert cli.main(["export-training-graph", *words]) == 2
    assert message in capsys.readouterr().err
    assert model.read_bytes() == before
    assert sorted(path.name for path in model.parent.iterdir()) == ["net.onnx"]
