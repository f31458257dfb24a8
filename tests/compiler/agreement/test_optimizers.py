"""Optimizers, groups, clipping, micro-batches: `torch.optim` on the user's module in float64 takes the same steps."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compiler.api import BuildSettings, compile_training
from compiler.frontend.importer import import_model
from compiler.graph import Parameter
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.agreement.onnx_checks import same_on_onnx_runtime
from tests.compiler.agreement.reference import Window, what_learns
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.compiler.agreement.torch_optimizers import NAMES, optimizer_of, start_state, state_kinds
from tests.compiler.agreement.yardstick import vanishing
from tests.models import TransformerEncoder, export
from tests.sample import sample

STEPS, BATCH = 3, 4


class Images(nn.Module):
    """Convolutions of every shape that Adafactor factors in its own way, a norm, and a scale of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.depthwise = nn.Conv2d(8, 8, (3, 5), padding=(1, 2), groups=8)
        self.pointwise = nn.Conv2d(8, 12, 1, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.fc = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.norm(self.conv(x)))
        x = torch.sigmoid(self.pointwise(self.depthwise(x)) * self.scale)
        return self.fc(x.mean((2, 3)))


class Normed(nn.Module):
    """Norms that keep statistics of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.tanh(self.norm(self.conv(x))).mean((2, 3)))


def sentences() -> nn.Module:
    return TransformerEncoder(tokens=20, positions=6, width=16, heads=2, layers=1, classes=4)


def images(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.normal(size=(count, 3, 8, 8)).astype(np.float32) + 0.5


def tokens(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 20, (count, 6))


@dataclass(frozen=True)
class Case:
    module: Callable[[], nn.Module]
    optimizer: Mapping[str, Any]
    plan: str = "full"
    draw: Callable[[np.random.Generator, int], np.ndarray] = images
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def micro_batches(self) -> int:
        return int(self.more.get("accumulate", 1))


NO_DECAY = {"kind": "vector", "weight_decay": 0.0}
SLICED = "{preset: full, update: [{parameters: [pointwise.weight, fc.weight, depthwise.weight], ratio: 0.5}]}"
PART_OF_LAYER = (
    "{preset: bias-only, update: [{parameters: ['*.up.weight', '*.query.weight', embed.weight], ratio: 0.25}]}"
)

CASES: Mapping[str, Case] = {
    "nesterov": Case(
        Images,
        {"kind": "sgd", "learning_rate": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02},
        SLICED,
    ),
    "adam": Case(Images, {"kind": "adam", "weight_decay": 0.05, "beta1": 0.8}, SLICED),
    "lion": Case(Images, {"kind": "lion", "learning_rate": 1e-3, "weight_decay": 0.5, "groups": [NO_DECAY]}),
    "adafactor": Case(
        Images,
        {"kind": "adafactor", "learning_rate": 1.0, "weight_decay": 0.01, "eps2": 0.1, "beta2_decay": -0.5},
        SLICED,
    ),
    "adafactor of a transformer, by groups": Case(
        sentences,
        {
            "kind": "adafactor",
            "weight_decay": 0.1,
            "clip_norm": 0.05,
            "groups": [NO_DECAY, {"parameters": ["layers.*"], "learning_rate_factor": 0.5}],
        },
        draw=tokens,
    ),
    "adamw of a transformer, by groups and clipped": Case(
        sentences,
        {
            "kind": "adamw",
            "weight_decay": 0.3,
            "clip_norm": 0.3,
            "groups": [
                {"parameters": ["embed.weight", "position"], "learning_rate_factor": 3.0},
                NO_DECAY,
                {"parameters": ["*.up.*"], "kind": "bias", "weight_decay": 0.7},
            ],
        },
        draw=tokens,
    ),
    "lion of a part, clipped": Case(
        sentences, {"kind": "lion", "learning_rate": 1e-3, "clip_norm": 0.02}, PART_OF_LAYER, tokens
    ),
    "micro-batches and their statistics": Case(
        Normed,
        {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9, "clip_norm": 100.0},  # as it is
        more={"accumulate": 3, "batch_norm": "train"},
    ),
    "micro-batches of a part": Case(
        sentences, {"kind": "adam", "learning_rate": 1e-2}, PART_OF_LAYER, tokens, {"accumulate": 2}
    ),
}


@dataclass(frozen=True)
class Built:
    case: Case
    module: nn.Module
    windows: Mapping[str, Window]
    layouts: Mapping[str, Parameter]
    binary: StepBinary


@functools.cache
def exported(
    make: Callable[[], nn.Module], draw: Callable[[np.random.Generator, int], np.ndarray]
) -> tuple[nn.Module, bytes]:
    """A module and its file, for all cases that train it."""
    torch.manual_seed(3)
    module = make().train()
    for parameter in module.parameters():
        nn.init.normal_(parameter, mean=0.2, std=0.4)
    return module, export(
        module, (torch.from_numpy(draw(np.random.default_rng(0), BATCH)),), exporter="dynamo-unoptimized"
    )


def build(case: Case, folder: Path, cache: Path) -> Built:
    module, model = exported(case.module, case.draw)
    spec = TrainingSpec.parse({"batch": BATCH, "optimizer": dict(case.optimizer), "threads": 2, **case.more})
    plan = SparsePlan.parse(case.plan)
    settings = BuildSettings(plan=plan, spec=spec, target=load(native_target()), cache_dir=cache, jobs=1)
    graph = import_model(model, input_shapes={}, batch=BATCH, batch_norm=spec.batch_norm)
    binary = StepBinary.unpack(compile_training(model, settings), folder)
    return Built(case, module, what_learns(plan, ModuleReference.of(module)), graph.named_parameters(), binary)


class Side:
    """The author's module in one precision, and PyTorch's optimizer on what learns of it."""

    def __init__(self, built: Built, real: torch.dtype) -> None:
        self.built, self.real = built, real
        self.module = copy.deepcopy(built.module).to(real)
        own = dict(self.module.named_parameters())
        self.leaves = {name: nn.Parameter(own[name].detach()[at].clone()) for name, at in built.windows.items()}
        spec = built.case.optimizer
        self.optimizer = optimizer_of(
            spec, [{"params": [leaf], **self._settings(n)} for n, leaf in self.leaves.items()]
        )
        for leaf in self.leaves.values():
            start_state(self.optimizer, leaf, state_kinds(spec["kind"], leaf))

    def _settings(self, name: str) -> dict[str, float]:
        """Of one parameter, as the groups say."""
        spec = self.built.case.optimizer
        found: dict[str, float] = {}
        whole = dict(self.module.named_parameters())[name]
        for group in spec.get("groups", ()):
            kind = group.get("kind", "any")
            fits = whole.dim() <= 1 if kind == "vector" else kind == "any" or name.endswith("bias")
            if fits and any(fnmatchcase(name, pattern) for pattern in group.get("parameters", ["*"])):
                found |= {"weight_decay": group["weight_decay"]} if "weight_decay" in group else {}
                if "learning_rate_factor" in group:
                    rate = spec.get("learning_rate", 0.01 if spec["kind"] == "adafactor" else 1e-3)
                    found["lr"] = rate * group["learning_rate_factor"]
        return found

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and the optimizer's state, by checkpoint names and in the author's layout."""
        tensors = {n: t for n, t in self.module.state_dict().items() if not n.endswith("num_batches_tracked")}
        for name, leaf in self.leaves.items():
            kept = self.optimizer.state[leaf]
            tensors |= {f"optimizer.{NAMES[key]}.{name}": kept[key] for key in kept if key in NAMES}
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def take(self, state: Mapping[str, torch.Tensor], steps: int) -> None:
        """Go on from this state."""
        self.module.load_state_dict({n: t for n, t in state.items() if not n.startswith("optimizer.")}, strict=False)
        for name, leaf in self.leaves.items():
            leaf.data = dict(self.module.named_parameters())[name].detach()[self.built.windows[name]].clone()
            kept = self.optimizer.state[leaf]
            kept["step"] = torch.tensor(float(steps))
            for key in kept.keys() & NAMES.keys():
                kept[key] = state[f"optimizer.{NAMES[key]}.{name}"].to(self.real, copy=True)

    def step(self, x: np.ndarray, labels: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        """The loop that everybody writes; the mean loss, and the gradients before they are clipped."""
        count, total = self.built.case.micro_batches, 0.0
        self.module.zero_grad()
        for inputs, wanted in zip(np.split(x, count), np.split(labels, count), strict=True):
            given = torch.from_numpy(inputs)
            given = given.to(self.real) if given.is_floating_point() else given
            loss = F.cross_entropy(self.module(given), torch.from_numpy(wanted)) / count
            loss.backward()
            total += loss.item()
        own = dict(self.module.named_parameters())
        for name, leaf in self.leaves.items():
            gradient = own[name].grad
            leaf.grad = (torch.zeros_like(own[name]) if gradient is None else gradient)[
                self.built.windows[name]
            ].clone()
        gradients = {name: leaf.grad.numpy().copy() for name, leaf in self.leaves.items()}
        if "clip_norm" in self.built.case.optimizer:
            torch.nn.utils.clip_grad_norm_(list(self.leaves.values()), self.built.case.optimizer["clip_norm"])
        self.optimizer.step()
        with torch.no_grad():
            for name, leaf in self.leaves.items():
                own[name][self.built.windows[name]] = leaf
        return total, gradients


def inside(built: Built, name: str, array: np.ndarray) -> np.ndarray:
    """Optimizer state as checkpoints have it: unit axes that the compiler's view drops are gone, the others turned."""
    if not name.startswith("optimizer."):
        return array
    layout = built.layouts[name.split(".", 2)[2]]
    shape = iter(enumerate(layout.file_shape))
    kept = []
    for extent in layout.view_shape:
        kept.append(next((axis for axis, own in shape if own == extent), None))
    extents = [1 if axis is None else array.shape[axis] for axis in kept]
    return np.array(array.reshape(extents).transpose(layout.perm), order="C")


def is_told(built: Built, name: str, before: Mapping[str, torch.Tensor], gradient: np.ndarray) -> np.ndarray:
    """Where rounding cannot turn the step around: Adam's and Lion's depend on little more than a gradient's sign."""
    if built.case.optimizer["kind"] == "sgd":
        return np.ones(gradient.shape, bool)
    moved = gradient
    if built.case.optimizer["kind"] == "lion":
        moved = 0.9 * before[f"optimizer.exp_avg.{name}"].numpy() + 0.1 * gradient
    return np.abs(moved) > 1e-3 * float(np.sqrt(np.mean(np.square(moved)))) + 1e-7


def problems(built: Built, exact: Side, single: Side, t: int, batch: tuple[np.ndarray, np.ndarray]) -> list[str]:
    """Everything that is otherwise after a step from the reference's state."""
    before = {name: tensor.float() for name, tensor in exact.state().items()}
    for side in (exact, single):
        side.take(before, t - 1)
    x, labels = batch
    loss, gradients = exact.step(x, labels)
    single.step(x, labels)
    start = {name: inside(built, name, tensor.numpy()) for name, tensor in before.items()}
    losses, after = built.binary.train(start, 1, built.binary.write_data({"input": x}, labels), start=t - 1)
    found = [] if losses == pytest.approx([loss], rel=1e-5) else [f"loss {losses} instead of {loss}"]
    wanted, pytorch = exact.state(), single.state()
    kept = {name for name in after if not name.startswith("constant.")}
    found += [f"{name} is there on one side only" for name in sorted(kept ^ wanted.keys())]
    noise = vanishing({name: gradient.astype(np.float64) for name, gradient in gradients.items()})
    for name in sorted(kept & wanted.keys()):
        if name.rsplit("optimizer.", 1)[-1].split(".", 1)[-1] in noise or name in noise:
            continue  # Adam divides noise by noise
        old = before[name].double().numpy()
        told = np.ones(old.shape, bool)
        if name in built.windows:
            told[built.windows[name]] = is_told(built, name, before, gradients[name])
        change, other = (side[name].double().numpy() - old for side in (wanted, pytorch))
        ours = after[name].astype(np.float64)
        ours = (_outside(built, name, ours, old.shape) if name.startswith("optimizer.") else ours) - old
        found += _differs(name, ours * told, change * told, other * told, np.abs(old).max(initial=0.0))
    return found


def _outside(built: Built, name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `inside`."""
    return array.transpose(np.argsort(built.layouts[name.split(".", 2)[2]].perm)).reshape(shape)


def _differs(name: str, ours: np.ndarray, change: np.ndarray, single: np.ndarray, largest: float) -> list[str]:
    storing = largest * 2.0**-23 * np.sqrt(change.size)
    allowed = 3 * np.linalg.norm(single - change) + 1e-4 * np.linalg.norm(change) + storing
    error = float(np.linalg.norm(ours - change))
    return [] if error <= allowed else [f"{name}: {error:.3g} off, it moves by {np.linalg.norm(change):.3g}"]


def batches(case: Case) -> list[tuple[np.ndarray, np.ndarray]]:
    rng, count = np.random.default_rng(7), BATCH * case.micro_batches
    return [(case.draw(rng, count), rng.integers(0, 4, count)) for _ in range(STEPS)]


KEPT = {
    "nesterov",
    "adafactor",
    "adamw of a transformer, by groups and clipped",
    "micro-batches and their statistics",
}


@pytest.mark.parametrize("name", sample(CASES, KEPT))
def test_steps_agree_with_torch(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    built = build(CASES[name], tmp_path, kernel_cache)
    exact, single = Side(built, torch.float64), Side(built, torch.float32)
    for t, batch in enumerate(batches(built.case), 1):
        assert problems(built, exact, single, t, batch) == [], f"step {t}"
    inputs, labels = batches(built.case)[0]
    data = built.binary.write_data({"input": inputs}, labels)
    same_on_onnx_runtime(built.binary, data, noise=["layers.0.key.bias"])  # softmax does not see it
