"""Data files: types that are read, and what must be refused of their headers, values and numbers of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compiler.step_process import (
    Data,
    classifier_data,
    classifier_state,
    refused,
    run,
    table_data,
    table_state,
    write_data,
    write_weights,
)
from tests.compiler.tiny_images import BATCH, CLASSES, FEATURES, ROWS

pytestmark = pytest.mark.xdist_group("runtime")


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
}


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
