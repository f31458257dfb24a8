"""The identity of a value: what graphs, programs, plans and state are keyed by. No user's text is part of it.

The importer numbers what the model names; its names stay beside the graph (`Graph.names`) and are looked up where
people read. What we derive from a value (its state in the optimizer, what it is after its update, its part of the
batch) is a value that says so in its fields: two derivations are the same only if they were made alike, and none can
coincide with a user's value. `str` gives a short text for graphs and programs in print, and `Value.parse` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from compiler.errors import InternalError

Role = Literal["plain", "loss", "labels", "hyper", "state", "next", "packed", "part", "term", "again", "strip"]
"""The role of a value. `plain` to `hyper` are made afresh; the others are derived from another value.

loss: the mean loss. labels: what the loss is measured against. hyper: a number fed to every step, `kind` says which.
state: kept by the optimizer for the value `of`, `kind` says what. next: a parameter or state after its update.
packed: a frozen weight in the order in which products read it, `kind` says which. part: a range of the batch, `share`
says which. term: what one part of the batch adds to a sum. again: made anew in the backward pass. strip: a range of
the hidden channels of a chain of calls, `share` says which; with a `kind`, what a call reads to make it (`operand1`: as
its input 1).
"""

StateKind = Literal["momentum", "exp_avg", "exp_avg_sq", "row_var", "col_var", "variance", "accumulated"]
"""The kinds of state that optimizers keep for a parameter; accumulated: gradients of the micro-batches of one step."""
FRESH: frozenset[Role] = frozenset({"plain", "loss", "labels", "hyper"})
_ROLES: Mapping[str, Role] = {role: role for role in get_args(Role)}
_ROOT = re.compile(r"%([0-9]+)")
_ROLE = re.compile(r":([a-z]+)(?:\.([a-z0-9_]+))?(?:\[([0-9]+)/([0-9]+)\])?")


class Value(NamedTuple):
    """A tensor. A tuple, so that it is hashed and compared as fast as the names that it took the place of."""

    number: int
    """The number of a fresh value, or for a derived one that of the value it comes from in the end."""
    role: Role = "plain"
    kind: str = ""
    of: Value | None = None
    """The value that it is derived from."""
    share: tuple[int, int] | None = None
    """The part, counted from 0, and the number of parts."""

    @property
    def root(self) -> Value:
        """The fresh value that it is derived from; itself if it is one."""
        value = self
        while value.of is not None:
            value = value.of
        return value

    def state(self, kind: StateKind) -> Value:
        """Returns the state that the optimizer keeps for it."""
        return Value(self.number, "state", kind, self)

    def updated(self) -> Value:
        """Returns the value after the step."""
        return Value(self.number, "next", "", self)

    def packed(self, *, transposed: bool) -> Value:
        """A copy of it in the order in which matrix products read it, or read its transpose."""
        return Value(self.number, "packed", "transposed" if transposed else "straight", self)

    def part(self, number: int, count: int) -> Value:
        """Its range of part `number` (from 0) of `count` of the batch."""
        return Value(self.number, "part", "", self, (number, count))

    def term(self, number: int, count: int) -> Value:
        """Returns the term that part `number` (from 0) of `count` of the batch adds to it."""
        return Value(self.number, "term", "", self, (number, count))

    def again(self) -> Value:
        """Returns the same value, made once more in the backward pass."""
        return Value(self.number, "again", "", self)

    def strip(self, number: int, count: int, *, operand: int | None = None) -> Value:
        """Its range of hidden channels `number` (from 0) of `count`; or what is read for that, as which operand."""
        return Value(self.number, "strip", "" if operand is None else f"operand{operand}", self, (number, count))

    def __str__(self) -> str:
        """`%12`, `%40:labels`, `%3:state.momentum:next`, `%7:again:part[1/4]`: parts are counted from 0, as here."""
        before = f"%{self.number}" if self.of is None else str(self.of)
        if self.role == "plain":
            return before
        share = "" if self.share is None else f"[{self.share[0]}/{self.share[1]}]"
        return f"{before}:{self.role}{f'.{self.kind}' if self.kind else ''}{share}"

    def __repr__(self) -> str:
        return str(self)

    @classmethod
    def parse(cls, text: str) -> Value:
        """The value whose text this is. Raises: InternalError."""
        match = _ROOT.match(text)
        if match is None:
            raise InternalError(f"{text!r:.80} is not a value; expected %NUMBER", where="values")
        value, position = cls(int(match[1])), match.end()
        while position < len(text):
            match = _ROLE.match(text, position)
            role = _ROLES.get(match[1]) if match is not None else None
            if match is None or role is None or role == "plain" or (role in FRESH and value != cls(value.number)):
                raise InternalError(f"{text!r:.80} is not a value from character {position} on", where="values")
            share = (int(match[3]), int(match[4])) if match[3] else None
            value = cls(value.number, role, match[2] or "", None if role in FRESH else value, share)
            position = match.end()
        return value


Names = Mapping[Value, str]
"""The user's names of values; each stands there once. What we made has none."""


def name_of(value: Value, names: Names) -> str:
    """Returns the text that people read where a value is meant; two values may read alike, and nothing may depend on
    it.
    """
    name = names.get(value)
    if name is not None:
        return name
    if value.of is None:
        text = {"plain": f"%{value.number}", "hyper": f"hyper.{value.kind}"}
        return text.get(value.role, value.role)
    return _derived_name(value, name_of(value.of, names))


def _derived_name(value: Value, source: str) -> str:
    number, count = value.share or (0, 1)
    transposed = " transposed" if value.kind == "transposed" else ""
    text: Mapping[str, str] = {
        "state": f"optimizer.{value.kind}.{source}",
        "next": f"{source}'",
        "packed": f"{source} [packed{transposed}]",
        "part": f"{source} [{number + 1}/{count}]",
        "term": f"{source} (term {number + 1}/{count})",
        "again": f"{source} (again)",
        "strip": f"{source} ({f'{value.kind} of ' if value.kind else ''}strip {number + 1}/{count})",
    }
    return text[value.role]
