"""Whole training steps through OpenCL, on PoCL: they do what PyTorch's autograd does in float64, as the CPU's do.

Convolutional nets and encoders: one step, gradient by gradient. Language models: the losses of a few steps on one
batch, which follow every gradient, since a step's loss depends on all updates before it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import GridTarget, Target, load
from tests.compiler.agreement.cases import CASES
from tests.compiler.agreement.course import smooth_batch
from tests.compiler.agreement.harness import Optimizer, build, problems, run_step
from tests.compiler.agreement.step_binary import StepBinary
from tests.models import export, transformers_model
from tests.sample import sample
from tests.thorough.compiler.agreement.test_emulated_models import BATCH, LEARNING_RATE, MOMENTUM, STEPS, pytorch_losses

TARGET = "x86-64-v3/opencl"
BOARDS = ("aarch64/opencl", "snapdragon-8-gen-2/opencl")
NETS = (
    "mobilenet-full",
    "mobilenet-sparse",
    "mobilenet-ratio",
    "mobilenet-bias-only",
    "mcunet-sparse",
    "resnet18-full",
    "resnet18-sparse",
    "resnet18-frozen-norms",
    "resnet50-sparse",
    "mlp-full",
    "mlp-last-layer-adamw",
    "digits-cnn-full",
    "encoder-full",
    "encoder-full-adamw",
    "encoder-sparse",
    "encoder-bias-only",
    "authored-rezero",
)
KEPT = {"digits-cnn-full"}
LANGUAGE_MODELS = ("bert", "distilbert", "vit", "gpt2", "llama")


def assert_steps_as_in_float64(name: str, target: Target, folder: Path, cache: Path) -> None:
    built = build(CASES[name](), target, folder, cache)
    optimizer = Optimizer(built)
    weights = {key: array.astype(np.float64) for key, array in built.reference.initial().items()}
    state = optimizer.fresh(weights)
    result = run_step(built, optimizer, weights, state, 1, smooth_batch(built, weights, 1))
    assert not problems(built, result)


@pytest.mark.parametrize("name", sample(NETS, KEPT))
def test_a_net_steps_as_in_float64(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    assert_steps_as_in_float64(name, load(TARGET), tmp_path, kernel_cache)


@pytest.mark.parametrize("board", sample(BOARDS, {"aarch64/opencl"}))
def test_a_boards_kernels_step_as_in_float64(board: str, tmp_path: Path, kernel_cache: Path) -> None:
    """The board's plan and the text of its kernels, driven by a program for this machine."""
    here, there = cast(GridTarget, load(TARGET)), cast(GridTarget, load(board))
    assert_steps_as_in_float64("digits-cnn-full", replace(there, host=here.host), tmp_path, kernel_cache)


@pytest.mark.parametrize("name", sample(LANGUAGE_MODELS, ()))
def test_a_language_model_learns_as_in_float64(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    module, draw, names = transformers_model(name)
    inputs = draw(BATCH)
    with torch.no_grad():
        shape = module(*inputs).shape
    labels = torch.randint(0, shape[-1], shape[:-1])
    optimizer = {"kind": "sgd", "learning_rate": LEARNING_RATE, "momentum": MOMENTUM}
    spec = TrainingSpec.parse({"batch": BATCH, "optimizer": optimizer})
    model = export(module, inputs, input_names=names)
    settings = BuildSettings(SparsePlan.parse("full"), spec, load(TARGET), cache_dir=kernel_cache)
    binary = StepBinary.unpack(compile_training(model, settings), tmp_path)
    data = binary.write_data(dict(zip(names, (t.numpy() for t in inputs), strict=True)), labels.numpy())
    options = ("--steps", STEPS, "--order", "sequential", *data)
    found = [event["loss"] for event in binary.run("train", "--weights", binary.weights, *options) if "loss" in event]
    wanted = pytorch_losses(module, inputs, labels)
    assert abs(wanted[-1] - wanted[0]) > 1e-2, "the steps change the loss: the comparison sees gradients"
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
