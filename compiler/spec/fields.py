"""Reads a table of user-written fields one by one, so that every complaint names the field and what it may hold."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence

from compiler.errors import CompileError


class Fields:
    """A mapping whose fields are taken one at a time; `done` refuses what nobody took."""

    def __init__(self, values: Mapping[str, object], where: str, error: type[CompileError]) -> None:
        self._values = values
        self._where = where
        self._error = error
        self._known: list[str] = []

    def _take(self, name: str) -> object | None:
        self._known.append(name)
        return self._values.get(name)

    def _wrong(self, name: str, expected: str, value: object) -> CompileError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return self._error(f"expected {expected}, got {shown}", where=f"{self._where}.{name}")

    def text(self, name: str, *, default: str) -> str:
        """A string of at most 200 characters."""
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > 200:
            raise self._wrong(name, "a text of at most 200 characters", value)
        return value

    def texts(self, name: str, *, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A string or a non-empty list of strings; absent means `default`, if there is one."""
        value = self._take(name)
        if value is None and default is not None:
            return default
        entries = [value] if isinstance(value, str) else value
        if not isinstance(entries, list) or not entries or not all(isinstance(entry, str) for entry in entries):
            raise self._wrong(name, "a name or a list of names", value)
        return tuple(entries)

    def groups(self, name: str) -> tuple[tuple[str, ...], ...]:
        """A list of groups of two or more names; absent means none."""
        value = self._take(name)
        groups = []
        for group in value if isinstance(value, list) else [] if value is None else [value]:
            names = group if isinstance(group, list) else []
            if len(names) < 2 or not all(isinstance(entry, str) and entry for entry in names):
                raise self._wrong(name, "a list of groups of two or more names", value)
            groups.append(tuple(names))
        return tuple(groups)

    def choice(self, name: str, choices: Sequence[str], *, default: str) -> str:
        """One of `choices`."""
        value = self._take(name)
        if value is None:
            return default
        if value not in choices:
            raise self._wrong(name, "one of " + ", ".join(choices), value)
        return str(value)

    def number(self, name: str, *, default: float, low: float, high: float) -> float:
        """A finite number within [low, high]."""
        value = self._take(name)
        if value is None:
            return default
        if isinstance(value, str):
            value = _number_text(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(name, "a finite number", self._values[name])
        if not low <= value <= high:
            raise self._wrong(name, f"a number from {low:g} to {high:g}", value)
        return float(value)

    def integer(self, name: str, *, default: int, low: int, high: int) -> int:
        """An integer within [low, high]."""
        value = self.optional_integer(name, low=low, high=high)
        return default if value is None else value

    def optional_integer(self, name: str, *, low: int, high: int) -> int | None:
        """An integer within [low, high], or nothing."""
        value = self._take(name)
        if value is None:
            return None
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(name, f"an integer from {low} to {high}", value)
        return value

    def mapping(self, name: str) -> Mapping[str, object]:
        """A mapping with text keys; absent means empty."""
        value = self._take(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise self._wrong(name, "a mapping", value)
        return value

    def table(self, name: str) -> Fields:
        """A nested table; absent means empty."""
        return Fields(self.mapping(name), f"{self._where}.{name}", self._error)

    def tables(self, name: str) -> tuple[Fields, ...]:
        """A list of nested tables; absent means none."""
        value = self._take(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise self._wrong(name, "a list of mappings", value)
        return tuple(Fields(entry, f"{self._where}.{name}[{i}]", self._error) for i, entry in enumerate(value))

    def done(self) -> None:
        """Refuse the first field that no one took."""
        for name in self._values:
            if name not in self._known:
                near = difflib.get_close_matches(str(name), self._known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known fields: {', '.join(self._known)}"
                raise self._error("unknown field", where=f"{self._where}.{str(name)[:60]}", hint=hint)


def _number_text(text: str) -> float | None:
    # YAML 1.1 reads `1e-3` (no dot) as text; a person means the number.
    try:
        return float(text)
    except ValueError:
        return None
