"""Conditions that must hold for a program between any two call passes.

Every value has a type and is made at most once; an alias lies within what it is an alias of, and no chain of them
closes; a kernel's operands have the types that its spec states. And in the order of the calls (in some order, as long
as the program is not `ordered`), followed byte by byte: what a call reads was made before and has not been overwritten
since, what it overwrites is exactly what it reads there, and outputs and updates are in their places at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from compiler.program.aliases import storage_of
from compiler.program.operands import find_mismatch
from compiler.program.program import KernelCall, Program
from compiler.program.schedule import dependencies, followers_of
from compiler.program.state import label_of
from compiler.values import Value


def find_problem(program: Program) -> str:
    """Returns what is wrong with a program; empty if nothing is."""
    for check in (_values, _aliases, find_mismatch, _order):
        problem = check(program)
        if problem:
            return problem
    return ""


def _values(program: Program) -> str:
    there = {*program.inputs, *program.state}
    for call in program.calls:
        for value in (*call.inputs, *call.outputs):
            if value not in program.types:
                return f"{label_of(call)}: {program.name_of(value)} has no type"
        for value in call.outputs:
            if value in there:
                return f"{label_of(call)} makes {program.name_of(value)}, which is there already"
            there.add(value)
    missing = [value for value in program.outputs if value not in program.types]
    missing += [value for value in program.updates if value not in there]
    return f"nothing makes {program.name_of(missing[0])}, a result" if missing else ""


def _aliases(program: Program) -> str:
    for value, alias in program.aliases.items():
        visited, at = {value}, alias.value
        while at in program.aliases:
            if at in visited:
                return f"the storage of {program.name_of(value)} is its own"
            visited.add(at)
            at = program.aliases[at].value
    for value, alias in program.aliases.items():
        name, home = program.name_of(value), program.name_of(alias.value)
        if value not in program.types or alias.value not in program.types:
            return f"{name} or {home}, whose storage it shares, has no type"
        end, whole = alias.offset_bytes + program.types[value].size_bytes, program.types[alias.value].size_bytes
        if alias.offset_bytes < 0 or end > whole:
            return f"{name} ends at byte {end} of {home}, which has {whole}"
    return ""


def _order(program: Program) -> str:
    calls = program.calls if program.ordered else _some_order(program)
    if len(calls) < len(program.calls):
        return "calls depend on each other in a circle"
    memory = _Memory(program)
    for call in calls:
        problem = memory.run(call)
        if problem:
            return f"{label_of(call)} {problem}"
    for value in (*program.outputs, *program.updates):
        problem = memory.read(value)
        if problem:
            return f"at the end, {problem}"
    return ""


def _some_order(program: Program) -> Sequence[KernelCall]:
    """The calls such that each comes after those it depends on; fewer if there is a circle."""
    needs = dependencies(program)
    followers, missing = followers_of(needs), [len(before) for before in needs]
    order = [i for i, count in enumerate(missing) if not count]
    for position in order:  # which grows meanwhile
        for i in followers[position]:
            missing[i] -= 1
            order += [] if missing[i] else [i]
    return [program.calls[i] for i in order]


@dataclass(frozen=True, slots=True)
class _Range:
    """Bytes of a root value's storage, and the value that wrote them."""

    root: Value
    first: int
    end: int
    value: Value

    def meets(self, other: _Range) -> bool:
        return self.root == other.root and self.first < other.end and other.first < self.end


@dataclass(slots=True)
class _Memory:
    """The content of the storage of every root value, as calls run; nothing stands for what was there before."""

    program: Program
    produced: frozenset[Value] = frozenset()
    in_parts: frozenset[Value] = frozenset()
    """Values of which calls make parts, each of them an alias of it."""
    before: frozenset[Value] = frozenset()
    ranges: dict[Value, list[_Range]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.produced = frozenset(value for call in self.program.calls for value in call.outputs)
        types, aliases = self.program.types, self.program.aliases
        homes = {value: aliases[value].value for value in self.produced if value in aliases}
        parts = {home for value, home in homes.items() if types[value].size_bytes < types[home].size_bytes}
        self.in_parts = frozenset(parts - self.produced)
        self.before = frozenset((*self.program.inputs, *self.program.state))

    def run(self, call: KernelCall) -> str:
        """Reads and writes a call's operands, and returns what is wrong with that, if anything."""
        for value in call.inputs:
            problem = self.read(value)
            if problem:
                return problem
        name_of = self.program.name_of
        targets = [self._range(value) for value in call.outputs]
        for first, second in ((a, b) for i, a in enumerate(targets) for b in targets[:i]):
            if first.meets(second):
                return f"writes {name_of(first.value)} and {name_of(second.value)} to the same bytes"
        for source in map(self._range, call.inputs):
            for target in targets:
                if source.meets(target) and (source.first, source.end) != (target.first, target.end):
                    return f"reads {name_of(source.value)} while it overwrites part of it with {name_of(target.value)}"
        for target in targets:
            self._write(target)
        return ""

    def read(self, value: Value) -> str:
        """Returns what is wrong with reading a value now; empty if it is there."""
        requested, name_of = self._range(value), self.program.name_of
        overlapping = sorted(
            (span for span in self.ranges.get(requested.root, ()) if span.meets(requested)), key=lambda span: span.first
        )
        chain = list(self._chain(value))
        maker = next((name for name in chain if name in self.produced or name in self.in_parts), None)
        if maker is None and requested.root in self.before:
            return (
                f"reads {name_of(value)} after {name_of(overlapping[0].value)} has overwritten it"
                if overlapping
                else ""
            )
        for span in overlapping:
            alias = self.program.aliases.get(span.value)
            is_part = maker in self.in_parts and alias is not None and alias.value == maker
            if span.value != maker and not is_part:
                return f"reads {name_of(value)} after {name_of(span.value)} has overwritten it"
        gapless = all(earlier.end == later.first for earlier, later in pairwise(overlapping))
        if (
            not overlapping
            or not gapless
            or overlapping[0].first > requested.first
            or overlapping[-1].end < requested.end
        ):
            return f"reads {name_of(value)} before it is made"
        return ""

    def _write(self, target: _Range) -> None:
        remaining: list[_Range] = []
        for span in self.ranges.get(target.root, ()):
            if not span.meets(target):
                remaining.append(span)
                continue
            remaining += [replace(span, end=target.first)] if span.first < target.first else []
            remaining += [replace(span, first=target.end)] if span.end > target.end else []
        self.ranges[target.root] = [*remaining, target]

    def _range(self, value: Value) -> _Range:
        home = storage_of(self.program.aliases, value)
        return _Range(home.value, home.offset_bytes, home.offset_bytes + self.program.types[value].size_bytes, value)

    def _chain(self, value: Value) -> Iterator[Value]:
        """The value, what it is an alias of, and so on."""
        yield value
        while value in self.program.aliases:
            value = self.program.aliases[value].value
            yield value
