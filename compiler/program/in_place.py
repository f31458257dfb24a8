"""Results that are written over operands that die as they are made.

A map, or a row-wise kernel, reads a point of its operands before it writes there. So what it makes may take the storage
of an operand that is laid out alike, if nothing reads those bytes later. A value that is made in parts, slice by slice,
takes the storage of another as a whole: each part is written over bytes whose last reader is the call that writes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.kernels.affine import is_identity
from compiler.kernels.spec import MapSpec, RowSpec
from compiler.program.aliases import Alias, storage_of
from compiler.program.program import KernelCall, Program
from compiler.values import Value


def overwritable(program: Program, call: KernelCall) -> Iterator[Value]:
    """Operands of a call that its only result may be written over, as far as the call itself goes."""
    spec = call.spec
    if not isinstance(spec, MapSpec | RowSpec) or len(call.outputs) != 1:
        return
    extents = spec.extents if isinstance(spec, MapSpec) else (spec.rows, spec.width)
    if not is_identity(spec.outputs[0], extents):
        return
    roots = [program.root(name) for name in call.inputs]
    for name, root, access in zip(call.inputs, roots, spec.inputs, strict=True):
        same_size = access.type.size_bytes == spec.outputs[0].type.size_bytes
        if same_size and roots.count(root) == 1 and is_identity(access, extents):
            yield name


def reuse_in_place(program: Program, persistent: Collection[Value]) -> Program:
    """The program with results as aliases of operands that they may be written over.

    `persistent` are values that own storage and outlive the program; inputs of the program stay too.
    """
    aliases = dict(program.aliases)
    work = _Work(replace(program, aliases=aliases), aliases, {*persistent, *program.inputs})
    work.run()
    return work.program


@dataclass(frozen=True, slots=True)
class _Use:
    """A call reads, or writes, these bytes of a value that owns its storage."""

    position: int
    first: int
    end: int
    writes: bool

    def moved(self, offset_bytes: int) -> _Use:
        return replace(self, first=self.first + offset_bytes, end=self.end + offset_bytes)

    def meets(self, other: _Use) -> bool:
        return self.first < other.end and other.first < self.end


@dataclass(slots=True)
class _Work:
    """A program whose aliases grow, and what its calls do with the storage of each value."""

    program: Program
    aliases: dict[Value, Alias]
    stays: set[Value]

    def run(self) -> None:
        """Puts each value that is made here, in order, over the first operand that it may take."""
        uses: dict[Value, list[_Use]] = {}
        makers: dict[Value, list[int]] = {}
        for position, call in enumerate(self.program.calls):
            for value, writes in (*((name, False) for name in call.inputs), *((name, True) for name in call.outputs)):
                root, use = self._use(position, value, writes=writes)
                uses.setdefault(root, []).append(use)
                if writes:
                    makers.setdefault(root, []).append(position)
        for value, positions in makers.items():
            if value in self.stays:
                continue
            home = next((home for home in self._homes(value, positions) if self._may_take(value, home, uses)), None)
            if home is not None:
                self.aliases[value] = Alias(home)
                target = storage_of(self.aliases, value)
                uses[target.value] += [use.moved(target.offset_bytes) for use in uses.pop(value)]

    def _use(self, position: int, value: Value, *, writes: bool) -> tuple[Value, _Use]:
        place = storage_of(self.aliases, value)
        first = place.offset_bytes
        return place.value, _Use(position, first, first + self.program.types[value].size_bytes, writes)

    def _homes(self, value: Value, positions: Sequence[int]) -> list[Value]:
        """Values of its size that every call which makes it, or a part of it, may write over."""
        common: list[Value] | None = None
        for position in positions:
            call = self.program.calls[position]
            operands = list(overwritable(self.program, call))
            if call.outputs != (value,):
                part = storage_of(self.aliases, call.outputs[0]).offset_bytes
                places = [storage_of(self.aliases, name) for name in operands]
                operands = [place.value for place in places if place.offset_bytes == part]
            common = operands if common is None else [home for home in common if home in operands]
        size = self.program.types[value].size_bytes
        return [home for home in common or () if self.program.types[home].size_bytes == size]

    def _may_take(self, value: Value, home: Value, uses: Mapping[Value, Sequence[_Use]]) -> bool:
        """Whether nothing reads or writes bytes of `home` after they have been written over."""
        place = storage_of(self.aliases, home)
        if place.value in self.stays or place.value == value:
            return False
        writes_over = [use.moved(place.offset_bytes) for use in uses[value] if use.writes]
        return not any(
            use.meets(over) and (use.position > over.position or (use.position == over.position and use.writes))
            for use in uses[place.value]
            for over in writes_over
        )
