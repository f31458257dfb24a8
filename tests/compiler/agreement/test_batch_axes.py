"""Models whose samples do not lie along the first axis, and inputs that are the same for every sample."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from torch import Tensor, nn

from compiler.errors import CompileError, SpecError
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.spec.documents import TrainingSpec
from compiler.step.loss import attach_loss
from tests.compiler.agreement.losses import Arrays, agree, compiled, found, onnx_found, wanted
from tests.compiler.agreement.step_binary import StepBinary
from tests.compiler.frontend.onnx_graphs import imported, model_of, node
from tests.models import export
from tests.sample import sample

STEPS, BATCH, WIDTH, CLASSES, WORDS = 8, 3, 6, 7, 11
SAME = {"mask": None, "positions": None, "temperature": None}


class Tagger(nn.Module):
    """nn.LSTM as it is by default: [positions, samples, features]."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


class Last(nn.Module):
    """The state after the last position: samples first, of an input that has them second."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[1][-1])


class Encoder(nn.Module):
    """nn.TransformerEncoder as it is by default, with a mask, positions and a temperature for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Embedding(STEPS, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor, positions: Tensor, temperature: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(positions).transpose(0, 1)
        return self.head(self.layers(x, mask=mask, is_causal=False)) / temperature


def fixed() -> dict[str, np.ndarray]:
    mask = nn.Transformer.generate_square_subsequent_mask(STEPS).numpy()
    return {"mask": mask, "positions": np.arange(STEPS)[None], "temperature": np.asarray(1.5, np.float32)}


CASES: dict[str, tuple[type[nn.Module], str, bool]] = {
    "lstm": (Tagger, "x", True),
    "last state": (Last, "x", False),
    "encoder": (Encoder, "tokens", True),
}
"""The module, its input that holds samples, and whether it answers for each position."""


@cache
def exported(name: str, exporter: Any = "dynamo") -> tuple[nn.Module, bytes]:
    torch.manual_seed(7)
    module = CASES[name][0]()
    inputs = tuple(map(torch.from_numpy, feeds_of(name, BATCH).values()))
    names = tuple(feeds_of(name, BATCH))
    model = export(
        module.eval(), inputs, input_names=names, output_names=("y",), exporter=exporter, dynamic_batch=False
    )
    return module, model


def feeds_of(name: str, samples: int) -> dict[str, np.ndarray]:
    """As the module takes them."""
    rng = np.random.default_rng(4)
    if name == "encoder":
        return {"tokens": rng.integers(0, WORDS, (STEPS, samples)), **fixed()}
    return {"x": rng.standard_normal((STEPS, samples, WIDTH)).astype(np.float32)}


def labels_of(name: str, samples: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, CLASSES, (STEPS, samples) if CASES[name][2] else (samples,))
    labels[rng.random(labels.shape) < 0.2] = -100
    return labels


def spec_of(name: str, loss: Mapping[str, Any] | None = None) -> TrainingSpec:
    axes = {CASES[name][1]: 1, **(SAME if name == "encoder" else {})}
    body: dict[str, Any] = {
        "batch": BATCH,
        "threads": 2,
        "optimizer": {"kind": "sgd", "learning_rate": 0.5},
        "loss": dict(loss or {}),
        "inputs": {own: {"batch_axis": axis} for own, axis in axes.items()},
    }
    return TrainingSpec.parse(body)


def entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


@pytest.mark.parametrize(("name", "exporter"), [*((name, "dynamo") for name in CASES), ("encoder", "torchscript")])
def test_the_step_is_pytorchs(name: str, exporter: Any) -> None:
    """Value and every gradient, of our step and of its ONNX file; its batch axis is found."""
    module, model = exported(name, exporter)
    feeds, labels = feeds_of(name, BATCH), {"y": labels_of(name, BATCH)}
    exact = wanted(module, feeds, labels, entropy)
    spec = spec_of(name)
    agree(found(model, spec, feeds, labels), exact, 5e-6)
    agree(onnx_found(model, spec, feeds, labels), exact, 5e-5)
    step = attach_loss(run_passes(imported(model, batch=BATCH, axes=spec.batch_axes()), FORWARD_PASSES), spec.loss)
    assert step.terms[0].batch_axis == (1 if CASES[name][2] else 0)
    assert not [one for one in step.graph.warnings if "batch_axis" in one.code]


def _first(array: np.ndarray) -> np.ndarray:
    """As a data file has it: samples first."""
    return np.ascontiguousarray(np.moveaxis(array, min(1, array.ndim - 1), 0))


@pytest.mark.parametrize("name", sample(["lstm", "encoder"], {"encoder"}))
def test_the_binary_is_pytorchs(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    """Two steps, each from the module's state; then scores and logits of a data set that ends amid a batch."""
    module, model = exported(name)
    samples = 2 * BATCH + 1
    varying = CASES[name][1]
    feeds, labels = feeds_of(name, samples), labels_of(name, samples)
    bundle = compiled(model, spec_of(name), kernel_cache)
    told = {one["name"]: one.get("batch_axis", 0) for one in bundle.manifest["inputs"]}
    assert told == {varying: 1, **(SAME if name == "encoder" else {})}
    assert bundle.manifest["labels"].get("batch_axis", 0) == (1 if CASES[name][2] else 0)
    binary = StepBinary.unpack(bundle, tmp_path)
    files = {own: _first(array) if own == varying else array[None] for own, array in feeds.items()}
    before = load_file(binary.weights)
    for step in range(2):
        part = slice(step * BATCH, (step + 1) * BATCH)
        now = {**feeds, varying: feeds[varying][:, part]}
        exact, gradients = wanted(module, now, {"y": labels[..., part]}, entropy)
        data = binary.write_data({**files, varying: files[varying][part]}, _first(labels)[part])
        losses, after = binary.train(before, 1, data)
        assert losses[0] == pytest.approx(exact, rel=1e-5)
        for own, gradient in gradients.items():
            moved = (before[own] - after[own]) / 0.5
            assert np.abs(moved - gradient).max() <= 1e-5 * np.abs(gradient).max() + 2e-6, own
        module.load_state_dict({own: torch.from_numpy(after[own]) for own in module.state_dict()})
        before = after
    _check_scores(module, binary, feeds, labels, binary.write_data(files, _first(labels)))
    exported.cache_clear()


def _check_scores(module: nn.Module, binary: StepBinary, feeds: Arrays, labels: np.ndarray, data: list[object]) -> None:
    weights = binary.folder / "after.safetensors"
    (score,) = [one for one in binary.run("eval", "--weights", weights, *data) if one["event"] == "eval"]
    exact, _ = wanted(module, feeds, {"y": labels}, entropy)
    assert score["loss"] == pytest.approx(exact, rel=1e-5)
    with torch.no_grad():
        logits = module(*map(torch.from_numpy, feeds.values())).numpy()
    assert score["accuracy"] == pytest.approx((logits.argmax(-1) == labels)[labels != -100].mean())
    binary.run("infer", "--weights", weights, *data[:-2], "--out", binary.folder / "out.npy")
    first = np.moveaxis(logits, logits.ndim - 2, 0)
    np.testing.assert_allclose(np.load(binary.folder / "out.npy"), first, rtol=1e-4, atol=1e-5)
    binary.run("profile", "--weights", weights, "--steps", 2)


@pytest.mark.parametrize(
    "loss", [pytest.param({"kind": "mse"}, marks=pytest.mark.thorough), {"class_axis": 0, "label_smoothing": 0.1}]
)
def test_classes_and_numbers_may_lie_before_the_samples(
    loss: dict[str, Any], tmp_path: Path, kernel_cache: Path
) -> None:
    """The loss in the step and in a score, whichever axis comes first."""
    module, model = exported("lstm")
    rng = np.random.default_rng(6)
    feeds, axis = feeds_of("lstm", BATCH), loss.get("class_axis")
    if axis is None:
        labels: np.ndarray = rng.standard_normal((STEPS, BATCH, CLASSES)).astype(np.float32)
    else:
        labels = rng.integers(0, STEPS if axis == 0 else CLASSES, (BATCH, CLASSES) if axis == 0 else (STEPS, BATCH))

    def own(y: Tensor, target: Tensor) -> Tensor:
        if axis is None:
            return F.mse_loss(y, target)
        smoothing = loss.get("label_smoothing", 0.0)
        return F.cross_entropy(y.movedim(axis, -1).flatten(0, 1), target.flatten(), label_smoothing=smoothing)

    exact = wanted(module, feeds, {"y": labels}, own)
    spec = spec_of("lstm", {**loss, "batch_axis": 1})
    agree(found(model, spec, feeds, {"y": labels}), exact, 5e-6)
    binary = StepBinary.unpack(compiled(model, spec, kernel_cache), tmp_path)
    first = labels if axis == 0 else np.ascontiguousarray(np.moveaxis(labels, 1, 0))
    data = binary.write_data({"x": _first(feeds["x"])}, first)
    (score,) = [one for one in binary.run("eval", "--weights", binary.weights, *data) if one["event"] == "eval"]
    assert score["loss"] == pytest.approx(exact[0], rel=1e-5)


def test_what_the_file_tells_of_the_batch() -> None:
    """A symbol that speaks of the batch is taken and told; a first axis of 1 beside others is; a mask's is not."""
    nodes = [node("Add", ["x", "row"], ["a"]), node("Add", ["a", "mask"], ["b"]), node("Mul", ["b", "t"], ["y"])]
    shapes: dict[str, Any] = {"x": (STEPS, "batch_size", 4), "row": (1, 4), "mask": (STEPS, 1, 4), "t": ()}
    model = model_of(nodes, {name: ("f32", shape) for name, shape in shapes.items()})
    with pytest.raises(CompileError) as caught:
        imported(model, batch=4)
    assert "'mask'" in str(caught.value)
    assert "batch_axis" in str(caught.value)
    graph = imported(model, batch=4, axes={"mask": "none"})
    none = {"row": None, "mask": None, "t": None}
    assert {graph.name_of(value): axis for value, axis in graph.batch_axes.items()} == {"x": 1, **none}
    assert [one.where for one in graph.warnings if one.code == "model.batch_axis_assumed"] == [
        "input 'x'",
        "input 'row'",
    ]


@pytest.mark.parametrize(
    ("inputs", "where"),
    [
        ("{x: {batch_axis: 8}}", "spec.inputs.x.batch_axis"),
        ("{x: {batch_axes: 1}}", "spec.inputs.x.batch_axes"),
        ("{x: {shape: [0]}}", "spec.inputs.x.shape"),
        ("{x: 3}", "spec.inputs.x"),
    ],
)
def test_what_is_said_of_inputs_is_checked(inputs: str, where: str) -> None:
    with pytest.raises(SpecError) as caught:
        TrainingSpec.parse(f"inputs: {inputs}")
    assert caught.value.where == where


def test_the_text_of_a_spec_is_read_again() -> None:
    text = "inputs: {a: [2, 3], b: {shape: [4], batch_axis: null}, c: {batch_axis: 1}, d: {shape: [5]}}"
    spec = TrainingSpec.parse(text)
    assert TrainingSpec.parse(spec.canonical_json()) == spec
    assert spec.batch_axes() == {"b": "none", "c": 1}
    assert spec.input_shapes() == {"a": (2, 3), "b": (4,), "d": (5,)}
    assert '"inputs":{"a":[2,3],"b":{"batch_axis":null,"shape":[4]}' in spec.canonical_json()
