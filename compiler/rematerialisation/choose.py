"""Ranks the forward calls that can be repeated in the backward pass by what they cost for each byte not kept.

A kept value is written to memory once and read again once it has left the cache; a repeated one lives in the cache only
but its arithmetic is done twice. Both are counted in bytes of memory traffic (see `compiler.program.cost`), so a repeat
that costs less than the target's `kept_passes` for each byte that it saves is taken to save time: an expanding 1x1
convolution with very few input channels or a normalisation, never a product with a long reduction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate
from math import inf

from compiler.program.cost import CostedCall, Machine, costed_calls
from compiler.program.program import Program
from compiler.rematerialisation.candidates import first_reads_after_forward, repeatable
from compiler.rematerialisation.live import LiveBytes
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Repeat:
    """A forward call worth repeating: `saved_bytes` are no longer kept; `cost` is in bytes of memory traffic."""

    position: int
    saved_bytes: int
    cost: float
    gains: bool
    """True if repeating takes less time than keeping would."""


def rank_repeats(program: Program, machine: Machine) -> tuple[Repeat, ...]:
    """Repeats that save memory: those that gain time, then the others, each time the cheapest for each byte first.

    What a repeat saves counts on those before it.
    """
    ranking = _Ranking.of(program, machine)
    ranking.rank()
    repeats: list[Repeat] = []
    while (best := ranking.cheapest()) is not None:
        ranking.accept(best)
        repeats.append(best)
    return tuple(repeats)


def lowering_peak(program: Program, repeats: Iterable[Repeat]) -> tuple[Repeat, ...]:
    """Returns those of the repeats that, taken one after the other, lower the peak of live bytes (or their sum).

    A repeat that starts a chain of others too early keeps more alive in the backward pass than it saved before it.
    """
    live = LiveBytes.of(program)
    return tuple(repeat for repeat in repeats if live.repeat_if_less(repeat.position))


@dataclass(slots=True)
class _Ranking:
    program: Program
    machine: Machine
    calls: tuple[CostedCall, ...]
    remaining: list[int]
    retained: set[Value]
    """Values of the forward pass that calls after it read, and that no call makes again."""
    fixed: frozenset[Value]
    """Values that no forward call makes: they cost nothing to read again."""
    leaving: frozenset[Value]
    """Values that leave the cache between the forward and the backward pass."""
    repeated: set[Value] = field(default_factory=set)
    readers: dict[Value, list[int]] = field(default_factory=dict)
    """Candidates that read or make a value."""
    best: list[tuple[bool, float, int]] = field(default_factory=list)
    """A heap: candidates with their order when they were last looked at."""
    order: dict[int, tuple[bool, float, int]] = field(default_factory=dict)
    """The present order of each candidate."""

    @classmethod
    def of(cls, program: Program, machine: Machine) -> _Ranking:
        produced = frozenset(name for call in program.calls if call.phase == "forward" for name in call.outputs)
        needs = first_reads_after_forward(program)
        calls = costed_calls(program, machine.costs)
        read = {operand.root for call in calls for operand in call.inputs}
        return cls(
            program,
            machine,
            calls,
            list(repeatable(program)),
            set(produced & needs.keys()),
            frozenset(read - produced),
            _leaving(program, calls, machine.cache_bytes),
        )

    def rank(self) -> None:
        """Ranks every candidate once; from then on only those that an accepted one changes."""
        for position in self.remaining:
            for operand in (*self.calls[position].inputs, *self.calls[position].outputs):
                self.readers.setdefault(operand.root, []).append(position)
        for position in self.remaining:
            self._look_at(position)

    def cheapest(self) -> Repeat | None:
        """The repeat to take next; None if none saves any bytes."""
        while self.best:
            order = heappop(self.best)
            if self.order.get(order[2]) == order:
                return self._repeat(order[2])
        return None

    def accept(self, repeat: Repeat) -> None:
        """The call is repeated: what it reads is kept or made again, what it makes is not kept."""
        call = self.calls[repeat.position]
        del self.order[repeat.position]
        produced, read = ({operand.root for operand in operands} for operands in (call.outputs, call.inputs))
        newly_kept, newly_repeated = (
            (read - self.fixed - self.retained) - (self.repeated | produced),
            produced - self.repeated,
        )
        others = newly_kept | newly_repeated | (produced & self.retained)  # what is known of them is something else now
        self.repeated |= newly_repeated
        self.retained |= newly_kept
        self.retained -= produced
        changed = {position for root in others for position in self.readers.get(root, ())}
        for position in changed & self.order.keys():
            self._look_at(position)

    def _look_at(self, position: int) -> None:
        repeat = self._repeat(position)
        useful = repeat.saved_bytes > 0
        self.order[position] = (not repeat.gains, repeat.cost / repeat.saved_bytes if useful else inf, position)
        if useful:
            heappush(self.best, self.order[position])

    def _repeat(self, position: int) -> Repeat:
        call = self.calls[position]
        freed = sum(operand.size_bytes for operand in call.outputs if operand.root in self.retained)
        groups = (self.retained, self.repeated, self.fixed)
        held_bytes = sum(
            operand.size_bytes for operand in call.inputs if not any(operand.root in group for group in groups)
        )
        costs, parts = self.machine.costs, 1 + call.operand_bytes // self.machine.cache_bytes
        cost = max(call.operand_bytes / costs.cache_speed, call.arithmetic)
        cost += parts * (costs.launch_bytes + call.packing)
        leaves = any(operand.root in self.leaving for operand in call.outputs)
        saved_bytes = freed - held_bytes
        return Repeat(position, saved_bytes, cost, leaves and cost < costs.kept_passes * saved_bytes)


def _leaving(program: Program, calls: Iterable[CostedCall], capacity_bytes: int) -> frozenset[Value]:
    """Values that more than a cache's worth of others is written after, before the backward pass reads them."""
    cumulative_bytes = [0, *accumulate(sum(operand.size_bytes for operand in call.outputs) for call in calls)]
    last_uses: dict[Value, int] = {}
    for position, call in enumerate(program.calls):
        for name in (*call.inputs, *call.outputs) if call.phase == "forward" else ():
            last_uses[program.root(name)] = position
    needs = first_reads_after_forward(program)
    between = {
        root: cumulative_bytes[need] - cumulative_bytes[last_uses[root] + 1]
        for root, need in needs.items()
        if root in last_uses
    }
    return frozenset(root for root, written_bytes in between.items() if written_bytes > capacity_bytes)
