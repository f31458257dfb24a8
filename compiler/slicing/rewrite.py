"""Rewrites a program so that groups of calls run part by part of the batch.

Rewrites: the calls of a group are repeated once per part, on ranges of their operands, after those that cannot be cut
and read nothing that the group makes (of weights alone, as a rule); then follow, in their old order, the sums of what
the parts summed over the batch, and the calls that cannot be cut or depend on such sums
(updates of parameters). Requires: calls in execution order. Ensures: the same values, sums over the batch in another
order. Why: what a part hands on is small enough to stay in the cache, and its bytes serve the next part again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from compiler.fusion.maps import fuse_into_reader
from compiler.graph import TensorType
from compiler.kernels.spec import MapSpec
from compiler.program.aliases import Alias
from compiler.program.program import KernelCall, Program, ProgramName
from compiler.rewriting.passes import PassResult, Reason
from compiler.slicing.cut import Part
from compiler.slicing.flow import Group, cut_values, cuts_of
from compiler.values import Value

WAITS = Reason(
    "slice.waits", "a kernel that can be cut by the batch, and nothing to read that is complete only after it"
)


def slice_batch(program: Program, *, groups: Mapping[ProgramName, Sequence[Group]]) -> PassResult[Program]:
    """The program with its groups of calls run part by part."""
    program_groups = groups[program.name]
    cut, early = cuts_of(program, tuple(program_groups))
    members = (position for group in program_groups for position in range(group.first, group.end))
    waiting = [position for position in members if position not in cut and position not in early]
    declined = tuple(WAITS.at(program.calls[position].layer) for position in waiting)
    return PassResult(slice_program(program, program_groups).trimmed(), bool(program_groups), declined)


def slice_program(program: Program, groups: Sequence[Group]) -> Program:
    """The program with each group's calls run part by part; groups are disjoint and in order."""
    if not groups:
        return program
    slicer = _Slicer.of(program, tuple(groups))
    calls: list[KernelCall] = []
    position = 0
    for group in groups:
        calls += program.calls[position : group.first]
        calls += slicer.calls_of(group)
        position = group.end
    calls += program.calls[position:]
    aliases, types = {**program.aliases, **slicer.aliases}, {**program.types, **slicer.types}
    return replace(program, calls=tuple(calls), aliases=aliases, types=types)


