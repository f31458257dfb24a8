"""Adapters as files: what `peft` loads beside a base model, and what it wrote as the start of a run of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from compiler.errors import CompileError
from compiler.trained.adapters import CONFIG, PREFIX, TENSORS, AdapterFiles, as_start
from compiler.trained.bring_back import adapter_of, adapters_of
from compiler.trained.checkpoints import tensors_of
from pockfarm.errors import IN_PARENTHESES, UsageError


def save_adapter(make: Callable[[], AdapterFiles], folder: Path) -> None:
    """Write the two files of an adapter. Raises: UsageError."""
    try:
        apart = make()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / TENSORS).open("wb") as file:
            for chunk in apart.chunks():
                file.write(chunk)
        (folder / CONFIG).write_text(json.dumps(apart.config, indent=2, sort_keys=True) + "\n")
    except CompileError as problem:
        raise UsageError.of_compiler(problem) from None
    except OSError as problem:
        raise UsageError(problem.strerror, where=problem.filename or folder) from None


def save_adapter_of(bundle: bytes, checkpoint: bytes, folder: Path) -> None:
    """The same of a run: its bundle, and what it trained. Raises: UsageError."""
    save_adapter(lambda: adapter_of(bundle, checkpoint), folder)


def check_has_adapters(bundle: Path) -> None:
    """Before a run whose adapter is wanted. Raises: UsageError for a bundle whose plan has none."""
    try:
        adapters = adapters_of(bundle.read_bytes())
    except CompileError as problem:
        raise UsageError.of_compiler(problem) from None
    except OSError as problem:
        raise UsageError(problem.strerror, where=bundle) from None
    if not adapters:
        raise UsageError(
            f"the plan of {bundle} has no adapters",
            where="--adapter",
            hint="build with `lora` in the plan",
            hint_form=IN_PARENTHESES,
        )


def start_of(weights: Path, bundle: Path) -> bytes | None:
    """A file of `peft`'s (or the folder that holds it) as a file of weights that `bundle` starts from.

    None for any other file. Raises: UsageError for one that the bundle does not compute with.
    """
    path, config_path = weights, weights.parent / CONFIG
    if weights.is_dir():
        path, config_path = weights / TENSORS, weights / CONFIG
    try:
        tensors = tensors_of(path.read_bytes(), str(path)) if weights.is_dir() or _is_theirs(path) else None
        if tensors is None:
            return None
        return b"".join(as_start(tensors, adapters_of(bundle.read_bytes()), _config(config_path)).chunks())
    except CompileError as problem:
        raise UsageError.of_compiler(problem) from None
    except OSError as problem:
        raise UsageError(problem.strerror, where=problem.filename or path) from None


def _config(path: Path) -> Mapping[str, Any]:
    """Reads the numbers that an adapter computes with. Raises: UsageError; OSError, also without the file: a scale
    would be a guess.
    """
    try:
        config: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"not readable as JSON: {problem}", where=path) from None
    if not isinstance(config, dict):
        raise UsageError("no configuration of peft's: it holds no mapping", where=path)
    return config


def _is_theirs(path: Path) -> bool:
    """True for a file whose header names tensors as `peft` does; what cannot be read is for the binary to refuse."""
    try:
        with path.open("rb") as file:
            head = file.read(min(int.from_bytes(file.read(8), "little"), _MAX_HEADER))
    except OSError:
        return False
    return f'"{PREFIX}'.encode() in head


_MAX_HEADER = 100 << 20
