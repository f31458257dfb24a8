"""Targets are data: one TOML per board beside this file, read into the description of its kind.

`kind` in the TOML is the tag: the one table below says what each kind's description is, so a GPU, a DSP or a
micro-controller is a dataclass of its own and a row. Adding a target of a known kind is one file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from compiler.errors import TargetError
from compiler.naming import near_names
from compiler.targets.costs import MachineCosts
from compiler.targets.cpu import CpuTarget

FOLDER = Path(__file__).parent

Target = CpuTarget
"""A target of any kind: the union of the table's descriptions."""

KINDS: Mapping[str, Callable[[str, Mapping[str, Any]], Target]] = {"cpu": CpuTarget.of}


def names() -> tuple[str, ...]:
    """Every known target, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load(name: str) -> Target:
    """The target called `name`.

    Raises: TargetError if there is none; the message lists those there are.
    """
    if name not in names():
        hint = f"{near_names(name, names())} known targets: {', '.join(names())}".strip()
        raise TargetError(f"no target {name!r}", where="target", hint=hint)
    return parse(name, (FOLDER / f"{name}.toml").read_text())


def parse(name: str, text: str) -> Target:
    """The target that a TOML describes. Raises: TargetError if it does not describe one."""
    where = f"target {name}"
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise TargetError(f"not TOML: {problem}", where=where) from None
    kind = table.get("kind")
    read = KINDS.get(kind) if isinstance(kind, str) else None
    if read is None:
        hint = f"known kinds: {', '.join(KINDS)}; another one needs a description in `compiler/targets`"
        raise TargetError(f"no kind of target is called {kind!r}", where=where, hint=hint)
    try:
        return read(name, table)
    except TypeError as problem:
        raise TargetError(f"its fields are not those of kind {kind!r}: {problem}", where=where) from None


__all__ = ["FOLDER", "KINDS", "CpuTarget", "MachineCosts", "Target", "load", "names", "parse"]
