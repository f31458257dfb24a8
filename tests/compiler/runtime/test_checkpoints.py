"""Checkpoints that the runtime must refuse or tell of: hostile files, other models' weights, partial matches."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from compiler.program.program import BinaryImage
from tests.compiler import tiny_images
from tests.compiler.step_process import (
    QEMU,
    Data,
    classifier_state,
    raw_safetensors,
    refused,
    run,
    write_weights,
)
from tests.compiler.tiny_images import CLASSES, FEATURES

pytestmark = pytest.mark.xdist_group("runtime")


def entry(name: str, shape: tuple[int, ...], begin: int, end: int, dtype: str = "F32") -> str:
    described = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return f"{json.dumps(name)}:{json.dumps(described)}"


W, B = entry("w", (CLASSES, FEATURES), 0, 72), entry("b", (CLASSES,), 72, 84)
SPARE = entry("constant.spare", (2,), 84, 92)
BODY = bytes(92)
GOOD = f"{{{W},{B},{SPARE}}}"

HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "weights.format"),
    "seven bytes": (b"\x01" * 7, "weights.format"),
    "header longer than file": (raw_safetensors(GOOD, BODY, length=10_000), "weights.format"),
    "header of 2**64-1": (b"\xff" * 8 + GOOD.encode(), "weights.format"),
    "header of 2**63": (b"\0" * 7 + b"\x80" + GOOD.encode(), "weights.format"),
    "not JSON": (raw_safetensors("hello", BODY), "weights.format"),
    "not an object": (raw_safetensors("[]", BODY), "weights.format"),
    "not closed": (raw_safetensors(GOOD[:-1], BODY), "weights.format"),
    "text behind": (raw_safetensors(GOOD + "x", BODY), "weights.format"),
    "trailing comma": (raw_safetensors(GOOD[:-1] + ",}", BODY), "weights.format"),
    "zero byte in a name": (raw_safetensors(GOOD.replace('"w"', '"w\\u0000"'), BODY), "weights.format"),
    "lone surrogate": (raw_safetensors(GOOD.replace('"w"', '"\\ud800w"'), BODY), "weights.format"),
    "bad escape": (raw_safetensors(GOOD.replace('"w"', '"\\q"'), BODY), "weights.format"),
    "endless name": (raw_safetensors(GOOD.replace('"w"', '"' + "w" * 5000 + '"'), BODY), "weights.format"),
    "two w": (raw_safetensors(f"{{{W},{W},{B},{SPARE}}}", BODY), "weights.format"),
    "two metadata": (raw_safetensors('{"__metadata__":{},"__metadata__":{},' + GOOD[1:], BODY), "weights.format"),
    "metadata of numbers": (raw_safetensors('{"__metadata__":{"a":1},' + GOOD[1:], BODY), "weights.format"),
    "step is no number": (raw_safetensors('{"__metadata__":{"step":"x"},' + GOOD[1:], BODY), "weights.format"),
    "optimizer's start is no number": (
        raw_safetensors('{"__metadata__":{"optimizer_start":"x"},' + GOOD[1:], BODY),
        "weights.format",
    ),
    "optimizer's start after the end": (
        raw_safetensors('{"__metadata__":{"step":"3","optimizer_start":"4"},' + GOOD[1:], BODY),
        "weights.format",
    ),
    "overlap": (raw_safetensors(f"{{{W},{entry('b', (3,), 68, 80)},{SPARE}}}", BODY), "weights.format"),
    "gap": (raw_safetensors(f"{{{W},{entry('b', (3,), 76, 88)},{entry('c', (1,), 88, 92)}}}", BODY), "weights.format"),
    "outside": (raw_safetensors(GOOD, BODY[:-1]), "weights.format"),
    "bytes left": (raw_safetensors(GOOD, BODY + b"\0"), "weights.format"),
    "begin after end": (raw_safetensors(GOOD.replace("[72, 84]", "[84, 72]"), BODY), "weights.format"),
    "negative begin": (raw_safetensors(GOOD.replace("[0, 72]", "[-1, 71]"), BODY), "weights.format"),
    "fractional": (raw_safetensors(GOOD.replace("[0, 72]", "[0, 72.0]"), BODY), "weights.format"),
    "huge offset": (raw_safetensors(GOOD.replace("72, 84", "72, 99999999999999999999"), BODY), "weights.format"),
    "offset of 2**63-1": (raw_safetensors(GOOD.replace("72, 84", f"72, {2**63 - 1}"), BODY), "weights.format"),
    "no offsets": (raw_safetensors('{"w":{"dtype":"F32","shape":[3,6]}}', BODY), "weights.format"),
    "unknown key": (raw_safetensors(GOOD.replace('"shape"', '"form"'), BODY), "weights.format"),
    "deep nesting": (raw_safetensors("[" * 100_000), "weights.format"),
    "forty axes": (raw_safetensors(GOOD.replace("[3, 6]", str([1] * 40)), BODY), "weights.format"),
    "bytes do not match the shape": (
        raw_safetensors(f"{{{entry('w', (3, 6), 0, 76)},{entry('b', (3,), 76, 88)},{entry('z', (1,), 88, 92)}}}", BODY),
        "weights.format",
    ),
    "wrong shape": (raw_safetensors(GOOD.replace("[3, 6]", "[6, 3]"), BODY), "weights.shape"),
    "wrong type": (raw_safetensors(GOOD.replace("F32", "I32", 1), BODY), "weights.dtype"),
    "missing parameter": (raw_safetensors(f"{{{W}}}", BODY[:72]), "weights.missing"),
    "missing constant": (raw_safetensors(f"{{{W},{B}}}", BODY[:84]), "weights.missing"),
    "NaN": (raw_safetensors(GOOD, BODY[:88] + np.float32("nan").tobytes()), "weights.not_finite"),
    "Inf": (raw_safetensors(GOOD, np.float32("-inf").tobytes() + BODY[4:]), "weights.not_finite"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_checkpoint_is_refused(binary: Path, tmp_path: Path, name: str) -> None:
    content, code = HOSTILE[name]
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(content)
    outcome = run(binary, "export", "--weights", path, "--out", tmp_path / "out")
    assert refused(outcome) == (3, "weights", code)
    assert str(path) in outcome.one("error")["message"] or code == "weights.missing"
    assert not (tmp_path / "out").exists()


def test_the_hand_written_checkpoint_is_good(binary: Path, tmp_path: Path) -> None:
    """Else the refusals above would prove nothing."""
    extra = raw_safetensors(f'{{"__metadata__":{{"a":"\\u00e9"}},{W},{B},{SPARE},{entry("ö", (0,), 92, 92)}}}', BODY)
    infinite = raw_safetensors(GOOD, BODY[:88] + np.float32("-inf").tobytes())  # of a constant, as masks are
    for content in (
        raw_safetensors(GOOD, BODY),
        raw_safetensors(GOOD.replace('"w"', r'"\u0077"'), BODY),
        extra,
        infinite,
    ):
        path = tmp_path / "good.safetensors"
        path.write_bytes(content)
        assert run(binary, "export", "--weights", path, "--out", tmp_path / "out").code == 0


def test_damaged_checkpoints_never_crash_the_reader(binary: Path, tmp_path: Path) -> None:
    """Seeded damage: either the file still says something valid, or it is refused."""
    source = random.Random(0)
    good = save(classifier_state(), {"step": "3"})
    path = tmp_path / "damaged.safetensors"
    codes = set()
    for _ in range(150):
        damaged = bytearray(good)
        for _ in range(source.randint(1, 4)):
            damaged[source.randrange(len(good) if source.random() < 0.3 else 200)] = source.choice(
                b'\x00\xff{}[]",:9-\\'
            )
        path.write_bytes(damaged[: source.randint(0, len(good))] if source.random() < 0.2 else damaged)
        codes.add(run(binary, "export", "--weights", path, "--out", tmp_path / "out").code)
    assert codes <= {0, 3}
    assert 3 in codes


def test_optimizer_state_of_another_plan_is_refused(binary: Path, tmp_path: Path) -> None:
    state = {**classifier_state(), "optimizer.momentum.w": np.zeros((2, CLASSES), "f4")}
    path = write_weights(tmp_path / "w.safetensors", state)
    outcome = run(binary, "export", "--weights", path, "--out", tmp_path / "out")
    assert refused(outcome) == (3, "weights", "weights.shape")
    assert "export" in outcome.one("error")["message"]


def chosen(image: BinaryImage, channels: tuple[int, ...]) -> BinaryImage:
    """The image whose momentum of `w` is told to be of these of its channels."""
    return replace(
        image,
        state=tuple(
            replace(state, channels=((), channels)) if state.name == "optimizer.momentum.w" else state
            for state in image.state
        ),
    )


def test_optimizer_state_of_other_channels_is_refused(tmp_path: Path, weights: Path, data: Data) -> None:
    """It fits by name and shape; an export of the same weights has none of it and is taken."""
    image = tiny_images.classifier()
    for folder in ("first", "even", "odd"):
        (tmp_path / folder).mkdir()
    first = tiny_images.build(image, tmp_path / "first" / "step")
    even = tiny_images.build(chosen(image, (0, 2, 4)), tmp_path / "even" / "step")
    odd = tiny_images.build(chosen(image, (1, 3, 5)), tmp_path / "odd" / "step")
    trained, exported = tmp_path / "trained.safetensors", tmp_path / "exported.safetensors"
    run(even, "train", "--weights", weights, *data.arguments, "--steps", "1", "--save", trained)
    run(even, "export", "--weights", trained, "--out", exported)
    for binary in (first, odd):
        outcome = run(binary, "train", "--weights", trained, *data.arguments, "--steps", "1")
        assert refused(outcome) == (3, "weights", "weights.channels")
        assert "export" in outcome.one("error")["message"]
    assert run(even, "train", "--weights", trained, *data.arguments, "--steps", "1").code == 0
    assert run(odd, "train", "--weights", weights, "--weights", exported, *data.arguments, "--steps", "1").code == 0


COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("--steps", "1"),
    "profile": ("--steps", "1"),
    "eval": (),
    "infer": ("--out", "made"),
    "export": ("--out", "made"),
}


def command_line(command: str, data: Data, folder: Path, *weights: Path) -> list[object]:
    """A command with the data it takes, and its output in `folder`."""
    given = {"export": (), "infer": data.arguments[:2]}.get(command, data.arguments)
    options = [str(folder / word) if word == "made" else word for word in COMMANDS[command]]
    return [command, *(word for path in weights for word in ("--weights", path)), *given, *options]


OTHER = {"layer3.scale": np.ones(3, "f4"), "layer4.shift": np.ones(3, "f4"), "constant.spare": np.ones(2, "f4")}


@pytest.mark.parametrize("position", ["alone", "after the bundle's own"])
@pytest.mark.parametrize("command", COMMANDS)
def test_weights_of_another_model_are_refused(
    binary: Path, tmp_path: Path, weights: Path, data: Data, command: str, position: str
) -> None:
    """None of its tensors is a parameter of the build; a constant of the same name does not make it one's own."""
    other = write_weights(tmp_path / "other.safetensors", OTHER)
    files = (other,) if position == "alone" else (weights, other)
    outcome = run(binary, *command_line(command, data, tmp_path, *files))
    assert refused(outcome) == (3, "weights", "weights.unmatched")
    message = outcome.one("error")["message"]
    for part in (str(other), "0 of 2 parameters", "'layer3.scale'", "'layer4.shift'", "'w'", "'b'"):
        assert part in message, message
    assert [event["event"] for event in outcome.events] == ["error"]
    assert not (tmp_path / "made").exists()


