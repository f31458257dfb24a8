"""Products of building a kernel: the files that hold it, how it is started, and the resources that this takes of the
device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal["object", "opencl", "cubin", "ptx"]
"""`object`: a relocatable object file of the target's triple. `opencl`: OpenCL C, which the driver compiles. `cubin`:
code for one generation of NVIDIA's GPUs. `ptx`: the same for this and later ones, which the driver compiles."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """A file that a kernel is made of."""

    form: Form
    content: bytes


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources that one start of a function takes of a device with groups of items; None where only the device's
    driver knows.
    """

    shared_bytes: int = 0
    """Bytes of memory that a group's items share."""
    registers: int | None = None
    """Registers of each item."""
    spill_bytes: int | None = None
    """Bytes of each item that its registers did not hold."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A start of a function of a kernel.

    `call`: the runtime calls the packed function `__tvm_ffi_<entry>` with all operands; it shares its work among the
    threads itself (see `compiler.codegen`). `grid`: `groups` groups of `items` items each run the function `entry`,
    which takes the operands of the kernel whose numbers `operands` holds; a launch begins when the one before is done.
    """

    entry: str
    by: Literal["call", "grid"] = "call"
    groups: int = 1
    items: int = 1
    operands: tuple[int, ...] = ()
    resources: Resources = Resources()


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel: its name among all of a binary, its artefacts, and its launches in order.

    Its last operand is `workspace_bytes` of scratch, if that is not 0.
    """

    symbol: str
    workspace_bytes: int
    launches: tuple[Launch, ...]
    artefacts: tuple[Artefact, ...]

    @classmethod
    def called(cls, symbol: str, object_bytes: bytes, workspace_bytes: int) -> CompiledKernel:
        """A CPU's kernel: one object that exports `__tvm_ffi_<symbol>`."""
        return cls(symbol, workspace_bytes, (Launch(symbol),), (Artefact("object", object_bytes),))

    @property
    def is_called(self) -> bool:
        """Whether it is one object with one packed function, as a CPU's."""
        return [launch.by for launch in self.launches] == ["call"] and [
            artefact.form for artefact in self.artefacts
        ] == ["object"]

    @property
    def object_bytes(self) -> bytes:
        """The object of a kernel that `is_called`."""
        return self.artefacts[0].content
