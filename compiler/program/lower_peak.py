"""Reorders the calls around the peak of live bytes, where another order of them lowers it.

A list schedule looks one call ahead. Here the calls of a window around the peak are ordered anew by best-first search
over the sets of them that may have run: what is alive depends on that set alone. Calls that free at least what they
take run at once, which is never worse. Windows and the search are fixed in size, so the work for each round
is that of one pass over the program; an order stays as it is where the search gains less than `GAIN`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from compiler.kernels.alignment import aligned
from compiler.program.in_place import overwritable
from compiler.program.program import KernelCall, Program
from compiler.values import Value

WINDOW = 64
ROUNDS = 6
BUDGET = 1500
"""Sets of calls that one search looks at."""
GAIN = 0.02
"""The part of the peak that another order must save."""


def lower_peak(program: Program, needs: Sequence[set[int]], order: list[int]) -> list[int]:
    """An order with a lower peak of live bytes, or the same; `needs` are the calls that each must run after."""
    lives = _Lives.of(program)
    for _ in range(ROUNDS):
        during = lives.during(order)
        peak = max(during, default=0)
        at = during.index(peak) if during else 0
        first = max(0, min(at - WINDOW // 2, len(order) - WINDOW))
        window = _Window.of(lives, needs, order, first)
        below = int(peak * (1 - GAIN))
        better = window.ordered(below, deep=False) or window.ordered(below, deep=True)
        if better is None:
            return order
        order = [*order[:first], *better, *order[first + len(better) :]]
    return order


def live_bytes(program: Program) -> list[int]:
    """Bytes that the planner will place and that are alive while each call runs, without workspaces."""
    return _Lives.of(program).during(range(len(program.calls)))


@dataclass(slots=True)
class _Lives:
    """The bytes that each call takes and reads, as the planner will place them."""

    sizes: dict[Value, int]
    """Sizes of root values that are no state."""
    takes: list[int]
    reads: list[tuple[Value, ...]]
    """Root values that are no state, each once."""
    touches: list[tuple[Value, ...]]
    """The root values that each call reads or makes."""
    over: list[tuple[Value, ...]]
    """Operands that a map may write over if they die in it."""
    uses: dict[Value, int] = field(default_factory=dict)
    """The number of calls that touch a value; one more if it is needed at the end."""
    start: int = 0
    """Bytes of the program's inputs."""

    @classmethod
    def of(cls, program: Program) -> _Lives:
        root, state = program.root, frozenset(program.state)
        names = {name for call in program.calls for name in (*call.inputs, *call.outputs)} | set(program.inputs)
        sizes = {
            owner: aligned(max(program.types[owner].size_bytes, 1)) for owner in map(root, names) if owner not in state
        }
        lives = cls(sizes, [], [], [], [])
        retained = program.retained
        for call in program.calls:
            read = tuple(owner for owner in dict.fromkeys(map(root, call.inputs)) if owner in sizes)
            outputs = tuple(name for name in call.outputs if root(name) == name and name in sizes)
            lives.takes.append(sum(sizes[name] for name in outputs))
            lives.reads.append(read)
            lives.touches.append(
                tuple(dict.fromkeys((*read, *(owner for owner in map(root, call.outputs) if owner in sizes))))
            )
            lives.over.append(tuple(_may_write_over(program, call, retained, sizes)))
        for touched in lives.touches:
            for owner in touched:
                lives.uses[owner] = lives.uses.get(owner, 0) + 1
        for owner in retained & sizes.keys():
            lives.uses[owner] = lives.uses.get(owner, 0) + 1
        lives.start = sum(sizes[owner] for owner in set(map(root, program.inputs)) & sizes.keys())
        return lives

    def during(self, order: Sequence[int]) -> list[int]:
        """Bytes alive while each call runs."""
        remaining_uses, live, during = dict(self.uses), self.start, []
        for position in order:
            for owner in self.touches[position]:
                remaining_uses[owner] -= 1
            spared = self.takes[position] if any(not remaining_uses[owner] for owner in self.over[position]) else 0
            during.append(live + self.takes[position] - spared)
            live += self.takes[position] - sum(
                self.sizes[owner] for owner in self.touches[position] if not remaining_uses[owner]
            )
        return during


