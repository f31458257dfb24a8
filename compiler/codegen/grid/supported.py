"""Features that kernels for a grid lack: weights in panels, and scores in sixteen bits."""

from __future__ import annotations

from compiler.errors import BuildError
from compiler.kernels.spec import AttentionSpec, KernelSpec


def require_supported(spec: KernelSpec) -> None:
    """Raises: BuildError for what no kernel for a grid does, and no pass asks of one."""
    columns = getattr(spec, "b_panel", 0)
    unsupported = [f"panels of {columns} columns"] if columns else []
    unsupported += [f"products {spec.products}"] if isinstance(spec, AttentionSpec) and spec.products else []
    if unsupported:
        raise BuildError(
            f"{type(spec).__name__} kernels for a grid have no {', '.join(unsupported)}", where=type(spec).__name__
        )
