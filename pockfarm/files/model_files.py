"""A model as it is brought, and the data files that it names, which lie beside it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from compiler.errors import CompileError
from compiler.external import External, file_digest, mapped, open_data_file
from compiler.frontend.file.prescan import external_locations
from pockfarm.errors import UsageError

ZIP = b"PK\3\4"
OTHER_KINDS: Mapping[str, str] = {
    ".py": "a Python program",
    ".npz": "a file of arrays",
    ".npy": "an array",
    ".pt": "PyTorch's own file",
    ".pth": "PyTorch's own file",
    ".safetensors": "a file of weights",
    ".pfb": "a bundle that was built already",
    ".keras": "a Keras model",
    ".h5": "a Keras model",
    ".tflite": "a TensorFlow Lite model",
}
"""By the ending of a file's name: what it is, which is no ONNX model."""


def read_persistent(path: Path) -> bytes | mmap.mmap:
    """A file that stays readable when its folder is removed; Windows removes none that is mapped. Raises: OSError."""
    with path.open("rb") as stream:
        return stream.read() if os.name == "nt" else mapped(stream)


@dataclass(frozen=True)
class ModelFiles:
    """An ONNX file's bytes, its name, and its data files, open, by location."""

    model: bytes
    name: str
    external: Mapping[str, BinaryIO] = field(default_factory=dict)

    def mapped(self) -> External:
        """The data files in memory, page by page as they are read."""
        return {location: mapped(stream) for location, stream in self.external.items()}

    def digests(self) -> dict[str, str]:
        """The data files' digests by location; reads them once."""
        return {location: file_digest(stream) for location, stream in self.external.items()}


@contextmanager
def files_of(model: bytes | str | os.PathLike[str] | ModelFiles) -> Iterator[ModelFiles]:
    """The files of a model, open inside the block; those that are open already stay so.

    Only files below the model's own folder are looked at, and no links.

    Raises: UsageError (a file that cannot be read, or that is taken from no such place).
    """
    with ExitStack() as stack:
        if isinstance(model, ModelFiles):
            yield model
            return
        if isinstance(model, bytes):
            yield ModelFiles(model, "model.onnx")
            return
        path = Path(model)
        try:
            data = path.read_bytes()
        except OSError as problem:
            raise UsageError(problem.strerror, where=path, hint="name an ONNX model (.onnx)") from None
        _check_kind(path, data)
        streams = {}
        for location in _locations(data):
            try:
                streams[location] = stack.enter_context(open_data_file(path.absolute().parent, location))
            except CompileError as problem:
                raise UsageError.of_compiler(problem, has_code=False).at(str(path)) from None
        yield ModelFiles(data, path.name, streams)


def _check_kind(path: Path, data: bytes) -> None:
    """Raises: UsageError for what is no ONNX model at first sight; whoever compiles one says the rest."""
    kind = OTHER_KINDS.get(path.suffix.lower(), "a zip archive, as NumPy and PyTorch write" if data[:4] == ZIP else "")
    if kind:
        raise UsageError(
            f"that is {kind}, not an ONNX model",
            where=path,
            hint=f"export one with torch.onnx.export(module, (example,), '{path.stem}.onnx', dynamo=True)",
        )


def _locations(model: bytes) -> tuple[str, ...]:
    """Returns the files that a model refers to; for a file that is no model, nothing: the compiler reports what is
    wrong with it.
    """
    try:
        return external_locations(model)
    except CompileError:
        return ()