def _may_write_over(
    program: Program, call: KernelCall, retained: frozenset[Value], sizes: dict[Value, int]
) -> Iterator[Value]:
    """Yields operands that may be written over as the memory plan decides it, apart from the order, of results that are
    made as a whole.
    """
    if len(call.outputs) != 1 or call.outputs[0] in program.aliases or call.outputs[0] in retained:
        return
    for operand in map(program.root, overwritable(program, call)):
        if operand in sizes and operand not in retained and operand not in program.inputs:
            yield operand


@dataclass(slots=True)
class _Window:
    """A window of some calls in a row; sets of them are bits of a number."""

    calls: Sequence[int]
    before: list[int]
    """The calls of the window that each must run after."""
    takes: list[int]
    frees: list[tuple[tuple[int, int], ...]]
    """(calls that touch a value, its bytes) of the values that a call touches and that nothing touches later."""
    over: list[tuple[int, ...]]
    start: int

    @classmethod
    def of(cls, lives: _Lives, needs: Sequence[set[int]], order: Sequence[int], first: int) -> _Window:
        calls = order[first : first + WINDOW]
        bits = {call: 1 << number for number, call in enumerate(calls)}
        remaining_uses, live = dict(lives.uses), lives.start
        for position in order[:first]:
            live += lives.takes[position]
            for owner in lives.touches[position]:
                remaining_uses[owner] -= 1
                live -= 0 if remaining_uses[owner] else lives.sizes[owner]
        touching: dict[Value, int] = {}
        for call in calls:
            for owner in lives.touches[call]:
                touching[owner] = touching.get(owner, 0) | bits[call]
        dying = {owner: touched for owner, touched in touching.items() if remaining_uses[owner] == touched.bit_count()}
        return cls(
            calls,
            [sum(bits.get(need, 0) for need in needs[call]) for call in calls],
            [lives.takes[call] for call in calls],
            [
                tuple((dying[owner], lives.sizes[owner]) for owner in lives.touches[call] if owner in dying)
                for call in calls
            ],
            [tuple(dying[owner] for owner in lives.over[call] if owner in dying) for call in calls],
            live,
        )

    def ordered(self, below: int, *, deep: bool) -> list[int] | None:
        """The calls in an order with a peak below a number: the least one, or (deep) the first that is come across."""
        heap: list[tuple[tuple[int, int], int, int, int, tuple[int, ...]]] = [((0, 0), 0, 0, self.start, ())]
        visited: set[int] = set()
        while heap and len(visited) < BUDGET:
            _, peak, done, live, path = heappop(heap)
            if done in visited:
                continue
            visited.add(done)
            done, live, path = self._at_once(peak, done, live, path)
            if len(path) == len(self.calls):
                return [self.calls[number] for number in path]
            for number in self._ready(done):
                during, after = self._run(number, done, live)
                if during < below:
                    most, remaining = max(peak, during), len(self.calls) - len(path)
                    first = (remaining, most) if deep else (most, remaining)
                    heappush(heap, (first, most, done | 1 << number, after, (*path, number)))
        return None

    def _at_once(self, peak: int, done: int, live: int, path: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        """Returns the state after all calls that free as much as they take, and do not raise the peak."""
        ran = True
        while ran:
            ran = False
            for number in self._ready(done):
                during, after = self._run(number, done, live)
                if after <= live and during <= peak:
                    done, live, path, ran = done | 1 << number, after, (*path, number), True
        return done, live, path

    def _ready(self, done: int) -> Iterator[int]:
        for number, before in enumerate(self.before):
            if not done >> number & 1 and not before & ~done:
                yield number

    def _run(self, number: int, done: int, live: int) -> tuple[int, int]:
        """Bytes alive while a call runs, and after it."""
        pending = ~(done | 1 << number)
        freed = sum(size for touched, size in self.frees[number] if not touched & pending)
        takes = self.takes[number]
        spared = takes if any(not touched & pending for touched in self.over[number]) else 0
        return live + takes - spared, live + takes - freed
