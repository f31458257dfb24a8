"""Kernels that a device starts by launches, as C tables: their texts, and every call's launches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.linking.c_text import c_array, c_bytes, c_string
from compiler.errors import InternalError


class CodeTables:
    """The texts of a binary, each once, in the order of their symbols."""

    def __init__(self, kernels: Iterable[CompiledKernel]) -> None:
        """Raises: InternalError for a kernel of which a driver cannot compile anything."""
        self._texts = {kernel.symbol: _text(kernel) for kernel in kernels if not kernel.is_called}
        self._numbers = {symbol: number for number, symbol in enumerate(sorted(self._texts))}

    def number(self, kernel: CompiledKernel) -> int:
        """Which text holds a kernel."""
        return self._numbers[kernel.symbol]

    def source(self) -> str:
        """The C table `codes`."""
        rows = [f"{{{c_bytes(self._texts[symbol])}, {len(self._texts[symbol])}u}}" for symbol in self._numbers]
        return c_array("pf_code", "codes", rows)

    @property
    def fields(self) -> Mapping[str, str]:
        """Of the image."""
        return {"codes": "codes", "code_count": str(len(self._numbers))}


def _text(kernel: CompiledKernel) -> bytes:
    forms = [artefact.form for artefact in kernel.artefacts]
    if forms != ["opencl"] or any(launch.by != "grid" for launch in kernel.launches):
        raise InternalError(f"a driver compiles one text and starts it by grids, not {forms}", where=kernel.symbol)
    return kernel.artefacts[0].content


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
