"""Compares a compiled training step with PyTorch in float64, step by step, each step from the reference's state.

What learns, under which names and in which layout, is the reference's: the author's own parameters and a plan resolved
on them. The import is asked for one thing only, how a checkpoint's optimizer state lies; a wrong answer shows there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from compiler.api import BuildSettings, compile_training
from compiler.frontend.importer import import_model
from compiler.frontend.source_passes import Wishes
from compiler.graph import Parameter
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.precision import Compute, Frozen
from compiler.targets import Target, load
from tests.compiler.agreement.reference import Reference, Window, what_learns
from tests.compiler.agreement.step_binary import StepBinary
from tests.compiler.agreement.yardstick import (
    GRADIENT_FACTOR,
    GRADIENT_FLOOR,
    STORING,
    UPDATE_FACTOR,
    UPDATE_FLOOR,
    Yardstick,
    distance,
)

STEPS = 20
State = dict[str, np.ndarray]
Batch = tuple[dict[str, np.ndarray], np.ndarray]

MAX_LOSS_ERROR = 1e-5


@dataclass(frozen=True)
class Case:
    """A model, what its author meant by it, a plan, an optimizer and data."""

    model: bytes
    reference: Reference
    plan: SparsePlan
    batch: int
    feeds: Callable[[np.random.Generator, int], dict[str, np.ndarray]]
    labels: Callable[[np.random.Generator, int], np.ndarray]
    optimizer: Mapping[str, object] = field(
        default_factory=lambda: {"kind": "sgd", "learning_rate": 0.01, "momentum": 0.9}
    )

    batch_norm: Literal["fold", "frozen"] = "fold"
    convolutions: Literal["fast", "direct"] = "fast"
    last_layer: tuple[str, ...] = ()
    """What its author calls the last layer, where the plan asks for it."""
    memory_limit_bytes: int | None = None
    compute: Compute = "f32"
    frozen: Frozen = "f32"

    @property
    def spec(self) -> TrainingSpec:
        return TrainingSpec.parse(
            {
                "batch": self.batch,
                "loss": {"kind": self.reference.loss},
                "optimizer": dict(self.optimizer),
                "threads": 2,
                "batch_norm": self.batch_norm,
                "convolutions": self.convolutions,
                "precision": {"compute": self.compute, "frozen": self.frozen},
                **({} if self.memory_limit_bytes is None else {"memory_limit_bytes": self.memory_limit_bytes}),
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
    """A case with its binary, what its plan means on the author's names, and how checkpoints hold optimizer state."""

    case: Case
    plan: Mapping[str, Window]
    layouts: Mapping[str, Parameter]
    binary: StepBinary
    memory: Mapping[str, int]
    """As the manifest tells it."""

    @property
    def reference(self) -> Reference:
        """What the author meant."""
        return self.case.reference


def build(case: Case, target: str | Target, folder: Path, cache: Path, runner: tuple[str, ...] = ()) -> Built:
    """Compile the case's step for a target and unpack it; its first checkpoint holds the author's parameters."""
    graph = import_model(
        case.model,
        input_shapes={},
        batch=case.batch,
        batch_norm=case.batch_norm,
        wishes=Wishes(create_biases=case.plan.create_biases),
    )
    board = load(target) if isinstance(target, str) else target
    bundle = compile_training(
        case.model, BuildSettings(plan=case.plan, spec=case.spec, target=board, cache_dir=cache, jobs=1)
    )
    binary = StepBinary.unpack(bundle, folder, runner)
    learns = what_learns(case.plan, case.reference, case.last_layer)
    built = Built(case, learns, graph.named_parameters(), binary, bundle.manifest["memory"])
    wrong = start_problems(case.reference.initial(), binary.checkpoint())
    assert not wrong, wrong
    return built


def start_problems(wanted: State, found: Mapping[str, np.ndarray]) -> list[str]:
    """What a checkpoint holds otherwise than the author: names, shapes, values (up to a folded norm's rounding)."""
    names = {name for name in found if not name.startswith(("constant.", "optimizer."))}
    wrong = [f"{name} is no parameter of the author's" for name in sorted(names - wanted.keys())]
    wrong += [f"{name} is missing" for name in sorted(wanted.keys() - names)]
    for name in sorted(names & wanted.keys()):
        if found[name].shape != wanted[name].shape:
            wrong.append(f"{name} has shape {found[name].shape} instead of {wanted[name].shape}")
        elif not np.allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6):
            wrong.append(f"{name} has other values")
    return wrong


