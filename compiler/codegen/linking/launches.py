"""Kernels that a device starts by launches, as C tables: their codes, and every call's launches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.linking.c_text import c_array, c_bytes, c_string
from compiler.errors import InternalError

FORMS = (("opencl",), ("cubin", "ptx"))
"""Forms of a kernel that a driver may be given: its code, and the alternative where it does not take that."""


class CodeTables:
    """The codes of a binary, each once, in the order of their symbols."""

    def __init__(self, kernels: Iterable[CompiledKernel]) -> None:
        """Raises: InternalError for a kernel of which a driver takes nothing."""
        self._codes = {kernel.symbol: _codes(kernel) for kernel in kernels if not kernel.is_called}
        self._numbers = {symbol: number for number, symbol in enumerate(sorted(self._codes))}

    def number(self, kernel: CompiledKernel) -> int:
        """Returns the number of the code that holds a kernel."""
        return self._numbers[kernel.symbol]

    def source(self) -> str:
        """The C table `codes`."""
        rows = [f"{{{', '.join(map(_row, self._codes[symbol]))}}}" for symbol in self._numbers]
        return c_array("pf_code", "codes", rows)

    @property
    def fields(self) -> Mapping[str, str]:
        """Returns the fields of the image."""
        return {"codes": "codes", "code_count": str(len(self._numbers))}


def _codes(kernel: CompiledKernel) -> tuple[bytes, ...]:
    forms = tuple(artefact.form for artefact in kernel.artefacts)
    if forms not in FORMS or any(launch.by != "grid" for launch in kernel.launches):
        raise InternalError(f"a driver takes one code and starts it by grids, not {forms}", where=kernel.symbol)
    return tuple(artefact.content for artefact in kernel.artefacts)


def _row(content: bytes) -> str:
    """A C string of the content, whose closing zero a driver may need, and its size without that."""
    return f"{c_bytes(content)}, {len(content)}u"


@dataclass
class LaunchTables:
    """The launches of one program's calls, in order."""

    codes: CodeTables
    launches: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def add(self, kernel: CompiledKernel) -> tuple[int, int]:
        """(number of its first, how many) of one more call."""
        first = len(self.launches)
        if kernel.is_called:
            return first, 0
        for launch in kernel.launches:
            self.launches.append(
                f"{{{c_string(launch.entry)}, {self.codes.number(kernel)}, {launch.groups}u, {launch.items}u, "
                f"{launch.resources.shared_bytes}u, {len(self.arguments)}, {len(launch.operands)}}}"
            )
            self.arguments += map(str, launch.operands)
        return first, len(kernel.launches)

    def source(self, name: str) -> str:
        """The C tables of program `name`."""
        launches = c_array("pf_launch", f"{name}_launches", self.launches)
        return launches + c_array("uint8_t", f"{name}_arguments", self.arguments)
