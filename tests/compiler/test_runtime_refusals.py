"""What the C runtime must refuse, with the cause and code that it must name: hostile files, bad data, bad usage."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from tests.compiler import tiny_images
from tests.compiler.step_process import (
    QEMU,
    Data,
    classifier_data,
    classifier_state,
    raw_safetensors,
    refused,
    run,
    table_data,
    table_state,
    write_data,
    write_weights,
)
from tests.compiler.tiny_images import BATCH, CLASSES, FEATURES, ROWS

pytestmark = pytest.mark.xdist_group("runtime")


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_images.build(tiny_images.classifier(), tmp_path_factory.mktemp("classifier") / "step")


@pytest.fixture(scope="module")
def table_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_images.build(tiny_images.table(), tmp_path_factory.mktemp("table") / "step")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return write_weights(tmp_path / "weights.safetensors", classifier_state())


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return classifier_data(tmp_path / "data")


# ------------------------------------------------------------------------------------------------------------- usage

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


# ----------------------------------------------------------------------------------------------------------- weights


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
}  # fmt: skip


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
    for content in (raw_safetensors(GOOD, BODY), raw_safetensors(GOOD.replace('"w"', r'"\u0077"'), BODY), extra):
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
        "event": "weights", "file": str(mine), "taken": 1, "parameters": 2, "ignored": 2,
        "ignored_names": ["layer3.scale", "layer4.shift"],
    }  # fmt: skip
    said = [line for line in outcome.stderr.splitlines() if str(mine) in line]
    assert said == [
        f"step: {mine}: 1 of 2 parameters are taken from it, the others from the files before it; "
        "2 of its tensors are ignored: 'layer3.scale', 'layer4.shift'"
    ]


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
        3, "weights", "weights.file")  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- data


def eval_with(binary: Path, weights: Path, x: Path, y: Path) -> tuple[int, str, str]:
    return refused(run(binary, "eval", "--weights", weights, "--input", f"x={x}", "--labels", y))


ACCEPTED_INPUTS = ("f4", "f8", "i8", "i4", "u1", "?")
ACCEPTED_LABELS = ("i8", "i4", "u1")


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("dtype", ACCEPTED_INPUTS)
def test_inputs_of_these_types_become_f32(
    binary: Path, tmp_path: Path, weights: Path, dtype: str, version: tuple[int, int]
) -> None:
    values = (np.random.default_rng(0).normal(size=(5, FEATURES)) * 3 + 4).astype(dtype)
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, values, version=version)
    done = run(binary, "infer", "--weights", weights, "--input", f"x={tmp_path}/x.npy", "--out", tmp_path / "out.npy")
    state = classifier_state()
    assert done.code == 0, done
    expected = values.astype("f4") @ state["w"].T + state["b"]
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ACCEPTED_LABELS)
def test_labels_of_these_types_are_read(binary: Path, tmp_path: Path, weights: Path, dtype: str) -> None:
    plain = classifier_data(tmp_path / "plain")
    other = write_data(tmp_path / "other", "x", plain.x, plain.y.astype(dtype))
    scores = [run(binary, "eval", "--weights", weights, *one.arguments).one("eval") for one in (plain, other)]
    assert scores[0] == scores[1]


def header(text: str, body: bytes = b"", magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    return magic + len(text).to_bytes(2, "little") + text.encode() + body


DESCRIBED = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 6), }"
BAD_NPY: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "data.format"),
    "not npy": (b"PK\x03\x04" + bytes(40), "data.format"),
    "version 3": (header(DESCRIBED, bytes(48), b"\x93NUMPY\x03\x00"), "data.format"),
    "header past the end": (b"\x93NUMPY\x01\x00\xff\x1f" + bytes(10), "data.format"),
    "header of 4 GB": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(10), "data.format"),
    "zero byte": (header(DESCRIBED.replace("2, 6", "2, \0"), bytes(48)), "data.format"),
    "big-endian": (header(DESCRIBED.replace("<", ">"), bytes(48)), "data.format"),
    "Fortran order": (header(DESCRIBED.replace("False", "True"), bytes(48)), "data.format"),
    "objects": (header(DESCRIBED.replace("<f4", "|O"), bytes(48)), "data.format"),
    "structured": (header(DESCRIBED.replace("'<f4'", "[('a', '<f4')]"), bytes(48)), "data.format"),
    "complex": (header(DESCRIBED.replace("<f4", "<c8"), bytes(96)), "data.dtype"),
    "half": (header(DESCRIBED.replace("<f4", "<f2"), bytes(24)), "data.dtype"),
    "no shape": (header("{'descr': '<f4', 'fortran_order': False, }", bytes(48)), "data.format"),
    "two shapes": (header(DESCRIBED[:-1] + "'shape': (1,)}", bytes(48)), "data.format"),
    "negative": (header(DESCRIBED.replace("2, 6", "-2, 6"), bytes(48)), "data.format"),
    "shape of text": (header(DESCRIBED.replace("2, 6", "a, b"), bytes(48)), "data.format"),
    "unclosed": (header(DESCRIBED.replace("2, 6), }", "2, 6"), bytes(48)), "data.format"),
    "twelve axes": (header(DESCRIBED.replace("2, 6", "1, " * 12), bytes(4)), "data.format"),
    "overflow": (header(DESCRIBED.replace("2, 6", "2, 6, " + "4294967296, " * 3), bytes(48)), "data.format"),
    "huge count": (header(DESCRIBED.replace("2, 6", "99999999999999999999, 6"), bytes(48)), "data.format"),
    "large count": (header(DESCRIBED.replace("2, 6", "999999999999999, 6"), bytes(48)), "data.truncated"),
    "cut": (header(DESCRIBED, bytes(47)), "data.truncated"),
    "too long": (header(DESCRIBED, bytes(52)), "data.truncated"),
    "no samples": (header(DESCRIBED.replace("2, 6", "0, 6")), "data.empty"),
    "scalar": (header(DESCRIBED.replace("(2, 6)", "()"), bytes(4)), "data.format"),
    "other shape": (header(DESCRIBED.replace("2, 6", "2, 5"), bytes(40)), "data.shape"),
    "other rank": (header(DESCRIBED.replace("2, 6", "2, 6, 1"), bytes(48)), "data.shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_NPY)
def test_a_bad_npy_is_refused(binary: Path, tmp_path: Path, weights: Path, name: str) -> None:
    content, code = BAD_NPY[name]
    (tmp_path / "x.npy").write_bytes(content)
    np.save(tmp_path / "y.npy", np.zeros(2, np.int64))
    assert eval_with(binary, weights, tmp_path / "x.npy", tmp_path / "y.npy") == (3, "data", code)


def test_the_hand_written_npy_is_good(binary: Path, tmp_path: Path, weights: Path) -> None:
    (tmp_path / "x.npy").write_bytes(header(DESCRIBED, bytes(48)))
    assert (
        run(binary, "infer", "--weights", weights, "--input", f"x={tmp_path}/x.npy", "--out", tmp_path / "o").code == 0
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_values_that_are_not_finite_are_named(binary: Path, tmp_path: Path, weights: Path, value: float) -> None:
    data = classifier_data(tmp_path / "good")
    x = data.x.astype("f8")
    x[7, 2] = value
    np.save(tmp_path / "x.npy", x)
    outcome = run(binary, "eval", "--weights", weights, "--input", f"x={tmp_path}/x.npy", *data.arguments[2:])
    assert refused(outcome) == (3, "data", "data.not_finite")
    assert "sample 7, element 2" in outcome.one("error")["message"]
    assert "x.npy" in outcome.one("error")["message"]


@pytest.mark.parametrize("command", [("eval",), ("train", "--steps", "3", "--order", "sequential")])
@pytest.mark.parametrize("label", [CLASSES, -1, -101, 2**40])
def test_a_label_out_of_range_is_named(
    binary: Path, tmp_path: Path, weights: Path, command: tuple[str, ...], label: int
) -> None:
    data = classifier_data(tmp_path / "good")
    labels = data.y.copy()
    labels[9] = label
    np.save(tmp_path / "y.npy", labels)
    outcome = run(binary, *command, "--weights", weights, *data.arguments[:2], "--labels", tmp_path / "y.npy")
    assert refused(outcome) == (3, "data", "data.label")
    assert f"sample 9, label 0 is {label}" in outcome.one("error")["message"]


def test_labels_that_are_not_whole_numbers_are_refused(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    np.save(tmp_path / "y.npy", data.y.astype("f4"))
    arguments = ("--input", data.arguments[1], "--labels", tmp_path / "y.npy")
    assert refused(run(binary, "eval", "--weights", weights, *arguments)) == (3, "data", "data.dtype")


def test_files_must_have_the_same_number_of_samples(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    np.save(tmp_path / "y.npy", data.y[:-1])
    arguments = ("--input", data.arguments[1], "--labels", tmp_path / "y.npy")
    assert refused(run(binary, "eval", "--weights", weights, *arguments)) == (3, "data", "data.count")


@pytest.mark.parametrize("token", [ROWS, -ROWS - 1])
def test_a_token_beyond_its_table_is_named(table_binary: Path, tmp_path: Path, token: int) -> None:
    weights = write_weights(tmp_path / "w.safetensors", table_state())
    data = table_data(tmp_path / "data")
    data.x[BATCH - 1, 1] = token
    bad = write_data(tmp_path / "bad", "tokens", data.x, data.y)
    outcome = run(table_binary, "eval", "--weights", weights, *bad.arguments)
    assert refused(outcome) == (3, "data", "data.range")
    assert f"sample {BATCH - 1}, element 1" in outcome.one("error")["message"]


# ---------------------------------------------------------------------------------------------------------- the rest


def test_training_that_diverges_stops(binary: Path, tmp_path: Path, weights: Path, data: Data) -> None:
    outcome = run(binary, "train", "--weights", weights, *data.arguments, "--steps", 500, "--learning-rate", 1e30,
                  "--save", tmp_path / "saved")  # fmt: skip
    assert refused(outcome) == (2, "user", "train.diverged")
    assert not (tmp_path / "saved").exists(), "no checkpoint of NaNs"
    assert len(outcome.all("step")) < 500


def test_an_update_that_diverges_is_not_saved(binary: Path, tmp_path: Path, weights: Path) -> None:
    """The loss of the only step is finite; what the step makes of the weights is not."""
    random = np.random.default_rng(0)
    data = write_data(tmp_path / "big", "x", random.normal(size=(4, FEATURES)).astype("f4") * 50, np.zeros(4, np.int64))
    outcome = run(binary, "train", "--weights", weights, *data.arguments, "--steps", 1, "--learning-rate", 3e38,
                  "--save", tmp_path / "saved")  # fmt: skip
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
