"""The example models are valid, deterministic, well scaled, and the plans fit them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.spec.documents import SparsePlan
from compiler.step.plan import resolve_plan
from examples.models import MODELS
from tests.compiler.frontend.onnx_graphs import assert_agrees, feeds_for, run_onnx
from tests.compiler.named import by_name

PLANS = Path(__file__).parents[2] / "examples" / "plans"
SMALL: Mapping[str, Mapping[str, int | float]] = {
    "mcunet": {"resolution": 32},
    "mlp": {},
    "mobilenet_v2": {"resolution": 32, "width": 0.35, "classes": 10},
    "resnet18": {"resolution": 32, "width": 8, "classes": 10},
    "resnet50": {"resolution": 32, "width": 8, "classes": 10},
    "small_cnn": {},
    "transformer_encoder": {},
}


def _graph(model: bytes) -> Graph:
    return import_model(model, input_shapes={}, batch=2, batch_norm="fold")


def test_every_model_is_tested() -> None:
    assert set(SMALL) == set(MODELS)


@pytest.mark.parametrize("name", SMALL)
def test_models_import_and_agree_with_onnx_runtime(name: str) -> None:
    model = MODELS[name](**SMALL[name])
    graph = _graph(model)
    assert_agrees(model, graph, feeds_for(graph, integers=1000))
    assert not any(parameter.created for parameter in graph.parameters.values())


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_bytes(name: str) -> None:
    build = MODELS[name]
    assert build(**SMALL[name]) == build(**SMALL[name], seed=0)
    assert build(**SMALL[name]) != build(**SMALL[name], seed=1)


@pytest.mark.parametrize("name", SMALL)
def test_logits_are_of_a_scale_that_trains(name: str) -> None:
    model = MODELS[name](**SMALL[name])
    graph = _graph(model)
    (logits,) = run_onnx(model, ["logits"], feeds_for(graph, integers=1000))
    assert 0.02 < float(logits.std()) < 20


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18", "resnet50"])
def test_models_with_batch_norm_kept(name: str) -> None:
    model = MODELS[name](**SMALL[name], batch_norm=True)
    for batch_norm in ("fold", "frozen"):
        graph = import_model(model, input_shapes={}, batch=2, batch_norm=batch_norm)
        assert_agrees(model, graph)


def test_transformer_on_features() -> None:
    model = MODELS["transformer_encoder"](features=6, positions=5, width=8, heads=2, layers=1)
    graph = _graph(model)
    assert graph.types[graph.value_called("input")].shape == (2, 5, 6)
    assert_agrees(model, graph)


def test_mobilenet_v2_has_the_published_size() -> None:
    """3.47 M weights in convolutions and classifier, as in torchvision's definition."""
    graph = _graph(MODELS["mobilenet_v2"](resolution=32))
    sizes = {own.name: graph.types[value].size for value, own in graph.parameters.items()}
    assert sum(size for name, size in sizes.items() if name.endswith(".weight")) == 3_469_760
    assert sum(name.endswith("depthwise.weight") for name in sizes) == 17


def test_mobilenet_plans_select_what_they_say() -> None:
    graph = _graph(MODELS["mobilenet_v2"](resolution=32, width=0.35, classes=10))
    plans = {path.stem: SparsePlan.parse(path.read_text()) for path in sorted(PLANS.glob("mobilenet_v2-*.yaml"))}
    chosen = {name: set(by_name(graph, resolve_plan(graph, plan))) for name, plan in plans.items()}
    assert chosen["mobilenet_v2-full"] == set(graph.named_parameters())
    assert chosen["mobilenet_v2-bias-only"] == {name for name in graph.named_parameters() if name.endswith(".bias")}
    blocks = range(10, 17)
    expected = {f"blocks.{i}.expand.weight" for i in blocks} | {"classifier.weight", "classifier.bias"}
    expected |= {f"blocks.{i}.{part}.bias" for i in blocks for part in ("expand", "depthwise", "project")}
    assert chosen["mobilenet_v2-sparse"] == expected


def test_command_line_writes_a_model(tmp_path: Path) -> None:
    out = tmp_path / "net.onnx"
    command = [sys.executable, "-m", "examples.models", "mlp", "--out", str(out), "--hidden", "16", "--seed", "3"]
    done = subprocess.run(command, cwd=PLANS.parents[1], capture_output=True, text=True, check=True, timeout=60)
    assert out.read_bytes() == MODELS["mlp"](hidden=16, seed=3)
    assert str(out) in done.stdout
    graph = _graph(out.read_bytes())
    assert np.prod(graph.types[graph.outputs[0]].shape) == 20
