"""Learning rates of a run: those of the schedulers of transformers and PyTorch, and the weights that come of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from torch.optim import lr_scheduler

from compiler.program.program import Schedule
from tests.compiler import tiny_images
from tests.compiler.step_process import Data, classifier_state, run, table_data, table_state, write_weights
from tests.compiler.tiny_images import BATCH, CLASSES, FEATURES, ROWS
from tests.vision import transformers

pytestmark = pytest.mark.xdist_group("runtime")

RATE, STEPS = 0.25, 12
Scheduler = Callable[[Any], Any]


def from_transformers(name: str, *arguments: int, **more: float) -> Scheduler:
    return lambda optimizer: getattr(transformers().optimization, f"get_{name}")(optimizer, *arguments, **more)


def constant_then_linear(optimizer: Any) -> Any:
    """Up from 0 in three steps, down to a fifth at step 12."""
    up = lr_scheduler.LambdaLR(optimizer, lambda done: done / 3)
    down = lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.2, total_iters=9)
    return lr_scheduler.SequentialLR(optimizer, [up, down], [3])


REFERENCES: dict[str, tuple[Scheduler, tuple[object, ...]]] = {
    "no schedule": (lambda o: lr_scheduler.ConstantLR(o, factor=1.0), ()),
    "constant": (from_transformers("constant_schedule_with_warmup", 0), ("--schedule", "constant")),
    "warm-up alone": (from_transformers("constant_schedule_with_warmup", 5), ("--warmup-steps", 5)),
    "linear": (from_transformers("linear_schedule_with_warmup", 0, STEPS), ("--schedule", "linear")),
    "linear with warm-up": (
        from_transformers("linear_schedule_with_warmup", 4, STEPS),
        ("--schedule", "linear", "--warmup-steps", 4),
    ),
    "linear, LinearLR": (
        lambda o: lr_scheduler.LinearLR(o, 1.0, 0.3, total_iters=8),
        ("--schedule", "linear", "--schedule-steps", 8, "--final-ratio", 0.3),
    ),
    "linear from a warm-up to a final rate": (
        constant_then_linear,
        ("--schedule", "linear", "--warmup-steps", 3, "--final-ratio", 0.2),
    ),
    "cosine": (from_transformers("cosine_schedule_with_warmup", 0, STEPS), ("--schedule", "cosine")),
    "cosine with warm-up": (
        from_transformers("cosine_schedule_with_warmup", 5, STEPS),
        ("--schedule", "cosine", "--warmup-steps", 5),
    ),
    "cosine, CosineAnnealingLR": (
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS, eta_min=0.1 * RATE),
        ("--schedule", "cosine", "--final-ratio", 0.1),
    ),
    "cosine from a warm-up to a final rate": (
        from_transformers("cosine_with_min_lr_schedule_with_warmup", 2, 20, min_lr_rate=0.4),
        ("--schedule", "cosine", "--warmup-steps", 2, "--schedule-steps", 20, "--final-ratio", 0.4),
    ),
    "all warm-up": (
        from_transformers("linear_schedule_with_warmup", 40, STEPS),
        ("--schedule", "linear", "--warmup-steps", 40),
    ),
}


def reference_rates(scheduler: Scheduler, steps: int = STEPS) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    schedule = scheduler(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return rates


def rates_of(binary: Path, weights: Path, data: Data, *options: object) -> list[float]:
    done = run(binary, "train", "--weights", weights, *data.arguments, "--learning-rate", RATE, *options)
    return [event["learning_rate"] for event in done.all("step")]


@pytest.mark.parametrize("name", REFERENCES)
def test_rates_are_those_of_the_reference(binary: Path, weights: Path, data: Data, name: str) -> None:
    scheduler, options = REFERENCES[name]
    rates = rates_of(binary, weights, data, "--steps", STEPS, *options)
    np.testing.assert_allclose(rates, reference_rates(scheduler), rtol=1e-8, atol=1e-9 * RATE)


def test_a_build_has_a_schedule_of_its_own(tmp_path: Path, weights: Path, data: Data) -> None:
    image = tiny_images.classifier()
    own = replace(image.optimizer, learning_rate=RATE, schedule=Schedule("cosine", 5, 0.4))
    binary = tiny_images.build(replace(image, optimizer=own), tmp_path / "step")
    told = ("--schedule", "linear", "--warmup-steps", 0, "--final-ratio", 0)
    cosine = from_transformers("cosine_with_min_lr_schedule_with_warmup", 5, STEPS, min_lr_rate=0.4)
    linear = from_transformers("linear_schedule_with_warmup", 0, STEPS)
    for options, scheduler in ((), cosine), (told, linear):
        rates = rates_of(binary, weights, data, "--steps", STEPS, *options)
        np.testing.assert_allclose(rates, reference_rates(scheduler), rtol=1e-8, atol=1e-9 * RATE)
    assert run(binary, "info").one("info")["optimizer"]["schedule"] == {
        "kind": "cosine",
        "warmup_steps": 5,
        "final_ratio": 0.4,
    }


def test_past_its_end_a_schedule_keeps_its_final_rate(binary: Path, weights: Path, data: Data) -> None:
    for kind in ("cosine", "linear"):
        options = ("--steps", 9, "--schedule", kind, "--schedule-steps", 4, "--final-ratio", 0.5)
        rates = rates_of(binary, weights, data, *options)
        assert rates[0] == RATE
        assert rates[4:] == [RATE / 2] * 5


def in_double(data: Data, scheduler: Scheduler, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The classifier under SGD with momentum, in float64: what becomes of w and b."""
    state = classifier_state()
    w, b = (torch.tensor(state[name], dtype=torch.float64, requires_grad=True) for name in "wb")
    optimizer = torch.optim.SGD([w, b], lr=RATE, momentum=0.9)
    schedule = scheduler(optimizer)
    x, y = torch.tensor(data.x, dtype=torch.float64), torch.tensor(data.y)
    for step in range(steps):
        chosen = [(step * BATCH + slot) % len(data.x) for slot in range(BATCH)]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(x[chosen] @ w.T + b, y[chosen]).backward()
        optimizer.step()
        schedule.step()
    return w.detach().numpy(), b.detach().numpy()


