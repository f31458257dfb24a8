"""Rewrites a program so that chains of calls run strip by strip of their hidden channels.

Rewrites: expand, work on each channel, project -> for each strip the same of a range of the hidden channels, the
projections added up in place; ranges of weights that are no ranges of bytes are copied. Requires: calls in execution
order; chains from `find_chains`. Ensures: the same values, the sum over hidden channels in another order. Why: hidden
channels are several times as many as those on both sides, and where nothing keeps them, they are the peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from compiler.graph import TensorType
from compiler.kernels.access import Access, axis, identity
from compiler.kernels.alignment import ALIGNMENT_BYTES
from compiler.kernels.expressions import Ref
from compiler.kernels.spec import MapSpec
from compiler.program.aliases import Alias, storage_of
from compiler.program.program import KernelCall, Program, ProgramName
from compiler.rewriting.passes import PassResult
from compiler.splitting.chains import Chain, hidden_operands
from compiler.splitting.channel_tiles import Range, Strip, first_strip, inner_strip, last_strip
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Split:
    """A chain that runs in `strips` equal strips (2 or more)."""

    chain: Chain
    strips: int


def split_hidden(program: Program, *, splits: Mapping[ProgramName, Sequence[Split]]) -> PassResult[Program]:
    """The program with chains run strip by strip."""
    program_splits = splits[program.name]
    return PassResult(
        split_chains(program, program_splits).trimmed() if program_splits else program, bool(program_splits)
    )


def split_chains(program: Program, splits: Sequence[Split]) -> Program:
    """The program with those chains run strip by strip."""
    splitter = _Splitter(program)
    ending = {split.chain.last: split for split in splits}
    replaced = {position for split in splits for position in split.chain.positions}
    calls: list[KernelCall] = []
    for position, call in enumerate(program.calls):
        if position in ending:
            calls += splitter.calls_of(ending[position])
        elif position not in replaced:
            calls.append(call)
    aliases, types = {**program.aliases, **splitter.aliases}, {**program.types, **splitter.types}
    return replace(program, calls=tuple(calls), aliases=aliases, types=types)


@dataclass(slots=True)
class _Splitter:
    program: Program
    types: dict[Value, TensorType] = field(default_factory=dict)
    aliases: dict[Value, Alias] = field(default_factory=dict)

    def calls_of(self, split: Split) -> Iterator[KernelCall]:
        """Yields all strips of a chain."""
        calls = [self.program.calls[position] for position in split.chain.positions]
        for number in range(split.strips):
            for place, call in enumerate(calls):
                before = calls[place - 1] if place else None
                yield from self._strip(call, before, place == len(calls) - 1, split, number)

    def _strip(
        self, call: KernelCall, before: KernelCall | None, is_last: bool, split: Split, number: int
    ) -> Iterator[KernelCall]:
        """The copies that a strip of a call reads, and the strip."""
        size = split.chain.channels // split.strips
        hidden = hidden_operands(self.program, before, call) if before is not None else ()
        ends = (number == 0, number == split.strips - 1)
        strip = strip_of(call, hidden, is_last, split.chain.channels, size, ends)
        names: list[Value] = []
        output = (
            self._sum(call.outputs[0], number, split.strips) if is_last else call.outputs[0].strip(number, split.strips)
        )
        operands = call.inputs if not is_last or ends[1] else call.inputs[:2]
        for place, (name, part) in enumerate(zip(operands, strip.ranges, strict=False)):
            if place in hidden:
                names.append(self._hidden(name, number, split.strips))
            elif part is None:
                names.append(name)
            else:
                range_value = call.outputs[0].strip(number, split.strips, operand=place)
                yield from self._range(range_value, name, part, split, number, call)
                names.append(range_value)
        if is_last and number:
            names.append(self._sum(call.outputs[0], number - 1, split.strips))
        if not is_last:
            self.types[output] = _with_channels(self.program.types[call.outputs[0]], size)
        yield replace(
            call,
            spec=strip.spec,
            inputs=tuple(names),
            outputs=(output,),
            flops=call.flops // split.strips,
            bytes_read=call.bytes_read // split.strips,
            bytes_written=call.bytes_written // (1 if is_last else split.strips),
            strips=split.strips,
            strip=number,
        )

    def _hidden(self, name: Value, number: int, strips: int) -> Value:
        """The strip of a hidden value, or of a view of it."""
        strip, root = name.strip(number, strips), self.program.root(name)
        if strip not in self.types:
            whole = self.program.types[name]
            self.types[strip] = _with_channels(whole, whole.shape[-1] // strips)
            self.aliases[strip] = Alias(root.strip(number, strips))
        return strip

    def _sum(self, name: Value, number: int, strips: int) -> Value:
        """Returns the sum of the strips up to this one, in one place, not rounded; the last sum is the value itself."""
        first, whole = name.strip(0, strips), self.program.types[name]
        partial_sum = name if number == strips - 1 else name.strip(number, strips)
        self.types[partial_sum] = whole if partial_sum == name else TensorType(whole.element.sums_in, whole.shape)
        if partial_sum != first and not (partial_sum == name and whole.element.is_half):
            self.aliases[partial_sum] = Alias(first)
        return partial_sum

    def _range(
        self, target: Value, name: Value, part: Range, split: Split, number: int, call: KernelCall
    ) -> Iterator[KernelCall]:
        """A range of an operand's channels: where it lies, or copied if it has gaps or begins at no aligned byte."""
        channels, size = split.chain.channels, split.chain.channels // split.strips
        dtype = self.program.types[name].dtype
        whole, range_type = (TensorType(dtype, (part.outer, extent * part.inner)) for extent in (channels, size))
        start = number * size * part.inner
        self.types[target] = range_type
        offset_bytes = number * range_type.size_bytes
        home = storage_of(self.program.aliases, name)
        if part.outer == 1 and (home.offset_bytes + offset_bytes) % ALIGNMENT_BYTES == 0:
            self.aliases[target] = Alias(name, offset_bytes)
            return
        read = Access(whole, (axis(0), axis(1, offset=start)))
        yield KernelCall(
            spec=MapSpec(range_type.shape, (read,), (identity(range_type),), (Ref(0),)),
            inputs=(name,),
            outputs=(target,),
            layer=call.layer,
            phase=call.phase,
            flops=0,
            bytes_read=range_type.size_bytes,
            bytes_written=range_type.size_bytes,
            again=call.again,
            strips=split.strips,
            strip=number,
        )


def strip_of(
    call: KernelCall, hidden: tuple[int, ...], is_last: bool, channels: int, size: int, ends: tuple[bool, bool]
) -> Strip:
    """The strip of a call of a chain."""
    if is_last:
        strip = last_strip(call.spec, channels, size, ends)
    elif hidden:
        strip = inner_strip(call.spec, hidden, channels, size)
    else:
        strip = first_strip(call.spec, channels, size)
    assert strip is not None, "chains are of calls that have strips"
    return strip


def _with_channels(tensor: TensorType, channels: int) -> TensorType:
    shape = (*tensor.shape[:-1], channels)
    assert prod(shape) * tensor.shape[-1] == tensor.size * channels
    return TensorType(tensor.dtype, shape)
