"""Chooses which runs of calls go part by part of the batch, and in how many parts: least cost by dynamic programming.

A run pays where its values are too big for the cache when whole and fit in it in parts; it costs more calls, weights
packed once per part, and a term of every weight's gradient per part. So early layers of high resolution are cut and
late ones, heavy with weights, stay whole.

Costs of a run of calls that goes part by part of the batch (see `compiler.program.cost`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from compiler.program.cost import Cache, CostedCall, Machine, costed_calls, whole_costs
from compiler.program.program import Program
from compiler.slicing.cut import Part
from compiler.slicing.flow import Cutter, Group, Run
from compiler.targets import MachineCosts


@dataclass(slots=True)
class RunCost:
    """The cost of a growing run of calls in parts, followed through one part that begins with a cold cache."""

    parts: int
    cache: Cache
    costs: MachineCosts
    part_cost: float = 0.0
    idle: float = 0.0
    """Time of one part in which memory has nothing to do, so that changed values can be written."""
    sums_cost: float = 0.0
    """Terms of sums over the batch, and their adding up."""

    def add(self, call: CostedCall, part: Part) -> None:
        """The next call that runs in parts."""
        traffic, touched = 0.0, 0
        for operand, cut in zip(call.inputs, part.cut, strict=False):
            size_bytes = operand.size_bytes // self.parts if cut else operand.size_bytes
            missed = self.cache.read(operand, size_bytes)
            traffic += missed if cut else missed / self.parts
            touched += size_bytes
        for operand in call.outputs:
            if part.sums:
                self.sums_cost += 3 * operand.size_bytes * self.parts
            else:
                traffic += self.cache.write(operand, operand.size_bytes // self.parts)
                touched += operand.size_bytes // self.parts
        for root in call.dying:
            self.cache.drop(root)
        time = max(traffic, touched / self.costs.cache_speed, call.arithmetic / self.parts)
        self.idle += time - traffic
        self.part_cost += time + self.costs.launch_bytes + call.packing

    def total(self) -> float:
        """The cost if the run ends here: what later calls read must have been written."""
        return self.parts * (self.part_cost + max(0.0, self.cache.changed_bytes - self.idle)) + self.sums_cost


SMALL = 0.25
"""A call whose operands all fit in this part of the cache does not begin a run."""
REFILL = 0.5
"""Part of the cache that a change between whole and parts, or between numbers of parts, costs to fill anew."""
PATIENCE = 16
"""A run that has not gained for so many calls is not followed further."""


def choose_groups(program: Program, batch: int, machine: Machine) -> tuple[Group, ...]:
    """The cheapest grouping of a program for a machine; a batch of 1 has none."""
    counts = [parts for parts in range(2, batch + 1) if batch % parts == 0]
    search = _Search.of(program, machine)
    end = len(search.calls)
    best: list[float] = [0.0] + [float("inf")] * end
    last: list[Group | None] = [None] * (end + 1)
    for first, call in enumerate(search.calls):
        alone = best[first] + search.whole(first, first + 1)
        if alone < best[first + 1]:
            best[first + 1], last[first + 1] = alone, None
        for parts in counts if call.operand_bytes > SMALL * machine.cache_bytes else ():
            for stop, cost in search.runs(first, parts):
                if best[first] + cost < best[stop]:
                    best[stop], last[stop] = best[first] + cost, Group(first, stop, parts)
    return _traced(last)


@dataclass(slots=True)
class _Search:
    cutter: Cutter
    calls: tuple[CostedCall, ...]
    machine: Machine
    whole_until: list[float]
    """Cost of the calls before each position, run whole."""

    @classmethod
    def of(cls, program: Program, machine: Machine) -> _Search:
        calls = costed_calls(program, machine.costs)
        whole_until = [0.0, *accumulate(whole_costs(calls, machine))]
        return cls(Cutter(program), calls, machine, whole_until)

    def whole(self, first: int, end: int) -> float:
        """The cost of some calls, run whole."""
        return self.whole_until[end] - self.whole_until[first]

    def runs(self, first: int, parts: int) -> Iterator[tuple[int, float]]:
        """Yields every run in `parts` parts that begins with a call, while it gains: its end, and its cost."""
        run, cost = Run(self.cutter, parts), RunCost(parts, Cache(self.machine.cache_bytes), self.machine.costs)
        waiting, most_gained, patience = REFILL * self.machine.cache_bytes, 0.0, PATIENCE
        for position in range(first, len(self.calls)):
            part = run.admit(position)
            if part is not None:
                cost.add(self.calls[position], part)
            elif position == first:
                return
            else:
                waiting += self.whole(position, position + 1)
            total = waiting + cost.total()
            yield position + 1, total
            gained = self.whole(first, position + 1) - total
            patience = PATIENCE if gained > most_gained else patience - 1
            most_gained = max(most_gained, gained)
            if not patience:
                return


def _traced(last: list[Group | None]) -> tuple[Group, ...]:
    groups: list[Group] = []
    end = len(last) - 1
    while end > 0:
        group = last[end]
        if group is not None:
            groups.append(group)
        end = group.first if group is not None else end - 1
    return tuple(reversed(groups))
