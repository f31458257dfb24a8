"""What a few steps of SGD with momentum on one batch come to, by PyTorch's autograd in float64, and how far float32 is.

A float64's course is what a GPU's is held against; what PyTorch's own float32 is off, in two orders of evaluation, says
how near it can be. Both run on a CPU, where the steps are built.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.frameworks.steps import MOMENTUM
from benchmarks.gpu.carried import Course
from benchmarks.gpu.fingerprint import fingerprint
from benchmarks.gpu.models import learn
from benchmarks.gpu.seeded import Arrays
from compiler.graph import Parameter
from tests.compiler.agreement.module_reference import Throughout

STEPS = 3
"""The loss of a step depends on the updates before it."""
States = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Lesson:
    """A module, what of it learns and how fast, and the batch. `layouts`: how checkpoints hold momenta."""

    module: nn.Module
    learned: Sequence[str]
    learning_rate: float
    feeds: Arrays
    labels: NDArray[np.int64]
    layouts: dict[str, Parameter]


@dataclass(frozen=True)
class Outcome:
    """After the last step; momenta lie as in checkpoints, what moved lies as in the module."""

    losses: list[float]
    momenta: States
    moved: States


def course_of(lesson: Lesson) -> Course:
    """What the steps come to."""
    exact = outcome(lesson, torch.float64)
    own = dict.fromkeys(lesson.learned, 0.0)
    for is_turned in (False, True):
        single = outcome(lesson, torch.float32, is_turned=is_turned)
        for name in lesson.learned:
            own[name] = max(own[name], float(np.linalg.norm(single.momenta[name] - exact.momenta[name])))
    return Course(
        losses=tuple(exact.losses),
        learned=tuple(lesson.learned),
        gradients={name: fingerprint(name, exact.momenta[name]) for name in lesson.learned},
        moved={name: fingerprint(name, exact.moved[name]) for name in lesson.learned},
        sizes={name: float(np.linalg.norm(exact.momenta[name])) for name in lesson.learned},
        own_errors=own,
        moves={name: float(np.linalg.norm(exact.moved[name])) for name in lesson.learned},
    )


def outcome(lesson: Lesson, real: torch.dtype, *, is_turned: bool = False) -> Outcome:
    """In one precision. `is_turned`: in another order of evaluation, samples reversed and channels last."""
    module = copy.deepcopy(lesson.module).to(real)
    if is_turned:
        module = module.to(memory_format=torch.channels_last)
    learning = learn(module, lesson.learned)
    before = {name: one.detach().clone() for name, one in learning.items()}
    feeds = [_tensor(array, real, is_turned=is_turned) for array in lesson.feeds.values()]
    labels = _tensor(lesson.labels, real, is_turned=is_turned).reshape(-1)
    optimizer = torch.optim.SGD(learning.values(), lr=lesson.learning_rate, momentum=MOMENTUM)
    losses = [_step(module, optimizer, feeds, labels, real) for _ in range(STEPS)]
    momenta = {
        name: lesson.layouts[name].to_inside(optimizer.state[one]["momentum_buffer"].double().contiguous().numpy())
        for name, one in learning.items()
    }
    moved = {name: (one.detach() - before[name]).double().contiguous().numpy() for name, one in learning.items()}
    return Outcome(losses, momenta, moved)


def _step(
    module: nn.Module, optimizer: torch.optim.Optimizer, feeds: Sequence[Tensor], labels: Tensor, real: torch.dtype
) -> float:
    with Throughout(real):
        logits = module(*feeds)
    loss = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.item())


def _tensor(array: NDArray[np.generic], real: torch.dtype, *, is_turned: bool) -> Tensor:
    tensor = torch.from_numpy(array[::-1].copy() if is_turned else array)
    return tensor.to(real) if tensor.is_floating_point() else tensor
