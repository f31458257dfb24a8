"""Compares a compiled training step with PyTorch in float64, step by step, each step from the reference's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import torch

from compiler.api import compile_training
from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.plan import UpdatePlan, UpdateSlice, resolve_plan
from compiler.spec import SparsePlan, TrainingSpec
from tests.compiler.agreement.step_binary import StepBinary
from tests.compiler.agreement.torch_reference import Reference

STEPS = 20
State = dict[str, np.ndarray]
Batch = tuple[dict[str, np.ndarray], np.ndarray]

MAX_LOSS_ERROR = 1e-5
GRADIENT_FACTOR = 3.0
GRADIENT_FLOOR = 2e-6
"""Sixteen roundings: correct orders of evaluation differ by this much where a small gradient is a sum that cancels."""
KINK_MARGIN = 2e-6
MAX_DRAWS = 40


@dataclass(frozen=True)
class Case:
    """A model, a plan, an optimizer and data."""

    model: bytes
    plan: SparsePlan
    batch: int
    feeds: Callable[[np.random.Generator, int], dict[str, np.ndarray]]
    labels: Callable[[np.random.Generator, int], np.ndarray]
    optimizer: Mapping[str, object] = field(
        default_factory=lambda: {"kind": "sgd", "learning_rate": 0.01, "momentum": 0.9}
    )

    batch_norm: Literal["fold", "frozen"] = "fold"
    convolutions: Literal["fast", "direct"] = "fast"

    @property
    def spec(self) -> TrainingSpec:
        return TrainingSpec.parse(
            {
                "batch": self.batch,
                "optimizer": dict(self.optimizer),
                "threads": 2,
                "batch_norm": self.batch_norm,
                "convolutions": self.convolutions,
            }
        )

    def draw(self, seed: int) -> Batch:
        """One seeded batch."""
        rng = np.random.default_rng([11, seed])
        return self.feeds(rng, self.batch), self.labels(rng, self.batch)

    def batches(self, count: int) -> list[Batch]:
        """Seeded batches."""
        return [self.draw(seed) for seed in range(count)]


@dataclass(frozen=True)
class Built:
    """A case with its binary, reference, and resolved plan."""

    case: Case
    graph: Graph
    plan: UpdatePlan
    reference: Reference
    binary: StepBinary


def build(case: Case, target: str, folder: Path, cache: Path, runner: tuple[str, ...] = ()) -> Built:
    """Compile the case's step for a target and unpack it."""
    graph = import_model(case.model, input_shapes={}, batch=case.batch, batch_norm=case.batch_norm)
    bundle = compile_training(case.model, plan=case.plan, spec=case.spec, target=target, cache_dir=cache, jobs=1)
    reference = Reference(onnx.load_from_string(case.model), graph.parameters)
    return Built(case, graph, resolve_plan(graph, case.plan), reference, StepBinary.unpack(bundle, folder, runner))


