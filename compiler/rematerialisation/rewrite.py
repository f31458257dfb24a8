"""Rewrites a program so that forward calls are repeated just before the backward pass first needs what they make.

Rewrites: readers of the backward pass read the repeated call's values; each is made once more, right before the first
of them, from values that are kept or repeated themselves. Requires: calls in execution order; `positions` from
`repeatable`. Ensures: the same values, bit for bit. Why: a value that dies in the forward pass takes no memory until
the backward pass, and a repeated one is fresh in the cache when it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from compiler.graph import TensorType
from compiler.program.aliases import Alias
from compiler.program.program import KernelCall, Program, ProgramName
from compiler.rematerialisation.candidates import not_repeatable
from compiler.rewriting.passes import PassResult
from compiler.values import Value


def repeat_forward(program: Program, *, positions: Mapping[ProgramName, Collection[int]]) -> PassResult[Program]:
    """The program with those of its forward calls repeated in its backward pass."""
    repeated = positions[program.name]
    return PassResult(repeat_calls(program, repeated), bool(repeated), not_repeatable(program))


def repeat_calls(program: Program, positions: Collection[int]) -> Program:
    """The program with the forward calls at `positions` repeated in its backward pass."""
    repeater = _Repeater.of(program, positions)
    calls: list[KernelCall] = []
    for call in program.calls:
        if call.phase != "forward":
            calls += repeater.repeats_for(call)
            call = repeater.redirected(call)
        calls.append(call)
    aliases, types = {**program.aliases, **repeater.aliases}, {**program.types, **repeater.types}
    return replace(program, calls=tuple(calls), aliases=aliases, types=types)


@dataclass(slots=True)
class _Repeater:
    program: Program
    makers: dict[Value, int]
    """Root values that are made again -> the position of the call that makes them."""
    repeated_positions: set[int] = field(default_factory=set)
    types: dict[Value, TensorType] = field(default_factory=dict)
    aliases: dict[Value, Alias] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, positions: Collection[int]) -> _Repeater:
        makers = {name: position for position in positions for name in program.calls[position].outputs}
        return cls(program, makers)

    def repeats_for(self, call: KernelCall) -> list[KernelCall]:
        """Calls to repeat before `call`, makers first; none twice."""
        repeats: list[KernelCall] = []
        stack = [*reversed(self._makers_of(call))]
        visited: set[int] = set()
        while stack:
            position = stack[-1]
            source = self.program.calls[position]
            if position not in visited and position not in self.repeated_positions:
                visited.add(position)
                stack += reversed(self._makers_of(source))
                continue
            stack.pop()
            if position not in self.repeated_positions:
                self.repeated_positions.add(position)
                outputs = tuple(map(self._again, source.outputs))
                repeats.append(replace(self.redirected(source), outputs=outputs, phase="backward", again=True))
        return repeats

    def _makers_of(self, call: KernelCall) -> list[int]:
        """Positions of the calls that have to be repeated before it, in the order of its operands."""
        positions = (self.makers.get(root) for root in map(self.program.root, call.inputs))
        return [position for position in positions if position is not None and position not in self.repeated_positions]

    def redirected(self, call: KernelCall) -> KernelCall:
        """The call, reading repeated values where there are any."""
        return replace(call, inputs=tuple(map(self._source, call.inputs)))

    def _source(self, name: Value) -> Value:
        return self._again(name) if self.program.root(name) in self.makers else name

    def _again(self, name: Value) -> Value:
        """The repeated value; a view's is a view of its owner's."""
        repeated_value = name.again()
        if repeated_value not in self.types:
            self.types[repeated_value] = self.program.types[name]
            if name in self.program.aliases:
                shared = self.program.aliases[name]
                self.aliases[repeated_value] = replace(shared, value=self._again(shared.value))
        return repeated_value
