"""A bundle that is written chunk by chunk has the bytes that the formats' own libraries write."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping

import numpy as np
import pytest
from safetensors.numpy import save

from compiler.bundle.archive import MANIFEST, Bundle, make_bundle, sha256_of
from compiler.bundle.content import Content, size_of
from compiler.bundle.tensor_file import Checkpoint, Stored
from compiler.errors import LimitExceeded, ModelError
from compiler.graph import Array, Parameter, TensorType

TENSORS: Mapping[str, Array] = {
    "z.weight": np.arange(6, dtype="f4").reshape(2, 3),
    'ä "quoted"\n': np.array([1, -2], "i8"),
    "mask": np.array([True, False, True]),
    "count": np.array(7, "i4"),
    "turned": np.arange(24, dtype="f4").reshape(2, 3, 4).transpose(2, 0, 1),
    "empty": np.zeros((0, 3), "f4"),
}
DTYPES = {"f4": "f32", "i8": "i64", "i4": "i32", "b1": "bool"}


def checkpoint(tensors: Mapping[str, Array]) -> Checkpoint:
    stored = {
        name: Stored(TensorType(DTYPES[array.dtype.str[1:]], array.shape), lambda array=array: array)  # type: ignore[arg-type, misc]
        for name, array in tensors.items()
    }
    return Checkpoint(stored, {"step": "0"})


def test_a_checkpoint_is_what_safetensors_writes() -> None:
    made = checkpoint(TENSORS)
    whole = b"".join(made.chunks())
    assert whole == save(
        {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in TENSORS.items()}, {"step": "0"}
    )
    assert len(whole) == made.size_bytes


@pytest.mark.parametrize("size", [0, 511, 512, 8 * 512, 17 * 512, 100_000])
def test_an_archive_is_what_tarfile_writes(size: int) -> None:
    files: dict[str, Content] = {"bin/step": b"\x7f" * size, "weights.safetensors": checkpoint(TENSORS), "empty": b""}
    made = make_bundle({"batch": 2}, files)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(made.members):
            entry = tarfile.TarInfo(name)
            content = made.members[name]
            data = content if isinstance(content, bytes) else b"".join(content.chunks())
            entry.size, entry.mode = len(data), 0o755 if name == "bin/step" else 0o644
            archive.addfile(entry, io.BytesIO(data))
    assert made.data == stream.getvalue()
    assert (made.digest, made.size_bytes) == ("sha256:" + sha256_of(made.data), len(made.data))
    assert {name: row["bytes"] for name, row in made.manifest["files"].items()} == {
        name: size_of(content) for name, content in made.members.items() if name != MANIFEST
    }


def test_a_data_file_that_changes_meanwhile_is_told() -> None:
    array = np.zeros(4, "f4")
    made: Bundle = make_bundle({}, {"weights.safetensors": checkpoint({"w": array})})
    array[2] = 1.0
    with pytest.raises(ModelError, match="has changed while the bundle was built"):
        made.write_to(io.BytesIO())


def test_a_file_beyond_what_the_archive_can_say_is_refused_before_it_is_read() -> None:
    huge = Checkpoint({"w": Stored(TensorType("f32", (1 << 31,)), lambda: pytest.fail("was read"))}, {})
    with pytest.raises(LimitExceeded, match=r"weights\.safetensors: 8,589,934,"):
        make_bundle({}, {"weights.safetensors": huge})


def test_a_parameter_is_held_once() -> None:
    own = np.arange(12, dtype="f4").reshape(3, 4)
    parameter = Parameter("w", (3, 4), (3, 4), (1, 0), "weight", "layer")
    inside = parameter.to_inside(own)
    assert inside.shape == (4, 3)
    assert np.shares_memory(inside, own)
    assert np.shares_memory(parameter.to_file(inside), own)