class Optimizer:
    """SGD with momentum or AdamW on slices, in whatever precision its arrays have; file layout throughout.

    Written from the definitions in PyTorch's documentation of torch.optim.SGD and torch.optim.AdamW.
    """

    def __init__(self, built: Built) -> None:
        self.settings: dict[str, Any] = dict(built.case.optimizer)
        self.windows = built.plan
        self.adam = self.settings["kind"] == "adamw"
        self.kinds = ("exp_avg", "exp_avg_sq") if self.adam else ("momentum",)

    def window(self, name: str, array: np.ndarray) -> np.ndarray:
        """The learning part of a parameter-shaped array."""
        return array[self.windows[name]]

    def fresh(self, weights: State) -> State:
        """Zero optimizer state, one array per kind and learning parameter."""
        return {
            f"optimizer.{kind}.{name}": np.zeros_like(self.window(name, weights[name]))
            for name in self.windows
            for kind in self.kinds
        }

    def step(self, weights: State, state: State, gradients: State, t: int) -> tuple[State, State]:
        """New weights and optimizer state."""
        new_weights, new_state = {k: v.copy() for k, v in weights.items()}, dict(state)
        for name in self.windows:
            g, w = self.window(name, gradients[name]), self.window(name, weights[name])
            moved = self._adamw(name, w, g, new_state, t) if self.adam else self._sgd(name, w, g, new_state)
            new_weights[name][self.windows[name]] = moved
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


def _kept_axes(layout: Parameter) -> list[int]:
    """The file's axes that the compiler's view keeps; it drops unit axes only."""
    kept: list[int] = []
    for axis, extent in enumerate(layout.file_shape):
        if len(kept) < len(layout.view_shape) and layout.view_shape[len(kept)] == extent:
            kept.append(axis)
    return kept


def to_checkpoint(built: Built, weights: State, state: State) -> State:
    """Float32 checkpoint in the binary's layout: optimizer state goes from file to inside layout."""

    def inside(key: str, array: np.ndarray) -> np.ndarray:
        layout = built.layouts[key.split(".", 2)[2]]
        return array.reshape([array.shape[axis] for axis in _kept_axes(layout)]).transpose(layout.perm)

    turned = {key: inside(key, array) for key, array in state.items()}
    return {key: np.array(array, np.float32, order="C") for key, array in {**weights, **turned}.items()}


def from_checkpoint(built: Built, tensors: State) -> tuple[State, State]:
    """The inverse of `to_checkpoint`."""
    whole = built.reference.initial()
    weights = {name: tensors[name] for name in whole}
    state = {}
    for name, window in built.plan.items():
        layout = built.layouts[name]
        shape = whole[name][window].shape
        for key in (key for key in tensors if key.startswith("optimizer.") and key.split(".", 2)[2] == name):
            state[key] = np.transpose(tensors[key], np.argsort(layout.perm)).reshape(shape)
    return weights, state


@dataclass(frozen=True)
class StepResult:
    """One step of the binary beside float64 and PyTorch float32, all from the same state."""

    loss: float
    exact_loss: float
    gradients: State
    exact: State
    yardstick: Yardstick
    before: State
    after: State
    expected: State
    batch: Batch


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
        optimizer.step(rounded, rounded_state, gradients, t)[1] for gradients in single_precision(built, rounded, batch)
    ]
    losses, after = built.binary.train(start, 1, built.binary.write_data(feeds, labels), start=t - 1)
    wide = {k: v.astype(np.float64) for k, v in rounded.items()}
    wide_state = {k: v.astype(np.float64) for k, v in rounded_state.items()}
    expected_weights, expected_state = optimizer.step(wide, wide_state, exact, t)
    read = optimizer.gradient_from_state
    learning = {name: optimizer.window(name, exact[name]) for name in built.plan}
    return StepResult(
        loss=losses[0],
        exact_loss=exact_loss,
        gradients=gradients_of(built, optimizer, start, after),
        exact=learning,
        yardstick=Yardstick.of(
            learning, [{name: read(name, rounded_state, single) for name in built.plan} for single in singles]
        ),
        before=start,
        after=after,
        expected=to_checkpoint(built, expected_weights, expected_state),
        batch=batch,
    )


def gradients_of(built: Built, optimizer: Optimizer, before: State, after: State) -> State:
    """What a step from one checkpoint to the next must have seen."""
    states = (from_checkpoint(built, checkpoint)[1] for checkpoint in (before, after))
    was, now = states
    return {name: optimizer.gradient_from_state(name, was, now) for name in built.plan}


