"""Frozen dataclasses to JSON and back, strictly: what is unknown, missing or of another type is refused by name.

Supported field types: `str`, `int`, `float` (finite; an integer is accepted), `bool`, `Optional[T]`, `Literal[...]`,
`tuple[T, ...]`, `Mapping[str, T]` and other dataclasses. A field with a default may be absent. Text is Unicode without
lone surrogates, which JSON can spell and nothing can store.
"""

import dataclasses
import json
import math
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, Literal, Optional, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

FLAT = {"flat": True}
"""Metadata of a field whose own fields stand among those of the whole; there, what equals its default is left out."""
ALWAYS_SENT = {"always_sent": True}
"""Metadata of a field that is never left out, nor absent."""

SENT_IF_SET = {"sent_if_set": True}
"""Metadata of a field that is left out while it has its default: who is older than it refuses only what uses it."""

LONG_TEXT = {"most_characters": 32 << 20}
"""Metadata of a text that holds a whole report: the body around it has its own limit."""

MAX_STRING_CHARACTERS = 1 << 20
MAX_ITEMS = 1 << 20
MOST_FLOAT32 = 3.5e38
"""No number of a step's is larger: it computes in 32 bits."""
MAX_DIGITS = 400
"""Digits of an integer, at most: as many as the largest float has."""
_FLOATS = (float, Optional[float])


class ProtocolError(ValueError):
    """A message that does not follow the protocol; `where` is the dotted path of the field."""

    def __init__(self, where: str, message: str, hint: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.hint}" if self.hint else super().__str__()


def check_loss(where: str, loss: Optional[float]) -> None:
    """Checks that a step can have computed the loss. Raises: `ProtocolError`."""
    is_possible = loss is None or -MOST_FLOAT32 <= loss <= MOST_FLOAT32
    check(is_possible, where, "a number of 32 bits, or null where it is not finite")


def check(holds: bool, where: str, expected: str) -> None:
    """Checks a condition, for `__post_init__` of wire types. Raises `ProtocolError` unless it holds."""
    if not holds:
        raise ProtocolError(where, f"must be {expected}")


def to_json(value: Any) -> Any:
    """The JSON value (dicts, lists, strings, numbers, None) of a dataclass or of a field of one."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object(value)
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ProtocolError("", f"{value} cannot be sent: numbers on the wire are finite, absent ones are null")
    return value


def _object(value: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.metadata.get("flat"):
            sent_names = {
                item_field.name
                for item_field in dataclasses.fields(item)
                if item_field.metadata.get("always_sent") or getattr(item, item_field.name) != item_field.default
            }
            fields.update({name: part for name, part in to_json(item).items() if name in sent_names})
        elif not (field.metadata.get("sent_if_set") and item == field.default):
            fields[field.name] = to_json(item)
    return fields


def dumps(value: Any) -> bytes:
    """Canonical bytes: UTF-8, sorted keys, no spaces. The same value always gives the same bytes."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def loads(kind: type[T], data: Union[bytes, str]) -> T:
    """Parses `data` as one `kind`. Raises `ProtocolError` (not JSON, wrong field)."""
    return from_json(kind, parse(data))


def parse(data: Union[bytes, str]) -> Any:
    """Returns any JSON value. Raises `ProtocolError`: not JSON, NaN, a name twice, numbers of thousands of digits, too
    deep.
    """
    try:
        return json.loads(data, parse_constant=_refuse_constant, parse_int=_integer, object_pairs_hook=_object_once)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("", f"not JSON: {error}") from None


