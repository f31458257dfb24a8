"""The bundle: a deterministic, unsigned archive of everything a board needs for one training step.

Checkpoints: what a bundle's binary starts from.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import numpy as np

from compiler.bundle.content import Chunk, Content, chunks_of, size_of
from compiler.bundle.tensor_file import Checkpoint, Stored
from compiler.errors import LimitExceeded, ModelError
from compiler.program.program import StateTensor
from compiler.program.state import chosen_channels
from compiler.stages import CompiledStep
from compiler.tensors import Array, TensorType
from compiler.warnings import CompileWarning


def empty_checkpoint() -> bytes:
    """Returns the checkpoint of a binary without parameters."""
    return b"".join(Checkpoint({}, {"step": "0"}).chunks())


def initial_checkpoint(step: CompiledStep) -> Checkpoint:
    """The model's own weights in file layout, and the constants that the step reads, as safetensors."""
    arrays = {value: array for graph in (step.forward, *step.training.graphs) for value, array in graph.arrays.items()}
    tensors: dict[str, Stored] = {}
    for tensor in step.state:
        if tensor.copy_of is not None or tensor.role in ("optimizer", "accumulator"):
            continue
        tensor_type = TensorType(tensor.type.dtype, tensor.file_shape)
        if tensor.lies_in_file:
            tensors[tensor.name] = Stored(tensor.type, partial(_as_it_lies, tensor, arrays[tensor.value]))
        elif tensor.role == "parameter":
            parameter = step.forward.parameters[tensor.value]
            tensors[tensor.name] = Stored(tensor_type, partial(parameter.to_file, arrays[tensor.value]))
        else:
            tensors[tensor.name] = Stored(tensor_type, partial(np.asarray, arrays[tensor.value]))
    channels = chosen_channels(step.state)
    return Checkpoint(tensors, {"step": "0", **({"channels": channels} if channels else {})})


def _as_it_lies(tensor: StateTensor, array: Array) -> Array:
    return array.reshape(tensor.view_shape).transpose(tensor.perm)


SCHEMA = "pockfarm.bundle/1"
REPORT_SCHEMA = "pockfarm.compile-report/1"
STEP, WEIGHTS, TRAINING, ACCUMULATE, ORIGINS, REPORT, KERNELS, MANIFEST = (
    "bin/step",
    "weights.safetensors",
    "training.onnx",
    "training.accumulate.onnx",
    "origins.json",
    "report.json",
    "kernels.json",
    "manifest.json",
)
LIBRARY, HEADER, EXAMPLE = "lib/libpockfarm_step.so", "include/pockfarm.h", "example/train.c"
"""Members of a bundle whose spec asks for a library."""
BLOCK_BYTES = tarfile.BLOCKSIZE
MAX_MEMBER_BYTES = (8 << 30) - 1
"""The largest size that the archive's headers can state."""


@dataclass(frozen=True)
class Bundle:
    """A built bundle: `sha256:<hex>` of its bytes, the manifest inside, and what its report warns of.

    `members` are its files by name. Large ones are written from where they are, which may be files that are mapped into
    memory: those must stay as they are while the bundle is needed.
    """

    digest: str
    manifest: Mapping[str, Any]
    members: Mapping[str, Content]
    warnings: tuple[CompileWarning, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Returns the size of the archive."""
        return _tar_bytes(self.members.values())

    @property
    def data(self) -> bytes:
        """The archive in memory."""
        stream = io.BytesIO()
        self.write_to(stream)
        return stream.getvalue()

    def write_to(self, stream: IO[bytes]) -> None:
        """Writes the archive, a chunk at a time. Raises: ModelError if a mapped file has changed; OSError."""
        digest = hashlib.sha256()
        for chunk in _tar(self.members):
            digest.update(chunk)
            stream.write(chunk)
        if f"sha256:{digest.hexdigest()}" != self.digest:
            raise ModelError("a data file has changed while the bundle was built", where="model", hint="build it again")


def sha256_of(content: Content) -> str:
    """Hex SHA-256."""
    return _sha256(chunks_of(content))


def make_bundle(manifest: Mapping[str, Any], files: Mapping[str, Content]) -> Bundle:
    """Archive the files with a manifest that lists them. Same input, same bytes.

    Raises: LimitExceeded for a file that is larger than such an archive holds.
    """
    for name, content in files.items():
        if size_of(content) > MAX_MEMBER_BYTES:
            raise LimitExceeded(
                f"{size_of(content):,} bytes, a bundle's file holds {MAX_MEMBER_BYTES:,}",
                where=name,
                hint="use a smaller model",
            )
    listed = {name: {"sha256": sha256_of(content), "bytes": size_of(content)} for name, content in files.items()}
    whole = {"schema": SCHEMA, **manifest, "files": listed}
    members = {**files, MANIFEST: to_json(whole)}
    return Bundle(f"sha256:{_sha256(_tar(members))}", whole, members)


def to_json(value: object) -> bytes:
    """Stable JSON: sorted keys, no NaN, one trailing newline."""
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def _sha256(chunks: Iterable[Chunk]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _tar(members: Mapping[str, Content]) -> Iterator[Chunk]:
    """The archive. Source: POSIX ustar, in records of twenty blocks."""
    written_bytes = 0
    for name in sorted(members):
        entry = tarfile.TarInfo(name)
        entry.size = size_of(members[name])
        entry.mode = 0o755 if name == STEP else 0o644
        yield entry.tobuf(tarfile.USTAR_FORMAT)
        yield from chunks_of(members[name])
        yield b"\0" * (-entry.size % BLOCK_BYTES)
        written_bytes += BLOCK_BYTES + entry.size + -entry.size % BLOCK_BYTES
    yield b"\0" * (_tar_bytes(members.values()) - written_bytes)


def _tar_bytes(contents: Iterable[Content]) -> int:
    """Returns the size of a tar archive: each file with its header in blocks, two empty blocks at the end, all in whole
    records.
    """
    blocks = 2 + sum(1 + -(-size_of(content) // BLOCK_BYTES) for content in contents)
    per_record = tarfile.RECORDSIZE // BLOCK_BYTES
    return -(-blocks // per_record) * tarfile.RECORDSIZE
