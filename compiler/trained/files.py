"""A model's files with trained elements, as one file or written beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from compiler.bundle.content import write_file
from compiler.errors import LimitExceeded
from compiler.frontend.file.external_data import embedded, tensors_elsewhere
from compiler.frontend.file.prescan import DEFAULT_LIMITS
from compiler.trained.data_files import DataFile, location_of, refer


@dataclass(frozen=True)
class Files:
    """An ONNX file, and its data files by location."""

    model: bytes
    external: Mapping[str, DataFile]

    def as_one(self) -> bytes:
        """The model in one file. Raises: LimitExceeded above what a protobuf message holds."""
        if not self.external:
            return self.model
        total_bytes = len(self.model) + sum(file.size_bytes for file in self.external.values())
        if total_bytes > DEFAULT_LIMITS.model_bytes:
            limit = f"{total_bytes:,} bytes with its data, one ONNX file holds {DEFAULT_LIMITS.model_bytes:,}"
            raise LimitExceeded(limit, where="model")
        return embedded(self.model, {location: b"".join(file.chunks()) for location, file in self.external.items()})

    def save(self, path: Path) -> None:
        """Writes the model, and its data files beside it under names that follow its own. Raises: OSError."""
        if not self.external:
            write_file(path, [self.model])
            return
        proto = onnx.ModelProto.FromString(self.model)
        names = _names(path.name, self.external)
        for tensor in tensors_elsewhere(proto):
            location, begin = location_of(tensor)
            refer(tensor, names[location], begin)
        for location, file in self.external.items():
            write_file(path.with_name(names[location]), file.chunks())
        write_file(path, [proto.SerializeToString()])


def _names(model: str, locations: Iterable[str]) -> dict[str, str]:
    """Names data files beside a model of that name: two models in one folder do not write over each other's."""
    listed = list(locations)
    numbers = [""] if len(listed) == 1 else [f".{number}" for number in range(len(listed))]
    return {location: f"{model}{number}.data" for location, number in zip(listed, numbers)}
