"""Resources that a function in a cubin takes for each item: registers, and the memory of what these do not hold.

A cubin is an ELF file of 64 bits (little-endian). Source of what NVIDIA puts where, which is not documented: `readelf`,
compared with what `ptxas -v` says of the same text (CUDA 12.2, sm_87 and sm_90).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compiler.errors import BuildError

_MAGIC = b"\x7fELF\x02\x01"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL_BYTES = 24
_ATTRIBUTES, _SYMBOLS = ".nv.info", ".symtab"
_SIZED = 4
"""The format of an attribute whose value follows; the others hold one of 16 bits in place of its size."""
_STACK_BYTES, _REGISTERS = 0x12, 0x2F
"""The attributes "least stack size" (of the function and all that it calls) and "register count"."""


@dataclass(frozen=True, slots=True)
class Use:
    """The resources of one item."""

    registers: int
    stack_bytes: int
    """Spilled registers, arrays that are indexed as the program runs, and what called functions have of both."""


@dataclass(frozen=True)
class _Section:
    name: str
    content: bytes
    link: int


def uses_of(cubin: bytes) -> Mapping[str, Use]:
    """Returns the resources that each function takes, by its name. Raises: BuildError for anything but a cubin that
    says so.
    """
    sections = _sections(cubin)
    sections_by_name = {section.name: section for section in sections}
    if _ATTRIBUTES not in sections_by_name or _SYMBOLS not in sections_by_name:
        raise BuildError("the code says nothing of its functions", where="cubin")
    attributes, names = sections_by_name[_ATTRIBUTES].content, _names(sections_by_name[_SYMBOLS], sections)
    stacks = dict(_values(attributes, _STACK_BYTES))
    return {
        names[number]: Use(registers, stacks.get(number, 0)) for number, registers in _values(attributes, _REGISTERS)
    }


def _sections(cubin: bytes) -> list[_Section]:
    if not cubin.startswith(_MAGIC):
        raise BuildError("the code is no ELF file of 64 bits", where="cubin")
    start, size_bytes, count, names = *struct.unpack_from("<Q", cubin, 0x28), *struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [_SECTION.unpack_from(cubin, start + number * size_bytes) for number in range(count)]
    table = cubin[headers[names][4] :]
    return [
        _Section(_text(table, name), cubin[offset : offset + length], link)
        for name, _, _, _, offset, length, link, _, _, _ in headers
    ]


def _names(symbols: _Section, sections: list[_Section]) -> list[str]:
    """Returns the names of all symbols, in order."""
    texts = sections[symbols.link].content
    starts = range(0, len(symbols.content), _SYMBOL_BYTES)
    return [_text(texts, struct.unpack_from("<I", symbols.content, start)[0]) for start in starts]


def _values(attributes: bytes, attribute: int) -> Iterator[tuple[int, int]]:
    """(number of a symbol, its value) of each attribute of a kind."""
    place = 0
    while place + 4 <= len(attributes):
        form, kind, size_bytes = struct.unpack_from("<BBH", attributes, place)
        place += 4
        if form != _SIZED:
            continue
        if kind == attribute:
            yield struct.unpack_from("<II", attributes, place)
        place += size_bytes


def _text(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()
