"""A training process that is killed, and another that goes on from what it left: every bit is as if nothing had been.

For each optimizer's state, with dropout, running statistics and micro-batches; and on a board's binary, emulated.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.models import export
from tests.sample import sample

QEMU = ("qemu-aarch64-static",)
BATCH, SAMPLES, STEPS, KILLED_AFTER = 3, 20, 2000, 30
KEY = "sha256:" + "a" * 64
OPTIMIZERS: Mapping[str, dict[str, Any]] = {
    "sgd with momentum": {"optimizer": {"kind": "sgd", "learning_rate": 0.02, "momentum": 0.9, "nesterov": True}},
    "adam": {"optimizer": {"kind": "adam", "weight_decay": 0.01}, "accumulate": 2},
    "adamw": {"optimizer": {"kind": "adamw", "clip_norm": 0.5}, "accumulate": 3},
    "lion": {"optimizer": {"kind": "lion"}},
    "adafactor": {"optimizer": {"kind": "adafactor"}},
}


class Net(nn.Module):
    """Running statistics and draws of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(10, 16),
            nn.BatchNorm1d(16),
            nn.Dropout(0.3),
            nn.Linear(16, 4),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.tanh(self.norm(self.first(x)))))


def built(folder: Path, cache: Path, target: str, runner: tuple[str, ...], spec: dict[str, Any]) -> StepBinary:
    torch.manual_seed(0)
    parsed = TrainingSpec.parse({"batch": BATCH, "dropout": "train", "batch_norm": "train", **spec})
    settings = BuildSettings(plan=SparsePlan.parse("full"), spec=parsed, target=load(target), cache_dir=cache, jobs=1)
    model = export(Net().train(), (torch.randn(BATCH, 10),), exporter="dynamo-unoptimized", dynamic_batch=False)
    return StepBinary.unpack(compile_training(model, settings), folder, runner)


def words(binary: StepBinary, save: Path) -> list[str]:
    """Of the whole run: shuffled data that no number of batches uses up, a schedule, a validation now and then."""
    rng = np.random.default_rng(4)
    data = binary.write_data({"input": rng.normal(size=(SAMPLES, 10)).astype(np.float32)}, rng.integers(0, 4, SAMPLES))
    options = [
        "train",
        "--weights",
        binary.weights,
        *data,
        "--steps",
        STEPS,
        "--batch-seed",
        7,
        "--schedule",
        "cosine",
        "--warmup-steps",
        10,
        "--validation",
        0.2,
        "--eval-every",
        17,
        "--save-best",
        "--save",
        save,
    ]
    return [*map(str, options), "--checkpoint-key", KEY]


def killed(binary: StepBinary, left: Path, given: list[str]) -> None:
    """Train until a checkpoint of a later step is in place, and kill the process, whatever it does then."""
    command = [*binary.runner, str(binary.folder / "bin/step"), *given]
    command += ["--checkpoint", str(left), "--checkpoint-every", "1e-5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "checkpoint" and event["step"] >= KILLED_AFTER:
                break
        process.kill()


def learned(events: list[dict[str, Any]]) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Losses and validations, by step."""
    told = [event for event in events if event["event"] in ("step", "validation")]
    return {(one["event"], one["step"]): (one["loss"], one.get("accuracy")) for one in told}


def check_goes_on(binary: StepBinary, folder: Path) -> None:
    whole, parts, left = folder / "whole", folder / "parts", folder / "left"
    alone = learned(binary.run(*words(binary, whole)))
    killed(binary, left, words(binary, folder / "never"))
    events = binary.run(*words(binary, parts), "--resume", left)
    (step,) = (event["step"] for event in events if event["event"] == "resume")
    assert KILLED_AFTER <= step < STEPS
    rest = learned(events)
    assert len([kind for kind, _ in rest if kind == "step"]) == STEPS - step
    assert rest.items() <= alone.items()
    assert parts.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("name", sample(OPTIMIZERS, {"adafactor"}))
def test_nothing_is_lost_of_an_optimizers_state(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    check_goes_on(built(tmp_path / "bundle", kernel_cache, native_target(), (), OPTIMIZERS[name]), tmp_path)


@pytest.mark.thorough
def test_nor_on_a_board_emulated(tmp_path: Path, kernel_cache: Path) -> None:
    check_goes_on(built(tmp_path / "bundle", kernel_cache, "raspberry-pi-4", QEMU, OPTIMIZERS["adam"]), tmp_path)
