"""What a user may type: every wrong command line is told, with the cause and code that it must name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compiler.step_process import (
    refused,
    run,
)
from tests.compiler.tiny_images import BATCH, CLASSES, FEATURES

pytestmark = pytest.mark.xdist_group("runtime")


USAGE: tuple[tuple[str, ...], ...] = (
    (),
    ("fly",),
    ("info", "--steps", "3"),
    ("train", "--steps"),
    ("train", "--weights", "w"),
    ("train", "--weights", "w", "--steps", "0"),
    ("train", "--weights", "w", "--steps", "3x"),
    ("train", "--weights", "w", "--steps", "99999999999999999999"),
    ("train", "--weights", "w", "--steps", "1", "--input", "other=f.npy"),
    ("train", "--weights", "w", "--steps", "1", "--input", "x=f.npy"),
    ("train", "--weights", "w", "--steps", "1", "--input", "x=f.npy", "--input", "x=g.npy"),
    ("train", "--weights", "w", "--steps", "1", "--input", "x=f.npy", "--labels", "y", "--learning-rate", "nan"),
    ("train", "--weights", "w", "--steps", "1", "--input", "x=f.npy", "--labels", "y", "--learning-rate", "-1"),
    ("train", "--weights", "w", "--steps", "1", "--input", "x=f.npy", "--labels", "y", "--order", "random"),
    ("train", "--weights", "w", "--steps", "1", "--threads", "3"),
    *(
        ("train", "--weights", "w", "--steps", "1", "--input", "x=f.npy", "--labels", "y", *more.split())
        for more in (
            "--schedule step",
            "--warmup-steps -1",
            "--schedule-steps 0",
            "--final-ratio 1.5",
            "--final-ratio nan",
            "--final-ratio 0.1",
            "--schedule constant --final-ratio 0.1",
            "--schedule constant --schedule-steps 9",
            "--validation 0.5 --min-delta 0.1",
            "--validation 0",
            "--validation 1",
            "--validation 0.2 --eval-input x=g.npy",
            "--eval-input x=g.npy",
            "--eval-labels y",
            "--eval-input z=g.npy --eval-labels y",
            "--eval-every 3",
            "--patience 2",
            "--min-delta 0.1",
            "--save-best",
            "--validation 0.5 --patience 0",
            "--validation 0.5 --min-delta -1",
            "--explosion-factor -1",
            "--validation 0.5 --save-best",
        )
    ),
    ("profile", "--weights", "w", "--schedule", "linear"),
    ("profile", "--weights", "w", "--labels", "y.npy"),
    ("eval", "--weights", "w", "--input", "x=f.npy"),
    ("eval", "--weights", "w", "--save", "f"),
    ("infer", "--weights", "w", "--input", "x=f.npy"),
    ("export", "--weights", "w"),
    ("export", "--out", "w"),
)


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_bad_usage_is_told(binary: Path, arguments: tuple[str, ...]) -> None:
    assert refused(run(binary, *arguments)) == (2, "user", "user.usage")


def test_help_lists_the_commands(binary: Path) -> None:
    done = run(binary, "--help")
    assert done.code == 0
    assert not done.events
    for command in ("info", "profile", "train", "eval", "infer", "export"):
        assert f"step {command}" in done.stderr


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["train", "--help"]])
def test_help_says_what_this_step_is(binary: Path, words: list[str]) -> None:
    """What a stranger wants to know of a file that somebody handed on: model, data, memory, exit codes."""
    help_text = run(binary, *words).stderr
    info = run(binary, "info").one("info")
    assert f"x: f32 [samples, {FEATURES}]" in help_text
    assert "labels: i64 [samples]" in help_text
    assert f"logits: f32 [samples, {CLASSES}]" in help_text
    assert f"{info['mapped_bytes']} bytes: weights {info['weights_bytes']}" in help_text
    assert f"{BATCH} samples, loss cross_entropy" in help_text
    assert "Exit codes: 0 done, 2 " in help_text
