"""Targets are data: one TOML per board beside this file, read into the description of its kind.

A board's name means its CPU; `<board>/<engine>` is another engine of it, in a folder of the board's name.
`kind` in the TOML is the tag: the one table below says what each kind's description is, so a DSP or a
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
from compiler.targets.grid import GridTarget

FOLDER = Path(__file__).parent

Target = CpuTarget | GridTarget
"""A target of any kind: the union of the table's descriptions."""


def load_cpu(name: str) -> CpuTarget:
    """The target called `name`, which is a CPU. Raises: TargetError if there is none, or it is another engine."""
    target = load(name)
    if not isinstance(target, CpuTarget):
        raise TargetError(f"{name!r} is a target of kind {target.kind}, no CPU", where="target")
    return target


KINDS: Mapping[str, Callable[[str, Mapping[str, Any]], Target]] = {
    "cpu": CpuTarget.of,
    "opencl": GridTarget.reader(load_cpu),
    "cuda": GridTarget.reader(load_cpu),
}


def names(*kinds: str) -> tuple[str, ...]:
    """Returns every known target, or those of these kinds, sorted."""
    targets = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.glob("**/*.toml"))
    return tuple(name for name in targets if not kinds or load(name).kind in kinds)


def cpus() -> tuple[CpuTarget, ...]:
    """Returns every target that is a CPU, by name."""
    return tuple(map(load_cpu, names("cpu")))


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


__all__ = [
    "FOLDER",
    "KINDS",
    "CpuTarget",
    "GridTarget",
    "MachineCosts",
    "Target",
    "cpus",
    "load",
    "load_cpu",
    "names",
    "parse",
]
