"""What a user's own module learns in PyTorch, in float64, beside what it learns on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from compiler.api import BuildSettings, compile_training, load_target
from compiler.bundle.archive import Bundle
from compiler.spec.documents import SparsePlan, TrainingSpec
from tests.models import export

STEPS = 6
MAX_LOSS_ERROR = 1e-5
MAX_WEIGHT_ERROR = 1e-5
"""Relative, as the losses': float32 rounds at 6e-8, and six small steps add little to it."""
State = dict[str, np.ndarray]


def images() -> nn.Module:
    """A convolution and a classifier of pictures."""
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 5))


class Words(nn.Module):
    """Integers in: a table of words, their mean, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.classifier = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.table(words).mean(dim=1)))


@dataclass(frozen=True)
class Case:
    """A module, how it is built and trained, and data for one step."""

    build: Callable[[], nn.Module]
    input_name: str
    x: np.ndarray
    y: np.ndarray
    spec: dict[str, object]
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]

    def module(self) -> nn.Module:
        """Seeded: always the same."""
        torch.manual_seed(7)
        return self.build().eval()

    def compile(self, target: str, cache: Path, **more: object) -> Bundle:
        """The bundle, with its library unless `more` says otherwise."""
        batch = int(self.spec["batch"])  # type: ignore[call-overload]
        model = export(
            self.module(), (torch.from_numpy(self.x[:batch]),), input_names=(self.input_name,), exporter="torchscript"
        )
        spec = TrainingSpec.parse({**self.spec, "threads": 2, "library": True, **more})
        settings = BuildSettings(SparsePlan.parse("full"), spec, load_target(target), cache_dir=cache)
        return compile_training(model, settings)

    def trained(self, steps: int = STEPS) -> tuple[list[float], State, np.ndarray]:
        """Losses before each update, parameters, and logits after the last, by autograd in float64."""
        module = self.module().double()
        x, y = torch.from_numpy(self.x), torch.from_numpy(self.y)
        optimizer = self.optimizer(list(module.parameters()))
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x.double() if x.is_floating_point() else x), y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        with torch.no_grad():
            logits = module(x.double() if x.is_floating_point() else x)
        return losses, {name: own.detach().numpy() for name, own in module.named_parameters()}, logits.numpy()


_RANDOM = np.random.default_rng(3)
IMAGES = Case(
    images,
    "input",
    _RANDOM.normal(size=(8, 3, 8, 8)).astype("f4"),
    _RANDOM.integers(0, 5, 8),
    {"batch": 4, "accumulate": 2, "optimizer": {"kind": "sgd", "learning_rate": 0.05, "momentum": 0.9}},
    lambda own: torch.optim.SGD(own, lr=0.05, momentum=0.9),
)
WORDS = Case(
    Words,
    "words",
    _RANDOM.integers(0, 11, (6, 4)),
    _RANDOM.integers(0, 3, 6),
    {"batch": 6, "optimizer": {"kind": "adamw", "learning_rate": 0.01, "weight_decay": 0.01}},
    lambda own: torch.optim.AdamW(own, lr=0.01, weight_decay=0.01),
)


def assert_learned(found: State, exact: State) -> None:
    """Every parameter of the module, within rounding."""
    assert set(found) == set(exact)
    for name, own in exact.items():
        error = np.linalg.norm(found[name] - own) / np.linalg.norm(own)
        assert found[name].shape == own.shape
        assert error < MAX_WEIGHT_ERROR, (name, error)


def assert_losses(found: list[float], exact: list[float]) -> None:
    """Those before each step."""
    assert len(found) == len(exact)
    np.testing.assert_allclose(found, exact, rtol=MAX_LOSS_ERROR)
