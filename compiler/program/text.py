"""Programs as readable text and back.

    program train
      input %0: f32[8, 4]
      state %1: f32[4, 2]
      %2: f32[8, 2] = (%0, %1) spec=MatmulSpec(batch=1, m=8, n=2, k=4, dtype=f32), layer=fc, phase=forward, …
      alias %3: f32[16] of %2
      output %2
      name %1 = fc.weight

Everything that a program holds stands there, so that `parse_program` gives the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from compiler.graph import TensorType
from compiler.kernels.text import Reader, show, show_fields
from compiler.program.aliases import Alias
from compiler.program.program import KernelCall, Program, ProgramName
from compiler.rewriting.text import parse_lines, read_name, read_outputs, read_typed, read_value, typed
from compiler.values import Value

_HEADS = {f"program {name}": name for name in get_args(ProgramName)}


def program_text(program: Program) -> str:
    """The text of a program."""
    return "\n".join([f"program {program.name}", *(f"  {line}" for line in _lines(program))]) + "\n"


def _lines(program: Program) -> Iterator[str]:
    produced = {value for call in program.calls for value in call.outputs}
    used = {*program.inputs, *program.state, *program.aliases, *produced}
    yield from (f"input {typed(value, program.types)}" for value in program.inputs)
    yield from (f"state {typed(value, program.types)}" for value in program.state)
    yield from ([] if program.ordered else ["unordered"])
    for call in program.calls:
        outputs = ", ".join(typed(value, program.types) for value in call.outputs)
        rest = show_fields(call, leave_out=("inputs", "outputs"))
        yield f"{outputs} = ({', '.join(map(str, call.inputs))}) {rest}"
    for value, alias in program.aliases.items():
        start = f" from {alias.offset_bytes}" if alias.offset_bytes else ""
        yield f"alias {typed(value, program.types)} of {alias.value}{start}"
    yield from (f"output {value}" for value in program.outputs)
    yield from (f"update {value}" for value in program.updates)
    yield from (f"unused {typed(value, program.types)}" for value in program.types if value not in used)
    yield from (f"name {value} = {show(name)}" for value, name in program.names.items())


def parse_program(text: str) -> Program:
    """The program whose text this is. Raises: InternalError naming the line that cannot be read."""
    head = text.partition("\n")[0]
    name: Any = _HEADS.get(head, "train")
    parsed = _ParsedProgram()
    parse_lines(text, f"program {name}", parsed.line)
    return Program(
        name,
        tuple(parsed.calls),
        parsed.types,
        tuple(parsed.inputs),
        tuple(parsed.outputs),
        parsed.aliases,
        tuple(parsed.updates),
        tuple(parsed.state),
        parsed.ordered,
        parsed.names,
    )


@dataclass(slots=True)
class _ParsedProgram:
    """The content of the lines so far."""

    calls: list[KernelCall] = field(default_factory=list)
    types: dict[Value, TensorType] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    aliases: dict[Value, Alias] = field(default_factory=dict)
    updates: list[Value] = field(default_factory=list)
    state: list[Value] = field(default_factory=list)
    ordered: bool = True
    names: dict[Value, str] = field(default_factory=dict)

    def line(self, reader: Reader) -> None:
        """Reads one line of the program's text."""
        if reader.kind == "value":
            self.calls.append(self._call(reader))
        elif reader.took("alias"):
            self._alias(reader)
        elif reader.took("unordered"):
            self.ordered = False
        elif reader.took("output"):
            self.outputs.append(read_value(reader))
        elif reader.took("update"):
            self.updates.append(read_value(reader))
        elif reader.took("input"):
            self.inputs.append(read_typed(reader, self.types))
        elif reader.took("state"):
            self.state.append(read_typed(reader, self.types))
        elif reader.took("name"):
            read_name(reader, self.names)
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
        alias = Alias(read_value(reader))
        if reader.took("from"):
            start: Any = reader.value()
            alias = replace(alias, offset_bytes=start)
        self.aliases[value] = alias
