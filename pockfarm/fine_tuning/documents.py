"""Plan and spec as a caller gives them: a preset's name, JSON or YAML text, a file, or plain data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Union

from compiler.errors import CompileError, SpecError
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.reading import read_mapping
from pockfarm.errors import UsageError
from pockfarm.files.sources import unread

Document = Union[str, bytes, "os.PathLike[str]", Mapping[str, object]]
_FILES = (".yaml", ".yml", ".json")


def plan_of(document: Document, frozen: Sequence[str], names: Sequence[str] = ()) -> SparsePlan:
    """The plan, with what the model itself freezes: globs, or `names` where they would freeze biases that it creates.

    Raises: UsageError.
    """
    try:
        plan = SparsePlan.parse(_read(document, "plan"))
    except CompileError as problem:
        raise UsageError.of_compiler(problem) from None
    return replace(plan, frozen=(*plan.frozen, *(names if plan.create_biases else frozen)))


def spec_of(document: Document | None, batch: int | None) -> TrainingSpec:
    """The spec; `batch` is the number of samples of a step if it names none. Raises: UsageError."""
    try:
        fields = read_mapping(_read(document if document is not None else {}, "spec"), "spec", SpecError)
        default = {} if batch is None or "batch" in fields else {"batch": batch}
        return TrainingSpec.parse({**fields, **default})
    except CompileError as problem:
        raise UsageError.of_compiler(problem) from None


def patterns(frozen: Sequence[str], learning: Sequence[str]) -> tuple[str, ...]:
    """Globs for names that do not learn: `encoder.*` where nothing below `encoder.` does, so that plans stay short."""
    globs: dict[str, None] = {}
    for name in frozen:
        parts = name.split(".")
        prefixes = (".".join(parts[:count]) + "." for count in range(1, len(parts)))
        free = next((prefix for prefix in prefixes if not any(other.startswith(prefix) for other in learning)), None)
        globs[literal(name) if free is None else literal(free) + "*"] = None
    return tuple(globs)


def literal(name: str) -> str:
    """A glob that matches nothing but the name."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _read(document: Document, what: str) -> str | bytes | Mapping[str, object]:
    if not isinstance(document, (str, bytes, os.PathLike, Mapping)):
        example = "'bias-only' or {'update': [{'parameters': ['*']}]}" if what == "plan" else "{'batch': 8}"
        raise UsageError(f"{what} is {type(document).__name__}", hint=f"give a path, text or a dict, such as {example}")
    if isinstance(document, str) and "\n" not in document and document.endswith(_FILES):
        document = Path(document)
    if not isinstance(document, os.PathLike):
        return document
    try:
        return Path(document).read_bytes()
    except OSError as problem:
        raise unread(Path(document), problem) from None


__all__ = ["Document", "patterns", "plan_of", "spec_of"]
