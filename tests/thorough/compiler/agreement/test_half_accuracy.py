"""What is learned with activations in bfloat16 or float16 answers as well as what is learned in f32, on real data.

Weights of several seeds, for a test set of a few hundred samples counts in steps of a few tenths of a point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.precision import Compute
from compiler.targets import load
from examples.models import MODELS
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.sample import sample

SEEDS = 4
POINTS = 0.5
"""Of a hundred: by so much may the accuracies differ, averaged over the seeds."""
BATCH, STEPS = 32, 600

Task = tuple[Callable[[int], bytes], np.ndarray, np.ndarray]


def digits() -> Task:
    """Handwritten digits, 8 x 8, by a small convolutional net."""
    found = load_digits()
    return lambda seed: MODELS["small_cnn"](seed=seed), (found.images / 16)[:, None].astype(np.float32), found.target


def tumours() -> Task:
    """Breast cancer (Wisconsin), 30 measurements of a cell's nucleus, by three linear layers."""
    found = load_breast_cancer()
    x = (found.data - found.data.mean(0)) / found.data.std(0)
    return lambda seed: MODELS["mlp"](features=30, classes=2, seed=seed), x.astype(np.float32), found.target


TASKS = {"digits": digits, "tumours": tumours}


def accuracies(task: Task, compute: Compute, folder: Path, cache: Path) -> Iterator[float]:
    """On the half of the samples that is not trained on, by seed."""
    model, x, y = task
    order = np.random.default_rng(0).permutation(len(y))
    parts = {"train": order[: len(y) // 2], "test": order[len(y) // 2 :]}
    spec = TrainingSpec.parse(
        {
            "batch": BATCH,
            "precision": {"compute": compute},
            "optimizer": {"kind": "sgd", "learning_rate": 0.02, "momentum": 0.9},
        }
    )
    for seed in range(SEEDS):
        settings = BuildSettings(SparsePlan.parse("full"), spec, load(native_target()), cache_dir=cache, jobs=1)
        binary = StepBinary.unpack(compile_training(model(seed), settings), folder / f"{compute}{seed}")
        for name, part in parts.items():
            np.save(folder / f"x-{name}.npy", x[part])
            np.save(folder / f"y-{name}.npy", y[part].astype(np.int64))
        data = {
            name: ("--input", f"input={folder}/x-{name}.npy", "--labels", f"{folder}/y-{name}.npy") for name in parts
        }
        learned = folder / f"{compute}{seed}.safetensors"
        binary.run("train", "--weights", binary.weights, *data["train"], "--steps", STEPS, "--save", learned)
        (event,) = (one for one in binary.run("eval", "--weights", learned, *data["test"]) if "accuracy" in one)
        yield event["accuracy"]


@pytest.mark.parametrize("name", sample(TASKS, {"digits"}))
def test_what_is_learned_in_half_precision_answers_as_well(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    task = TASKS[name]()
    found = {one: np.array(list(accuracies(task, one, tmp_path, kernel_cache))) for one in get_args(Compute)}
    assert found["f32"].mean() > 0.9, "nothing was learned"
    assert all(abs(one.mean() - found["f32"].mean()) <= POINTS / 100 for one in found.values()), found
