"""What kernels for a grid do not do: operands in whole numbers of eight bits or in panels, scores in sixteen bits."""

from __future__ import annotations

from compiler.errors import BuildError
from compiler.kernels.spec import AttentionSpec, KernelSpec

_HELD = {"f32", "f16", "bf16", "i64", "i32", "bool"}


def require_supported(spec: KernelSpec) -> None:
    """Raises: BuildError if operands lie in what no kernel for a grid reads, or scores are multiplied in halves."""
    held = [one for one in getattr(spec, "stored", ()) if one not in _HELD]
    columns = getattr(spec, "b_panel", 0)
    asked = [f"stored {held[0]}"] if held else []
    asked += [f"products {spec.products}"] if isinstance(spec, AttentionSpec) and spec.products else []
    asked += [f"panels of {columns} columns"] if columns else []
    if asked:
        raise BuildError(
            f"{type(spec).__name__} kernels for a grid have no {', '.join(asked)}",
            where=type(spec).__name__,
            hint="build the step in f32",
        )
