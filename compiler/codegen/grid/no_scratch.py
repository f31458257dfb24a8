"""The plan of families whose kernels for a grid need no workspace and are written in one way."""

from __future__ import annotations

from compiler.kernels.spec import KernelSpec
from compiler.targets import Target


def workspace_bytes(spec: KernelSpec, target: Target, threads: int) -> int:
    """Returns 0: no workspace is needed."""
    return 0
