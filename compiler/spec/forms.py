"""Forms of the fields of a plan or spec: how a value is read, written plainly, and described as JSON Schema.

A form is one class with `read`, `plain` and `schema`; a record (`compiler.spec.records`) is a form too. A value that is
wrong is an error that names the field, what it holds and what it may hold.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from compiler.errors import CompileError

Json = Any
"""Plain data, as `json.dumps` takes it."""
MAX_TEXT = 200
SHOWN = 60


@dataclass(frozen=True)
class Place:
    """The place where a value stands, for messages, and the kind of error that is raised of it."""

    where: str
    error: type[CompileError]

    def field(self, name: str) -> Place:
        """A field of what stands here."""
        return Place(f"{self.where}.{name}", self.error)

    def item(self, number: int) -> Place:
        """An entry of the list that stands here."""
        return Place(f"{self.where}[{number}]", self.error)

    def wrong(self, expected: str, value: object, hint: str = "") -> CompileError:
        """Returns the error for a value that is not what was expected."""
        text = repr(value)
        text = text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
        return self.error(f"expected {expected}, got {text}", where=self.where, hint=hint)

    def refused(self, message: str, hint: str = "") -> CompileError:
        """Returns the error for a value that is readable but not accepted."""
        return self.error(message, where=self.where, hint=hint)


class Form(Protocol):
    """The form of a field."""

    def read(self, value: object, place: Place) -> Any:
        """The value as our code has it. Raises: the place's error."""

    def plain(self, value: Any) -> Json:
        """Returns plain data that `read` takes and gives the value for."""

    def schema(self) -> dict[str, Json]:
        """JSON Schema (2020-12) of what `read` takes."""


@dataclass(frozen=True)
class Text:
    """A text of at most 200 characters."""

    def read(self, value: object, place: Place) -> str:
        """The text."""
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise place.wrong(f"a text of at most {MAX_TEXT} characters", value)
        return value

    def plain(self, value: str) -> Json:
        """The text."""
        return value

    def schema(self) -> dict[str, Json]:
        """A string."""
        return {"type": "string", "maxLength": MAX_TEXT}


@dataclass(frozen=True)
class OneOf:
    """A choice of a few words; `synonyms` are those of other tools, and what is said here in their place."""

    choices: Sequence[str]
    synonyms: Mapping[str, str] = field(default_factory=dict)

    def read(self, value: object, place: Place) -> str:
        """The word."""
        if not isinstance(value, str) or value not in self.choices:
            synonym = self.synonyms.get(str(value).lower())
            hint = f"say {synonym}" if synonym else near_hint(value, self.choices)
            raise place.wrong("one of " + ", ".join(self.choices), value, hint)
        return value

    def plain(self, value: str) -> Json:
        """The word."""
        return value

    def schema(self) -> dict[str, Json]:
        """An enumeration."""
        return {"enum": list(self.choices)}


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def read(self, value: object, place: Place) -> bool:
        """The flag."""
        if not isinstance(value, bool):
            raise place.wrong("true or false", value)
        return value

    def plain(self, value: bool) -> Json:
        """The flag."""
        return value

    def schema(self) -> dict[str, Json]:
        """A boolean."""
        return {"type": "boolean"}