def free_run(built: Built, batches: Sequence[Batch], real: torch.dtype) -> list[float]:
    """PyTorch's losses over steps without correction."""
    optimizer = Optimizer(built)
    dtype = np.float64 if real == torch.float64 else np.float32
    weights = {name: array.astype(dtype) for name, array in built.reference.initial().items()}
    state = optimizer.fresh(weights)
    losses = []
    for t, (feeds, labels) in enumerate(batches, 1):
        loss, gradients = built.reference.loss_and_gradients(weights, feeds, labels, real)
        weights, state = optimizer.step(weights, state, gradients, t)
        losses.append(loss)
    return losses


def problems(built: Built, result: StepResult) -> list[str]:
    """Everything about a step that is not as the reference says; empty if it is right."""
    found = []
    if abs(result.loss - result.exact_loss) > MAX_LOSS_ERROR * abs(result.exact_loss):
        found.append(f"loss {result.loss} instead of {result.exact_loss}")
    largest, zero = result.yardstick.largest, result.yardstick.zero
    for name in zero:
        if not np.linalg.norm(result.gradients[name]) <= GRADIENT_FLOOR * largest:
            found.append(f"gradient of {name} should vanish, is {np.linalg.norm(result.gradients[name]):.3g}")
    for name in built.plan.keys() - zero:
        found += _gradient_problems(result, name)
    for name in built.plan:
        found += _update_problems(built, result, name)
    return found + _extent_problems(built, result)


def _extent_problems(built: Built, result: StepResult) -> list[str]:
    """Parameters that are there, learn or stay otherwise than the author and the plan say."""
    names = built.reference.initial().keys()
    there = {name for name in result.after if not name.startswith(("constant.", "optimizer."))}
    found = [f"{name} is missing" for name in sorted(names - there)]
    found += [f"{name} is no parameter of the author's" for name in sorted(there - names)]
    learning = {key.split(".", 2)[2] for key in result.after if key.startswith("optimizer.")}
    found += [f"{name} has no optimizer state" for name in sorted(built.plan.keys() - learning)]
    found += [f"{name} learns, and should not" for name in sorted(learning - built.plan.keys())]
    for name in sorted(names & there):
        same = np.asarray(result.after[name] == result.before[name])
        if name not in built.plan and not same.all():
            found.append(f"frozen {name} changed")
        elif name in built.plan:
            same[built.plan[name]] = True
            found += [] if same.all() else [f"channels of {name} outside the plan changed"]
    return found


def _gradient_problems(result: StepResult, name: str) -> list[str]:
    mine = distance(result.gradients[name], result.exact[name])
    torch_own = result.yardstick.torch_own[name]
    if mine <= GRADIENT_FACTOR * torch_own + GRADIENT_FLOOR:
        return []
    return [f"gradient of {name}: {mine:.3g} from float64, PyTorch float32 {torch_own:.3g}"]


def _update_problems(built: Built, result: StepResult, name: str) -> list[str]:
    if name not in result.after:
        return []  # said by `_extent_problems`
    start = result.before[name].astype(np.float64)
    moved, wanted = (side[name].astype(np.float64) - start for side in (result.after, result.expected))
    error = float(np.linalg.norm(moved - wanted))
    if error <= update_tolerance(built, result, name, wanted):
        return []
    return [f"update of {name}: {error:.3g} from float64, it is {np.linalg.norm(wanted):.3g}"]


def update_tolerance(built: Built, result: StepResult, name: str, wanted: np.ndarray) -> float:
    """How far an update may be from the exact one: no more than the update itself can tell.

    That is the gradient's own error, relative to the update, and what storing the weight in float32 takes away. Of a
    weight whose gradient vanishes, SGD moves by noise; AdamW divides noise by noise, and moves as far as it ever does.
    """
    storing = STORING * float(np.linalg.norm(result.before[name].astype(np.float64)))
    rate = float(built.case.optimizer["learning_rate"])  # type: ignore[arg-type]
    if name in result.yardstick.zero:
        adamw = built.case.optimizer["kind"] == "adamw"
        return storing + rate * (4 * wanted.size**0.5 if adamw else 10 * GRADIENT_FLOOR * result.yardstick.largest)
    return storing + (UPDATE_FLOOR + UPDATE_FACTOR * result.yardstick.torch_own[name]) * float(np.linalg.norm(wanted))
