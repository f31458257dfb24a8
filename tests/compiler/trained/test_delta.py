"""A delta holds what changed and nothing else, fits one base, and gives back every bit; damaged ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

import pockfarm
from compiler.errors import ModelError
from compiler.trained.delta import change_between, changed_tensors, delta_between, read_delta
from pockfarm.cli import main
from pockfarm.errors import UsageError

Arrays = dict[str, np.ndarray]


def delta_bytes(base: Arrays, trained: Arrays) -> bytes:
    return b"".join(delta_between(base, trained))


def base_tensors() -> Arrays:
    rng = np.random.default_rng(0)
    return {
        "conv.weight": rng.normal(size=(6, 10, 3, 3)).astype(np.float32),
        "fc.bias": rng.normal(size=5).astype(np.float32),
        "still": rng.normal(size=(4, 4)).astype(np.float32),
        "count": np.asarray(3, np.int64),
    }


def trained_tensors(base: Arrays) -> Arrays:
    changed = {name: array.copy() for name, array in base.items()}
    changed["conv.weight"][:, [1, 2, 7]] += 0.5
    changed["fc.bias"] *= -1
    changed["count"] = np.asarray(4, np.int64)
    return changed


def test_it_holds_the_channels_that_changed_and_gives_back_every_bit() -> None:
    base = base_tensors()
    trained = trained_tensors(base)
    data = delta_bytes(base, trained)
    stored = load(data)
    assert {name: array.shape for name, array in stored.items()} == {
        "conv.weight": (6, 3, 3, 3),
        "fc.bias": (5,),
        "count": (),
    }
    assert read_delta(data).changes["conv.weight"].ranges == ((1, 2), (7, 1))
    whole = pockfarm.apply_delta(base, data)
    assert list(whole) == list(base)
    for name, array in trained.items():
        assert whole[name].tobytes() == array.tobytes(), name
    assert whole["still"] is base["still"]


@settings(max_examples=60)
@given(st.data())
def test_any_change_comes_back_bit_for_bit(data: st.DataObject) -> None:
    """NaN, signed zeros and infinities are bits like others; an axis of extent 0 or 1 too."""
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=4)))
    words = st.sampled_from([0, 1 << 31, 0x7FC00001, 0x7F800000, 0x3F800000])
    count = int(np.prod(shape))
    bits = [data.draw(st.lists(words, min_size=count, max_size=count)) for _ in range(2)]
    base, trained = (np.asarray(one, np.uint32).view(np.float32).reshape(shape) for one in bits)
    change = change_between(base, trained)
    if change is None:
        assert base.tobytes() == trained.tobytes()
        return
    delta = read_delta(delta_bytes({"w": base}, {"w": trained}))
    assert changed_tensors({"w": base}, delta)["w"].tobytes() == trained.tobytes()
    assert delta.entries["w"].size <= base.size


def test_another_base_is_refused_by_its_digest() -> None:
    base = base_tensors()
    data = delta_bytes(base, trained_tensors(base))
    other = {**base, "fc.bias": base["fc.bias"] + 1}
    with pytest.raises(UsageError, match=r"'fc\.bias': .*sha256:\w{64}.* elements "):
        pockfarm.apply_delta(other, data)
    with pytest.raises(UsageError, match=r"'conv\.weight': .* no such tensor"):
        pockfarm.apply_delta({"still": base["still"]}, data)
    assert pockfarm.apply_delta({**base, "still": base["still"] + 1}, data).keys() == base.keys()


def damaged(change: Any) -> bytes:
    """A delta with another header."""
    base = base_tensors()
    data = delta_bytes(base, trained_tensors(base))
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    told = json.loads(header["__metadata__"]["tensors"])
    change(header, told)
    header["__metadata__"]["tensors"] = json.dumps(told)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def _set(name: str, value: Any) -> Any:
    return lambda header, told: told["conv.weight"].update({name: value})


HOSTILE = {
    "no format": lambda header, told: header["__metadata__"].pop("format"),
    "another digest": lambda header, told: header["__metadata__"].update(base="sha256:" + "0" * 64),
    "a tensor too few": lambda header, told: told.pop("fc.bias"),
    "a tensor too many": lambda header, told: told.update(more=told["fc.bias"]),
    "no axis": _set("axis", 7),
    "a flag for an axis": _set("axis", True),
    "ranges that overlap": _set("ranges", [[1, 2], [2, 1]]),
    "ranges outside": _set("ranges", [[1, 2], [10, 1]]),
    "an empty range": _set("ranges", [[1, 3], [7, 0]]),
    "a negative start": _set("ranges", [[-3, 2], [7, 1]]),
    "ranges of three": _set("ranges", [[1, 2, 3]]),
    "huge shape": _set("shape", [1 << 40, 1 << 40, 3, 3]),
    "text for a shape": _set("shape", "6,10,3,3"),
    "another type": _set("dtype", "f16"),
    "no list": lambda header, told: told.update({"fc.bias": None}),
    "offsets outside": lambda header, told: header["fc.bias"].update(data_offsets=[0, 1 << 50]),
    "a shape beyond numbers": lambda header, told: header["fc.bias"].update(shape=[0, 10**30], data_offsets=[0, 0]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_damaged_file_is_refused(kind: str) -> None:
    with pytest.raises(ModelError):
        read_delta(damaged(HOSTILE[kind]))


@given(st.binary(max_size=64))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError):
        read_delta(data)


def test_a_bias_that_was_created_needs_no_base(tmp_path: Path) -> None:
    """Of a module without it, and of one that has it as zeros; of another base it is refused."""
    trained = {"fc.bias": np.array([0.5, 0.0, -1.0], np.float32)}
    zeros = {"fc.bias": np.zeros(3, np.float32)}
    data = b"".join(delta_between(zeros, trained, created=["fc.bias"]))
    (tmp_path / "d").write_bytes(data)
    for base in ({}, zeros):
        whole = pockfarm.apply_delta({"other": np.ones(2, np.float32), **base}, tmp_path / "d")
        assert whole["fc.bias"].tobytes() == trained["fc.bias"].tobytes()
    with pytest.raises(UsageError, match="its elements are others"):
        pockfarm.apply_delta({"fc.bias": np.ones(3, np.float32)}, data)
    with pytest.raises(UsageError, match="it has no such tensor"):
        pockfarm.apply_delta({}, delta_bytes(zeros, trained))
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    told = json.loads(header["__metadata__"]["tensors"])
    told["fc.bias"] |= {"axis": 0, "ranges": [[0, 3]], "shape": [1 << 40]}
    odd = save(load(data), {**header["__metadata__"], "tensors": json.dumps(told)})
    with pytest.raises(ModelError, match="damaged"):
        read_delta(odd)


def test_the_command_writes_and_applies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = base_tensors()
    (tmp_path / "base").write_bytes(save(base))
    (tmp_path / "trained").write_bytes(save(trained_tensors(base)))
    files = {name: str(tmp_path / name) for name in ("base", "trained", "delta", "whole")}
    assert main(["delta", "--base", files["base"], "--trained", files["trained"], "--out", files["delta"]]) == 0
    assert main(["delta", "--base", files["base"], "--apply", files["delta"], "--out", files["whole"]]) == 0
    for name, array in trained_tensors(base).items():
        assert load((tmp_path / "whole").read_bytes())[name].tobytes() == array.tobytes()
    assert main(["delta", "--base", files["trained"], "--apply", files["delta"], "--out", files["whole"]]) == 2
    assert "made of base sha256:" in capsys.readouterr().err