def from_json(kind: type[T], value: Any, where: str = "") -> T:
    """Builds the dataclass `kind` from a parsed JSON object. Raises `ProtocolError` naming the field."""
    if not isinstance(value, dict):
        raise ProtocolError(where or kind.__name__, f"expected an object, got {_name(value)}")
    fields = _fields(cast(Hashable, kind))
    value, arguments = _take_flat(cast(Hashable, kind), value, where)
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise ProtocolError(_join(where, unknown[0]), f"unknown field of {kind.__name__}")
    for name, (hint, required) in fields.items():
        if name in value and name in _long_texts(cast(Hashable, kind)) and isinstance(value[name], str):
            _check_text(value[name], _join(where, name), _long_texts(cast(Hashable, kind))[name])
            arguments[name] = value[name]
        elif name in value:
            arguments[name] = _decode(hint, value[name], _join(where, name))
        elif required:
            raise ProtocolError(_join(where, name), f"missing field of {kind.__name__}")
    try:
        return kind(**arguments)
    except ProtocolError as error:
        raise ProtocolError(_join(where, error.where), str(error).partition(": ")[2]) from None


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Type and whether it must be there, of each field but the flat ones."""
    hints = get_type_hints(kind)
    absent = dataclasses.MISSING
    return {
        field.name: (hints[field.name], field.default is absent and field.default_factory is absent)
        for field in dataclasses.fields(kind)
        if not field.metadata.get("flat")
    }


@cache
def _long_texts(kind: Any) -> dict[str, int]:
    limits = {field.name: field.metadata.get("most_characters") for field in dataclasses.fields(kind)}
    return {name: limit for name, limit in limits.items() if limit is not None}


@cache
def _flat_fields(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.metadata.get("flat")}


def _take_flat(kind: Any, value: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the rest of the object, and the flat fields that were among its own."""
    flat_fields = {}
    for name, hint in _flat_fields(kind).items():
        inner = _fields(hint)
        for field in dataclasses.fields(hint):
            if field.metadata.get("always_sent") and field.name not in value:
                raise ProtocolError(_join(where, field.name), f"missing field of {kind.__name__}")
        flat_fields[name] = from_json(hint, {key: item for key, item in value.items() if key in inner}, where)
        value = {key: item for key, item in value.items() if key not in inner}
    return value, flat_fields


def _decode(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin is Union:
        inner = next(arm for arm in get_args(hint) if arm is not type(None))
        return None if value is None else _decode(inner, value, where)
    if origin is Literal:
        if value not in get_args(hint) or isinstance(value, bool):
            raise ProtocolError(where, f"expected one of {', '.join(map(str, get_args(hint)))}; got {value!r:.60}")
        return value
    if origin is tuple:
        return _decode_items(get_args(hint)[0], value, where)
    if origin is Mapping:
        return _decode_mapping(get_args(hint)[1], value, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return from_json(hint, value, where)
    return _decode_scalar(hint, value, where)


def _decode_items(hint: Any, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ProtocolError(where, f"expected an array, got {_name(value)}")
    if len(value) > MAX_ITEMS:
        raise ProtocolError(where, f"{len(value)} items, the limit is {MAX_ITEMS}")
    if hint in _FLOATS and set(map(type, value)) <= {float} and all(map(math.isfinite, value)):
        return tuple(value)  # losses and times: a report has hundreds of thousands
    return tuple(_decode(hint, item, f"{where}[{index}]") for index, item in enumerate(value))


def _decode_mapping(hint: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(where, f"expected an object, got {_name(value)}")
    for key in value:
        _check_text(key, where)
    return {key: _decode(hint, item, _join(where, key)) for key, item in value.items()}


def _decode_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return _as_float(value, where)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ProtocolError(where, f"expected {hint.__name__}, got {_name(value)}")
    if hint is int and value.bit_length() > 63:
        raise ProtocolError(where, "an integer beyond 64 bits")
    if hint is str:
        _check_text(value, where)
    if hint is float and not math.isfinite(value):
        raise ProtocolError(where, "not a finite number")
    return value


def _check_text(value: str, where: str, most: int = MAX_STRING_CHARACTERS) -> None:
    if len(value) > most:
        raise ProtocolError(where, f"{len(value)} characters, the limit is {most}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ProtocolError(where, "not text: it holds half of a surrogate pair") from None


def _as_float(value: int, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ProtocolError(where, "not a finite number") from None


def _integer(text: str) -> int:
    """Old versions of Python take seconds for an integer of a million digits."""
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits, the limit is {MAX_DIGITS}")
    return int(text)


def _object_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers of an object with a name twice may see two values."""
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = next(name for name in value if sum(name == other for other, _ in pairs) > 1)
        raise ValueError(f"the name {twice!r:.80} stands twice in one object")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON; absent numbers are null")


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where and name else where or name


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__
