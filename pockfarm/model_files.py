"""A model as it is brought, and the data files that it names, which lie beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from compiler.errors import CompileError
from compiler.external import External, file_digest, mapped, open_beside
from compiler.frontend.file.prescan import external_locations
from pockfarm.errors import UsageError


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
            raise UsageError(f"{path}: {problem.strerror}") from None
        streams = {}
        for location in _locations(data):
            try:
                streams[location] = stack.enter_context(open_beside(path.absolute().parent, location))
            except CompileError as problem:
                raise UsageError(f"{path}: {problem}") from None
        yield ModelFiles(data, path.name, streams)


def _locations(model: bytes) -> tuple[str, ...]:
    """What the file names; of one that is no model, nothing: whoever compiles it says what is wrong with it."""
    try:
        return external_locations(model)
    except CompileError:
        return ()
