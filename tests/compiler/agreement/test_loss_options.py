"""Options of losses: PyTorch's functions in float64 on the module, the binary's steps and scores, and the ONNX step."""

from __future__ import annotations

from functools import cache, partial
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
from tests.compiler.agreement.losses import Wanted, agree, compiled, found, onnx_found, wanted
from tests.compiler.agreement.step_binary import StepBinary
from tests.compiler.frontend.onnx_graphs import imported
from tests.models import export
from tests.sample import sample

BATCH, WIDTH, CLASSES, PLACES = 4, 6, 5, 3
WEIGHTS = [0.5, 2.0, 0.0, 1.25, 3.0]
W = torch.tensor(WEIGHTS, dtype=torch.float64)


class Tagger(nn.Module):
    """A class for each of some places, [N, places, classes], and numbers; `axis` moves the classes."""

    def __init__(self, axis: int = 2) -> None:
        super().__init__()
        self.body, self.head, self.numbers, self.axis = (
            nn.Linear(WIDTH, 8),
            nn.Linear(8, CLASSES),
            nn.Linear(8, 3),
            axis,
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.body(x))
        return self.head(hidden).movedim(2, self.axis), self.numbers(hidden)


@cache
def tagger(axis: int = 2, scale: float = 1.0) -> tuple[Tagger, bytes]:
    torch.manual_seed(4)
    module = Tagger(axis)
    with torch.no_grad():
        module.head.weight *= scale
    x = torch.zeros(BATCH, PLACES, WIDTH)
    return module, export(module.eval(), (x,), input_names=("x",), output_names=("tags", "numbers"))


def drawn(ignored: int = -100, samples: int = BATCH) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    labels = rng.integers(0, CLASSES, (samples, PLACES))
    labels[rng.random(labels.shape) < 0.25] = ignored
    return {
        "x": rng.standard_normal((samples, PLACES, WIDTH)).astype(np.float32),
        "y": labels,
        "numbers": rng.standard_normal((samples, PLACES, 3)).astype(np.float32),
        "soft": rng.random((samples, PLACES, CLASSES)).astype(np.float32),
    }


def spec_of(loss: object) -> TrainingSpec:
    optimizer = {"kind": "sgd", "learning_rate": 0.5}
    return TrainingSpec.parse({"batch": BATCH, "loss": loss, "optimizer": optimizer, "threads": 2})


def by_class(**options: Any) -> Wanted:
    return lambda tags, numbers, y: F.cross_entropy(tags.flatten(0, 1), y.flatten(), **options)


def on_numbers(function: Any, **options: Any) -> Wanted:
    return lambda tags, numbers, y: function(numbers, y, **options)


def on_soft(**options: Any) -> Wanted:
    return lambda tags, numbers, y: F.binary_cross_entropy_with_logits(tags, y, **options)


ONE: dict[str, tuple[dict[str, Any], str, Wanted]] = {
    "ignored class": ({"ignore_index": 2}, "y", by_class(ignore_index=2)),
    "ignored number": ({"ignore_index": -7}, "y", by_class(ignore_index=-7)),
    "ignored beyond": ({"ignore_index": 255}, "y", by_class(ignore_index=255)),
    "smoothing": ({"label_smoothing": 0.1}, "y", by_class(label_smoothing=0.1)),
    "weights": ({"class_weights": WEIGHTS}, "y", by_class(weight=W)),
    "all of it": (
        {"class_weights": WEIGHTS, "label_smoothing": 0.2, "ignore_index": 0},
        "y",
        by_class(weight=W, label_smoothing=0.2, ignore_index=0),
    ),
    "all of it, a sum": (
        {"class_weights": WEIGHTS, "label_smoothing": 0.2, "ignore_index": 0, "reduction": "sum"},
        "y",
        by_class(weight=W, label_smoothing=0.2, ignore_index=0, reduction="sum"),
    ),
    "mse, a sum": ({"kind": "mse", "reduction": "sum"}, "numbers", on_numbers(F.mse_loss, reduction="sum")),
    "l1, a sum": ({"kind": "l1", "reduction": "sum"}, "numbers", on_numbers(F.l1_loss, reduction="sum")),
    "huber, a sum": (
        {"kind": "huber", "delta": 0.4, "reduction": "sum"},
        "numbers",
        on_numbers(F.huber_loss, delta=0.4, reduction="sum"),
    ),
    "smooth l1": ({"kind": "smooth_l1", "beta": 0.3}, "numbers", on_numbers(F.smooth_l1_loss, beta=0.3)),
    "smooth l1 of 0": ({"kind": "smooth_l1", "beta": 0}, "numbers", on_numbers(F.smooth_l1_loss, beta=0.0)),
    "bce, positives": ({"kind": "bce_with_logits", "pos_weight": 3}, "soft", on_soft(pos_weight=torch.tensor(3.0))),
    "bce, all": (
        {"kind": "bce_with_logits", "pos_weight": WEIGHTS, "class_weights": WEIGHTS[::-1], "reduction": "sum"},
        "soft",
        on_soft(pos_weight=W, weight=W.flip(0), reduction="sum"),
    ),
}