@pytest.mark.parametrize("name", ["linear with warm-up", "cosine from a warm-up to a final rate"])
def test_weights_under_a_schedule_are_those_of_pytorch_in_double(
    binary: Path, tmp_path: Path, weights: Path, data: Data, name: str
) -> None:
    scheduler, options = REFERENCES[name]
    saved = tmp_path / "saved.safetensors"
    run(
        binary,
        "train",
        "--weights",
        weights,
        *data.arguments,
        "--order",
        "sequential",
        "--learning-rate",
        RATE,
        "--steps",
        STEPS,
        *options,
        "--save",
        saved,
    )
    w, b = in_double(data, scheduler, STEPS)
    assert np.abs(w - classifier_state()["w"]).max() > 0.05
    np.testing.assert_allclose(load_file(saved)["w"], w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(load_file(saved)["b"], b, rtol=1e-5, atol=1e-6)
    assert w.shape == (CLASSES, FEATURES)


def test_a_run_from_a_checkpoint_goes_on_with_its_schedule(table_binary: Path, tmp_path: Path) -> None:
    """AdamW in one run of 7 steps, and in two of 4 and 3: the second needs no word of where the first ended."""
    data, start = table_data(tmp_path / "data"), write_weights(tmp_path / "w.safetensors", table_state())
    schedule = ("--schedule", "cosine", "--warmup-steps", 2, "--final-ratio", 0.1)
    common = ("train", *data.arguments, "--order", "sequential", *schedule)
    whole, halfway, end = (tmp_path / f"{name}.safetensors" for name in ("whole", "halfway", "end"))
    once = run(table_binary, *common, "--weights", start, "--steps", 7, "--save", whole)
    first = run(table_binary, *common, "--weights", start, "--steps", 4, "--schedule-steps", 7, "--save", halfway)
    second = run(table_binary, *common, "--weights", halfway, "--steps", 3, "--save", end)
    rates = [event["learning_rate"] for part in (first, second) for event in part.all("step")]
    assert rates == [event["learning_rate"] for event in once.all("step")]
    assert len(set(rates)) == 7
    assert whole.read_bytes() == end.read_bytes()
    assert load_file(end)["table"].shape[0] == ROWS


def test_an_optimizer_without_its_state_begins_anew(table_binary: Path, tmp_path: Path) -> None:
    """An export has weights and their steps, and no moments: what corrects the bias of moments counts theirs alone."""
    data, start = table_data(tmp_path / "data"), write_weights(tmp_path / "w.safetensors", table_state())
    common = ("train", *data.arguments, "--order", "sequential")
    paths = [tmp_path / f"{name}.safetensors" for name in ("all", "export", "new", "own", "half", "end")]
    saved, exported, new, own, half, end = paths
    run(table_binary, *common, "--weights", start, "--steps", 50, "--save", saved)
    run(table_binary, "export", "--weights", saved, "--out", exported)
    same = write_weights(tmp_path / "same.safetensors", {"table": load_file(exported)["table"]})
    for weights, to in ((exported, own), (same, new)):
        run(table_binary, *common, "--weights", start, "--weights", weights, "--steps", 5, "--save", to)
    found, wanted = load_file(own), load_file(new)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    with safe_open(own, "np") as file:
        assert file.metadata() == {"step": "55", "optimizer_start": "50"}
    run(table_binary, *common, "--weights", start, "--weights", exported, "--steps", 2, "--save", half)
    assert [
        event["step"]
        for event in run(table_binary, *common, "--weights", half, "--steps", 3, "--save", end).all("step")
    ] == [1, 2, 3]
    with safe_open(end, "np") as file:
        assert file.metadata() == {"step": "55", "optimizer_start": "50"}
