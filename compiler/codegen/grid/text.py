"""A launch's function in a C-like language, as TVM 0.27 writes it, and what is alike in all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.build import codegen_build

from compiler.codegen.grid.grid import Function, device_function
from compiler.errors import InternalError
from compiler.targets import GridTarget

_POINTER = re.compile(r"(?:__global )?((?:signed )?\w+)\* (?:restrict )?(\w+)$")


@dataclass(frozen=True)
class Text:
    """The body of a function, after its opening brace; and which of the kernel's operands it takes, in order."""

    body: str
    operands: tuple[int, ...]
    pointers: tuple[tuple[str, str], ...]
    """(element type, name) of each of these operands."""


def text_of(function: Function, entry: str, device: Any, *, head: re.Pattern[str], spelled: Mapping[str, str]) -> Text:
    """The function as TVM's code generator of `device` writes it, without its head and what stands before that.

    `head` finds the head: its groups are the name and the parameters. `spelled`: words for functions that the text
    calls by other names than the language does. Raises: InternalError if the text is not as TVM 0.27 writes it.
    """
    source = _source(function, entry, device)
    match = head.search(source)
    if match is None or match.group(1) != entry:
        raise InternalError(f"no kernel {entry} in TVM's text", hint=source)
    body = source[match.end() :].strip()
    for name, spelling in spelled.items():
        body = re.sub(rf"\b{name}\b", spelling, body)
    body = _without_arrays_of_one(body)
    used = tuple(
        number for number, name in enumerate(function.parameters) if re.search(rf"\b{re.escape(name)}\b", body)
    )
    kinds = _kinds(match.group(2), entry)
    names = [function.parameters[number] for number in used]
    return Text(body, used, tuple((kinds[name], name) for name in names))


def require_fits(function: Function, target: GridTarget, entry: str) -> None:
    """Raises: InternalError for a group that is larger than the target's."""
    if function.items > target.items or function.shared_bytes > target.shared_bytes:
        requirements = f"{function.items} items and {function.shared_bytes} shared bytes"
        raise InternalError(f"{requirements} are more than {target.items} and {target.shared_bytes}", where=entry)


def _source(function: Function, entry: str, device: Any) -> str:
    module = tvm.IRModule({entry: device_function(function, entry, device)})
    passes = [tirx.transform.VectorizeLoop(True), tirx.transform.UnrollLoop(), tirx.transform.LowerIntrin()]
    module = tvm.ir.transform.Sequential(passes)(module)
    return str(codegen_build(module, device).inspect_source())


def _without_arrays_of_one(body: str) -> str:
    """A private array of one element, as which TVM writes a value that is used again, as a variable."""
    single = set(re.findall(r"^ *(?:alignas\(\d+\) )?\w+ (\w+)\[1\];$", body, re.MULTILINE))

    def plain(match: re.Match[str]) -> str:
        return match.group(1) if match.group(1) in single else match.group(0)

    body = re.sub(r"\b(\w+)\[[01]\]", plain, body)
    return re.sub(r"^( *)alignas\(\d+\) (\w+ \w+;)$", r"\1\2", body, flags=re.MULTILINE)


def _kinds(parameters: str, entry: str) -> Mapping[str, str]:
    """The element type of what each parameter points to, by name."""
    kinds = {}
    for parameter in parameters.split(", "):
        match = _POINTER.match(parameter)
        if match is None:
            raise InternalError(f"parameter {parameter!r} of {entry} is no pointer", hint=parameters)
        kinds[match.group(2)] = match.group(1)
    return kinds
