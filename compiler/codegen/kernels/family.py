"""Which kernel module builds which family: the one explicit table."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from compiler.errors import InternalError
from compiler.kernel_spec import (
    ConvSpec,
    DepthwiseSpec,
    GatherSpec,
    KernelSpec,
    MapSpec,
    MatmulSpec,
    PoolSpec,
    ReduceSpec,
    RowSpec,
)
from compiler.targets import Target

FAMILIES: dict[type, str] = {
    MapSpec: "map",
    ReduceSpec: "reduce",
    RowSpec: "row",
    MatmulSpec: "matmul",
    ConvSpec: "conv",
    DepthwiseSpec: "depthwise",
    PoolSpec: "pool",
    GatherSpec: "gather",
}


class KernelModule(Protocol):
    """What every module of this package offers; `workspace_bytes` works without TVM."""

    def emit(self, spec: KernelSpec, target: Target, threads: int) -> object:
        """The kernel as a TIR `PrimFunc`."""

    def workspace_bytes(self, spec: KernelSpec, target: Target, threads: int) -> int:
        """Bytes of scratch that the kernel takes as its last operand; 0 if it takes none."""


def kernel_module(spec: KernelSpec) -> KernelModule:
    """The module that builds `spec`. Raises: InternalError for an unknown family."""
    name = FAMILIES.get(type(spec))
    if name is None:
        raise InternalError(f"no kernel family for {type(spec).__name__}")
    return cast(KernelModule, importlib.import_module(f"compiler.codegen.kernels.{name}"))
