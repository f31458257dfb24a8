"""Validation between training steps: on which samples, when, what it says, what it stops and what is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.compiler.runtime.test_training import log_softmax
from tests.compiler.step_process import Data, Outcome, classifier_data, refused, run, write_data, write_weights
from tests.compiler.tiny_images import BATCH, CLASSES, FEATURES

pytestmark = pytest.mark.xdist_group("runtime")

SAMPLES, HELD_OUT = 4 * BATCH, 6


@pytest.fixture
def many(tmp_path: Path) -> Data:
    return classifier_data(tmp_path / "many", samples=SAMPLES)


@pytest.fixture
def parts(tmp_path: Path, many: Data) -> tuple[Data, Data]:
    """What learns and what is held out, each in files of its own."""
    split = SAMPLES - HELD_OUT
    return (
        write_data(tmp_path / "learning", "x", many.x[:split], many.y[:split]),
        write_data(tmp_path / "held-out", "x", many.x[split:], many.y[split:]),
    )


@pytest.fixture
def worse(tmp_path: Path) -> Data:
    """What is learned from the first three quarters is wrong for the last."""
    random = np.random.default_rng(3)
    x = random.normal(size=(SAMPLES, FEATURES)).astype("f4")
    y = (x[:, 0] > 0).astype(np.int64)
    y[-HELD_OUT:] = 1 - y[-HELD_OUT:]
    return write_data(tmp_path / "worse", "x", x, y)


def loss_of(checkpoint: Path, data: Data) -> tuple[float, float]:
    """Mean loss and accuracy in float64."""
    state = {name: array.astype("f8") for name, array in load_file(checkpoint).items()}
    logits = data.x.astype("f8") @ state["w"].T + state["b"]
    return (
        float(-log_softmax(logits)[range(len(data.y)), data.y].mean()),
        float((logits.argmax(axis=1) == data.y).mean()),
    )


def train(binary: Path, weights: Path, data: Data, *options: object) -> Outcome:
    return run(binary, "train", "--weights", weights, *data.arguments, *options)


def test_the_last_samples_are_held_out_and_scored(
    binary: Path, tmp_path: Path, weights: Path, many: Data, parts: tuple[Data, Data]
) -> None:
    learning, held_out = parts
    share, saved = ("--validation", HELD_OUT / SAMPLES, "--eval-every", 2), tmp_path / "saved.safetensors"
    for steps in (2, 4, 5):
        done = train(binary, weights, many, "--steps", steps, *share, "--save", saved)
        alone = tmp_path / "alone.safetensors"
        train(binary, weights, learning, "--steps", steps, "--save", alone)
        assert saved.read_bytes() == alone.read_bytes(), "nothing is learned of what is held out, or by looking at it"
        last = done.all("validation")[-1]
        loss, accuracy = loss_of(saved, held_out)
        assert (last["step"], last["samples"]) == (steps, HELD_OUT)
        assert last["loss"] == pytest.approx(loss, rel=1e-6)
        assert last["accuracy"] == pytest.approx(accuracy)
    assert [event["step"] for event in done.all("validation")] == [2, 4, 5], "and after the last step"
    files = (word.replace("--", "--eval-") for word in held_out.arguments)
    apart = train(binary, weights, learning, "--steps", 5, *files, "--eval-every", 2)
    assert apart.all("validation") == done.all("validation")


def test_a_validation_follows_each_epoch_unless_told_otherwise(binary: Path, weights: Path, many: Data) -> None:
    """11 samples learn: an epoch is 3 batches of 4."""
    done = train(binary, weights, many, "--steps", 8, "--validation", 0.3)
    assert [event["step"] for event in done.all("validation")] == [3, 6, 8]
    end = done.one("done")
    assert (end["outcome"], end["steps"]) == ("completed", 8)
    best = min(done.all("validation"), key=lambda event: event["loss"])
    assert (end["best_step"], end["best_loss"]) == (best["step"], best["loss"])
    assert "saved_step" not in end


def test_a_run_without_validation_ends_as_it_did(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    done = train(binary, weights, data, "--steps", 3, "--save", tmp_path / "saved.safetensors")
    assert not done.all("validation")
    end = done.one("done")
    assert (end["outcome"], end["saved_step"]) == ("completed", 3)
    assert "best_step" not in end


def test_patience_ends_a_run_that_gets_no_better(binary: Path, tmp_path: Path, weights: Path, worse: Data) -> None:
    saved, again = tmp_path / "saved.safetensors", tmp_path / "again.safetensors"
    options = ("--validation", HELD_OUT / SAMPLES, "--eval-every", 3, "--learning-rate", 0.3)
    done = train(binary, weights, worse, "--steps", 300, *options, "--patience", 4, "--save", saved, "--save-best")
    losses = [event["loss"] for event in done.all("validation")]
    best, end = int(np.argmin(losses)), done.one("done")
    assert len(losses) == best + 1 + 4
    assert (end["outcome"], end["steps"]) == ("stopped_early", 3 * len(losses))
    assert (end["best_step"], end["saved_step"]) == (3 * (best + 1), 3 * (best + 1))
    train(binary, weights, worse, "--steps", end["best_step"], *options, "--save", again)
    assert saved.read_bytes() == again.read_bytes(), "what is saved is the best, its momentum and its steps too"
    with safe_open(saved, "np") as file:
        assert file.metadata() == {"step": str(end["best_step"])}
    last = train(binary, weights, worse, "--steps", 300, *options, "--patience", 4, "--save", again)
    assert last.one("done")["saved_step"] == end["steps"]
    assert saved.read_bytes() != again.read_bytes()


def test_an_improvement_below_min_delta_is_none(binary: Path, tmp_path: Path, weights: Path, many: Data) -> None:
    options = ("--steps", 50, "--validation", 0.5, "--eval-every", 1, "--learning-rate", 1e-4, "--patience", 3)
    small = train(binary, weights, many, *options, "--min-delta", 1.0, "--save", tmp_path / "s", "--save-best")
    losses = [event["loss"] for event in small.all("validation")]
    end = small.one("done")
    assert (len(losses), end["outcome"]) == (4, "stopped_early")
    assert end["best_step"] == end["saved_step"] == 1 + int(np.argmin(losses)), "the lowest, however little lower"


def test_the_best_is_the_best_of_what_is_told(binary: Path, weights: Path, many: Data) -> None:
    """Losses that differ by roundings only: whoever reads the events finds the same best step."""
    for rate in (1e-8, 3e-8, 1e-7):
        options = ("--steps", 40, "--validation", 0.5, "--eval-every", 1, "--learning-rate", rate)
        done = train(binary, weights, many, *options)
        told = [(event["loss"], event["step"]) for event in done.all("validation")]
        assert len({f"{loss:.9g}" for loss, _ in told}) < len({loss for loss, _ in told}), "nine digits do not tell"
        assert done.one("done")["best_step"] == min(told)[1]


def test_a_run_that_diverges_has_saved_its_best(binary: Path, tmp_path: Path, weights: Path, many: Data) -> None:
    saved, first = tmp_path / "saved.safetensors", tmp_path / "first.safetensors"
    options = ("--validation", 0.25, "--eval-every", 1, "--learning-rate", 1e4)
    done = train(binary, weights, many, "--steps", 60, *options, "--save", saved, "--save-best")
    assert refused(done) == (2, "user", "train.diverged")
    best = min(done.all("validation"), key=lambda event: event["loss"])
    train(binary, weights, many, "--steps", best["step"], *options, "--save", first)
    assert saved.read_bytes() == first.read_bytes()


def test_samples_that_cannot_be_scored_are_told(binary: Path, tmp_path: Path, weights: Path, many: Data) -> None:
    for share in (0.001, 0.999):
        completed = train(binary, weights, many, "--steps", 1, "--validation", share)
        assert refused(completed) == (3, "data", "data.count")
    labels = many.y.copy()
    labels[-2:] = -100
    ignored = write_data(tmp_path / "ignored", "x", many.x, labels)
    completed = train(binary, weights, ignored, "--steps", 1, "--validation", 2 / SAMPLES)
    assert refused(completed) == (3, "data", "data.label")
    huge = write_weights(tmp_path / "huge", {"w": np.full((CLASSES, FEATURES), 1e38, "f4")})
    big = write_data(
        tmp_path / "big",
        "x",
        np.where(np.arange(SAMPLES) < 12, 0, 1e3)[:, None].repeat(FEATURES, 1).astype("f4"),
        many.y,
    )
    completed = run(
        binary,
        "train",
        "--weights",
        weights,
        "--weights",
        huge,
        *big.arguments,
        "--steps",
        2,
        "--validation",
        0.25,
        "--eval-every",
        1,
    )
    assert refused(completed) == (2, "user", "train.diverged")
    assert (completed.one("error")["step"], len(completed.losses)) == (1, 1)