class Optimizer:
    """SGD with momentum or AdamW on slices, in whatever precision its arrays have; file layout throughout.

    Written from the definitions in PyTorch's documentation of torch.optim.SGD and torch.optim.AdamW.
    """

    def __init__(self, built: Built) -> None:
        self.settings = dict(built.case.optimizer)
        self.slices = {name: self._file_slice(built.graph, name, part) for name, part in built.plan.items()}
        self.adam = self.settings["kind"] == "adamw"
        self.kinds = ("exp_avg", "exp_avg_sq") if self.adam else ("momentum",)

    @staticmethod
    def _file_slice(graph: Graph, name: str, part: UpdateSlice) -> tuple[slice, ...]:
        parameter = graph.parameters[name]
        whole = [slice(None)] * len(parameter.view_shape)
        if not part.is_whole:
            whole[parameter.perm[part.axis]] = slice(part.start, part.start + part.size)
        return tuple(whole)

    def window(self, graph: Graph, name: str, array: np.ndarray) -> np.ndarray:
        """The learning part of a parameter-shaped array, seen through the parameter's view."""
        return array.reshape(graph.parameters[name].view_shape)[self.slices[name]]

    def fresh(self, graph: Graph, weights: State) -> State:
        """Zero optimizer state, one array per kind and learning parameter, in view layout."""
        return {
            f"optimizer.{kind}.{name}": np.zeros_like(self.window(graph, name, weights[name]))
            for name in self.slices
            for kind in self.kinds
        }

    def step(self, graph: Graph, weights: State, state: State, gradients: State, t: int) -> tuple[State, State]:
        """New weights and optimizer state."""
        new_weights, new_state = {k: v.copy() for k, v in weights.items()}, dict(state)
        for name in self.slices:
            g = self.window(graph, name, gradients[name])
            w = self.window(graph, name, new_weights[name])
            w[...] = self._adamw(name, w, g, new_state, t) if self.adam else self._sgd(name, w, g, new_state)
        return new_weights, new_state

    def _sgd(self, name: str, w: np.ndarray, g: np.ndarray, state: State) -> np.ndarray:
        key = f"optimizer.momentum.{name}"
        g = g + w.dtype.type(self.settings.get("weight_decay", 0.0)) * w
        state[key] = w.dtype.type(self.settings["momentum"]) * state[key] + g
        return w - w.dtype.type(self.settings["learning_rate"]) * state[key]

    def _adamw(self, name: str, w: np.ndarray, g: np.ndarray, state: State, t: int) -> np.ndarray:
        real, rate = w.dtype.type, self.settings["learning_rate"]
        m_key, v_key = f"optimizer.exp_avg.{name}", f"optimizer.exp_avg_sq.{name}"
        state[m_key] = real(0.9) * state[m_key] + real(1 - 0.9) * g
        state[v_key] = real(0.999) * state[v_key] + real(1 - 0.999) * g * g
        decay = real(1 - rate * self.settings.get("weight_decay", 0.01))
        root = np.sqrt(state[v_key]) / real(np.sqrt(1 - 0.999**t)) + real(1e-8)
        return w * decay - real(rate / (1 - 0.9**t)) * state[m_key] / root

    def gradient_from_state(self, name: str, before: State, after: State) -> np.ndarray:
        """The gradient that an optimizer step must have seen, read back in float64."""
        kind, beta = ("exp_avg", 0.9) if self.adam else ("momentum", float(self.settings["momentum"]))
        key = f"optimizer.{kind}.{name}"
        moved = after[key].astype(np.float64) - beta * before[key].astype(np.float64)
        return moved / (1 - 0.9) if self.adam else moved


def to_checkpoint(built: Built, weights: State, state: State) -> State:
    """Float32 checkpoint in the binary's layout: optimizer state goes from view to inside layout."""
    inside = {
        key: np.transpose(array, built.graph.parameters[key.split(".", 2)[2]].perm) for key, array in state.items()
    }
    return {key: np.ascontiguousarray(array, np.float32) for key, array in {**weights, **inside}.items()}


def from_checkpoint(built: Built, tensors: State) -> tuple[State, State]:
    """The inverse of `to_checkpoint`."""
    weights = {name: tensors[name] for name in built.graph.parameters}
    state = {
        key: np.transpose(array, np.argsort(built.graph.parameters[key.split(".", 2)[2]].perm))
        for key, array in tensors.items()
        if key.startswith("optimizer.")
    }
    return weights, state


def distance(found: np.ndarray, exact: np.ndarray) -> float:
    """Relative L2 distance."""
    scale = float(np.linalg.norm(exact))
    return float(np.linalg.norm(found - exact)) / scale if scale else float(np.linalg.norm(found))


def vanishing(exact: Mapping[str, np.ndarray]) -> set[str]:
    """Gradients that are zero by mathematics and rounding noise by arithmetic, such as an attention key's bias.

    (Softmax does not see a shift of all scores of a query.) A relative distance says nothing there.
    """
    norms = {name: float(np.linalg.norm(gradient)) for name, gradient in exact.items()}
    return {name for name, norm in norms.items() if norm < 1e-9 * max(norms.values())}


@dataclass(frozen=True)
class StepResult:
    """One step of the binary beside float64 and PyTorch float32, all from the same state."""

    loss: float
    exact_loss: float
    gradients: State
    exact: State
    singles: list[State]
    before: State
    after: State
    expected: State
    batch: Batch


def smooth_batch(built: Built, weights: State, t: int) -> Batch:
    """A batch that keeps every pre-activation away from its kinks, or the best of many.

    At a ReLU's 0 the gradient jumps: a pre-activation within float32 rounding of it may fall on either side in any
    correct float32 engine, PyTorch's included, and one flipped mask is an error of 1e-4 in some gradient. Such a
    batch tells nothing about correctness.
    """
    best: tuple[float, Batch] | None = None
    for attempt in range(MAX_DRAWS):
        batch = built.case.draw(1000 * t + attempt)
        margin = built.reference.kink_margin(weights, batch[0])
        if best is None or margin > best[0]:
            best = (margin, batch)
        if margin >= KINK_MARGIN:
            break
    assert best is not None
    return best[1]


