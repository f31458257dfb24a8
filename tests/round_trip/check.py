"""One round trip: what comes back loads, predicts as the board does, and was trained as PyTorch trains."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import pockfarm
from device_agents.wire import RunSettings
from pockfarm import FineTuned
from pockfarm.local import toolchain as local
from tests.round_trip.brought import Brought
from tests.round_trip.reference import careful_rate, trained

onnxruntime.set_default_logger_severity(3)  # it warns of the dead nodes that an exporter leaves
STEPS = 3
MOMENTUM = 0.9
LOGITS = 2e-5
"""Of the largest logit: float32 sums in three orders (PyTorch's, ONNX Runtime's, ours)."""
UPDATES = 2e-3
"""Of an update: what three steps from float32 states make of rounding, where no gradient cancels."""


@dataclass(frozen=True)
class Trip:
    """What a round trip showed: how far apart things are, relative to their size. No `problems`: all is well."""

    name: str
    board: float
    runtime: float
    update: float
    trained: int
    tensors: int
    problems: list[str] = field(default_factory=list)


def travel(brought: Brought, plan: Any = "full", *, steps: int = STEPS) -> tuple[FineTuned, Trip]:
    """Fine-tune, and compare what came back with the module, its own training, the binary and ONNX Runtime."""
    module = brought.module
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    modes = {name: part.training for name, part in module.named_modules()}
    rate = careful_rate(brought)
    tuned = pockfarm.fine_tune(
        module,
        brought.example,
        (brought.example, brought.labels),
        plan=plan,
        spec={
            "loss": {"kind": brought.loss},
            "optimizer": {"kind": "sgd", "learning_rate": rate, "momentum": MOMENTUM},
            "batch_norm": brought.norms,
        },
        steps=steps,
        output=brought.output or None,
    )
    found = _untouched(brought, before, modes)
    own = copy.deepcopy(module)
    own.load_state_dict(tuned, strict=True)
    with torch.no_grad():
        logits = brought.logits(own).numpy()
    scale = float(np.abs(logits).max())
    board = float(np.abs(by_binary(tuned, brought) - logits).max()) / scale
    runtime = float(np.abs(by_runtime(tuned.onnx, brought) - logits).max()) / scale
    found += [f"the binary's logits are {board:.2g} away"] if not board <= LOGITS else []
    found += [f"ONNX Runtime's logits are {runtime:.2g} away"] if not runtime <= LOGITS else []
    worst, wrong = _updates(brought, tuned, before, steps, {"lr": rate, "momentum": MOMENTUM})
    return tuned, Trip(brought.name, board, runtime, worst, len(tuned.changed), len(before), found + wrong)


def by_binary(tuned: FineTuned, brought: Brought) -> np.ndarray:
    """Logits of the step that was built, with the weights that it trained."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "step.pfb").write_bytes(tuned.bundle)
        (folder / "trained").write_bytes(tuned.checkpoint)
        np.savez(folder / "data.npz", allow_pickle=False, **_feeds(tuned.onnx, brought))
        local.execute(
            folder / "step.pfb",
            local.ExecOptions(
                RunSettings(mode="infer"), data=folder / "data.npz", weights=folder / "trained", out=folder / "out.npy"
            ),
            progress=lambda line: None,
        )
        return np.load(folder / "out.npy")


def by_runtime(model: bytes, brought: Brought) -> np.ndarray:
    """Logits of an ONNX file."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, _feeds(model, brought))[0])


def _feeds(model: bytes, brought: Brought) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    example = brought.example
    tensors = [example[name] for name in names] if isinstance(example, Mapping) else example
    return {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}


def _untouched(brought: Brought, before: Mapping[str, torch.Tensor], modes: Mapping[str, bool]) -> list[str]:
    """What of the user's own module is not as it was."""
    module = brought.module
    found = [name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])]
    found += [name for name, part in module.named_modules() if part.training != modes[name]]
    found += ["forward"] if "forward" in vars(module) else []
    return [f"the module's own {name} changed" for name in found]


def _updates(
    brought: Brought, tuned: FineTuned, before: Mapping[str, torch.Tensor], steps: int, settings: Mapping[str, float]
) -> tuple[float, list[str]]:
    """The largest distance of an update from the float64 one relative to it, and what is wrong."""
    exact = trained(brought, steps, settings, torch.float64)
    single = trained(brought, steps, settings, torch.float32)
    start = {name: tensor.double().numpy() for name, tensor in before.items()}
    after = {name: tensor.double().numpy() for name, tensor in tuned.items()}
    largest = max(float(np.linalg.norm(_apart(exact[name], start[name]))) for name in start)
    found = [f"{name} is missing" for name in start.keys() - after.keys()]
    found += [f"{name} is new" for name in after.keys() - start.keys()]
    learning = {name for name, tensor in brought.module.named_parameters() if tensor.requires_grad}
    worst = 0.0
    for name in start.keys() & after.keys():
        wanted = _apart(exact[name], start[name])
        size = float(np.linalg.norm(wanted))
        if size == 0 and (name not in learning or brought.norms == "fold"):
            found += [f"{name} should stay, and changed"] if not torch.equal(tuned[name], before[name]) else []
            continue
        error = float(np.linalg.norm(after[name] - start[name] - wanted))
        own = float(np.linalg.norm(single[name] - exact[name]))
        storing = 2.0**-23 * steps * float(np.linalg.norm(start[name]))
        vanishing = 1e-6 * largest
        if not error <= UPDATES * size + 4 * own + storing + vanishing:
            far, single_far = error / (size or 1), own / (size or 1)
            found.append(f"{name}: update is {far:.2g} away from PyTorch's, float32 there {single_far:.2g}")
        if size > 100 * (storing + vanishing):
            worst = max(worst, error / size)
    return worst, found


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The difference; of equal elements 0, infinite ones (masks) too."""
    with np.errstate(invalid="ignore"):
        return np.where(one == other, 0.0, one - other)
