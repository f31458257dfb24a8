"""C source that tables are written with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compiler.errors import InternalError

MAX_RANK = 8


def c_list(values: tuple[int, ...], where: str) -> str:
    """An initializer for an axis each. Raises: InternalError above the runtime's rank."""
    if len(values) > MAX_RANK:
        raise InternalError(f"has rank {len(values)}, the runtime's limit is {MAX_RANK}", where=where)
    return f"{{{', '.join(map(str, values)) or '0'}}}"


def c_struct(fields: Mapping[str, str]) -> str:
    """An initializer by the names of its fields."""
    return "{" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"


def c_array(kind: str, name: str, rows: Iterable[str]) -> str:
    """A table; C has no empty one."""
    body = ",\n".join(rows) or "{0}"
    return f"static const {kind} {name}[] = {{\n{body}\n}};\n"


def c_string(value: str) -> str:
    """A C string literal: plain ASCII stays, every other UTF-8 byte becomes three octal digits."""
    return f'"{_spelled(value.encode("utf-8", "replace"))}"'


def c_bytes(content: bytes) -> str:
    """Returns any bytes as a C string literal, which ends a line where they do."""
    lines = content.splitlines(keepends=True)
    return "\n".join(f'"{_spelled(line)}"' for line in lines) or '""'


def _spelled(content: bytes) -> str:
    plain = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in content)
    return "".join(plain)
