"""Programs as readable text and back.

    program train
      input %x: f32[8, 4]
      state %fc.weight: f32[4, 2]
      %y: f32[8, 2] = (%x, %fc.weight) spec=MatmulSpec(batch=1, m=8, n=2, k=4, dtype=f32), layer=fc, phase=forward, …
      alias %flat: f32[16] of %y
      output %y

Everything that a program holds stands there, so that `parse_program` gives the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.graph import TensorType
from compiler.kernels.text import Reader, show_fields
from compiler.program.aliases import Alias
from compiler.program.program import KernelCall, Program
from compiler.rewriting.text import parse_lines, read_outputs, read_typed, spell, typed

_HEADS = {"program train": "train", "program forward": "forward"}


def program_text(program: Program) -> str:
    """The text of a program."""
    return "\n".join([f"program {program.name}", *(f"  {line}" for line in _lines(program))]) + "\n"


def _lines(program: Program) -> Iterator[str]:
    made = {value for call in program.calls for value in call.outputs}
    shown = {*program.inputs, *program.state, *program.aliases, *made}
    yield from (f"input {typed(value, program.types)}" for value in program.inputs)
    yield from (f"state {typed(value, program.types)}" for value in program.state)
    yield from ([] if program.ordered else ["unordered"])
    for call in program.calls:
        outputs = ", ".join(typed(value, program.types) for value in call.outputs)
        rest = show_fields(call, leave_out=("inputs", "outputs"))
        yield f"{outputs} = ({', '.join(map(spell, call.inputs))}) {rest}"
    for value, alias in program.aliases.items():
        start = f" from {alias.offset_bytes}" if alias.offset_bytes else ""
        yield f"alias {typed(value, program.types)} of {spell(alias.value)}{start}"
    yield from (f"output {spell(value)}" for value in program.outputs)
    yield from (f"update {spell(value)}" for value in program.updates)
    yield from (f"unused {typed(value, program.types)}" for value in program.types if value not in shown)


def parse_program(text: str) -> Program:
    """The program whose text this is. Raises: InternalError naming the line that cannot be read."""
    head = text.partition("\n")[0]
    name: Any = _HEADS.get(head, "train")
    found = _Found()
    parse_lines(text, f"program {name}", found.line)
    return Program(
        name,
        tuple(found.calls),
        found.types,
        tuple(found.inputs),
        tuple(found.outputs),
        found.aliases,
        tuple(found.updates),
        tuple(found.state),
        found.ordered,
    )


@dataclass(slots=True)
class _Found:
    """What the lines so far say."""

    calls: list[KernelCall] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    aliases: dict[str, Alias] = field(default_factory=dict)
    updates: list[str] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    ordered: bool = True

    def line(self, reader: Reader) -> None:
        """Take in one line."""
        if reader.kind == "value":
            self.calls.append(self._call(reader))
        elif reader.took("alias"):
            self._alias(reader)
        elif reader.took("unordered"):
            self.ordered = False
        elif reader.took("output"):
            self.outputs.append(str(reader.value()))
        elif reader.took("update"):
            self.updates.append(str(reader.value()))
        elif reader.took("input"):
            self.inputs.append(read_typed(reader, self.types))
        elif reader.took("state"):
            self.state.append(read_typed(reader, self.types))
        else:
            reader.expect("unused")
            read_typed(reader, self.types)

    def _call(self, reader: Reader) -> KernelCall:
        outputs = read_outputs(reader, self.types)
        reader.expect("(")
        inputs = reader.values(")")
        rest: Any = reader.rest()
        return KernelCall(inputs=inputs, outputs=outputs, **rest)

    def _alias(self, reader: Reader) -> None:
        value = read_typed(reader, self.types)
        reader.expect("of")
        alias = Alias(str(reader.value()))
        if reader.took("from"):
            start: Any = reader.value()
            alias = replace(alias, offset_bytes=start)
        self.aliases[value] = alias