def of_case(name: str, samples: int = BATCH) -> tuple[dict[str, Any], dict[str, np.ndarray], np.ndarray, Wanted]:
    """The loss, and what it reads: inputs and labels."""
    loss, array, want = ONE[name]
    data = drawn(loss.get("ignore_index", -100), samples)
    output = {"output": "numbers" if array == "numbers" else "tags"}
    return {**output, **loss}, {"x": data["x"]}, data[array], want


@pytest.mark.parametrize("name", sample(ONE, {"weights", "all of it, a sum", "smooth l1", "bce, all", "huber, a sum"}))
def test_a_loss_is_pytorchs_function(name: str) -> None:
    """Value and every gradient, of our step and of its ONNX file in ONNX Runtime."""
    loss, feeds, labels, want = of_case(name)
    module, model = tagger()
    exact = wanted(module, feeds, {"y": labels}, want)
    agree(found(model, spec_of(loss), feeds, {"y": labels}), exact)
    agree(onnx_found(model, spec_of(loss), feeds, {"y": labels}), exact, 2e-5)


@pytest.mark.parametrize("options", [{"class_weights": WEIGHTS}, {"label_smoothing": 0.1}, {"ignore_index": 1}])
def test_classes_may_lie_elsewhere(options: dict[str, Any]) -> None:
    module, model = tagger(axis=1)
    data = drawn(options.get("ignore_index", -100))
    told = {"class_weights": "weight"}
    given = {told.get(key, key): W if key == "class_weights" else value for key, value in options.items()}
    exact = wanted(module, {"x": data["x"]}, {"y": data["y"]}, lambda t, n, y: F.cross_entropy(t, y, **given))
    loss = {"output": "tags", "class_axis": 1, **options}
    agree(found(model, spec_of(loss), {"x": data["x"]}, {"y": data["y"]}), exact)


@pytest.mark.parametrize("options", [{}, {"class_weights": WEIGHTS}, {"label_smoothing": 0.5, "ignore_index": 4}])
def test_a_batch_of_ignored_labels_teaches_nothing(options: dict[str, Any]) -> None:
    """PyTorch's mean of none is NaN; ours is 0, and so is every gradient."""
    _, model = tagger()
    labels = np.full((BATCH, PLACES), options.get("ignore_index", -100))
    loss, gradients = found(model, spec_of({"output": "tags", **options}), {"x": drawn()["x"]}, {"y": labels})
    assert loss == 0
    assert all((gradient == 0).all() for gradient in gradients.values())


@pytest.mark.parametrize("name", ["bce, all", "all of it", "smoothing"])
def test_huge_logits_stay_finite(name: str) -> None:
    """No exponential overflows, and nothing is NaN."""
    module, model = tagger(scale=1e4)
    loss, feeds, labels, want = of_case(name)
    agree(found(model, spec_of(loss), feeds, {"y": labels}), wanted(module, feeds, {"y": labels}, want))


ALL: dict[str, Any] = {
    "terms": [
        {**ONE["all of it"][0], "output": "tags"},
        {"kind": "smooth_l1", "beta": 0.3, "output": "numbers", "labels": "numbers", "weight": 2, "reduction": "sum"},
        {**ONE["bce, all"][0], "output": "tags", "labels": "soft", "weight": 0.5},
        {"output": "tags", "ignore_index": 0, "weight": 0.25},
        {"kind": "huber", "output": "numbers", "labels": "numbers"},
        {"kind": "l1", "output": "numbers", "labels": "numbers", "weight": 0.75},
        {"kind": "mse", "output": "numbers", "labels": "numbers", "weight": 1.5},
    ]
}


