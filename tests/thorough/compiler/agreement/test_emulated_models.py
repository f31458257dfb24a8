"""Every bench model's architecture, small, on a board's binary under emulation: it trains as PyTorch does in float64.

Convolutional nets: one step, gradient by gradient. Transformers: the losses of a few steps on one batch, which follow
every gradient, since a step's loss depends on all updates before it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.cases import CASES, classes, images
from tests.compiler.agreement.course import smooth_batch
from tests.compiler.agreement.harness import Case, Optimizer, build, problems, run_step
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.agreement.onnx_checks import onnx_problems
from tests.compiler.agreement.onnx_step import OnnxStep
from tests.compiler.agreement.step_binary import StepBinary
from tests.models import InvertedResidualNet, export, randomize_norms, transformers_model
from tests.sample import sample

QEMU = ("qemu-aarch64-static",)
LEARNING_RATE, MOMENTUM, STEPS, BATCH = 0.05, 0.9, 4, 2


def efficientnet_lite() -> Case:
    """Inverted residuals with depth-wise kernels of 3 and 5, ReLU6, no squeeze-and-excite."""
    torch.manual_seed(0)
    module = InvertedResidualNet(8, [(3, 1, 8, 1), (3, 6, 12, 2), (5, 6, 20, 2), (5, 6, 20, 1)], 32, 4)
    randomize_norms(module)
    example = torch.randn(2, 3, 32, 32)
    model = export(module.eval(), (example,))
    return Case(model, ModuleReference.folded(module), SparsePlan.parse("full"), 2, images(32), classes(4))


NETS: dict[str, tuple[Callable[[], Case], str]] = {
    "mobilenet": (CASES["mobilenet-sparse"], "raspberry-pi-4"),
    "efficientnet-lite": (efficientnet_lite, "raspberry-pi-5"),
    "mcunet": (CASES["mcunet-sparse"], "snapdragon-8-gen-2"),
    "resnet50": (CASES["resnet50-sparse"], "jetson-orin-nano"),
}
TRANSFORMERS = {
    "bert": "raspberry-pi-4",
    "distilbert": "jetson-orin-nano",
    "vit": "raspberry-pi-5",
    "gpt2": "raspberry-pi-4",
    "llama": "snapdragon-8-gen-2",
}


@pytest.mark.parametrize("name", sample(NETS, {"mcunet"}))
def test_a_convolutional_net_steps_as_in_float64(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    make, board = NETS[name]
    built = build(make(), board, tmp_path, kernel_cache, QEMU)
    optimizer = Optimizer(built)
    weights = {key: array.astype(np.float64) for key, array in built.reference.initial().items()}
    state = optimizer.fresh(weights)
    result = run_step(built, optimizer, weights, state, 1, smooth_batch(built, weights, 1))
    assert not problems(built, result)
    assert not onnx_problems(built, optimizer, result, 1)


def pytorch_losses(module: nn.Module, inputs: tuple[torch.Tensor, ...], labels: torch.Tensor) -> list[float]:
    """Losses of SGD with momentum in float64, before each step."""
    wide = copy.deepcopy(module).double()
    optimizer = torch.optim.SGD(wide.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    feeds = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    losses = []
    for _ in range(STEPS):
        logits = wide(*feeds)
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", sample(TRANSFORMERS, {"gpt2", "llama"}))
def test_a_transformer_learns_as_in_float64(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    module, draw, names = transformers_model(name)
    inputs = draw(BATCH)
    with torch.no_grad():
        shape = module(*inputs).shape
    labels = torch.randint(0, shape[-1], shape[:-1])
    spec = TrainingSpec.parse(
        {"batch": BATCH, "optimizer": {"kind": "sgd", "learning_rate": LEARNING_RATE, "momentum": MOMENTUM}}
    )
    model = export(module, inputs, input_names=names)
    bundle = compile_training(
        model,
        BuildSettings(
            plan=SparsePlan.parse("full"), spec=spec, target=load(TRANSFORMERS[name]), cache_dir=kernel_cache
        ),
    )
    binary = StepBinary.unpack(bundle, tmp_path, QEMU)
    data = binary.write_data(dict(zip(names, (t.numpy() for t in inputs), strict=True)), labels.numpy())
    options = ("--steps", STEPS, "--order", "sequential", *data)
    found = [event["loss"] for event in binary.run("train", "--weights", binary.weights, *options) if "loss" in event]
    wanted = pytorch_losses(module, inputs, labels)
    assert abs(wanted[-1] - wanted[0]) > 1e-2, "the steps change the loss: the comparison sees gradients"
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    feeds = dict(zip(names, (t.numpy() for t in inputs), strict=True))
    own, _ = OnnxStep.of(binary.folder).train(binary.checkpoint(), [(feeds, labels.numpy())] * STEPS)
    np.testing.assert_allclose(own, wanted, rtol=1e-5)
