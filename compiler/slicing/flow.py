"""The calls of a run that can go part by part, and those that must wait until the last part is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from compiler.kernels.alignment import ALIGNMENT_BYTES
from compiler.program.program import KernelCall, Program
from compiler.slicing.cut import Part, part_of
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Group:
    """The calls [first, end) of a program, run in `parts` equal parts of the batch (2 or more)."""

    first: int
    end: int
    parts: int


@dataclass(frozen=True, slots=True)
class _Cuttable:
    """A call's part, and the values that own the storage of its operands."""

    part: Part | None
    read_whole: frozenset[Value]


@dataclass(slots=True)
class Cutter:
    """The parts of a program's calls taken one by one, remembered."""

    program: Program
    cache: dict[tuple[int, int], _Cuttable] = field(default_factory=dict)
    inputs: list[frozenset[Value]] = field(default_factory=list)
    outputs: list[frozenset[Value]] = field(default_factory=list)

    def __post_init__(self) -> None:
        root = self.program.root
        self.inputs = [frozenset(map(root, call.inputs)) for call in self.program.calls]
        self.outputs = [frozenset(map(root, call.outputs)) for call in self.program.calls]

    def cut(self, position: int, parts: int) -> _Cuttable:
        """The call's part, as far as it depends on the call alone."""
        if (position, parts) not in self.cache:
            self.cache[position, parts] = self._cut(position, parts)
        return self.cache[position, parts]

    def is_in_place(self, position: int) -> bool:
        """Whether the call writes to storage that another value owns."""
        return any(name in self.program.aliases for name in self.program.calls[position].outputs)

    def _cut(self, position: int, parts: int) -> _Cuttable:
        call = self.program.calls[position]
        part = None if self.is_in_place(position) else part_of(call.spec, parts)
        if part is None or not all(self._has_ranges(name, parts) for name in cut_values(call, part)):
            return _Cuttable(None, frozenset())
        return _Cuttable(part, frozenset(map(self.program.root, whole_inputs(call, part))))

    def _has_ranges(self, name: Value, parts: int) -> bool:
        """Whether every part's range of the value begins at an aligned byte of its storage."""
        size_bytes = self.program.types[name].size_bytes
        owner_bytes = self.program.types[self.program.root(name)].size_bytes
        return size_bytes == owner_bytes and size_bytes % (parts * ALIGNMENT_BYTES) == 0


@dataclass(slots=True)
class Run:
    """A growing run of calls in `parts` parts.

    `ranged`: values whose ranges the parts make one by one. `late`: values complete only after the last part, so that
    whatever reads them comes later too. `early`: calls of which no part is made, and that read nothing of the run
    (what is made of weights alone): they run whole before the parts.
    """

    cutter: Cutter
    parts: int
    ranged: set[Value] = field(default_factory=set)
    late: set[Value] = field(default_factory=set)
    early: set[int] = field(default_factory=set)

    def admit(self, position: int) -> Part | None:
        """The next call's part; None if the call runs whole, before the parts or after them."""
        cuttable, inputs = self.cutter.cut(position, self.parts), self.cutter.inputs[position]
        if cuttable.part is None and not (self.late | self.ranged) & inputs and not self.cutter.is_in_place(position):
            self.early.add(position)
            return None
        waits = cuttable.part is None or self.late & inputs or self.ranged & cuttable.read_whole
        part = None if waits else cuttable.part
        if part is not None and not part.sums:
            self.ranged |= self.cutter.outputs[position]
        else:
            self.late |= self.cutter.outputs[position]
        return part


def cut_values(call: KernelCall, part: Part) -> Iterator[Value]:
    """Operands of a call of which each part reads or writes its range."""
    yield from (name for name, cut in zip(call.inputs, part.cut, strict=False) if cut)
    yield from () if part.sums else call.outputs


def whole_inputs(call: KernelCall, part: Part) -> Iterator[Value]:
    """Inputs that every part reads whole; not those that only the sum of the parts needs."""
    yield from (name for name, cut in zip(call.inputs, part.cut, strict=False) if not cut)


def parts_of(program: Program, groups: tuple[Group, ...]) -> Mapping[int, tuple[Group, Part]]:
    """Returns, for each call that runs part by part, its group and its part."""
    return cuts_of(program, groups)[0]


def cuts_of(program: Program, groups: tuple[Group, ...]) -> tuple[Mapping[int, tuple[Group, Part]], frozenset[int]]:
    """The calls that run part by part, and those that run whole before the parts of their group."""
    cutter = Cutter(program)
    cuts: dict[int, tuple[Group, Part]] = {}
    early: set[int] = set()
    for group in groups:
        run = Run(cutter, group.parts)
        for position in range(group.first, group.end):
            part = run.admit(position)
            if part is not None:
                cuts[position] = (group, part)
        early |= run.early
    return cuts, frozenset(early)
