"""Whole training steps through CUDA, on a GPU that is played: they do what PyTorch's autograd does in float64.

What runs is a target's own binary, with the CUDA text of its kernels as C++ on this CPU (played_gpu.py). That shows
what kernels and runtime compute, and most barriers that are missing; not what NVIDIA's compiler, driver or GPUs do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement import test_micro_batches as micro_batches
from tests.compiler.agreement.cases import CASES
from tests.compiler.agreement.course import smooth_batch
from tests.compiler.agreement.harness import Case, Optimizer, StepResult, build, problems, run_step
from tests.compiler.agreement.played_gpu import Memory, Order, PlayedGpu, build_driver
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.compiler.agreement.test_opencl import LANGUAGE_MODELS, NETS
from tests.compiler.runtime.drivers import logged
from tests.models import export, transformers_model
from tests.sample import sample
from tests.thorough.compiler.agreement.test_emulated_models import BATCH, LEARNING_RATE, MOMENTUM, STEPS, pytorch_losses

TARGET = "x86-64-v3/cuda"
KEPT = {"mlp-full", "digits-cnn-full", "encoder-sparse", "mobilenet-ratio"}
OTHER_GPUS: Sequence[tuple[Memory, Order]] = (
    ("discrete", "descending"),
    ("integrated", "ascending"),
    ("integrated", "descending"),
    ("coherent", "descending"),
)
"""Than one with memory of its own that runs items and groups in order."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def gpu(driver: Path, tmp_path: Path) -> PlayedGpu:
    return PlayedGpu(driver, tmp_path / "kernels")


def settings_of(case: Case, cache: Path) -> BuildSettings:
    """As the harness builds it."""
    return BuildSettings(plan=case.plan, spec=case.spec, target=load(TARGET), cache_dir=cache, jobs=1)


@pytest.mark.parametrize("name", sample(NETS, KEPT))
def test_a_net_steps_as_in_float64_on_every_gpu(name: str, gpu: PlayedGpu, tmp_path: Path, kernel_cache: Path) -> None:
    case, log = CASES[name](), tmp_path / "log"
    built = build(case, TARGET, tmp_path / "bundle", kernel_cache, gpu.runner(log=log))
    gpu.play(case.model, settings_of(case, kernel_cache))
    optimizer = Optimizer(built)
    weights = {key: array.astype(np.float64) for key, array in built.reference.initial().items()}
    result = run_step(built, optimizer, weights, optimizer.fresh(weights), 1, smooth_batch(built, weights, 1))
    assert not problems(built, result)
    assert len(logged(log, "graph")) == len(log.read_text().splitlines()) == 1, "a step is one graph"
    for memory, order in OTHER_GPUS:
        other = replace(built.binary, runner=gpu.runner(memory, order))
        assert not differences(result, other), f"{memory}, {order}"


def differences(result: StepResult, binary: StepBinary) -> list[str]:
    """What the same step leaves otherwise with another binary."""
    losses, after = binary.train(result.before, 1, binary.write_data(*result.batch))
    loss = [] if losses == [result.loss] else ["loss"]
    return loss + [name for name, array in result.after.items() if after[name].tobytes() != array.tobytes()]


@pytest.mark.parametrize("name", sample(LANGUAGE_MODELS, ()))
def test_a_language_model_learns_as_in_float64(name: str, gpu: PlayedGpu, tmp_path: Path, kernel_cache: Path) -> None:
    module, draw, names = transformers_model(name)
    inputs = draw(BATCH)
    with torch.no_grad():
        shape = module(*inputs).shape
    labels = torch.randint(0, shape[-1], shape[:-1])
    optimizer = {"kind": "sgd", "learning_rate": LEARNING_RATE, "momentum": MOMENTUM}
    spec = TrainingSpec.parse({"batch": BATCH, "optimizer": optimizer})
    model = export(module, inputs, input_names=names)
    settings = BuildSettings(SparsePlan.parse("full"), spec, load(TARGET), cache_dir=kernel_cache)
    binary = StepBinary.unpack(compile_training(model, settings), tmp_path / "bundle", gpu.runner())
    gpu.play(model, settings)
    feeds = dict(zip(names, (t.numpy() for t in inputs), strict=True))
    found = losses(binary, feeds, labels.numpy())
    wanted = pytorch_losses(module, inputs, labels)
    assert abs(wanted[-1] - wanted[0]) > 1e-2, "the steps change the loss: the comparison sees gradients"
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for memory, order in OTHER_GPUS:
        other = replace(binary, runner=gpu.runner(memory, order))
        assert losses(other, feeds, labels.numpy()) == found, f"{memory}, {order}"


def losses(binary: StepBinary, feeds: Mapping[str, np.ndarray], labels: np.ndarray) -> list[float]:
    """Of a few steps on one batch."""
    options = ("--steps", STEPS, "--order", "sequential", *binary.write_data(feeds, labels))
    return [event["loss"] for event in binary.run("train", "--weights", binary.weights, *options) if "loss" in event]


@pytest.mark.parametrize("memory", ["discrete", "integrated"])
def test_all_programs_do_what_a_cpus_do(memory: Memory, gpu: PlayedGpu, tmp_path: Path, kernel_cache: Path) -> None:
    """A step of two micro-batches that draws at random, validation, and answers."""
    model, log = micro_batches.model(drops=True), tmp_path / "log"
    optimizer = {"kind": "adam", "learning_rate": 0.02}
    spec = TrainingSpec.parse(
        {"batch": micro_batches.BATCH, "accumulate": 2, "dropout": "train", "optimizer": optimizer}
    )
    settings = BuildSettings(SparsePlan.parse("full"), spec, load(TARGET), cache_dir=kernel_cache, jobs=1)
    gpu.play(model, settings)
    there = StepBinary.unpack(compile_training(model, settings), tmp_path / "gpu", gpu.runner(memory, log=log))
    on_cpu = replace(settings, target=load(native_target()))
    here = StepBinary.unpack(compile_training(model, on_cpu), tmp_path / "cpu")
    for found, wanted in zip(outcome(there), outcome(here), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert len(set(logged(log, "graph"))) == 3, "a graph of each program"


def outcome(binary: StepBinary) -> tuple[np.ndarray, ...]:
    """Losses of steps, losses on what they do not see, and answers after them."""
    data = binary.write_data({"input": micro_batches.X}, micro_batches.LABELS)
    after, answers = binary.folder / "after.safetensors", binary.folder / "answers.npy"
    events = binary.run(
        "train", "--weights", binary.weights, "--steps", STEPS, "--validation", 0.25, "--save", after, *data
    )
    binary.run("infer", "--weights", after, "--out", answers, *data[:2])
    steps, validations = (
        np.array([event["loss"] for event in events if event["event"] == kind]) for kind in ("step", "validation")
    )
    assert len(steps) == STEPS
    assert len(validations) > 0
    return steps, validations, np.load(answers)
