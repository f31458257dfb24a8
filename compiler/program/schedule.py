"""Orders kernel calls: each update as early as its gradient and the last reader of its parameter allow.

A list schedule over data dependencies plus one anti-dependency: an in-place update comes after every other reader of
what it overwrites. Among calls that are ready, one that frees at least as much memory as it takes runs at once; else
the first in graph order. So a gradient lives for one call, and an activation slice is cut while its source is alive.
Around the peak of what is alive, a search looks for an order with a lower one (`compiler.program.lower_peak`).
Source: operator reordering of PockEngine (arXiv 2310.17752, section 3.3): 2.7-3.0x less peak memory by itself.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

from compiler.errors import InternalError
from compiler.program.lower_peak import lower_peak
from compiler.program.program import Program
from compiler.rewriting.passes import PassResult
from compiler.values import Value

Edges = list[set[int]]


def schedule(program: Program) -> PassResult[Program]:
    """The calls in execution order; what is kept to the end never counts as freed.

    Raises: InternalError if the dependencies have a cycle.
    """
    needs = dependencies(program)
    order = _order(needs, _Live(program))
    if len(order) != len(program.calls):
        raise InternalError("kernel calls depend on each other in a circle", where="schedule")
    order = lower_peak(program, needs, order)
    scheduled = replace(program, calls=tuple(program.calls[i] for i in order), ordered=True)
    return PassResult(scheduled, modified=scheduled != program)


def _order(needs: Edges, live: _Live) -> list[int]:
    """Returns an order of all calls, or of those that no circle keeps from running. What a call adds to memory never
    grows while it waits.
    """
    order: list[int] = []
    followers, missing = followers_of(needs), [len(before) for before in needs]
    ready = [i for i, count in enumerate(missing) if not count]
    small = [i for i in ready if live.growth_bytes(i) <= 0]
    done = [False] * len(needs)
    while ready:
        position = heappop(small or ready)
        if done[position]:
            continue  # from the other heap
        done[position] = True
        order.append(position)
        for i in followers[position]:
            missing[i] -= 1
        fresh = [i for i in followers[position] if not missing[i]]
        for i in fresh:
            heappush(ready, i)
        for i in {*fresh, *(i for i in live.run(position) if not missing[i])}:
            if live.growth_bytes(i) <= 0:
                heappush(small, i)
    return order


def dependencies(program: Program) -> Edges:
    """Returns, for each call, the calls that must run before it."""
    makers: dict[Value, int] = {}
    readers: dict[Value, set[int]] = {}
    for position, call in enumerate(program.calls):
        for name in call.outputs:
            makers[name] = position
        for name in call.inputs:
            readers.setdefault(program.root(name), set()).add(position)
    needs: Edges = [set() for _ in program.calls]
    for position, call in enumerate(program.calls):
        for name in call.inputs:
            maker = makers.get(_maker_name(program, makers, name))
            if maker is not None and maker != position:
                needs[position].add(maker)
        for name in call.outputs:
            if name in program.aliases:  # written in place: after every other reader
                needs[position] |= readers.get(program.root(name), set()) - {position}
    return needs


def _maker_name(program: Program, makers: dict[Value, int], name: Value) -> Value:
    """The value along a chain of views that a call wrote."""
    while name not in makers and name in program.aliases:
        name = program.aliases[name].value
    return name


def followers_of(needs: Edges) -> list[list[int]]:
    """Returns, for each call, the calls that must run after it."""
    followers: list[list[int]] = [[] for _ in needs]
    for position, before in enumerate(needs):
        for i in before:
            followers[i].append(position)
    return followers


class _Live:
    """The bytes that running a call would add to memory: what it writes less what nobody reads after it."""

    def __init__(self, program: Program) -> None:
        retained, root = program.retained, program.root
        self._inputs = [frozenset(map(root, call.inputs)) for call in program.calls]
        self._taken = [
            sum(program.types[name].size_bytes for name in call.outputs if root(name) == name) for call in program.calls
        ]
        self._left: dict[Value, set[int]] = {}
        for position, inputs in enumerate(self._inputs):
            for value in inputs:
                self._left.setdefault(value, set()).add(position)
        self._sizes = {value: 0 if value in retained else program.types[value].size_bytes for value in self._left}

    def growth_bytes(self, position: int) -> int:
        """Returns the growth of a call that has not run."""
        freed = sum(self._sizes[value] for value in self._inputs[position] if len(self._left[value]) == 1)
        return self._taken[position] - freed

    def run(self, position: int) -> list[int]:
        """The call runs; those that now alone read something."""
        alone: list[int] = []
        for value in self._inputs[position]:
            readers = self._left[value]
            readers.remove(position)
            alone += readers if len(readers) == 1 else ()
        return alone
