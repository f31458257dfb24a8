"""A large last product, whose gradient is made over its output: PyTorch's steps, from little more than that output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compiler.api import compile_training
from compiler.errors import DoesNotFit
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.models import export

BATCH, FEATURES, WIDTH = 256, 8, 2048
OUTPUT_BYTES = BATCH * WIDTH * 4
RATE = 0.5
PLAN = SparsePlan.of_preset("full")
Case = tuple[Callable[[Tensor, Tensor], Tensor], float]
LOSSES: Mapping[str, Case] = {
    "cross_entropy": (F.cross_entropy, 1.5),
    "mse": (F.mse_loss, 2.5),  # labels of the size of the output lie beside it
    "bce_with_logits": (F.binary_cross_entropy_with_logits, 2.5),
}
"""Kind -> PyTorch's function, and how many outputs a step may hold."""


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, WIDTH)


def settings(kind: str, batch: int = BATCH, limit_bytes: int | None = None) -> BuildSettings:
    document = {
        "batch": batch,
        "loss": {"kind": kind},
        "optimizer": {"kind": "sgd", "learning_rate": RATE},
        "memory_limit_bytes": limit_bytes,
    }
    return BuildSettings(PLAN, TrainingSpec.parse(document), load(native_target()))


def model(batch: int = BATCH) -> bytes:
    return export(module(), (torch.zeros(batch, FEATURES),), input_names=("x",), output_names=("scores",))


def labels(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    if kind == "cross_entropy":
        return torch.randint(0, WIDTH, (BATCH,), generator=generator)
    return torch.rand(BATCH, WIDTH, generator=generator)


@pytest.mark.parametrize("kind", LOSSES)
def test_steps_are_pytorchs_and_hold_one_output(kind: str, tmp_path: Path) -> None:
    function, outputs = LOSSES[kind]
    bundle = compile_training(model(), settings(kind))
    assert bundle.manifest["memory"]["arena_bytes"] < outputs * OUTPUT_BYTES
    step = StepBinary.unpack(bundle, tmp_path)
    x, y = torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(1)), labels(kind)
    losses, after = step.train(step.checkpoint(), 2, step.write_data({"x": x.numpy()}, y.numpy()))
    net = module().double()
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    for loss in losses:
        optimizer.zero_grad()
        wanted = function(net(x.double()), y if y.dtype == torch.int64 else y.double())
        wanted.backward()
        optimizer.step()
        assert loss == pytest.approx(wanted.item(), rel=1e-5)
    for name, tensor in net.state_dict().items():
        np.testing.assert_allclose(after[name], tensor.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("batch", "lowers"), [(BATCH, True), (1, False)])
def test_a_limit_that_cannot_hold_it_is_refused_by_the_loss_and_its_bytes(batch: int, lowers: bool) -> None:
    with pytest.raises(DoesNotFit) as refused:
        compile_training(model(batch), settings("cross_entropy", batch, limit_bytes=50_000))
    hint = refused.value.hint
    assert f"(for the loss cross_entropy) {batch * WIDTH * 4:,}" in hint
    assert ("lower the batch" in hint) == lowers
