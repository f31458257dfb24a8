"""What goes wrong while a step runs, and how it is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compiler import tiny_images
from tests.compiler.step_process import (
    Data,
    classifier_state,
    refused,
    run,
    write_data,
    write_weights,
)
from tests.compiler.tiny_images import CLASSES, FEATURES

pytestmark = pytest.mark.xdist_group("runtime")


def test_training_that_diverges_stops(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    outcome = run(
        binary,
        "train",
        "--weights",
        weights,
        *data.arguments,
        "--steps",
        500,
        "--learning-rate",
        1e30,
        "--save",
        tmp_path / "saved",
    )
    assert refused(outcome) == (2, "user", "train.diverged")
    assert not (tmp_path / "saved").exists(), "no checkpoint of NaNs"
    assert len(outcome.all("step")) < 500


def test_an_update_that_diverges_is_not_saved(binary: Path, tmp_path: Path, weights: Path) -> None:
    """The loss of the only step is finite; what the step makes of the weights is not."""
    random = np.random.default_rng(0)
    data = write_data(tmp_path / "big", "x", random.normal(size=(4, FEATURES)).astype("f4") * 50, np.zeros(4, np.int64))
    outcome = run(
        binary,
        "train",
        "--weights",
        weights,
        *data.arguments,
        "--steps",
        1,
        "--learning-rate",
        3e38,
        "--save",
        tmp_path / "saved",
    )
    assert np.isfinite(outcome.losses[0])
    assert refused(outcome) == (2, "user", "train.diverged")
    assert not (tmp_path / "saved").exists()


def test_weights_whose_logits_overflow_cannot_be_scored(binary: Path, tmp_path: Path, data: Data) -> None:
    huge = {**classifier_state(), "w": np.full((CLASSES, FEATURES), 3e38, "f4")}
    path = write_weights(tmp_path / "huge.safetensors", huge)
    assert refused(run(binary, "eval", "--weights", path, *data.arguments)) == (3, "weights", "weights.diverged")


def test_a_kernel_that_fails_is_named(tmp_path: Path, weights: Path, data: Data) -> None:
    step = tiny_images.build(tiny_images.failing_classifier(), tmp_path / "step")
    outcome = run(step, "train", "--weights", weights, *data.arguments, "--steps", 1)
    assert refused(outcome) == (5, "internal", "internal.kernel")
    message = outcome.one("error")["message"]
    assert "kernel 2 (d bad node, backward)" in message
    assert "ValueError: operand 0 is odd" in message


def test_an_output_that_cannot_be_written_is_told(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    missing = tmp_path / "no" / "such" / "file"
    for command in (("export",), ("infer", *data.arguments[:2])):
        outcome = run(binary, *command, "--weights", weights, "--out", missing)
        assert refused(outcome) == (2, "user", "user.output")


@pytest.mark.parametrize("name", ['quo"te\\', "new\nline", "naïve", "not UTF-8 \udcff\udcfe"])
def test_messages_are_json_whatever_the_path(binary: Path, tmp_path: Path, name: str) -> None:
    error = run(binary, "export", "--weights", tmp_path / name, "--out", "o").one("error")
    assert error["code"] == "weights.file"
    assert name.replace("\udcff", "?").replace("\udcfe", "?") in error["message"]
