"""From a spec's canonical text (`kernel_spec.canonical`) back to the spec, so that a bundle can carry kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import get_args

from compiler.codegen.family import FAMILIES
from compiler.errors import TuningError
from compiler.graph import TensorType
from compiler.kernels import expressions
from compiler.kernels.access import Access, Affine
from compiler.kernels.spec import KernelSpec, canonical

MAX_CHARACTERS = 1_000_000
_TOKEN = re.compile(
    r"(?P<float>-?(?:0x[01]\.[0-9a-f]+p[+-][0-9]+|inf))|(?P<int>-?[0-9]+)|(?P<text>'[A-Za-z0-9_]*')"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>[(),=])"
)
_WORDS = {"True": True, "False": False, "None": None}
_CLASSES = {kind.__name__: kind
            for kind in (TensorType, Affine, Access, *get_args(expressions.Expr), *FAMILIES)}  # fmt: skip
_SHOWN = 80


def parse_spec(text: str) -> KernelSpec:
    """The spec whose canonical text this is. Raises: TuningError if there is none."""
    try:
        spec = _Reader(text[: MAX_CHARACTERS + 1]).whole()
        is_spec = type(spec) in FAMILIES and len(text) <= MAX_CHARACTERS and canonical(spec) == text
    except (ValueError, TypeError, KeyError, StopIteration, RecursionError) as problem:
        raise TuningError(f"not a kernel's text: {text[:_SHOWN]!r} ({problem})", where="kernels") from None
    if not is_spec:
        raise TuningError(f"not a kernel's text: {text[:_SHOWN]!r}", where="kernels")
    return spec  # type: ignore[return-value]


class _Reader:
    """Recursive descent: a value is a number, a word, a quoted word, `(a,b)` or `Class(field=value,…)`."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._kind, self._token = next(self._tokens)

    def whole(self) -> object:
        value = self._value()
        self._expect("end", "")
        return value

    def _take(self) -> tuple[str, str]:
        taken = self._kind, self._token
        self._kind, self._token = next(self._tokens, ("end", ""))
        return taken

    def _expect(self, kind: str, token: str) -> None:
        if (self._kind, self._token) != (kind, token):
            raise ValueError(f"{self._token[:_SHOWN]!r} where {token!r} should be")
        self._take()

    def _value(self) -> object:
        kind, token = self._take()
        match kind:
            case "float":
                return float.fromhex(token)
            case "int":
                return int(token)
            case "text":
                return token[1:-1]
            case "word" if token in _WORDS:
                return _WORDS[token]
            case "word":
                self._expect("mark", "(")
                return self._instance(token)
            case _ if token == "(":
                return tuple(self._items())
        raise ValueError(f"{token[:_SHOWN]!r} is not a value")

    def _instance(self, name: str) -> object:
        kind = _CLASSES[name]
        arguments: dict[str, object] = {}
        while self._token != ")":
            if arguments:
                self._expect("mark", ",")
            field = self._take()[1]
            self._expect("mark", "=")
            arguments[field] = self._value()
        self._expect("mark", ")")
        if list(arguments) != [field.name for field in fields(kind)]:
            raise ValueError(f"{name} has other fields")
        return kind(**arguments)

    def _items(self) -> Iterator[object]:
        first = True
        while self._token != ")":
            if not first:
                self._expect("mark", ",")
            first = False
            yield self._value()
        self._expect("mark", ")")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup is None:
            raise ValueError(f"unreadable at {text[position : position + 20]!r}")
        yield found.lastgroup, found.group()
        position = found.end()
    yield "end", ""