def summed(tags: Tensor, numbers: Tensor, y: Tensor, wanted_numbers: Tensor, soft: Tensor, share: float = 1) -> Tensor:
    """`share`: of what is added up, how much belongs to one batch."""
    terms = [
        ONE["all of it"][2](tags, numbers, y),
        2 * share * F.smooth_l1_loss(numbers, wanted_numbers, beta=0.3, reduction="sum"),
        0.5 * share * ONE["bce, all"][2](tags, numbers, soft),
        0.25 * by_class(ignore_index=0)(tags, numbers, y),
        F.huber_loss(numbers, wanted_numbers),
        0.75 * F.l1_loss(numbers, wanted_numbers),
        1.5 * F.mse_loss(numbers, wanted_numbers),
    ]
    return torch.stack(terms).sum()


def test_the_binary_trains_and_scores_them_all(tmp_path: Path, kernel_cache: Path) -> None:
    """Losses that share labels, step by step from its own state; a data set's score, of whole and part batches."""
    module, model = tagger()
    data = drawn(0, 2 * BATCH + 1)
    arrays = {name: data[name] for name in ("y", "numbers", "soft")}
    binary = StepBinary.unpack(compiled(model, spec_of(ALL), kernel_cache), tmp_path)
    for name, array in data.items():
        np.save(tmp_path / f"{name}.npy", array)
    words = ["--input", f"x={tmp_path / 'x.npy'}"]
    words += [word for name in arrays for word in ("--labels", f"{name}={tmp_path / name}.npy")]
    before = load_file(binary.weights)
    for step in range(2):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        for name, array in data.items():
            np.save(tmp_path / f"{name}.npy", array[rows])
        exact, gradients = wanted(module, {"x": data["x"][rows]}, {name: a[rows] for name, a in arrays.items()}, summed)
        losses, after = binary.train(before, 1, words)
        assert losses[0] == pytest.approx(exact, rel=1e-5)
        for name, gradient in gradients.items():
            moved = (before[name] - after[name]) / 0.5
            assert np.abs(moved - gradient).max() <= 1e-5 * np.abs(gradient).max() + 2e-6, name
        module.load_state_dict({name: torch.from_numpy(after[name]) for name in module.state_dict()})
        before = after
    for name, array in data.items():
        np.save(tmp_path / f"{name}.npy", array)
    (score,) = [
        event
        for event in binary.run("eval", "--weights", tmp_path / "after.safetensors", *words)
        if event["event"] == "eval"
    ]
    share = BATCH / len(data["x"])
    exact, _ = wanted(module, {"x": data["x"]}, arrays, partial(summed, share=share))
    assert score["loss"] == pytest.approx(exact, rel=1e-5)
    with torch.no_grad():
        tags = module(torch.from_numpy(data["x"]))[0].numpy()
    counted = data["y"] != 0
    assert score["accuracy"] == pytest.approx((tags.argmax(2) == data["y"])[counted].mean())
    tagger.cache_clear()


@pytest.mark.parametrize(
    ("loss", "where", "message"),
    [
        ({"class_weights": [1, 2]}, "spec.loss.class_weights", "2 numbers, and there are 5 classes"),
        ({"kind": "bce_with_logits", "pos_weight": [1, 2]}, "spec.loss.pos_weight", "5 classes"),
        ({"kind": "bce_with_logits", "class_axis": 3, "pos_weight": [1] * 5}, "spec.loss.class_axis", "rank is 3"),
        (
            {"terms": [{}, {"ignore_index": 3}]},
            "spec.loss.terms[1].ignore_index",
            "'y' ignores -100, this one 3",
        ),
        ({"kind": "next_token", "output": "tags", "labels": "x"}, "spec.loss.labels", "array of its own"),
        ({"kind": "mse", "batch_axis": 1}, "spec.loss.batch_axis", "does not have the batch, 4, in axis 1"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(loss: dict[str, Any], where: str, message: str) -> None:
    _, model = tagger()
    with pytest.raises(SpecError) as caught:
        attach_loss(imported(model, batch=BATCH), spec_of(loss).loss)
    assert caught.value.where == where
    assert message in str(caught.value)
