"""What building a kernel gives: the files that hold it, and how it is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal["object"]
"""`object`: a relocatable object file of the target's triple. A GPU's will be of another form."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """One file that a kernel is made of."""

    form: Form
    content: bytes


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is started.

    `call`: the runtime calls the packed function `__tvm_ffi_<symbol>`, which shares its work among the threads itself
    (see `compiler.codegen`); its last operand is `workspace_bytes` of scratch, if that is not 0.
    """

    symbol: str
    workspace_bytes: int
    by: Literal["call"] = "call"


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One kernel: its artefacts, and its launch record."""

    launch: Launch
    artefacts: tuple[Artefact, ...]

    @classmethod
    def called(cls, symbol: str, object_bytes: bytes, workspace_bytes: int) -> CompiledKernel:
        """A CPU's kernel: one object that exports `__tvm_ffi_<symbol>`."""
        return cls(Launch(symbol, workspace_bytes), (Artefact("object", object_bytes),))

    @property
    def symbol(self) -> str:
        """Its name among all kernels of a binary."""
        return self.launch.symbol

    @property
    def workspace_bytes(self) -> int:
        """Scratch that its launch needs."""
        return self.launch.workspace_bytes