@dataclass(slots=True)
class _Slicer:
    program: Program
    parts: Mapping[int, tuple[Group, Part]]
    early: frozenset[int]
    reads: Mapping[Value, int]
    """The number of calls (and of readers outside the program) that read each value."""
    apart: frozenset[Value]
    """Values that only parts of one count make and read: each range is a value of its own, with its own short life."""
    types: dict[Value, TensorType] = field(default_factory=dict)
    aliases: dict[Value, Alias] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, groups: tuple[Group, ...]) -> _Slicer:
        parts, early = cuts_of(program, groups)
        return cls(program, parts, early, _count_reads(program), _values_apart(program, parts))

    def calls_of(self, group: Group) -> list[KernelCall]:
        """The group's calls: what comes before the parts, all parts, then what had to wait for the last."""
        first = [position for position in range(group.first, group.end) if position in self.early]
        positions = [position for position in range(group.first, group.end) if position not in self.early]
        members = [position for position in positions if position in self.parts]
        calls = [self.program.calls[position] for position in first]
        calls += [self._part(position, j) for j in range(group.parts) for position in members]
        late: list[KernelCall] = []
        for position in positions:
            late += self._sums(position) if position in self.parts else [self.program.calls[position]]
        totals = [output for position in members if self.parts[position][1].sums for output in self._outputs(position)]
        for total in totals:
            late = self._merged(total, late)
        return calls + late

    def _outputs(self, position: int) -> tuple[Value, ...]:
        return self.program.calls[position].outputs

    def _merged(self, total: Value, late: list[KernelCall]) -> list[KernelCall]:
        """The calls, with a sum of terms made inside the one map (an update, as a rule) that reads it."""
        root = self.program.root(total)
        reader = next((i for i, call in enumerate(late) if root in map(self.program.root, call.inputs)), None)
        if reader is None or self.reads[root] != 1 or not isinstance(late[reader].spec, MapSpec):
            return late
        maker = next(i for i, call in enumerate(late) if total in call.outputs)
        reads = frozenset(i for i, name in enumerate(late[reader].inputs) if self.program.root(name) == root)
        fused = fuse_into_reader(late[maker], late[reader], reads)
        if not isinstance(fused, KernelCall):
            return late
        return [*late[:maker], *late[maker + 1 : reader], fused, *late[reader + 1 :]]

    def _part(self, position: int, j: int) -> KernelCall:
        call, (group, part) = self.program.calls[position], self.parts[position]
        inputs = tuple(
            self._range(name, j, group.parts) if cut else name for name, cut in zip(call.inputs, part.cut, strict=False)
        )
        outputs = tuple(
            self._term(name, j, group.parts) if part.sums else self._range(name, j, group.parts)
            for name in call.outputs
        )
        whole_bytes = sum(
            self.program.types[name].size_bytes for name, cut in zip(call.inputs, part.cut, strict=False) if not cut
        )
        return replace(
            call,
            spec=part.spec,
            inputs=inputs,
            outputs=outputs,
            flops=call.flops // group.parts,
            bytes_read=max(0, call.bytes_read - whole_bytes) // group.parts + min(whole_bytes, call.bytes_read),
            bytes_written=call.bytes_written if part.sums else call.bytes_written // group.parts,
            parts=group.parts,
            part=j,
        )

    def _range(self, name: Value, j: int, parts: int) -> Value:
        """The j-th range of a value; a view's is a view of its owner's."""
        part, whole, root = name.part(j, parts), self.program.types[name], self.program.root(name)
        if part not in self.types:
            self.types[part] = TensorType(whole.dtype, _range_shape(whole.shape, parts))
            if name != root:
                self.aliases[part] = Alias(self._range(root, j, parts))
            elif root not in self.apart:
                self.aliases[part] = Alias(root, j * (whole.size_bytes // parts))
        return part

    def _term(self, name: Value, j: int, parts: int) -> Value:
        """Returns the term that part j adds to a value that sums over the batch."""
        term = name.term(j, parts)
        self.types[term] = self.program.types[name]
        return term

    def _sums(self, position: int) -> list[KernelCall]:
        call, (group, part) = self.program.calls[position], self.parts[position]
        sums = []
        for output, spec in zip(call.outputs, part.sums, strict=False):
            terms = tuple(self._term(output, j, group.parts) for j in range(group.parts))
            extra = call.inputs[len(part.cut) :] if len(spec.inputs) > group.parts else ()
            size_bytes = sum(access.type.size_bytes for access in spec.inputs)
            sums.append(
                replace(
                    call,
                    spec=spec,
                    inputs=terms + extra,
                    outputs=(output,),
                    flops=self.program.types[output].size * (group.parts - 1),
                    bytes_read=size_bytes,
                    bytes_written=self.program.types[output].size_bytes,
                    sum_of=group.parts,
                )
            )
        return sums


def _count_reads(program: Program) -> Mapping[Value, int]:
    reads = Counter(program.root(name) for name in program.outputs)
    for call in program.calls:
        reads.update({program.root(name) for name in call.inputs})
    return reads


def _range_shape(shape: tuple[int, ...], parts: int) -> tuple[int, ...]:
    leading = next((d for d, size in enumerate(shape) if size > 1), 0)
    if shape[leading] % parts == 0:
        return (*shape[:leading], shape[leading] // parts, *shape[leading + 1 :])
    size = 1
    for extent in shape:
        size *= extent
    return (size // parts,)


def _values_apart(program: Program, parts: Mapping[int, tuple[Group, Part]]) -> frozenset[Value]:
    counts: dict[Value, set[int]] = {}
    touched_whole = {program.root(name) for name in program.outputs}
    for position, call in enumerate(program.calls):
        group, part = parts.get(position, (None, None))
        names = (*call.inputs, *call.outputs)
        cut: list[Value] = []
        if group is not None and part is not None:
            cut = list(cut_values(call, part))
            for name in cut:
                counts.setdefault(program.root(name), set()).add(group.parts)
        touched_whole |= {program.root(name) for name in _rest(names, cut)}
    produced = {program.root(name) for call in program.calls for name in call.outputs}
    return frozenset(
        root for root, divisors in counts.items() if len(divisors) == 1 and root in produced - touched_whole
    )


def _rest(names: Sequence[Value], removed: Sequence[Value]) -> list[Value]:
    """`names` less `removed`, each as often as it stands there."""
    remaining = list(names)
    for name in removed:
        remaining.remove(name)
    return remaining
