"""Runs that are killed and go on from a checkpoint: bit for bit as if nobody had touched them."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.compiler.runtime.test_validation import HELD_OUT, SAMPLES
from tests.compiler.step_process import (
    Data,
    Outcome,
    classifier_data,
    refused,
    run,
    table_data,
    table_state,
    write_weights,
)

pytestmark = pytest.mark.xdist_group("runtime")
STEPS = 60
BEST = "pockfarm.checkpoint.best"


def killed(binary: Path, words: Sequence[object], after: int) -> list[dict[str, Any]]:
    """Events of a process that gets SIGKILL when it has said so many lines (if it has not ended before)."""
    events: list[dict[str, Any]] = []
    with subprocess.Popen([str(binary), *map(str, words)], stdout=subprocess.PIPE) as child:
        assert child.stdout
        for line in child.stdout:
            events.append(json.loads(line))
            if len(events) == after:
                child.kill()
                break
    return events


def in_parts(binary: Path, words: Sequence[object], folder: Path, seed: int, kills: int) -> Outcome:
    """The run, killed so often somewhere and each time gone on with: its last part."""
    source, checkpoint = random.Random(seed), folder / "checkpoint"
    checkpoint.unlink(missing_ok=True)
    options = [*words, "--checkpoint", checkpoint, "--checkpoint-every", 0, "--checkpoint-key", "ours"]
    for _ in range(kills):
        resume = ["--resume", shutil.copyfile(checkpoint, folder / "resumed")] if checkpoint.exists() else []
        killed(binary, [*options, *resume], source.randint(4, 50))
    return run(binary, *options, "--resume", shutil.copyfile(checkpoint, folder / "resumed"))


def compare(binary: Path, words: Sequence[object], folder: Path, seed: int) -> None:
    whole, parts = folder / "whole", folder / "parts"
    alone = run(binary, *words, "--save", whole)
    last = in_parts(binary, [*words, "--save", parts], folder, seed, kills=1 + seed % 3)
    assert last.code == alone.code, last.stderr
    assert steps_before(last) + len(last.losses) == len(alone.losses)
    assert last.losses == alone.losses[len(alone.losses) - len(last.losses) :]
    mine = [event for event in alone.all("validation") if event["step"] > steps_before(last)]
    assert last.all("validation") == mine
    if alone.code == 0:
        told = ("outcome", "best_step", "best_loss", "saved_step", "steps")
        assert [last.one("done").get(name) for name in told] == [alone.one("done").get(name) for name in told]
        assert parts.read_bytes() == whole.read_bytes()


def steps_before(outcome: Outcome) -> int:
    return int(outcome.one("resume")["step"])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("schedule", [(), ("--schedule", "cosine", "--warmup-steps", 7, "--final-ratio", 0.1)])
def test_momentum_goes_on_bit_for_bit(
    binary: Path, tmp_path: Path, weights: Path, data: Data, seed: int, schedule: tuple[object, ...]
) -> None:
    words = ["train", "--weights", weights, *data.arguments, "--steps", STEPS, "--batch-seed", seed, *schedule]
    compare(binary, words, tmp_path, seed)


@pytest.mark.parametrize("seed", range(6))
def test_adamw_goes_on_bit_for_bit(table_binary: Path, tmp_path: Path, seed: int) -> None:
    """Its corrections count steps, also where the weights had seen some before."""
    about = {"step": "1000"} if seed % 2 else None
    weights = write_weights(tmp_path / "w.safetensors", table_state(), about)
    words = ["train", "--weights", weights, *table_data(tmp_path / "data", 10).arguments, "--steps", STEPS]
    compare(table_binary, words, tmp_path, seed)


@pytest.mark.parametrize("seed", range(8))
def test_validation_patience_and_the_best_go_on_bit_for_bit(
    binary: Path, tmp_path: Path, weights: Path, seed: int
) -> None:
    source = np.random.default_rng(3)
    x = source.normal(size=(SAMPLES, 6)).astype("f4")
    y = (x[:, 0] > 0).astype(np.int64)
    y[-HELD_OUT:] = 1 - y[-HELD_OUT:]
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    words = [
        "train",
        "--weights",
        weights,
        "--input",
        f"x={tmp_path / 'x.npy'}",
        "--labels",
        tmp_path / "y.npy",
        "--steps",
        3 * STEPS,
        "--validation",
        HELD_OUT / SAMPLES,
        "--eval-every",
        1 + seed % 4,
        "--patience",
        9,
        "--learning-rate",
        0.1,
        "--min-delta",
        1e-3,
        "--save-best",
    ]
    compare(binary, words, tmp_path, seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_diverges_does_so_at_the_same_step(
    binary: Path, tmp_path: Path, weights: Path, data: Data, seed: int
) -> None:
    words = ["train", "--weights", weights, *data.arguments, "--steps", 400, "--learning-rate", 60.0]
    alone = run(binary, *words)
    last = in_parts(binary, words, tmp_path, seed, kills=1)
    assert refused(alone) == refused(last) == (2, "user", "train.diverged")
    assert last.one("error")["step"] == alone.one("error")["step"]
    assert last.losses == alone.losses[len(alone.losses) - len(last.losses) :]


def leave(binary: Path, folder: Path, weights: Path, data: Data, *options: object, key: str = "ours") -> Path:
    """A checkpoint in the middle of a run."""
    path = folder / "checkpoint"
    words = [
        "train",
        "--weights",
        weights,
        *data.arguments,
        "--steps",
        5,
        "--checkpoint",
        path,
        "--checkpoint-every",
        0,
    ]
    assert run(binary, *words, "--checkpoint-key", key, *options).code == 0
    return path


def go_on(binary: Path, weights: Path, data: Data, path: Path, *options: object, steps: int = 5) -> Outcome:
    words = ["train", "--weights", weights, *data.arguments, "--steps", steps, "--checkpoint-key", "ours"]
    return run(binary, *words, "--resume", path, *options)


def test_a_checkpoint_has_what_training_changes_and_no_more(
    binary: Path, tmp_path: Path, weights: Path, data: Data
) -> None:
    path = leave(binary, tmp_path, weights, data)
    assert set(load_file(path)) == {"w", "b", "optimizer.momentum.w", "optimizer.momentum.b"}
    with safe_open(path, "np") as file:
        about = file.metadata()
    assert (about["step"], about["key"], about["position"].split()[:2]) == ("4", "ours", ["1", "4"])
    done = go_on(binary, weights, data, path)
    assert [event["step"] for event in done.all("resume") + done.all("step")] == [4, 5]


def test_a_checkpoint_of_another_run_is_refused(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    path = leave(binary, tmp_path, weights, data, key="theirs")
    assert refused(go_on(binary, weights, data, path)) == (3, "weights", "checkpoint.key")
    assert refused(go_on(binary, weights, data, weights)) == (3, "weights", "checkpoint.format")
    path = leave(binary, tmp_path, weights, data)
    assert refused(go_on(binary, weights, data, path, steps=3)) == (3, "weights", "checkpoint.format")


POSITIONS = {
    "empty": "",
    "words": "hello",
    "another version": "2 4 0 1 0 0 0 0",
    "no steps": "1 0 0 1 0 0 0 0",
    "less than no steps": "1 -4 0 1 0 0 0 0",
    "more steps than its weights": "1 5 0 1 0 0 0 0",
    "too many steps": "1 9223372036854775808 0 1 0 0 0 0",
    "more high losses than there are": "1 4 65536 1 0 0 0 0",
    "a start that is no number": "1 4 0 nan 0 0 0 0",
    "an endless bar": "1 4 0 1 0 0 inf 0",
    "a best of tomorrow": "1 4 0 1 5 0 0 0",
    "too long a wait": "1 4 0 1 0 0 0 5",
    "too short": "1 4 0 1 0 0 0",
    "something behind": "1 4 0 1 0 0 0 0 0",
}


@pytest.mark.parametrize("name", POSITIONS)
def test_a_position_that_no_run_has_written_is_refused(
    binary: Path, tmp_path: Path, weights: Path, data: Data, name: str
) -> None:
    path = leave(binary, tmp_path, weights, data)
    with safe_open(path, "np") as file:
        about = file.metadata()
    state = load_file(path)
    save_file(state, path, {**about, "position": "1 4 0 1 0 0 0 0"})
    assert go_on(binary, weights, data, path).code == 0, "else the refusals prove nothing"
    save_file(state, path, {**about, "position": POSITIONS[name]})
    assert refused(go_on(binary, weights, data, path)) == (3, "weights", "checkpoint.format")


def test_a_best_that_is_not_there_or_is_none_is_refused(
    binary: Path, tmp_path: Path, weights: Path, data: Data
) -> None:
    """Also one that is no checkpoint: nobody can load what such a run leaves."""
    saved = tmp_path / "saved"
    best = ("--validation", 0.3, "--eval-every", 1, "--save", saved, "--save-best")
    path = leave(binary, tmp_path, weights, data, *best)
    with safe_open(path, "np") as file:
        about = file.metadata()
    state = load_file(path)
    assert state[BEST].dtype == np.uint8
    save_file({name: array for name, array in state.items() if name != BEST}, path, about)
    assert refused(go_on(binary, weights, data, path, *best)) == (3, "weights", "checkpoint.format")


def test_damaged_checkpoints_never_crash_the_reader(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    source, path = random.Random(0), tmp_path / "damaged"
    saved = tmp_path / "saved"
    best = ("--validation", 0.3, "--eval-every", 1, "--save", saved, "--save-best")
    good = leave(binary, tmp_path, weights, data, *best).read_bytes()
    codes = set()
    for _ in range(120):
        damaged = bytearray(good)
        for _ in range(source.randint(1, 4)):
            damaged[source.randrange(len(good) if source.random() < 0.3 else 300)] = source.choice(
                b'\x00\xff{}[]",:9-\\'
            )
        path.write_bytes(damaged[: source.randint(0, len(good))] if source.random() < 0.2 else damaged)
        codes.add(go_on(binary, weights, data, path, *best).code)
    assert codes <= {0, 3}
    assert 3 in codes


def test_a_disk_that_is_full_does_not_end_training(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    words = ["train", "--weights", weights, *data.arguments, "--steps", 3, "--checkpoint-every", 0]
    done = run(binary, *words, "--checkpoint", tmp_path / "not" / "there")
    assert done.code == 0
    assert not done.all("checkpoint")
    assert "no checkpoint after step 2" in done.stderr


def test_a_run_that_is_told_to_stop_leaves_where_it_stands(binary: Path, tmp_path: Path, weights: Path) -> None:
    data, path = classifier_data(tmp_path / "more", samples=40), tmp_path / "checkpoint"
    words = ["train", "--weights", weights, *data.arguments, "--steps", 100_000, "--checkpoint", path]
    with subprocess.Popen([str(binary), *map(str, words)], stdout=subprocess.PIPE) as child:
        assert child.stdout
        events = []
        for line in child.stdout:
            events.append(json.loads(line))
            if len(events) == 20:
                child.terminate()
    left = [event for event in events if event["event"] == "checkpoint"]
    assert [event["step"] for event in left] == [events[-1]["steps"]]
    assert events[-1]["event"] == "stopped"
