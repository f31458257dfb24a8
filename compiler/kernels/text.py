"""Kernel specs, and plain values around them, as readable text and back.

    MatmulSpec(batch=1, m=8, n=4, k=16, dtype=f32, epilogue=add($0, $1), epilogue_inputs=(f32[4](i2)))

A record is its class with its fields, less those that hold their defaults; `$1` is operand 1, `#0.5` a constant,
`f32[4, 8](i0, 2*i1 + 1) else 0.0` an access by its index over the iteration axes. Numbers are exact. The reader also
takes the text that a spec is digested by (`compiler.kernels.spec.canonical`): there is one grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args

from compiler.graph import TensorType
from compiler.kernels import expressions
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Const, Index, Ref, Select, Stat, Unary
from compiler.kernels.spec import KernelSpec

_NUMBER = r"-?(?:0x[01]\.[0-9a-f]+p[+-][0-9]+|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|inf\b|nan\b)"
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>{_NUMBER})|(?P<text>'[A-Za-z0-9_]*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<value>%(?:\"(?:[^\"\\]|\\.)*\"|[^\s,()=\"]*[^\s,()=\":]))|(?P<word>[A-Za-z_][A-Za-z0-9_.]*)|(?P<mark>[][(){},=#$*+:]))"
)
_WORDS: Mapping[str, object] = {"True": True, "False": False, "None": None}
_PLAIN = re.compile(r"(?!(?:True|False|None|else)$|(?:inf|nan)\b)[A-Za-z_][A-Za-z0-9_.]*")
_SHOWN = 80
_CLASSES: Mapping[str, type] = {
    kind.__name__: kind for kind in (TensorType, Affine, Access, *get_args(expressions.Expr), *get_args(KernelSpec))
}


def show(value: object) -> str:
    """The text of a spec, of a part of one, or of a number, string or tuple of these."""
    if isinstance(value, tuple):
        return f"({', '.join(map(show, value))})"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(value)
    if isinstance(value, TensorType):
        return str(value)
    if isinstance(value, Access):
        index = ", ".join(map(_show_affine, value.index))
        return f"{value.type}({index}){'' if value.fill is None else f' else {value.fill!r}'}"
    if isinstance(value, Affine):
        return _show_affine(value)
    if is_dataclass(value):
        return _show_expression(value) or f"{type(value).__name__}({show_fields(value)})"
    return repr(value)


def show_fields(record: Any, leave_out: tuple[str, ...] = ()) -> str:
    """The fields of a dataclass that do not hold their default, as `name=value, …`."""
    shown_fields = [(field, getattr(record, field.name)) for field in fields(record) if field.name not in leave_out]
    return ", ".join(f"{field.name}={show(value)}" for field, value in shown_fields if not _is_default(field, value))


def _is_default(field: Field[Any], value: object) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return default is not MISSING and type(default) is type(value) and default == value


def _show_affine(affine: Affine) -> str:
    terms = [f"i{axis}" if scale == 1 else f"{scale}*i{axis}" for axis, scale in affine.terms]
    return " + ".join([*terms, *([str(affine.offset)] if affine.offset or not terms else [])])


def _show_expression(value: object) -> str:
    match value:
        case Const(number):
            return f"#{number!r}"
        case Ref(operand):
            return f"${operand}"
        case Stat(stage):
            return f"stat({stage})"
        case Index(axis):
            return f"index({axis})"
        case Unary(op, x):
            return f"{op}({show(x)})"
        case Binary(op, x, y):
            return f"{op}({show(x)}, {show(y)})"
        case Select(cond, then, other):
            return f"select({show(cond)}, {show(then)}, {show(other)})"
    return ""


def read(text: str, value_of: Callable[[str], object] = str) -> object:
    """Reads what `show` wrote as a text; `value_of` reads `%…`. Raises: ValueError for a text that it did not write."""
    reader = Reader(text, value_of)
    parsed = reader.value()
    reader.end()
    return parsed


class Reader:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, value_of: Callable[[str], object] = str) -> None:
        self._tokens = _tokens(text)
        self._value_of = value_of
        self.kind, self.token = next(self._tokens)

    def take(self) -> tuple[str, str]:
        """The next token and its kind; the reader moves on."""
        token = self.kind, self.token
        self.kind, self.token = next(self._tokens, ("end", ""))
        return token

    def expect(self, token: str) -> None:
        """Moves past a mark or word. Raises: ValueError if there is another."""
        if self.kind in ("text", "end") or self.token != token:
            raise ValueError(f"{self.token[:_SHOWN]!r} where {token!r} should be")
        self.take()

    def took(self, token: str) -> bool:
        """Moves past a mark or word if it is next."""
        matched = self.kind in ("mark", "word") and self.token == token
        if matched:
            self.take()
        return matched

    def end(self) -> None:
        """Raises: ValueError if anything is left."""
        if self.kind != "end":
            raise ValueError(f"{self.token[:_SHOWN]!r} after the end")

    def items(self, end: str, item: Callable[[], object]) -> Iterator[object]:
        """Yields whatever `item` reads, between commas and up to the mark `end`."""
        first = True
        while not self.took(end):
            if not first:
                self.expect(",")
            first = False
            yield item()

    def value(self) -> object:
        """A number, string, word, tuple, value, tensor type, access, expression or record."""
        kind, token = self.take()
        match kind, token:
            case "number", _:
                return _number(token)
            case "text", _:
                return token[1:-1] if token[0] == "'" else json.loads(token)
            case "value", _:
                return self._value_of(token)
            case "mark", "(":
                return tuple(self.items(")", self.value))
            case "mark", "#":
                return Const(_number(self._number()))
            case "mark", "$":
                return Ref(int(self._number()))
            case "word", _:
                return self._word(token)
        raise ValueError(f"{token[:_SHOWN]!r} is not a value")

    def fields(self, end: str) -> dict[str, object]:
        """`name=value, …` up to the mark `end`."""
        pairs: Iterator[Any] = self.items(end, self._field)
        return dict(pairs)

    def values(self, end: str) -> tuple[Any, ...]:
        """Values between commas and up to the mark `end`; what they should be, the caller knows."""
        return tuple(self.items(end, self.value))

    def rest(self) -> dict[str, object]:
        """`name=value, …` up to the end of the text."""
        named_values: dict[str, object] = {}
        while self.kind != "end":
            if named_values:
                self.expect(",")
            name, value = self._field()
            named_values[name] = value
        return named_values

    def _field(self) -> tuple[str, object]:
        name = self.take()[1]
        self.expect("=")
        return name, self.value()

    def _number(self) -> str:
        kind, token = self.take()
        if kind != "number":
            raise ValueError(f"{token[:_SHOWN]!r} is not a number")
        return token

    def _word(self, word: str) -> object:
        if word in _WORDS:
            return _WORDS[word]
        if self.took("["):
            dtype: Any = word
            tensor = TensorType(dtype, self.values("]"))
            return self._access(tensor) if self.took("(") else tensor
        if not self.took("("):
            return word
        if word in _CLASSES:
            return record(_CLASSES[word], self.fields(")"))
        return _expression(word, self.values(")"))

    def _access(self, tensor: TensorType) -> Access:
        index: tuple[Any, ...] = tuple(self.items(")", self._affine))
        fill: Any = self.value() if self.took("else") else None
        return Access(tensor, index, fill)

    def _affine(self) -> Affine:
        terms: list[tuple[int, int]] = []
        while True:
            kind, token = self.take()
            if kind == "word" and token[0] == "i":
                terms.append((int(token[1:]), 1))
            elif kind == "number" and self.took("*"):
                terms.append((int(self.take()[1][1:]), int(token)))
            elif kind == "number":
                return Affine(tuple(terms), int(token))
            else:
                raise ValueError(f"{token[:_SHOWN]!r} is no term of an index")
            if not self.took("+"):
                return Affine(tuple(terms))


def record(kind: type, values: Mapping[str, object]) -> object:
    """A dataclass of fields as they were read. Raises: ValueError for fields that it does not have, or lacks."""
    fields_by_name = {field.name: field for field in fields(kind)}
    needed = {
        name for name, field in fields_by_name.items() if field.default is MISSING and field.default_factory is MISSING
    }
    if not needed <= values.keys() <= fields_by_name.keys():
        raise ValueError(f"{kind.__name__} has other fields")
    return kind(**values)


def _expression(word: str, arguments: tuple[Any, ...]) -> object:
    match word, arguments:
        case "stat", (int(stage),):
            return Stat(stage)
        case "index", (int(axis),):
            return Index(axis)
        case "select", (cond, then, other):
            return Select(cond, then, other)
        case _, (x,):
            return Unary(word, x)
        case _, (x, y):
            return Binary(word, x, y)
    raise ValueError(f"{word}(…) is no expression")


def _number(token: str) -> int | float:
    if re.fullmatch("-?[0-9]+", token):
        return int(token)
    return float.fromhex(token) if "0x" in token else float(token)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise ValueError(f"unreadable at {text[position : position + 20]!r}")
        yield match.lastgroup, match.group(match.lastgroup)
        position = match.end()
    yield "end", ""
