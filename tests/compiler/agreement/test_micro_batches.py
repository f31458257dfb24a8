"""A step of several micro-batches as its binary runs it: draws, data, checkpoints, profile; and as exported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from compiler.api import BuildSettings, compile_training
from compiler.bundle.archive import Bundle
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


# ------------------------------------------------------------------------------------------------------------- export


def derive(batch: int, micro_batches: int) -> TrainingGraph:
    spec = TrainingSpec.parse(
        {"batch": batch, "accumulate": micro_batches, "optimizer": {"kind": "lion", "clip_norm": 0.1}}
    )
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
