"""A residual block whose 3x3 convolutions take Winograd by default: one step, gradient by gradient, against float64.

The limit for each gradient is the harness's: three times PyTorch's own float32 distance from float64, and 2e-6.
"""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.api import BuildSettings, compile_training
from compiler.call_passes import call_passes
from compiler.codegen.conv.plan import method_of
from compiler.frontend.importer import import_model
from compiler.kernels.spec import ConvSpec
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step, make_programs
from compiler.spec.documents import SparsePlan
from compiler.step.plan import resolve_plan
from compiler.targets import load_cpu
from tests.compiler.agreement.cases import classes, images
from tests.compiler.agreement.course import smooth_batch
from tests.compiler.agreement.harness import Case, Optimizer, build, problems, run_step
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.agreement.step_binary import native_target
from tests.models import export
from tests.sample import sample

QEMU = ("qemu-aarch64-static",)
BOARDS = ("raspberry-pi-4", "raspberry-pi-5")
"""Cortex-A72 and A76."""


class ResidualNet(nn.Module):
    """A strided stem, a residual block of two 3x3 convolutions, global pool, classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1)
        self.first = nn.Conv2d(32, 48, 3, 1, 1)
        self.second = nn.Conv2d(48, 32, 3, 1, 1)
        self.classifier = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.second(torch.relu(self.first(x))))
        return self.classifier(x.mean((2, 3)))


@pytest.fixture(scope="module")
def case() -> Case:
    torch.manual_seed(0)
    module = ResidualNet().eval()
    model = export(module, (torch.randn(2, 3, 32, 32),))
    return Case(model, ModuleReference.of(module), SparsePlan.parse("full"), 2, images(32), classes(4))


def winograd_kinds(case: Case, target: str) -> list[str]:
    """What the step's convolutions compute by Winograd's algorithm."""
    graph = import_model(case.model, input_shapes={}, batch=case.batch, batch_norm=case.batch_norm)
    forward = run_passes(graph, FORWARD_PASSES)
    training = derive_training_step(forward, resolve_plan(forward, case.plan), case.spec)
    train = make_programs(forward, training, call_passes(load_cpu(target)))[0][0]
    specs = [call.spec for call in train.calls if isinstance(call.spec, ConvSpec)]
    return [spec.kind for spec in specs if method_of(spec, load_cpu(target), None)]


@pytest.mark.parametrize("target", sample([native_target(), *BOARDS], {native_target()}))
def test_steps_as_in_float64(case: Case, target: str, tmp_path: Path, kernel_cache: Path) -> None:
    assert sorted(winograd_kinds(case, target)) == sorted(2 * ["forward", "input_grad", "weight_grad"])
    built = build(case, target, tmp_path, kernel_cache, QEMU if target in BOARDS else ())
    optimizer = Optimizer(built)
    weights = {key: array.astype(np.float64) for key, array in built.reference.initial().items()}
    state = optimizer.fresh(weights)
    assert not problems(built, run_step(built, optimizer, weights, state, 1, smooth_batch(built, weights, 1)))


@pytest.mark.parametrize("convolutions", ["fast", "direct"])
def test_a_spec_can_forbid_it(case: Case, convolutions: Literal["fast", "direct"], kernel_cache: Path) -> None:
    """There is one way only to schedule a direct convolution, so that tuning is not offered any."""
    spec = replace(case, convolutions=convolutions).spec
    bundle = compile_training(
        case.model, BuildSettings(plan=case.plan, spec=spec, target=load_cpu(native_target()), cache_dir=kernel_cache)
    )
    with tarfile.open(fileobj=io.BytesIO(bundle.data)) as archive:
        member = archive.extractfile("kernels.json")
        assert member is not None
        offered = [kernel["spec"] for kernel in json.load(member)["kernels"]]
    assert any(spec.startswith("ConvSpec") for spec in offered) == (convolutions == "fast")
