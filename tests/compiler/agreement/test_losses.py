"""Every kind of loss and sums of them: PyTorch's functions in float64 on the module, and what a data set scores."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from torch import Tensor, nn

from compiler.errors import SpecError
from compiler.spec.documents import TrainingSpec
from compiler.step.loss import attach_loss
from tests.compiler.agreement.losses import Wanted, agree, compiled, found, wanted
from tests.compiler.agreement.onnx_checks import same_on_onnx_runtime
from tests.compiler.agreement.step_binary import StepBinary
from tests.compiler.frontend.onnx_graphs import imported
from tests.models import export
from tests.sample import sample

BATCH, WIDTH, CLASSES = 4, 6, 5


class Heads(nn.Module):
    """Classes, boxes and a hidden mean, as a detector has them; `scale` makes the answers huge."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.body, self.classes, self.boxes = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES), nn.Linear(8, 3)
        self.scale = scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = torch.tanh(self.body(x))
        return self.classes(hidden) * self.scale, self.boxes(hidden) * self.scale, (hidden * hidden).mean()


class WithLoss(nn.Module):
    """Its targets are inputs, and its first output is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = Heads()

    def forward(self, x: Tensor, boxes: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        classes, found, _ = self.heads(x)
        error = (F.smooth_l1_loss(found, boxes, reduction="none", beta=0.5).sum(1) * kept).sum() / kept.sum().clamp(
            min=1
        )
        return error + 0.1 * torch.logsumexp(classes, 1).mean(), classes


def exported(module: nn.Module, *inputs: Tensor, names: tuple[str, ...]) -> bytes:
    return export(module.eval(), inputs, input_names=names[: len(inputs)], output_names=names[len(inputs) :])


@cache
def heads(scale: float = 1.0) -> tuple[Heads, bytes]:
    torch.manual_seed(2)
    module = Heads(scale)
    return module, exported(module, torch.zeros(BATCH, WIDTH), names=("x", "classes", "boxes", "mean"))


def drawn(samples: int = BATCH) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "x": rng.standard_normal((samples, WIDTH)).astype(np.float32),
        "y": rng.integers(0, CLASSES, samples),
        "boxes": rng.standard_normal((samples, 3)).astype(np.float32),
        "soft": rng.random((samples, CLASSES)).astype(np.float32),
    }


def spec_of(loss: object) -> TrainingSpec:
    body: dict[str, Any] = {
        "batch": BATCH,
        "loss": loss,
        "optimizer": {"kind": "sgd", "learning_rate": 0.5},
        "threads": 2,
    }
    return TrainingSpec.parse(body)


ONE: dict[str, tuple[dict[str, object], str, Wanted]] = {
    "mse": ({"kind": "mse", "output": "boxes"}, "boxes", lambda c, b, m, y: F.mse_loss(b, y)),
    "l1": ({"kind": "l1", "output": "boxes"}, "boxes", lambda c, b, m, y: F.l1_loss(b, y)),
    "huber": ({"kind": "huber", "output": "boxes"}, "boxes", lambda c, b, m, y: F.huber_loss(b, y)),
    "huber 0.3": (
        {"kind": "huber", "output": "boxes", "delta": 0.3},
        "boxes",
        lambda c, b, m, y: F.huber_loss(b, y, delta=0.3),
    ),
    "bce": (
        {"kind": "bce_with_logits", "output": "classes"},
        "soft",
        lambda c, b, m, y: F.binary_cross_entropy_with_logits(c, y),
    ),
    "cross-entropy": ({"output": "classes"}, "y", lambda c, b, m, y: F.cross_entropy(c, y)),
}


@pytest.mark.parametrize("scale", sample([1.0, 1000.0, 0.0], {"1000.0", "0.0"}))
@pytest.mark.parametrize("name", ONE)
def test_a_loss_is_pytorchs_function(name: str, scale: float) -> None:
    """Also of answers in the thousands, and of answers that are all 0; nothing is NaN (`agree` would see it)."""
    loss, array, want = ONE[name]
    module, model = heads(scale)
    data = drawn()
    feeds, labels = {"x": data["x"]}, {"y": data[array]}
    exact = wanted(module, feeds, labels, want)
    agree(found(model, spec_of(loss), feeds, labels, exact[1]), exact)


def test_answers_equal_to_the_labels_have_pytorchs_gradient() -> None:
    """At the kinks: an error of 0, and one of exactly delta."""
    module, model = heads()
    with torch.no_grad():
        x = torch.zeros(BATCH, WIDTH)
        boxes = module.double()(x.double())[1].float().numpy().astype(np.float64)
    module.float()
    boxes[1:3] += 0.25
    for kind, own in (("l1", F.l1_loss), ("huber", lambda b, y: F.huber_loss(b, y, delta=0.25))):
        loss = {"kind": kind, "output": "boxes", **({"delta": 0.25} if kind == "huber" else {})}
        exact = wanted(module, {"x": x.numpy()}, {"y": boxes}, lambda c, b, m, y, own=own: own(b, y))
        agree(found(model, spec_of(loss), {"x": x.numpy()}, {"y": boxes}, exact[1]), exact, 1e-5)


SUM = {
    "terms": [
        {"kind": "cross_entropy", "output": "classes"},
        {"kind": "huber", "output": "boxes", "labels": "boxes", "weight": 2.5, "delta": 0.5},
        {"kind": "bce_with_logits", "output": "classes", "labels": "soft", "weight": 0.25},
        {"kind": "cross_entropy", "output": "classes", "weight": 0.5},
        {"kind": "graph", "output": "mean", "weight": 3},
    ]
}


def summed(classes: Tensor, boxes: Tensor, mean: Tensor, y: Tensor, wanted_boxes: Tensor, soft: Tensor) -> Tensor:
    box = 2.5 * F.huber_loss(boxes, wanted_boxes, delta=0.5)
    return 1.5 * F.cross_entropy(classes, y) + box + 0.25 * F.binary_cross_entropy_with_logits(classes, soft) + 3 * mean


def test_a_sum_of_losses_is_the_sum() -> None:
    """Over three outputs and three arrays of labels, of which two losses share one."""
    module, model = heads()
    data = drawn()
    labels = {name: data[name] for name in ("y", "boxes", "soft")}
    agree(found(model, spec_of(SUM), {"x": data["x"]}, labels), wanted(module, {"x": data["x"]}, labels, summed))


def targets(samples: int = BATCH) -> dict[str, np.ndarray]:
    data = drawn(samples)
    kept = (np.random.default_rng(6).random(samples) < 0.6).astype(np.float32)
    return {"x": data["x"], "boxes": data["boxes"], "kept": kept}


@cache
def with_loss() -> tuple[WithLoss, bytes]:
    torch.manual_seed(3)
    module = WithLoss()
    inputs = (torch.zeros(BATCH, WIDTH), torch.zeros(BATCH, 3), torch.ones(BATCH))
    return module, exported(module, *inputs, names=("x", "boxes", "kept", "loss", "classes"))


def test_the_graphs_own_loss_is_minimised() -> None:
    module, model = with_loss()
    feeds = targets()
    want = wanted(module, feeds, {}, lambda loss, classes: loss)
    agree(found(model, spec_of({"kind": "graph", "output": "loss"}), feeds, {}), want)


def test_the_binary_trains_and_scores_a_sum(tmp_path: Path, kernel_cache: Path) -> None:
    """The mean over the data set's whole batches, since one of the losses is of a batch; `infer` gives the classes."""
    module, model = heads()
    data = drawn(2 * BATCH + 1)
    arrays = {name: data[name] for name in ("y", "boxes", "soft")}
    bundle = compiled(model, spec_of(SUM), kernel_cache)
    assert [entry["name"] for entry in bundle.manifest["labels"]] == ["y", "boxes", "soft"]
    assert (bundle.manifest["loss"], len(bundle.manifest["terms"])) == ("sum", 5)
    binary = StepBinary.unpack(bundle, tmp_path)
    for name, array in data.items():
        np.save(tmp_path / f"{name}.npy", array)
    words = ["--input", f"x={tmp_path / 'x.npy'}"]
    labelled = [word for name in arrays for word in ("--labels", f"{name}={tmp_path / name}.npy")]
    before = load_file(binary.weights)
    losses, after = binary.train(before, 1, [*words, *labelled])
    same_on_onnx_runtime(binary, [*words, *labelled])
    first = {name: array[:BATCH] for name, array in arrays.items()}
    exact, gradients = wanted(module, {"x": data["x"][:BATCH]}, first, summed)
    assert losses[0] == pytest.approx(exact, rel=1e-5)
    for name, gradient in gradients.items():
        moved = (before[name] - after[name]) / 0.5
        assert np.abs(moved - gradient).max() <= 1e-5 * np.abs(gradient).max() + 1e-6, name
    (score,) = [
        one for one in binary.run("eval", "--weights", binary.weights, *words, *labelled) if one["event"] == "eval"
    ]
    whole = {name: array[: 2 * BATCH] for name, array in data.items()}
    exact, _ = wanted(module, {"x": whole["x"]}, {name: whole[name] for name in arrays}, summed)
    assert score["samples"] == 2 * BATCH
    assert score["loss"] == pytest.approx(exact, rel=1e-5)
    with torch.no_grad():
        classes = module(torch.from_numpy(data["x"]))[0]
    hits = (classes.argmax(1).numpy() == data["y"])[: 2 * BATCH]
    assert score["accuracy"] == pytest.approx(hits.mean())
    binary.run("infer", "--weights", binary.weights, *words, "--out", tmp_path / "out.npy")
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), classes.numpy(), rtol=1e-4, atol=1e-5)
    binary.run("profile", "--weights", binary.weights, "--steps", 2)


