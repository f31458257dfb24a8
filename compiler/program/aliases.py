"""Values that share storage: views, results written in place, and the parts of a value that is made in parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Alias:
    """The storage of `value` from `offset_bytes` on; `value` may itself be an alias."""

    value: Value
    offset_bytes: int = 0


Aliases = Mapping[Value, Alias]
"""A value that owns its storage has no entry."""


def storage_of(aliases: Aliases, value: Value) -> Alias:
    """The owner of the storage of `value`, and where in it the value begins."""
    offset_bytes = 0
    while value in aliases:
        offset_bytes += aliases[value].offset_bytes
        value = aliases[value].value
    return Alias(value, offset_bytes)


def root_of(aliases: Aliases, value: Value) -> Value:
    """The value that owns the storage of `value`."""
    while (alias := aliases.get(value)) is not None:
        value = alias.value
    return value
