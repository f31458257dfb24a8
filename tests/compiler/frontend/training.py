"""Trains a module twice, as a compiled binary and as the author's own PyTorch module in float64, and compares updates.

The names, shapes and sharing of what learns come from the module's `named_parameters()`, never from the importer.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from compiler.api import BuildSettings, compile_training
from compiler.graph import Array
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.step_binary import StepBinary, native_target

BATCH, STEPS, LEARNING_RATE = 2, 2, 0.2
MAX_UPDATE_ERROR = 1e-4
"""Of an update, relative to the update itself; the step computes in float32."""
STORING = 2.0**-24
"""Of a weight, per step: what rounding it to float32 may take from its update."""
VANISHING = 2e-7
"""Of the largest update: what float32 makes of an update that is zero by mathematics."""

Updates = dict[str, np.ndarray]


def parameter_groups(module: nn.Module) -> dict[str, frozenset[str]]:
    """First name of each parameter that requires a gradient -> all its names (several if modules share it)."""
    names: dict[int, list[str]] = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        if tensor.requires_grad:
            names.setdefault(id(tensor), []).append(name)
    return {group[0]: frozenset(group) for group in names.values()}


def under_own_names(module: nn.Module, found: Collection[str]) -> dict[str, str]:
    """Each name in `found` -> the module's first name of that parameter; other names stay as they are."""
    first = {name: own for own, names in parameter_groups(module).items() for name in names}
    return {name: first.get(name, name) for name in found}


def draw_labels(module: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
    """Seeded classes for every row of the module's logits."""
    with torch.no_grad():
        shape = module(*inputs).shape
    torch.manual_seed(13)
    return torch.randint(0, shape[-1], shape[:-1])


def reference_updates(
    module: nn.Module, inputs: Sequence[Tensor], labels: Tensor, *, frozen: Collection[str] = ()
) -> Updates:
    """What SGD in float64 adds to every parameter of the author's module that is not `frozen`."""
    wide = copy.deepcopy(module).double()
    learning = {name: tensor for name, tensor in wide.named_parameters() if tensor.requires_grad and name not in frozen}
    start = {name: tensor.detach().clone() for name, tensor in learning.items()}
    optimizer = torch.optim.SGD(learning.values(), lr=LEARNING_RATE)
    for step in range(STEPS):
        part = slice(step * BATCH, (step + 1) * BATCH)
        logits = wide(*(tensor[part].double() if tensor.is_floating_point() else tensor[part] for tensor in inputs))
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.flatten(0, -2), labels[part].flatten()).backward()
        optimizer.step()
    return {name: (tensor.detach() - start[name]).numpy() for name, tensor in learning.items()}


@dataclass(frozen=True)
class Trained:
    """A checkpoint before and after the binary's steps, parameters only, and what the compile said."""

    before: Mapping[str, Array]
    after: Mapping[str, Array]
    constants_changed: Sequence[str]
    warnings: Sequence[Mapping[str, Any]]

    @property
    def updates(self) -> Updates:
        """What the steps added to each parameter."""
        return {name: self.after[name].astype(np.float64) - self.before[name].astype(np.float64) for name in self.after}

    def warns_of(self, name: str) -> bool:
        """True if some warning names it."""
        return any(name in f"{warning['where']} {warning['message']}" for warning in self.warnings)


def train(
    model: bytes, plan: SparsePlan, feeds: Mapping[str, Array], labels: Array, folder: Path, cache: Path, **spec: object
) -> Trained:
    """Compile for this machine, run the binary from its own weights."""
    options = {"batch": BATCH, "optimizer": {"kind": "sgd", "learning_rate": LEARNING_RATE}, "threads": 1, **spec}
    bundle = compile_training(
        model,
        BuildSettings(
            plan=plan, spec=TrainingSpec.parse(options), target=load(native_target()), cache_dir=cache, jobs=1
        ),
    )
    binary = StepBinary.unpack(bundle, folder)
    data, save = binary.write_data(feeds, labels), folder / "after.safetensors"
    binary.run("train", "--weights", binary.weights, "--steps", STEPS, "--order", "sequential", "--save", save, *data)
    before, after = load_file(binary.weights), load_file(save)
    assert before.keys() <= after.keys()
    constants = [name for name in before if name.startswith("constant.")]
    return Trained(
        before={name: array for name, array in before.items() if name not in constants},
        after={name: array for name, array in after.items() if name in before and name not in constants},
        constants_changed=[name for name in constants if not np.array_equal(before[name], after[name])],
        warnings=json.loads((folder / "report.json").read_text())["warnings"],
    )


def update_problems(start: Mapping[str, Array], found: Updates, exact: Updates) -> list[str]:
    """Every way in which updates differ from the exact ones; parameters without an exact update must not move.

    An update is compared relative to its own size, however small it is beside its weight: all that a float32 weight
    may hide of it is the rounding of storing the weight.
    """
    problems = [f"{name} is not trained" for name in exact.keys() - found.keys()]
    largest = max(float(np.linalg.norm(update)) for update in exact.values())
    for name, update in found.items():
        if name not in exact:
            problems += [f"{name} moved, and must not"] if update.any() else []
        elif update.shape != exact[name].shape:
            problems.append(f"{name} has shape {update.shape}, the module's {exact[name].shape}")
        else:
            error, size = np.linalg.norm(update - exact[name]), np.linalg.norm(exact[name])
            stored = STEPS * STORING * float(np.linalg.norm(np.abs(start[name]) + np.abs(exact[name])))
            if not error <= MAX_UPDATE_ERROR * size + stored + VANISHING * largest:
                problems.append(f"update of {name}: off by {error:.3g}, it is {size:.3g}")
    return problems
