"""Bytes alive at each call while forward calls are repeated one by one, without writing the program anew each time.

A repeated call runs just before the first call of the backward pass that needs it, itself or through other repeated
calls. Calls repeated before the same call are its *group*, and a place is a call of the program and a number in its
group, in which the call itself comes last. One more repeat joins one group, and draws what it reads out of later ones;
only the lives of what these groups read and make change. So the work for a repeat is that of the groups it changes,
and a few additions over the program's calls, of plain numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.program.program import Program
from compiler.values import Value

Place = tuple[int, int]
LAST = 1 << 60
"""The number in its group of the call that stands in the program."""


class _Life(NamedTuple):
    """The first and the last place at which a value is alive."""

    first: Place
    last: Place


_Own = tuple[Value, bool]
"""A root value: as the forward pass made it, or (true) as it is made again."""


@dataclass(slots=True)
class _Uses:
    """The calls of the program that read or write a root value."""

    first: int
    last: int
    last_kept: int = -1
    """The last that goes on reading what the forward pass made, if the value is made again."""
    redirected: list[int] = field(default_factory=list)
    """The calls that would read the value made again instead."""


@dataclass(frozen=True, slots=True)
class _Before:
    """The state that a repeat replaced."""

    groups: Mapping[int, tuple[int, ...]]
    lives: Mapping[_Own, _Life | None]


@dataclass(slots=True)
class LiveBytes:
    """The bytes of made values alive at each call, of a program with some of its forward calls repeated."""

    reads: Sequence[Sequence[Value]]
    """Root values that each call reads."""
    makes: Sequence[Sequence[Value]]
    uses: Mapping[Value, _Uses]
    sizes: Mapping[Value, int]
    """Sizes of the values that calls make and that own their storage."""
    at: NDArray[np.int64]
    """Bytes alive at each call of the program."""
    above: NDArray[np.int64]
    """Bytes that are alive at another call of its group beyond those at the call itself, at most."""
    counts: NDArray[np.int64]
    """Calls of its group, itself counted."""
    lives: dict[_Own, _Life]
    extra_bytes: dict[int, int] = field(default_factory=dict)
    """Bytes that the repeated calls of a group have alive beyond what the last has, in all."""
    beside_bytes: int = 0
    makers: dict[Value, int] = field(default_factory=dict)
    """Root values that are made again -> the call."""
    places: dict[int, Place] = field(default_factory=dict)
    """The places where calls are repeated, by the call."""
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)
    readers: dict[Value, set[int]] = field(default_factory=dict)
    """Repeated calls that read a root value."""

    @classmethod
    def of(cls, program: Program) -> LiveBytes:
        """Returns the live bytes of the program as it is."""
        reads = [tuple(map(program.root, call.inputs)) for call in program.calls]
        makes = [tuple(map(program.root, call.outputs)) for call in program.calls]
        uses = _uses(program, reads, makes)
        owned = {name for call in program.calls for name in call.outputs if name not in program.aliases}
        sizes = {name: program.types[name].size_bytes for name in owned}
        lives = {(name, False): _Life((uses[name].first, LAST), (uses[name].last, LAST)) for name in owned}
        changes = np.zeros(len(program.calls) + 1, np.int64)
        for (name, _), life in lives.items():
            changes[life.first[0]] += sizes[name]
            changes[life.last[0] + 1] -= sizes[name]
        at = np.cumsum(changes)
        return cls(reads, makes, uses, sizes, at, np.zeros_like(at), np.ones_like(at), lives)

    def cost(self) -> tuple[int, int]:
        """The most bytes alive at one call, and the sum over all calls."""
        return int((self.at + self.above).max()), int(self.at @ self.counts) + self.beside_bytes

    def repeat_if_less(self, position: int) -> bool:
        """Repeats one more call, if that lowers the cost."""
        least = self.cost()
        self.makers |= dict.fromkeys(self.makes[position], position)
        for value in self.reads[position]:
            self.readers.setdefault(value, set()).add(position)
        needed = self._needed(position)
        before = None if needed is None else self._repeat(position, needed)
        if before is not None and self.cost() < least:
            return True
        for value in self.makes[position]:
            del self.makers[value]
        for value in self.reads[position]:
            self.readers[value].discard(position)
        if before is not None:
            del self.places[position]
            self._set(before.groups, before.lives)
        return False

    def _repeat(self, position: int, needed: int) -> _Before:
        """Gives the call its place, and others theirs that change with it."""
        drawn = self._drawn(position, needed)
        changed = {needed} | {self.places[member][0] for member in drawn if member in self.places}
        before = {call: self.groups.get(call, ()) for call in changed}
        after = {call: tuple(member for member in before[call] if member not in drawn) for call in changed}
        after[needed] = self._in_order(needed, drawn.union(before[needed]))
        members = {member for group in (*before.values(), *after.values()) for member in group}
        touched = {
            value for member in members for value in (*self.reads[member], *self.makes[member]) if value in self.sizes
        }
        lives = {
            (value, is_repeated): self.lives.get((value, is_repeated))
            for value in touched
            for is_repeated in (False, True)
        }
        self._place(after)
        self._set(after, {instance: self._life(*instance) for instance in lives})
        return _Before(before, lives)

    def _needed(self, position: int) -> int | None:
        """The first call before which the call must be repeated; None if nothing would read what it makes."""
        calls = [call for value in self.makes[position] for call in self.uses[value].redirected[:1]]
        calls += [
            self.places[reader][0]
            for value in self.makes[position]
            for reader in self.readers.get(value, ())
            if reader in self.places
        ]
        return min(calls, default=None)

    def _drawn(self, position: int, needed: int) -> set[int]:
        """The call, and those already repeated later that must now come before it."""
        drawn, pending = {position}, [position]
        while pending:
            for maker in self._makers_of(pending.pop()):
                if maker not in drawn and self.places[maker][0] > needed:
                    drawn.add(maker)
                    pending.append(maker)
        return drawn

    def _makers_of(self, position: int) -> Iterator[int]:
        """The repeated calls that a call reads from, in the order of its operands."""
        return (self.makers[value] for value in self.reads[position] if value in self.makers)

    def _in_order(self, call: int, members: set[int]) -> tuple[int, ...]:
        """The members of a call's group as `repeat_calls` writes them: makers first, in the order of operands."""
        order: list[int] = []
        path, visited = [(call, self._makers_of(call))], {call}
        while path:
            member, makers = path[-1]
            maker = next((maker for maker in makers if maker in members and maker not in visited), None)
            if maker is not None:
                visited.add(maker)
                path.append((maker, self._makers_of(maker)))
                continue
            path.pop()
            order.append(member)
        return tuple(order[:-1])

    def _life(self, value: Value, is_repeated: bool) -> _Life | None:
        uses = self.uses[value]
        readers = [self.places[reader] for reader in self.readers.get(value, ()) if reader in self.places]
        if not is_repeated:
            last = (uses.last_kept, LAST) if value in self.makers else max([(uses.last, LAST), *readers])
            return _Life((uses.first, LAST), last)
        if value not in self.makers:
            return None
        first = self.places[self.makers[value]]
        return _Life(first, max([first, *((call, LAST) for call in uses.redirected[-1:]), *readers]))

    def _place(self, groups: Mapping[int, tuple[int, ...]]) -> None:
        for call, group in groups.items():
            for number, member in enumerate(group):
                self.places[member] = (call, number)

    def _set(self, groups: Mapping[int, tuple[int, ...]], lives: Mapping[_Own, _Life | None]) -> None:
        """Takes over groups and lives, and counts anew what they change."""
        self._place(groups)
        self.groups |= groups
        changed_calls = set(groups)
        for instance, life in lives.items():
            old = self.lives.get(instance)
            if old == life:
                continue
            for sign, span in ((-1, old), (1, life)):
                if span is not None:
                    changed_calls.update(place[0] for place in span if place[1] != LAST)
                    self.at[span.first[0] : span.last[0] + (span.last[1] == LAST)] += sign * self.sizes[instance[0]]
            if life is None:
                del self.lives[instance]
            else:
                self.lives[instance] = life
        for call in changed_calls:
            self._count(call)

    def _count(self, call: int) -> None:
        """Counts the bytes that are alive at the repeated calls of a group and not at the last: what ends there, less
        what begins.
        """
        group = self.groups.get(call, ())
        changes = [0] * (len(group) + 1)
        touched = {value for member in group for value in (*self.reads[member], *self.makes[member])}.union(
            self.makes[call]
        )
        for instance in ((value, is_repeated) for value in touched for is_repeated in (False, True)):
            life = self.lives.get(instance)
            if life is None:
                continue
            first = min(life.first[1], len(group)) if life.first[0] == call else 0
            if life.last[0] == call and life.last[1] != LAST:
                changes[first] += self.sizes[instance[0]]
                changes[life.last[1] + 1] -= self.sizes[instance[0]]
            elif first:
                changes[0] -= self.sizes[instance[0]]
                changes[first] += self.sizes[instance[0]]
        more = np.cumsum(changes[:-1])
        self.beside_bytes += int(more.sum()) - self.extra_bytes.get(call, 0)
        self.extra_bytes[call] = int(more.sum())
        self.above[call] = max(0, int(more.max(initial=0)))
        self.counts[call] = len(group) + 1


def _uses(
    program: Program, reads: Sequence[Sequence[Value]], makes: Sequence[Sequence[Value]]
) -> Mapping[Value, _Uses]:
    uses: dict[Value, _Uses] = {}
    for position, call in enumerate(program.calls):
        for value in (*reads[position], *makes[position]):
            uses.setdefault(value, _Uses(position, position)).last = position
        for value in reads[position] if call.phase != "forward" else ():
            uses[value].redirected.append(position)
        for value in (*(reads[position] if call.phase == "forward" else ()), *makes[position]):
            uses[value].last_kept = position
    return uses
