"""The C runtime as a process: training, scoring and files, against NumPy, PyTorch and the safetensors library."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file

from compiler.program.state import label_of
from compiler.spec.loss import LossKind
from tests.compiler import tiny_images
from tests.compiler.step_process import (
    QEMU,
    Data,
    classifier_data,
    classifier_state,
    run,
    table_data,
    table_state,
    write_data,
    write_weights,
)
from tests.compiler.tiny_images import BATCH, CLASSES, FEATURES, ROWS
from tests.service.lone_processes import wait_for_state
from tests.waiting import HANG_S

pytestmark = pytest.mark.xdist_group("runtime")


def sgd_in_double(data: Data, steps: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """PyTorch's float64 SGD with momentum over batches in file order, wrapping around."""
    start = classifier_state()
    w, b = (torch.tensor(start[name], dtype=torch.float64, requires_grad=True) for name in ("w", "b"))
    optimizer = torch.optim.SGD([w, b], lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        index = [(step * BATCH + i) % len(data.y) for i in range(BATCH)]
        x = torch.tensor(data.x[index], dtype=torch.float64)
        loss = torch.nn.functional.cross_entropy(x @ w.T + b, torch.tensor(data.y[index]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    momentum = {
        f"optimizer.momentum.{name}": optimizer.state[p]["momentum_buffer"].numpy() for name, p in (("w", w), ("b", b))
    }
    return losses, {"w": w.detach().numpy(), "b": b.detach().numpy(), **momentum}


@pytest.mark.parametrize("target", ["x86-64-v3", "raspberry-pi-4"])
def test_training_follows_pytorch_in_double(target: str, tmp_path: Path, weights: Path, data: Data) -> None:
    runner = QEMU if target == "raspberry-pi-4" else ()
    step = tiny_images.build(tiny_images.classifier(), tmp_path / "step", target)
    saved = tmp_path / "saved.safetensors"
    completed = run(
        step,
        "train",
        "--weights",
        weights,
        *data.arguments,
        "--steps",
        7,
        "--order",
        "sequential",
        "--save",
        saved,
        runner=runner,
    )
    losses, state = sgd_in_double(data, 7)
    assert completed.code == 0, completed
    np.testing.assert_allclose(completed.losses, losses, rtol=1e-5)
    assert [event["step"] for event in completed.all("step")] == list(range(1, 8))
    found = load_file(saved)
    assert set(found) == {*state, "constant.spare"}
    np.testing.assert_allclose(found["w"], state["w"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["b"], state["b"], rtol=1e-5, atol=1e-6)
    inside = found["optimizer.momentum.w"]
    np.testing.assert_allclose(inside, state["optimizer.momentum.w"].T, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found["constant.spare"], classifier_state()["constant.spare"])
    with safe_open(saved, "np") as file:
        assert file.metadata() == {"step": "7"}


def adamw_in_double(data: Data, steps: int) -> tuple[list[float], np.ndarray]:
    table = torch.tensor(table_state()["table"], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([table], lr=0.01, weight_decay=0.0)
    losses = []
    for _ in range(steps):
        looked_up = table[torch.tensor(data.x % ROWS)]
        loss = torch.nn.functional.mse_loss(looked_up, torch.tensor(data.y, dtype=torch.float64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, table.detach().numpy()


def test_a_resumed_adamw_run_counts_its_steps_on(table_binary: Path, tmp_path: Path) -> None:
    data = table_data(tmp_path / "data")
    start = write_weights(tmp_path / "start.safetensors", table_state())
    halfway, end = tmp_path / "halfway.safetensors", tmp_path / "end.safetensors"
    common = (*data.arguments, "--order", "sequential")
    first = run(table_binary, "train", "--weights", start, *common, "--steps", 4, "--save", halfway)
    second = run(table_binary, "train", "--weights", halfway, *common, "--steps", 3, "--save", end)
    losses, table = adamw_in_double(data, 7)
    np.testing.assert_allclose(first.losses + second.losses, losses, rtol=1e-5)
    np.testing.assert_allclose(load_file(end)["table"], table, rtol=1e-4, atol=1e-6)
    with safe_open(end, "np") as file:
        assert file.metadata() == {"step": "7"}


def test_the_learning_rate_option_wins(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    saved = tmp_path / "saved.safetensors"
    run(binary, "train", "--weights", weights, *data.arguments, "--steps", 3, "--learning-rate", 0, "--save", saved)
    for name, array in classifier_state().items():
        np.testing.assert_array_equal(load_file(saved)[name], array)


def test_any_number_of_threads_gives_the_same_bytes(tmp_path: Path, weights: Path, data: Data) -> None:
    step = tiny_images.build(tiny_images.classifier(threads=8), tmp_path / "step")
    files: list[Path] = []
    for threads in (1, 2, 2, 8):
        files.append(tmp_path / f"{len(files)}.safetensors")
        completed = run(
            step,
            "train",
            "--weights",
            weights,
            *data.arguments,
            "--steps",
            500,
            "--threads",
            threads,
            "--save",
            files[-1],
        )
        assert completed.one("start")["threads"] == threads
    assert len({path.read_bytes() for path in files}) == 1


def test_every_epoch_takes_every_sample_once_in_a_seeded_order(binary: Path, tmp_path: Path, weights: Path) -> None:
    data = classifier_data(tmp_path / "many", samples=5 * BATCH)

    def losses(seed: int, *more: object) -> np.ndarray:
        completed = run(
            binary,
            "train",
            "--weights",
            weights,
            *data.arguments,
            "--steps",
            15,
            "--learning-rate",
            0,
            "--batch-seed",
            seed,
            *more,
        )
        return np.asarray(completed.losses).reshape(3, 5)

    mean = run(binary, "eval", "--weights", weights, *data.arguments).one("eval")["loss"]
    np.testing.assert_allclose(losses(1).mean(axis=1), mean, rtol=1e-6)
    np.testing.assert_array_equal(losses(1), losses(1))
    assert (losses(1) != losses(2)).any()
    assert (losses(1)[0] != losses(1)[1]).any(), "each epoch has its own order"
    sequential = losses(1, "--order", "sequential")
    np.testing.assert_array_equal(sequential[0], sequential[1])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("samples", [1, BATCH, 3 * BATCH + 1])
def test_eval_scores_every_sample_in_double(binary: Path, tmp_path: Path, weights: Path, samples: int) -> None:
    state = classifier_state()
    data = classifier_data(tmp_path / "some", samples=samples)
    logits = data.x.astype("f8") @ state["w"].astype("f8").T + state["b"]
    done = run(binary, "eval", "--weights", weights, *data.arguments).one("eval")
    assert done["samples"] == samples
    assert done["loss"] == pytest.approx(-log_softmax(logits)[range(samples), data.y].mean(), rel=1e-6)
    assert done["accuracy"] == pytest.approx((logits.argmax(axis=1) == data.y).mean())


def test_eval_and_train_ignore_the_label_minus_100(binary: Path, tmp_path: Path, weights: Path) -> None:
    plain = classifier_data(tmp_path / "plain", samples=BATCH)
    labels = plain.y.copy()
    labels[1] = -100
    data = write_data(tmp_path / "ignoring", "x", plain.x, labels)
    state = classifier_state()
    kept = [0, 2, 3]
    logits = plain.x.astype("f8") @ state["w"].astype("f8").T + state["b"]
    expected = -log_softmax(logits)[kept, labels[kept]].mean()
    scored = run(binary, "eval", "--weights", weights, *data.arguments).one("eval")
    trained = run(binary, "train", "--weights", weights, *data.arguments, "--steps", 1)
    assert scored["loss"] == pytest.approx(expected, rel=1e-6)
    assert trained.losses[0] == pytest.approx(expected, rel=1e-5)
    all_ignored = write_data(tmp_path / "none", "x", plain.x, np.full(BATCH, -100))
    assert run(binary, "eval", "--weights", weights, *all_ignored.arguments).one("eval")["loss"] is None


def test_mean_squared_error_has_no_accuracy(table_binary: Path, tmp_path: Path) -> None:
    data = table_data(tmp_path / "data", samples=BATCH + 2)
    start = write_weights(tmp_path / "w.safetensors", table_state())
    scored = run(table_binary, "eval", "--weights", start, *data.arguments).one("eval")
    difference = table_state()["table"].astype("f8")[data.x % ROWS] - data.y
    assert scored["loss"] == pytest.approx((difference**2).mean(), rel=1e-6)
    assert scored["accuracy"] is None


def test_infer_writes_the_logits_of_every_sample(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    out = tmp_path / "logits.npy"
    done = run(binary, "infer", "--weights", weights, *data.arguments[:2], "--out", out)
    state = classifier_state()
    assert done.code == 0
    logits = np.load(out)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, data.x @ state["w"].T + state["b"], rtol=1e-5, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "logits.npy", "weights.safetensors"]


def test_infer_keeps_every_axis(table_binary: Path, tmp_path: Path) -> None:
    data = table_data(tmp_path / "data", samples=3)
    start = write_weights(tmp_path / "w.safetensors", table_state())
    run(table_binary, "infer", "--weights", start, *data.arguments[:2], "--out", tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), table_state()["table"][data.x % ROWS])


def test_export_writes_parameters_alone_bit_for_bit(binary: Path, tmp_path: Path, data: Data, weights: Path) -> None:
    saved, out = tmp_path / "saved.safetensors", tmp_path / "out.safetensors"
    run(binary, "train", "--weights", weights, *data.arguments, "--steps", 2, "--save", saved)
    assert run(binary, "export", "--weights", saved, "--out", out).code == 0
    trained = load_file(saved)
    exported = load_file(out)
    assert set(exported) == {"w", "b"}
    for name, array in exported.items():
        np.testing.assert_array_equal(array, trained[name])


def test_later_weights_replace_earlier_ones(binary: Path, tmp_path: Path, weights: Path) -> None:
    """What a second run does: the bundle's file first (constants), then exported parameters."""
    mine = write_weights(tmp_path / "mine.safetensors", {"w": classifier_state(5)["w"]})
    out = tmp_path / "out.safetensors"
    assert run(binary, "export", "--weights", weights, "--weights", mine, "--out", out).code == 0
    np.testing.assert_array_equal(load_file(out)["w"], classifier_state(5)["w"])
    np.testing.assert_array_equal(load_file(out)["b"], classifier_state()["b"])


@pytest.mark.parametrize("kind", ["smooth_l1", "bce_with_logits"])
def test_info_calls_each_loss_by_its_own_name(kind: LossKind, tmp_path: Path) -> None:
    image = tiny_images.table()
    (term,) = image.terms
    binary = tiny_images.build(replace(image, terms=(replace(term, kind=kind),)), tmp_path / "step")
    assert run(binary, "info").one("info")["loss"] == kind


def test_info_tells_what_was_built(binary: Path) -> None:
    image = tiny_images.classifier()
    info = run(binary, "info").one("info")
    plan = image.plan
    assert (info["arena_bytes"], info["weights_bytes"], info["optimizer_bytes"]) == (
        plan.arena_bytes,
        plan.weights_bytes,
        plan.optimizer_bytes,
    )
    assert info["mapped_bytes"] == plan.arena_bytes + plan.weights_bytes + plan.optimizer_bytes
    assert info["identity"] == image.identity
    assert info["inputs"] == [{"name": "x", "dtype": "f32", "shape": [BATCH, FEATURES]}]
    assert info["labels"] == [{"name": "labels", "dtype": "i64", "shape": [BATCH]}]
    assert info["logits"]["shape"] == [BATCH, CLASSES]
    schedule = {"kind": "constant", "warmup_steps": 0, "final_ratio": 0}
    assert info["optimizer"] == {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9, "schedule": schedule}
    assert [(kernel["name"], kernel["phase"]) for kernel in info["kernels"]] == [
        (label_of(call), call.phase) for call in image.programs["train"].calls
    ]


def test_profile_reports_steps_then_kernels(binary: Path, weights: Path, data: Data) -> None:
    for source in ((), data.arguments):
        done = run(binary, "profile", "--weights", weights, *source, "--steps", 5, "--warmup", 1)
        calls = tiny_images.classifier().programs["train"].calls
        assert [event["event"] for event in done.events] == [
            "start",
            *["step"] * 5,
            *["kernel"] * len(calls),
            "overhead",
            "done",
        ]
        assert [event["name"] for event in done.all("kernel")] == [label_of(call) for call in calls]
        assert all(event["us"] > 0 for event in done.all("step"))
        assert done.all("kernel")[0]["flops"] == 10
        assert done.one("done")["steps"] == 5


def test_a_profile_measures_on_when_its_made_up_data_diverges(tmp_path: Path, weights: Path) -> None:
    image = tiny_images.classifier()
    image = replace(image, optimizer=replace(image.optimizer, learning_rate=1e30))
    done = run(tiny_images.build(image, tmp_path / "step"), "profile", "--weights", weights, "--steps", 40)
    assert done.code == 0
    assert None in done.losses
    assert len(done.all("step")) == 40


def test_profile_needs_no_data_for_token_inputs(table_binary: Path, tmp_path: Path) -> None:
    start = write_weights(tmp_path / "w.safetensors", table_state())
    first, second = (run(table_binary, "profile", "--weights", start, "--steps", 3).losses for _ in range(2))
    assert len(first) == 3
    assert first == second, "synthetic data is seeded"


def test_memory_in_use_is_what_was_planned(tmp_path: Path, data: Data) -> None:
    """A third of the plan is written (weights), the rest is never touched: both bounds of what the process may hold."""
    spare = np.random.default_rng(0).normal(size=4 << 20).astype("f4")
    image = tiny_images.classifier(arena_padding_bytes=32 << 20, spare_elements=spare.size)
    weights = write_weights(tmp_path / "w.safetensors", {**classifier_state(), "constant.spare": spare})
    step, saved = tiny_images.build(image, tmp_path / "step"), tmp_path / "saved.safetensors"
    done = run(step, "train", "--weights", weights, *data.arguments, "--steps", 3, "--save", saved)
    planned = image.plan.arena_bytes + image.plan.weights_bytes + image.plan.optimizer_bytes
    assert done.one("start")["arena_bytes"] == image.plan.arena_bytes
    assert spare.nbytes < done.one("done")["peak_rss_bytes"] <= planned * 1.1 + (8 << 20)
    np.testing.assert_array_equal(load_file(saved)["constant.spare"], spare)


def test_memory_that_the_system_refuses_is_a_limit(tmp_path: Path, weights: Path, data: Data) -> None:
    step = tiny_images.build(tiny_images.classifier(arena_padding_bytes=1 << 46), tmp_path / "step")
    done = run(step, "train", "--weights", weights, *data.arguments, "--steps", 1)
    assert (done.code, done.one("error")["code"]) == (4, "limits.memory")


def test_sigterm_ends_after_the_current_step_and_saves(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    saved = tmp_path / "saved.safetensors"
    command = [binary, "train", "--weights", weights, *data.arguments, "--steps", "1000000000", "--save", saved]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        lines = process.stdout.read().splitlines()
        assert process.wait(timeout=HANG_S) == 0
    last = json.loads(lines[-1])
    assert last["event"] == "stopped"
    with safe_open(saved, "np") as file:
        assert file.metadata() == {"step": str(last["steps"])}


def test_idle_workers_sleep(binary: Path, weights: Path, data: Data) -> None:
    """A pool that spun for ever would burn a core beside a process that is stopped between steps."""
    command = [binary, "train", "--weights", weights, *data.arguments, "--steps", "1000000000", "--threads", "2"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 2
            wait_for_state(process.pid, "S")  # the pipe is full: the main thread blocks in write
        finally:
            process.kill()
