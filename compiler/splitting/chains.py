"""Finds chains of calls whose hidden channels nothing else needs: expand, element by element or depth-wise, project."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from compiler.kernels.spec import MatmulSpec
from compiler.program.program import KernelCall, Program
from compiler.splitting.channel_tiles import first_strip, inner_strip, last_strip
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Chain:
    """Calls by position, each of which hands what it makes to the next one alone: `channels` hidden channels."""

    positions: tuple[int, ...]
    channels: int

    @property
    def last(self) -> int:
        """Returns where the strips run: at the end, when all that the chain reads is there."""
        return self.positions[-1]


def hidden_operands(program: Program, before: KernelCall, call: KernelCall) -> tuple[int, ...]:
    """Returns which inputs of a call are what the one before it in a chain makes."""
    root = program.root(before.outputs[0])
    return tuple(number for number, name in enumerate(call.inputs) if program.root(name) == root)


def find_chains(program: Program) -> tuple[Chain, ...]:
    """Returns every chain of a program, by the position of its last call; no two share a call."""
    return tuple(_Finder(program).chains())


@dataclass(slots=True)
class _Finder:
    program: Program
    makers: dict[Value, int] = field(default_factory=dict)
    readers: dict[Value, set[int]] = field(default_factory=dict)
    overwritten: dict[Value, list[int]] = field(default_factory=dict)
    """The calls in which root values are written in place."""
    retained: frozenset[Value] = frozenset()

    def __post_init__(self) -> None:
        root, self.retained = self.program.root, self.program.retained
        for position, call in enumerate(self.program.calls):
            for name in call.inputs:
                self.readers.setdefault(root(name), set()).add(position)
            for name in call.outputs:
                self.makers[name] = position
                if name in self.program.aliases:
                    self.overwritten.setdefault(root(name), []).append(position)

    def chains(self) -> Iterator[Chain]:
        """Yields a chain for each product that ends one."""
        for position, call in enumerate(self.program.calls):
            if isinstance(call.spec, MatmulSpec) and last_strip(call.spec, call.spec.k, 1) is not None:
                positions = self._back(position, call.spec.k)
                if positions is not None and not self._disturbed(positions):
                    yield Chain(positions, call.spec.k)

    def _back(self, last: int, channels: int) -> tuple[int, ...] | None:
        """The positions of a chain that ends there."""
        if self.program.calls[last].outputs[0] in self.program.aliases:
            return None
        if self.program.calls[last].outputs[0] in self.retained:
            return None
        positions, hidden = [last], (0,)
        while True:
            before = self._before(positions[0], hidden, channels)
            if before is None:
                return None
            spec = self.program.calls[before].spec
            positions.insert(0, before)
            if first_strip(spec, channels, 1) is not None:
                return tuple(positions)
            places = range(len(self.program.calls[before].inputs))
            inner = next((place for place in places if inner_strip(spec, (place,), channels, 1) is not None), None)
            if inner is None:
                return None
            hidden = (inner,)

    def _before(self, position: int, hidden: tuple[int, ...], channels: int) -> int | None:
        """The call that makes the hidden operand of this one, and for it alone."""
        call, program = self.program.calls[position], self.program
        name = call.inputs[hidden[0]]
        root = program.root(name)
        before = self.makers.get(root)
        if before is None or root in self.retained or root in program.aliases or len(self.readers[root]) > 1:
            return None
        shapes = (program.types[root].shape, program.types[name].shape)
        same_size = program.types[root].size == program.types[name].size
        alone = hidden_operands(program, program.calls[before], call) == hidden
        fits = all(shape[-1:] == (channels,) for shape in shapes) and same_size
        return before if alone and fits and len(program.calls[before].outputs) == 1 else None

    def _disturbed(self, positions: tuple[int, ...]) -> bool:
        """Whether something that the chain reads is overwritten before its last call."""
        reads = {self.program.root(name) for position in positions for name in self.program.calls[position].inputs}
        return any(positions[0] < write < positions[-1] for root in reads for write in self.overwritten.get(root, ()))
