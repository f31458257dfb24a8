"""A step of several micro-batches as its binary runs it: draws, data, checkpoints, profile; and as exported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.api import BuildSettings, compile_training
from compiler.bundle.archive import Bundle
from compiler.errors import SpecError
from compiler.export.training import export_training
from compiler.frontend.importer import import_model
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.plan import resolve_plan
from compiler.step.training import TrainingGraph
from compiler.targets import load
from tests.compiler.agreement.onnx_checks import same_on_onnx_runtime
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.compiler.export.test_training_export import _run
from tests.models import export
from tests.sample import sample

BATCH = 3
RNG = np.random.default_rng(5)
X, LABELS = RNG.normal(size=(8 * BATCH, 10)).astype(np.float32), RNG.integers(0, 4, 8 * BATCH)


def model(*, drops: bool) -> bytes:
    torch.manual_seed(0)
    middle = nn.Dropout(0.5) if drops else nn.Tanh()
    module = nn.Sequential(nn.Linear(10, 16), middle, nn.Linear(16, 4)).train()
    return export(module, (torch.randn(BATCH, 10),), exporter="dynamo-unoptimized")


def build(cache: Path, plan: str = "full", *, drops: bool = True, **spec: object) -> Bundle:
    parsed = TrainingSpec.parse({"batch": BATCH, "dropout": "train", **spec})
    settings = BuildSettings(
        plan=SparsePlan.parse(plan), spec=parsed, target=load(native_target()), cache_dir=cache, jobs=1
    )
    return compile_training(model(drops=drops), settings)


@pytest.fixture(scope="module")
def bundle(kernel_cache: Path) -> Bundle:
    return build(kernel_cache, accumulate=2, optimizer={"kind": "adam", "learning_rate": 0.02})


@pytest.fixture
def binary(bundle: Bundle, tmp_path: Path) -> StepBinary:
    return StepBinary.unpack(bundle, tmp_path / "several")


def test_every_micro_batch_draws_for_itself(binary: StepBinary, kernel_cache: Path, tmp_path: Path) -> None:
    """What steps of one batch draw, one after the other, on the same data and with weights that stay."""
    same = np.tile(X[:BATCH], (6, 1)), np.tile(LABELS[:BATCH], 6)
    single = StepBinary.unpack(build(kernel_cache, optimizer={"kind": "sgd"}), tmp_path / "one")
    start = single.checkpoint()
    apart, _ = single.train(start, 6, single.write_data({"input": same[0]}, same[1]), learning_rate=0, batch_seed=4)
    assert len(set(apart)) == 6
    together, _ = binary.train(start, 3, binary.write_data({"input": same[0]}, same[1]), learning_rate=0, batch_seed=4)
    assert together == pytest.approx(np.reshape(apart, (3, 2)).mean(1), rel=1e-6)


def test_a_run_goes_on_from_its_checkpoint(binary: StepBinary) -> None:
    """Three steps of two batches are one and two; no checkpoint holds what is added up within a step."""
    start = {name: array for name, array in binary.checkpoint().items() if not name.startswith("constant.")}
    losses, whole = binary.train(start, 3, binary.write_data({"input": X}, LABELS))
    first, middle = binary.train(start, 1, binary.write_data({"input": X}, LABELS))
    rest, after = binary.train(middle, 2, binary.write_data({"input": X[2 * BATCH :]}, LABELS[2 * BATCH :]), start=1)
    assert [*first, *rest] == losses
    assert not any("accumulated" in name for name in whole)
    for name, array in whole.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)


def test_channels_that_are_copied_learn_of_all_micro_batches(kernel_cache: Path, tmp_path: Path) -> None:
    """Both programs have constants of their own: the places of the channels."""
    plan = "{update: [{parameters: '2.bias', channels: {indices: [1, 3], along: output}}]}"
    made = build(kernel_cache, plan, drops=False, accumulate=2, optimizer={"kind": "sgd", "learning_rate": 0.5})
    binary = StepBinary.unpack(made, tmp_path / "copied")
    start = binary.checkpoint()
    w = {name: torch.from_numpy(array).double() for name, array in start.items() if not name.startswith("constant.")}
    bias = w["2.bias"].clone().requires_grad_()
    hidden = torch.tanh(torch.from_numpy(X[: 2 * BATCH]).double() @ w["0.weight"].T + w["0.bias"])
    labels = torch.from_numpy(LABELS[: 2 * BATCH])
    nn.functional.cross_entropy(hidden @ w["2.weight"].T + bias, labels).backward()
    assert bias.grad is not None
    wanted = w["2.bias"] - 0.5 * bias.grad * torch.tensor([0, 1, 0, 1])
    _, after = binary.train(start, 1, binary.write_data({"input": X}, LABELS))
    np.testing.assert_allclose(after["2.bias"], wanted.numpy(), rtol=1e-5, atol=1e-6)
    assert all(np.array_equal(after[name], start[name]) for name in start if name != "2.bias")
    assert np.array_equal(after["2.bias"][[0, 2]], start["2.bias"][[0, 2]])


def test_a_profile_is_of_whole_steps(bundle: Bundle, binary: StepBinary) -> None:
    data = binary.write_data({"input": X}, LABELS)
    events = binary.run("profile", "--weights", binary.weights, "--steps", 4, "--warmup", 1, *data)
    kernels = [event for event in events if event["event"] == "kernel"]
    manifest, info = bundle.manifest, binary.run("info")[0]
    assert (manifest["micro_batches"], info["micro_batches"]) == (2, 2)
    assert (manifest["batch"], info["batch"]) == (2 * BATCH, BATCH)
    assert [kernel["name"] for kernel in kernels] == [kernel["name"] for kernel in manifest["kernels"]]
    assert [kernel["flops"] for kernel in kernels] == [kernel["flops"] for kernel in manifest["kernels"]]
    assert len(kernels) == len(info["kernels"]) + len(info["accumulate_kernels"])
    assert len([event for event in events if event["event"] == "step"]) == 4
    same_on_onnx_runtime(binary, data, seed=3)
    overhead = next(event for event in events if event["event"] == "overhead")
    assert overhead["calls"] == len(kernels)


# ------------------------------------------------------------------------------------------------- mean over labels

WEIGHTS = [0.2, 1.0, 3.0, 0.5]
PLACES = 5


class Tagger(nn.Module):
    """Classes of the places of a sequence, the batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(10, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


def ignoring(labels: np.ndarray, ignored: int) -> np.ndarray:
    """None of the labels of the first micro-batch counts, few of the second, all of the third."""
    some = labels.copy()
    some[:BATCH] = ignored
    some[BATCH : 2 * BATCH].reshape(-1)[1:] = ignored
    return some


SAMPLES = 3 * BATCH
LONG = RNG.normal(size=(SAMPLES, PLACES, 10)).astype(np.float32)
TAGS = RNG.integers(0, 4, (SAMPLES, PLACES))
COUNTED: dict[str, tuple[dict[str, object], np.ndarray, np.ndarray]] = {
    "ignored": ({"kind": "cross_entropy", "ignore_index": 3}, X[:SAMPLES], ignoring(LABELS[:SAMPLES], 3)),
    "weights": ({"kind": "cross_entropy", "class_weights": WEIGHTS}, X[:SAMPLES], LABELS[:SAMPLES]),
    "both, smoothed": (
        {"kind": "cross_entropy", "class_weights": WEIGHTS, "label_smoothing": 0.1},
        LONG,
        ignoring(TAGS, -100),
    ),
    "next": ({"kind": "next_token"}, LONG, ignoring(TAGS, -100)),
    "none": ({"kind": "cross_entropy"}, X[:SAMPLES], np.full(SAMPLES, -100)),
}


def all_at_once(module: nn.Module, loss: Mapping[str, Any], x: np.ndarray, labels: np.ndarray) -> Tensor:
    """The loss of all samples as one batch, by PyTorch in float64."""
    logits, classes = module(torch.from_numpy(x).double()), torch.from_numpy(labels)
    if loss["kind"] == "next_token":
        logits, classes = logits[:, :-1], classes[:, 1:]
    return nn.functional.cross_entropy(
        logits.flatten(0, -2),
        classes.flatten(),
        torch.tensor(loss["class_weights"]).double() if "class_weights" in loss else None,
        ignore_index=loss.get("ignore_index", -100),
        label_smoothing=loss.get("label_smoothing", 0.0),
    )


@pytest.mark.parametrize("name", sample(COUNTED, {"ignored", "both, smoothed", "next"}))
def test_a_mean_over_labels_is_that_of_one_batch(name: str, kernel_cache: Path, tmp_path: Path) -> None:
    """Loss and gradients of a step, and what `eval` reports, which the mean of means is not."""
    loss, x, labels = COUNTED[name]
    torch.manual_seed(0)
    module = Tagger()
    spec = {"batch": BATCH, "loss": loss, "accumulate": {"steps": 3, "mean": "labels"}, "threads": 2}
    spec |= {"optimizer": {"kind": "sgd", "learning_rate": 0.5, "clip_norm": 1e6}}
    file = export(module, (torch.from_numpy(x[:BATCH]),), exporter="dynamo-unoptimized")
    settings = BuildSettings(
        plan=SparsePlan.parse("full"),
        spec=TrainingSpec.parse(spec),
        target=load(native_target()),
        cache_dir=kernel_cache,
        jobs=1,
    )
    binary = StepBinary.unpack(compile_training(file, settings), tmp_path)
    data = binary.write_data({"input": x}, labels)
    losses, after = binary.train(binary.checkpoint(), 2, data)
    same_on_onnx_runtime(binary, data)
    module.double()
    for number, lost in enumerate(losses):
        wanted = all_at_once(module, loss, x, labels)
        counts = bool((labels != loss.get("ignore_index", -100)).any())
        assert lost == pytest.approx(wanted.item() if counts else 0.0, rel=1e-5), f"step {number}"
        if counts:
            gradients = torch.autograd.grad(wanted, list(module.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                    parameter -= 0.5 * gradient
    for parameter, value in module.named_parameters():
        np.testing.assert_allclose(after[parameter], value.detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=parameter)
    if (labels != loss.get("ignore_index", -100)).any():
        events = binary.run("eval", "--weights", binary.weights, *data)
        (evaluated,) = [event for event in events if event["event"] == "eval"]
        assert evaluated["loss"] == pytest.approx(losses[0], rel=1e-5)


SAID: dict[str, tuple[dict[str, object], str]] = {
    "ignore_index": ({"loss": {"ignore_index": 3}}, "(ignore_index 3)"),
    "weights": ({"loss": {"class_weights": WEIGHTS}}, "(class_weights)"),
    "plain": ({}, ""),
    "summed": ({"loss": {"ignore_index": 3, "reduction": "sum"}}, ""),
    "one": ({"loss": {"ignore_index": 3}, "accumulate": 1}, ""),
    "labels": ({"loss": {"ignore_index": 3}, "accumulate": {"steps": 2, "mean": "labels"}}, ""),
}


@pytest.mark.parametrize("name", SAID)
def test_a_mean_of_means_is_told_where_it_is_another_loss(name: str) -> None:
    spec, reason = SAID[name]
    warnings = derive(BATCH, 2, **spec).graph.warnings
    messages = [warning.message for warning in warnings if warning.code == "loss.mean_of_means"]
    assert [reason in message for message in messages] == [True] * bool(reason)


REFUSED = {
    "sum": ({"reduction": "sum"}, "reduction: sum"),
    "other labels": ({"terms": [{"ignore_index": 3}, {"labels": "z"}]}, "count different labels"),
    "numbers beside classes": ({"terms": [{}, {"kind": "l1", "labels": "z"}]}, "count different labels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_losses_that_have_no_mean_over_labels_are_refused(name: str) -> None:
    loss, reason = REFUSED[name]
    with pytest.raises(SpecError, match=reason) as problem:
        derive(BATCH, 2, loss=loss, accumulate={"steps": 2, "mean": "labels"})
    assert problem.value.where == "spec.accumulate"


# ------------------------------------------------------------------------------------------------------------- export


def derive(batch: int, micro_batches: int, **more: object) -> TrainingGraph:
    optimizer = {"kind": "lion", "clip_norm": 0.1}
    spec = TrainingSpec.parse({"batch": batch, "accumulate": micro_batches, "optimizer": optimizer, **more})
    graph = import_model(model(drops=False), input_shapes={}, batch=batch, batch_norm="fold")
    graph = run_passes(graph, FORWARD_PASSES)
    return derive_training_step(graph, resolve_plan(graph, SparsePlan.parse("full")), spec)


def feeds(step: TrainingGraph, part: slice, more: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    own = {step.graph.name_of(value): array for value, array in step.graph.arrays.items()}
    zeros = {
        step.graph.name_of(value): np.zeros(step.graph.types[value].shape, np.float32)
        for value in (*step.optimizer_state, *step.accumulators)
    }
    rate = {"hyper.learning_rate": np.asarray(0.1, np.float32)}
    return {**own, **zeros, **rate, "input": X[part], "labels": LABELS[part], **more}


def test_exported_micro_batches_are_a_batch_of_all_of_them() -> None:
    """Feeding the sums of one run to the next does what a step on all samples at once does."""
    step, whole = derive(BATCH, 3), derive(3 * BATCH, 1)
    before = step.accumulation
    assert before is not None
    assert whole.accumulation is None
    kept: dict[str, np.ndarray] = {}
    losses = []
    for number in range(2):
        part = slice(number * BATCH, (number + 1) * BATCH)
        found = _run(export_training(before), feeds(before, part, kept))
        losses.append(found["loss"])
        kept = {before.graph.name_of(own): found[f"{before.graph.name_of(own)}'"] for own in before.accumulators}
    last = _run(export_training(step), feeds(step, slice(2 * BATCH, 3 * BATCH), kept))
    at_once = _run(export_training(whole), feeds(whole, slice(0, 3 * BATCH), {}))
    assert np.mean([*losses, last["loss"]]) == pytest.approx(float(at_once["loss"]), rel=1e-6)
    assert len(whole.updates) == 8
    for updated in map(whole.graph.name_of, whole.updates.values()):
        np.testing.assert_allclose(last[updated], at_once[updated], rtol=1e-5, atol=1e-7, err_msg=updated)