def single_precision(built: Built, weights: State, batch: Batch) -> list[State]:
    """PyTorch float32's gradients in three equal orders of evaluation.

    As given, with the samples reversed, and with channels-last weights. One order alone may be right by luck: rounding
    errors cancel in it, and the next order is ten times as far from float64.
    """
    feeds, labels = batch
    turned = {name: array[::-1].copy() for name, array in feeds.items()}
    run = partial(built.reference.loss_and_gradients, weights, real=torch.float32)
    results = [run(feeds, labels), run(turned, labels[::-1].copy()), run(feeds, labels, channels_last=True)]
    return [gradients for _, gradients in results]


def run_step(built: Built, optimizer: Optimizer, weights: State, state: State, t: int, batch: Batch) -> StepResult:
    """One step from float64 reference state (rounded to the float32 that all three start from)."""
    feeds, labels = batch
    start = to_checkpoint(built, weights, state)
    rounded, rounded_state = from_checkpoint(built, start)
    exact_loss, exact = built.reference.loss_and_gradients(rounded, feeds, labels, torch.float64)
    singles = [
        optimizer.step(built.graph, rounded, rounded_state, gradients, t)[1]
        for gradients in single_precision(built, rounded, batch)
    ]
    losses, after = built.binary.train(start, 1, built.binary.write_data(feeds, labels), start=t - 1)
    _, after_state = from_checkpoint(built, after)
    wide = {k: v.astype(np.float64) for k, v in rounded.items()}
    wide_state = {k: v.astype(np.float64) for k, v in rounded_state.items()}
    expected_weights, expected_state = optimizer.step(built.graph, wide, wide_state, exact, t)
    read = optimizer.gradient_from_state
    return StepResult(
        loss=losses[0],
        exact_loss=exact_loss,
        gradients={name: read(name, rounded_state, after_state) for name in built.plan},
        exact={name: optimizer.window(built.graph, name, exact[name]) for name in built.plan},
        singles=[{name: read(name, rounded_state, single) for name in built.plan} for single in singles],
        before=start,
        after=after,
        expected=to_checkpoint(built, expected_weights, expected_state),
        batch=batch,
    )


def problems(built: Built, result: StepResult) -> list[str]:
    """Everything about a step that is not as the reference says; empty if it is right."""
    found = []
    if abs(result.loss - result.exact_loss) > MAX_LOSS_ERROR * abs(result.exact_loss):
        found.append(f"loss {result.loss} instead of {result.exact_loss}")
    largest = max(float(np.linalg.norm(gradient)) for gradient in result.exact.values())
    zero = vanishing(result.exact)
    for name in zero:
        if not np.linalg.norm(result.gradients[name]) <= GRADIENT_FLOOR * largest:
            found.append(f"gradient of {name} should vanish, is {np.linalg.norm(result.gradients[name]):.3g}")
    for name in built.plan.keys() - zero:
        found += _parameter_problems(result, name)
    for name in built.graph.parameters:
        if name not in built.plan and not np.array_equal(result.after[name], result.before[name]):
            found.append(f"frozen {name} changed")
        part = built.plan.get(name)
        if part is not None and not part.is_whole and not _rest_is_frozen(built, result, name):
            found.append(f"channels of {name} outside the plan changed")
    return found


def _parameter_problems(result: StepResult, name: str) -> list[str]:
    found = []
    mine = distance(result.gradients[name], result.exact[name])
    torch_own = max(distance(single[name], result.exact[name]) for single in result.singles)
    if not mine <= GRADIENT_FACTOR * torch_own + GRADIENT_FLOOR:
        found.append(f"gradient of {name}: {mine:.3g} from float64, PyTorch float32 {torch_own:.3g}")
    start = result.before[name].astype(np.float64)
    moved, wanted = (side[name].astype(np.float64) - start for side in (result.after, result.expected))
    if not distance(moved, wanted) <= update_tolerance(result, name, torch_own):
        found.append(f"update of {name}: {distance(moved, wanted):.3g} from float64")
    return found


def update_tolerance(result: StepResult, name: str, torch_own: float) -> float:
    """How exactly a float32 weight can show its update: rounding of the weight, and the gradient's own error."""
    size = np.linalg.norm(result.before[name].astype(np.float64))
    moved = np.linalg.norm(result.expected[name].astype(np.float64) - result.before[name])
    rounding = 2.0**-23 * float(size) / float(moved) if moved else 1.0
    return 1e-4 + 4 * rounding + 10 * torch_own


def _rest_is_frozen(built: Built, result: StepResult, name: str) -> bool:
    optimizer = Optimizer(built)
    view = built.graph.parameters[name].view_shape
    same = (result.after[name] == result.before[name]).reshape(view).copy()
    same[optimizer.slices[name]] = True
    return bool(same.all())
