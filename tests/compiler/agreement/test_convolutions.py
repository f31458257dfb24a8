"""Nets with convolutions and pools of every kind: three steps against the module itself in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compiler.spec.documents import SparsePlan
from tests.compiler.agreement.course import course, run_step_at
from tests.compiler.agreement.harness import Case, build, problems
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.agreement.onnx_checks import ten_steps_on_onnx_runtime
from tests.compiler.agreement.step_binary import native_target
from tests.models import export, randomize_norms
from tests.sample import sample

BATCH, CLASSES = 3, 4
HALF = """
name: half
preset: full
update:
  - {parameters: [%s], ratio: 0.4}
"""


class Channels(nn.Module):
    """Groups of every width: joined, wide, one per channel with several filters each, 1x1 with a shuffle behind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.narrow = nn.Conv2d(16, 16, 3, padding=1, groups=8, bias=False)
        self.wide = nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=2)
        self.point = nn.Conv2d(32, 24, 1, groups=4)
        self.multiplied = nn.Conv2d(24, 48, (3, 5), padding=(0, 2), groups=24)
        self.dilated = nn.Conv2d(48, 20, 3, padding=3, dilation=3, groups=4)
        self.head = nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        x = F.silu(self.wide(x + self.narrow(x)))
        x = self.point(x).unflatten(1, (4, 6)).transpose(1, 2).flatten(1, 2)
        return self.head(torch.tanh(self.dilated(F.silu(self.multiplied(x)))).mean((2, 3)))


class Sensor(nn.Module):
    """Rows: a causal TCN block, a DS-CNN block, every pool of rank 1."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(6, 16, 5, stride=2, padding=2)
        self.causal = nn.Conv1d(16, 16, 3, dilation=4)
        self.depthwise = nn.Conv1d(16, 16, 7, padding=3, groups=16)
        self.point = nn.Conv1d(16, 24, 1, bias=False)
        self.grouped = nn.Conv1d(24, 24, 3, padding=1, groups=6)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.stem(x))
        x = x + torch.tanh(self.causal(F.pad(x, (8, 0))))
        x = F.silu(self.point(self.depthwise(x)))
        x = F.max_pool1d(x, 3, 2, padding=1) + F.avg_pool1d(x, 3, 2, padding=1)
        x = F.lp_pool1d(self.grouped(x), 2, 2)
        return self.head(F.adaptive_avg_pool1d(x, 1).flatten(1))


class Volumes(nn.Module):
    """Rank 3: dense, grouped, depth-wise, strided and dilated along the depth; pools; a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv3d(2, 8, 3, stride=(1, 2, 2), padding=1)
        self.deep = nn.Conv3d(8, 8, 3, stride=(2, 1, 1), padding=(2, 1, 1), dilation=(2, 1, 1), groups=2)
        self.depthwise = nn.Conv3d(8, 8, (3, 3, 2), padding=1, groups=8, bias=False)
        self.point = nn.Conv3d(8, 12, 1)
        self.up = nn.ConvTranspose3d(12, 6, 3, stride=2, padding=1, output_padding=1)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.deep(F.silu(self.stem(x))))
        x = F.max_pool3d(x, (2, 2, 2), stride=(1, 2, 2)) + F.avg_pool3d(x, 2, stride=(1, 2, 2))
        x = torch.tanh(self.up(F.silu(self.point(self.depthwise(x)))))
        return self.head(F.adaptive_max_pool3d(x, 1).flatten(1) + x.mean((2, 3, 4)))


class Upward(nn.Module):
    """Transposed convolutions: a generator's from a vector, a U-Net's with a skip, grouped, depth-wise, dilated."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.ConvTranspose2d(10, 16, 4)
        self.up = nn.ConvTranspose2d(16, 12, 4, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.grouped = nn.ConvTranspose2d(12, 8, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.depthwise = nn.ConvTranspose2d(8, 8, 2, stride=2, groups=8)
        self.dilated = nn.ConvTranspose2d(16, 4, 3, dilation=2, padding=1)
        self.row = nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.up(F.silu(self.project(x[:, :, None, None])))))
        x = torch.tanh(self.grouped(x))
        x = torch.cat([self.depthwise(F.silu(self.down(x))), x], 1)
        return self.head(torch.tanh(self.row(self.dilated(x).mean(2))).mean(2))


class Hyper(nn.Module):
    """Weights that a layer makes: from parameters alone, and from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=1)
        self.latent = nn.Parameter(torch.randn(5))
        self.fixed, self.dynamic = nn.Linear(5, 8 * 4 * 9), nn.Linear(8, 8 * 9)
        self.upward = nn.Linear(8, 8 * 3 * 4)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        x = F.silu(F.conv2d(x, self.fixed(self.latent).view(8, 4, 3, 3), padding=1, groups=2))
        seen = x.mean((0, 2, 3))
        x = x + torch.tanh(F.conv2d(x, self.dynamic(seen).view(8, 1, 3, 3), padding=1, groups=8))
        return self.head(F.conv_transpose2d(x, self.upward(seen).view(8, 3, 2, 2), stride=2).mean((2, 3)))


@dataclass(frozen=True)
class Net:
    """A module, the shape of one sample, the plan, and what becomes of its norms."""

    module: Callable[[], nn.Module]
    shape: tuple[int, ...]
    plan: str = "full"
    folded: bool = False


NETS: Mapping[str, Net] = {
    "groups": Net(Channels, (3, 9, 10)),
    "groups, part of the channels": Net(Channels, (3, 9, 10), HALF % "wide.weight, point.weight, multiplied.weight"),
    "rows, part of the channels": Net(Sensor, (6, 41), HALF % "causal.weight, depthwise.weight, grouped.weight"),
    "volumes": Net(Volumes, (2, 7, 10, 9)),
    "transposed, norms folded": Net(Upward, (10,), folded=True),
    "transposed, part of the channels": Net(Upward, (10,), HALF % "up.weight, grouped.weight, row.weight"),
    "weights made at run time": Net(Hyper, (2, 7, 8)),
}


def _folded(module: nn.Module) -> ModuleReference:
    """Norms that our import folds: their biases are called as the module's other ones."""
    reference = ModuleReference.folded(module, example=(torch.zeros(1, 10),))
    names = {name.replace("weight_bias", "bias"): own for name, own in reference.names.items()}
    return replace(reference, names=names)


def _case(net: Net) -> Case:
    torch.manual_seed(5)
    module = net.module()
    randomize_norms(module)
    module.eval()
    model = export(module, (torch.randn(BATCH, *net.shape),), exporter="dynamo-unoptimized")
    reference = _folded(module) if net.folded else ModuleReference.of(module)

    def feeds(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
        return {"input": rng.normal(size=(batch, *net.shape)).astype(np.float32)}

    def labels(rng: np.random.Generator, batch: int) -> np.ndarray:
        return rng.integers(0, CLASSES, batch)

    plan = SparsePlan.parse(net.plan)
    return Case(model, reference, plan, BATCH, feeds, labels, batch_norm="fold" if net.folded else "frozen")


KEPT = {
    "transposed, part of the channels",
    "weights made at run time",
}


@pytest.mark.parametrize("name", sample(NETS, KEPT))
def test_steps_agree_with_float64(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    built = build(_case(NETS[name]), native_target(), tmp_path, kernel_cache)
    for at in course(built, 3):
        assert not problems(built, run_step_at(built, at))
    ten_steps_on_onnx_runtime(built)