def test_a_board_tells_a_wrong_and_a_partial_match_too(tmp_path: Path, weights: Path, data: Data) -> None:
    step = tiny_images.build(tiny_images.classifier(), tmp_path / "step", "raspberry-pi-4")
    other = write_weights(tmp_path / "other.safetensors", OTHER)
    part = write_weights(tmp_path / "part.safetensors", {"w": classifier_state(5)["w"]})
    outcome = run(step, *command_line("eval", data, tmp_path, weights, other), runner=QEMU)
    assert refused(outcome) == (3, "weights", "weights.unmatched")
    event = run(step, *command_line("eval", data, tmp_path, weights, part), runner=QEMU).one("weights")
    assert (event["taken"], event["parameters"], event["ignored"], event["ignored_names"]) == (1, 2, 0, [])


def test_an_empty_checkpoint_matches_nothing(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    other = write_weights(tmp_path / "other.safetensors", {})
    outcome = run(binary, *command_line("eval", data, tmp_path, weights, other))
    assert refused(outcome) == (3, "weights", "weights.unmatched")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_matches_in_part_says_so(
    binary: Path, tmp_path: Path, weights: Path, data: Data, command: str
) -> None:
    mine = write_weights(tmp_path / "mine.safetensors", {"w": classifier_state(5)["w"], **OTHER})
    outcome = run(binary, *command_line(command, data, tmp_path, weights, mine))
    assert outcome.code == 0, outcome
    assert outcome.one("weights") == {
        "event": "weights",
        "file": str(mine),
        "taken": 1,
        "parameters": 2,
        "ignored": 2,
        "ignored_names": ["layer3.scale", "layer4.shift"],
    }
    [line] = [line for line in outcome.stderr.splitlines() if str(mine) in line]
    assert " 1 of 2 parameters " in line
    assert " 2 of its tensors " in line
    assert line.endswith(": 'layer3.scale', 'layer4.shift'")


def test_of_many_ignored_tensors_a_few_are_named(binary: Path, tmp_path: Path, data: Data) -> None:
    extra = {f"bn{i}.running_mean": np.ones(1, "f4") for i in range(40)}
    odd = {"a\nb\x1b[2J" + "long" * 400: np.ones(1, "f4")}
    mine = write_weights(tmp_path / "mine.safetensors", {**classifier_state(), **extra, **odd})
    outcome = run(binary, *command_line("eval", data, tmp_path, mine))
    event = outcome.one("weights")
    assert (event["taken"], event["parameters"], event["ignored"]) == (2, 2, 41)
    assert len(event["ignored_names"]) == 3
    assert len([line for line in outcome.stderr.splitlines() if "ignored" in line]) == 1
    assert "\x1b" not in outcome.stderr
    assert "and 38 more" in outcome.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_matches_wholly_is_taken_without_a_word(
    binary: Path, tmp_path: Path, weights: Path, data: Data, command: str
) -> None:
    saved = tmp_path / "saved"
    assert run(binary, "train", "--weights", weights, *data.arguments, "--steps", 1, "--save", saved).code == 0
    for files in ((weights,), (weights, saved), (saved,)):
        outcome = run(binary, *command_line(command, data, tmp_path, *files))
        assert (outcome.code, outcome.all("weights"), outcome.stderr) == (0, [], "")


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["absent", "folder"])
def test_weights_that_are_no_file(binary: Path, tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "w")
    assert refused(run(binary, "export", "--weights", tmp_path / "w", "--out", tmp_path / "o")) == (
        3,
        "weights",
        "weights.file",
    )