@dataclass(frozen=True)
class Number:
    """A finite number within [low, high]; YAML 1.1 reads `1e-3` (no dot) as text, and a person means the number."""

    low: float = -math.inf
    high: float = math.inf

    def read(self, value: object, place: Place) -> float:
        """The number."""
        number = _number_text(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise place.wrong("a finite number", value)
        if not self.low <= number <= self.high:
            raise place.wrong(self._bounds(), number)
        return float(number)

    def _bounds(self) -> str:
        if math.isinf(self.high):
            return f"a number of at least {self.low:g}"
        return f"a number from {self.low:g} to {self.high:g}"

    def plain(self, value: float) -> Json:
        """The number."""
        return value

    def schema(self) -> dict[str, Json]:
        """A number with its finite bounds."""
        bounds = {"minimum": self.low, "maximum": self.high}
        return {"type": "number", **{name: bound for name, bound in bounds.items() if math.isfinite(bound)}}


@dataclass(frozen=True)
class Integer:
    """An integer within [low, high]."""

    low: int
    high: int

    def read(self, value: object, place: Place) -> int:
        """The integer."""
        if type(value) is not int or not self.low <= value <= self.high:
            raise place.wrong(f"an integer from {self.low} to {self.high}", value)
        return value

    def plain(self, value: int) -> Json:
        """The integer."""
        return value

    def schema(self) -> dict[str, Json]:
        """An integer with its bounds."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Optional:
    """A form, or null, which is the same as leaving the field out."""

    form: Form

    def read(self, value: object, place: Place) -> Any:
        """The value."""
        return None if value is None else self.form.read(value, place)

    def plain(self, value: Any) -> Json:
        """The value, or null."""
        return None if value is None else self.form.plain(value)

    def schema(self) -> dict[str, Json]:
        """Either."""
        return {"anyOf": [self.form.schema(), {"type": "null"}]}


@dataclass(frozen=True)
class Names:
    """A name, or a list of at least one."""

    def read(self, value: object, place: Place) -> tuple[str, ...]:
        """The names."""
        entries = [value] if isinstance(value, str) else value
        if not isinstance(entries, list) or not entries or not all(isinstance(entry, str) for entry in entries):
            raise place.wrong("a name or a list of names", value)
        return tuple(entries)

    def plain(self, value: tuple[str, ...]) -> Json:
        """The list."""
        return list(value)

    def schema(self) -> dict[str, Json]:
        """A string, or a list of some."""
        several = {"type": "array", "items": {"type": "string"}, "minItems": 1}
        return {"anyOf": [{"type": "string"}, several]}


@dataclass(frozen=True)
class Groups:
    """A list of groups of two or more names; one group need not stand in a list."""

    def read(self, value: object, place: Place) -> tuple[tuple[str, ...], ...]:
        """The groups."""
        groups = []
        for group in value if isinstance(value, list) else [value]:
            names = group if isinstance(group, list) else []
            if len(names) < 2 or not all(isinstance(entry, str) and entry for entry in names):
                raise place.wrong("a list of groups of two or more names", value)
            groups.append(tuple(names))
        return tuple(groups)

    def plain(self, value: tuple[tuple[str, ...], ...]) -> Json:
        """Lists in a list."""
        return [list(group) for group in value]

    def schema(self) -> dict[str, Json]:
        """Lists of strings."""
        group = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 2}
        return {"type": "array", "items": group}


@dataclass(frozen=True)
class ListOf:
    """A list whose entries have one form; `most` is a limit, `what` says it in a message."""

    form: Form
    what: str
    most: int = 20_000

    def read(self, value: object, place: Place) -> tuple[Any, ...]:
        """The entries."""
        if not isinstance(value, list):
            raise place.wrong(f"a list of {self.what}", value)
        if len(value) > self.most:
            raise place.refused(f"{len(value):,} {self.what}, the limit is {self.most:,}")
        return tuple(self.form.read(entry, place.item(number)) for number, entry in enumerate(value))

    def plain(self, value: tuple[Any, ...]) -> Json:
        """The list."""
        return [self.form.plain(entry) for entry in value]

    def schema(self) -> dict[str, Json]:
        """An array."""
        return {"type": "array", "items": self.form.schema(), "maxItems": self.most}


@dataclass(frozen=True)
class Numbers:
    """A finite number within [low, high], or a list of them; `takes_truth`: true and false are 1 and 0."""

    low: float
    high: float
    what: str
    takes_truth: bool = False

    def read(self, value: object, place: Place) -> tuple[float, ...]:
        """The numbers."""
        if isinstance(value, list):
            return self._several().read([self._number(element) for element in value], place)
        return (self._form().read(self._number(value), place),)

    def _number(self, value: object) -> object:
        return int(value) if self.takes_truth and isinstance(value, bool) else value

    def plain(self, value: tuple[float, ...]) -> Json:
        """The list."""
        return list(value)

    def schema(self) -> dict[str, Json]:
        """A number, or an array of numbers."""
        number, numbers = self._form().schema(), self._several().schema()
        if not self.takes_truth:
            return {"anyOf": [number, numbers]}
        truth = {"type": "boolean"}
        return {"anyOf": [number, truth, {**numbers, "items": {"anyOf": [numbers["items"], truth]}}]}

    def _form(self) -> Number:
        return Number(self.low, self.high)

    def _several(self) -> ListOf:
        return ListOf(self._form(), self.what)


@dataclass(frozen=True)
class ByName:
    """A mapping from names to values of one form, as pairs in the names' order."""

    form: Form

    def read(self, value: object, place: Place) -> tuple[tuple[str, Any], ...]:
        """The pairs."""
        entries = as_mapping(value, place)
        return tuple((name, self.form.read(entry, place.field(name))) for name, entry in sorted(entries.items()))

    def plain(self, value: tuple[tuple[str, Any], ...]) -> Json:
        """The mapping."""
        return {name: self.form.plain(entry) for name, entry in value}

    def schema(self) -> dict[str, Json]:
        """An object with any names."""
        return {"type": "object", "additionalProperties": self.form.schema()}


@dataclass(frozen=True)
class Shape:
    """A list of 1 to 8 positive extents."""

    def read(self, value: object, place: Place) -> tuple[int, ...]:
        """The extents."""
        if not isinstance(value, list) or not value or len(value) > 8:
            raise place.refused("a shape is a list of 1 to 8 positive integers")
        if not all(type(extent) is int and 0 < extent < 1 << 31 for extent in value):
            raise place.refused(f"every extent is a positive integer, got {value}")
        return tuple(value)

    def plain(self, value: tuple[int, ...]) -> Json:
        """The list."""
        return list(value)

    def schema(self) -> dict[str, Json]:
        """An array of integers."""
        extent = {"type": "integer", "minimum": 1, "maximum": (1 << 31) - 1}
        return {"type": "array", "items": extent, "minItems": 1, "maxItems": 8}


def near_hint(name: object, names: Sequence[str]) -> str:
    """The nearest of the names that there are; empty if none is near."""
    near = difflib.get_close_matches(name[:MAX_TEXT], names, n=1) if isinstance(name, str) else []
    return f"did you mean {near[0]!r}?" if near else ""


def as_mapping(value: object, place: Place, hint: str = "") -> Mapping[str, object]:
    """A mapping with text keys. Raises: the place's error."""
    if not isinstance(value, Mapping):
        raise place.wrong("a mapping", value, hint)
    others = [key for key in value if not isinstance(key, str)]
    if others:
        is_word = isinstance(others[0], bool)
        quote = "readers of YAML take on, off, yes and no for truth values: put the name in quotes" if is_word else hint
        raise place.wrong("names as keys", others[0], quote)
    return value


def _number_text(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
