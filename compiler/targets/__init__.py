"""Targets are data: one TOML per board beside this file, read into a `Target`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from compiler.errors import TargetError

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Target:
    """A board (or a class of machine) that we build for.

    `triple`, `cpu` and `features` are LLVM's; `zig_triple` is the linker's. Vector and cache sizes drive schedules.
    `cores` is the number of cores a training step uses by default. `required_features` are the agent's names (as in
    /proc/cpuinfo) that a device must report before it gets this binary. `sources` says where each figure is from.
    """

    name: str
    title: str
    device_class: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    required_features: tuple[str, ...]
    zig_triple: str
    vector_bits: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int
    memory_bytes: int
    sources: Mapping[str, str]

    @property
    def architecture(self) -> str:
        """`x86_64` or `aarch64`."""
        return self.triple.split("-", 1)[0]

    @property
    def lanes(self) -> int:
        """f32 elements in one vector register."""
        return self.vector_bits // 32


def names() -> tuple[str, ...]:
    """Every known target, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load(name: str) -> Target:
    """The target called `name`.

    Raises: TargetError if there is none; the message lists those there are.
    """
    if name not in names():
        raise TargetError(f"no target {name!r}", where="target", hint=f"known targets: {', '.join(names())}")
    table = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    table["features"] = tuple(table["features"])
    table["required_features"] = tuple(table["required_features"])
    return Target(name=name, **table)
