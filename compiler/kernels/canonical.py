"""A stable text of what is computed: the key of kernels in caches and objects."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from itertools import repeat


def canonical(value: object) -> str:
    """A stable text of a spec (or part of one): same spec, same text, on every machine and Python version."""
    return _canonical(value, {})


def _canonical(value: object, texts: dict[int, str]) -> str:
    """`texts`: of expressions, by identity, so that one that is shared is written once. One frame for each level."""
    if isinstance(value, tuple):
        return "(" + ",".join(map(_canonical, value, repeat(texts))) + ")"
    if isinstance(value, float):
        return value.hex()
    declared = _fields_of(type(value))
    if declared is None:
        return repr(value)
    if id(value) in texts:
        return texts[id(value)]
    body = []
    for name, default in declared:
        item = getattr(value, name)
        if item != default:
            body.append(f"{name}={_canonical(item, texts)}")
    texts[id(value)] = f"{type(value).__name__}({','.join(body)})"
    return texts[id(value)]


class _Never:
    """Equal to nothing: the value of a field is always said."""

    def __eq__(self, other: object) -> bool:
        return False


_fields: dict[type, tuple[tuple[str, object], ...]] = {}


def _fields_of(kind: type) -> tuple[tuple[str, object], ...] | None:
    """Returns the fields of a dataclass, each with the value that is left out of the text: its default if the field
    came later.
    """
    if kind not in _fields and is_dataclass(kind):
        _fields[kind] = tuple((f.name, f.default if "later" in f.metadata else _Never()) for f in fields(kind))
    return _fields.get(kind)