def test_the_binary_minimises_the_graphs_own_loss(tmp_path: Path, kernel_cache: Path) -> None:
    module, model = with_loss()
    bundle = compiled(model, spec_of({"kind": "graph", "output": "loss"}), kernel_cache)
    assert (bundle.manifest["labels"], bundle.manifest["loss"]) == ([], "graph")
    assert bundle.manifest["outputs"][0]["name"] == "classes"
    binary = StepBinary.unpack(bundle, tmp_path)
    feeds = targets()
    words = []
    for name, array in feeds.items():
        np.save(tmp_path / f"{name}.npy", array)
        words += ["--input", f"{name}={tmp_path / name}.npy"]
    before = load_file(binary.weights)
    losses, after = binary.train(before, 1, words)
    same_on_onnx_runtime(binary, words)
    exact, gradients = wanted(module, feeds, {}, lambda loss, classes: loss)
    assert losses[0] == pytest.approx(exact, rel=1e-5)
    for name, gradient in gradients.items():
        moved = (before[name] - after[name]) / 0.5
        assert np.abs(moved - gradient).max() <= 1e-5 * np.abs(gradient).max() + 1e-6, name
    (score,) = [one for one in binary.run("eval", "--weights", binary.weights, *words) if one["event"] == "eval"]
    assert (score["samples"], score["accuracy"]) == (BATCH, None)
    assert score["loss"] == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "where", "message"),
    [
        ({"kind": "graph", "output": "boxes"}, "spec.loss.output", "one number"),
        (
            {"terms": [{"output": "classes"}, {"kind": "mse", "output": "boxes"}]},
            "spec.loss.terms[1].labels",
            "own array",
        ),
        ({"terms": [{"kind": "l1", "output": "box"}]}, "spec.loss.terms[0].output", "classes, boxes, mean"),
        ({"terms": [{"output": "classes", "class_axis": 3}]}, "spec.loss.terms[0].class_axis", "rank is 2"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(loss: object, where: str, message: str) -> None:
    _, model = heads()
    with pytest.raises(SpecError) as caught:
        attach_loss(imported(model, batch=BATCH), spec_of(loss).loss)
    assert caught.value.where == where
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("loss", "where"),
    [
        ("{kind: graph, labels: y}", "spec.loss.labels"),
        ("{kind: mse, delta: 2}", "spec.loss.delta"),
        ("{kind: mse, weight: 2}", "spec.loss.weight"),
        ("{kind: mse, terms: [{kind: mse}]}", "spec.loss.kind"),
        ("{terms: [{kind: huber, delta: 0}]}", "spec.loss.terms[0].delta"),
        ("{terms: [{weight: -1}]}", "spec.loss.terms[0].weight"),
        ("{terms: [" + "{kind: mse}," * 17 + "]}", "spec.loss.terms"),
        ("{terms: [" + ",".join(f"{{labels: l{i}}}" for i in range(9)) + "]}", "spec.loss.terms"),
    ],
)
def test_fields_that_a_loss_does_not_read_are_refused(loss: str, where: str) -> None:
    with pytest.raises(SpecError) as caught:
        TrainingSpec.parse(f"loss: {loss}")
    assert caught.value.where == where


def test_the_text_of_a_spec_is_read_again_and_older_digests_stay() -> None:
    for loss in (SUM, *(one[0] for one in ONE.values())):
        spec = spec_of(loss)
        assert TrainingSpec.parse(spec.canonical_json()) == spec
    # What these specs had before there were terms: bundles and jobs are known by it.
    assert TrainingSpec.parse("").digest == "sha256:" + EMPTY
    assert '"loss":{"kind":"mse","output":"a"}' in TrainingSpec.parse("loss: {kind: mse, output: a}").canonical_json()


EMPTY = "3010631b037f69ebc831ec0a980a4db6aa4b66876301aba043683d442cdfdc0d"
