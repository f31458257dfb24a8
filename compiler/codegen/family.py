"""Which kernel module builds which family: the one explicit table."""

from __future__ import annotations

import importlib
from typing import Protocol, cast, runtime_checkable

from compiler.codegen.choice import DEFAULT, Choice
from compiler.errors import InternalError
from compiler.kernels.spec import (
    AttentionSpec,
    ConvSpec,
    DepthwiseSpec,
    GatherSpec,
    KernelSpec,
    MapSpec,
    MatmulSpec,
    NormGradSpec,
    PoolSpec,
    ReduceSpec,
    RowSpec,
)
from compiler.targets import Target

FAMILIES: dict[type, str] = {
    MapSpec: "loops.map",
    ReduceSpec: "rows.reduce",
    RowSpec: "rows.row",
    MatmulSpec: "matmul.matmul",
    ConvSpec: "conv.conv",
    DepthwiseSpec: "depthwise.depthwise",
    PoolSpec: "loops.pool",
    GatherSpec: "loops.gather",
    AttentionSpec: "attention.attention",
    NormGradSpec: "rows.normalization",
}


class KernelModule(Protocol):
    """What every module of this package offers; `workspace_bytes` works without TVM."""

    def emit(self, spec: KernelSpec, target: Target, threads: int) -> object:
        """The kernel as a TIR `PrimFunc`."""

    def workspace_bytes(self, spec: KernelSpec, target: Target, threads: int) -> int:
        """Bytes of scratch that the kernel takes as its last operand; 0 if it takes none."""


@runtime_checkable
class TunableModule(Protocol):
    """What a module offers whose kernels can be scheduled in several ways."""

    def choices(self, spec: KernelSpec, target: Target, threads: int) -> tuple[Choice, ...]:
        """The ways worth measuring; the first is the default. Works without TVM."""

    def emit(self, spec: KernelSpec, target: Target, threads: int, choice: Choice | None = None) -> object:
        """The kernel as a TIR `PrimFunc`, scheduled by `choice`."""

    def workspace_bytes(self, spec: KernelSpec, target: Target, threads: int, choice: Choice | None = None) -> int:
        """Bytes of scratch of the kernel scheduled by `choice`."""


def choices_of(spec: KernelSpec, target: Target, threads: int) -> tuple[Choice, ...]:
    """The ways to schedule `spec` that are worth measuring, `DEFAULT` first, each once."""
    module = kernel_module(spec)
    if not isinstance(module, TunableModule):
        return (DEFAULT,)
    return tuple(dict.fromkeys((DEFAULT, *module.choices(spec, target, threads)[1:])))


def emit_kernel(spec: KernelSpec, target: Target, threads: int, choice: Choice) -> object:
    """The TIR `PrimFunc` of `spec` scheduled by `choice`. Raises: InternalError if its family offers no choice."""
    if choice == DEFAULT:
        return kernel_module(spec).emit(spec, target, threads)
    return _tunable(spec).emit(spec, target, threads, choice)


def workspace_bytes_of(spec: KernelSpec, target: Target, threads: int, choice: Choice) -> int:
    """Scratch bytes of `spec` scheduled by `choice`. Raises: InternalError if its family offers no choice."""
    if choice == DEFAULT:
        return kernel_module(spec).workspace_bytes(spec, target, threads)
    return _tunable(spec).workspace_bytes(spec, target, threads, choice)


def stored_panel_width(spec: MatmulSpec, target: Target, threads: int) -> int:
    """Columns of the panels in which a B that never changes is stored best; 0: as it is."""
    from compiler.codegen.matmul import matmul

    return matmul.panel_width(spec, target, threads)


def _tunable(spec: KernelSpec) -> TunableModule:
    module = kernel_module(spec)
    if not isinstance(module, TunableModule):
        raise InternalError(f"{type(spec).__name__} kernels are scheduled in one way only")
    return module


def kernel_module(spec: KernelSpec) -> KernelModule:
    """The module that builds `spec`. Raises: InternalError for an unknown family."""
    name = FAMILIES.get(type(spec))
    if name is None:
        raise InternalError(f"no kernel family for {type(spec).__name__}")
    return cast(KernelModule, importlib.import_module(f"compiler.codegen.{name}"))
