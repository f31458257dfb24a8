"""Which calls of a run can go part by part, and which must wait until the last part is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from compiler.memory import ALIGNMENT
from compiler.program import KernelCall, Program
from compiler.slicing.cut import Part, part_of


@dataclass(frozen=True, slots=True)
class Group:
    """The calls [first, end) of a program, run in `parts` equal parts of the batch (2 or more)."""

    first: int
    end: int
    parts: int


@dataclass(slots=True)
class Run:
    """A growing run of calls in `parts` parts.

    `made`: values whose ranges the parts make one by one. `late`: values complete only after the last part, so that
    whatever reads them comes later too.
    """

    program: Program
    parts: int
    made: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)

    def admit(self, call: KernelCall) -> Part | None:
        """The next call's part; None if the call runs whole, after the parts."""
        part = self._part(call)
        roots = {self.program.root(name) for name in call.outputs}
        if part is not None and not part.sums:
            self.made |= roots
        else:
            self.late |= roots
        return part

    def _part(self, call: KernelCall) -> Part | None:
        if any(self.program.root(name) in self.late for name in call.inputs):
            return None
        if any(name in self.program.aliases for name in call.outputs):  # written in place
            return None
        part = part_of(call.spec, self.parts)
        if part is None or not all(map(self._has_ranges, cut_values(call, part))):
            return None
        return None if any(self.program.root(name) in self.made for name in whole_inputs(call, part)) else part

    def _has_ranges(self, name: str) -> bool:
        """True if every part's range of the value begins at an aligned byte of its storage."""
        size_bytes = self.program.types[name].size_bytes
        owner_bytes = self.program.types[self.program.root(name)].size_bytes
        return size_bytes == owner_bytes and size_bytes % (self.parts * ALIGNMENT) == 0


def cut_values(call: KernelCall, part: Part) -> Iterator[str]:
    """Operands of a call of which each part reads or writes its range."""
    yield from (name for name, cut in zip(call.inputs, part.cut, strict=False) if cut)
    yield from () if part.sums else call.outputs


def whole_inputs(call: KernelCall, part: Part) -> Iterator[str]:
    """Inputs that every part reads whole; not those that only the sum of the parts needs."""
    yield from (name for name, cut in zip(call.inputs, part.cut, strict=False) if not cut)


def parts_of(program: Program, groups: tuple[Group, ...]) -> Mapping[int, tuple[Group, Part]]:
    """For each call that runs part by part: its group, and its part."""
    found: dict[int, tuple[Group, Part]] = {}
    for group in groups:
        run = Run(program, group.parts)
        for position in range(group.first, group.end):
            part = run.admit(program.calls[position])
            if part is not None:
                found[position] = (group, part)
    return found
