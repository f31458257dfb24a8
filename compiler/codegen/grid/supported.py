"""What kernels for a grid do not do yet: operands that lie in other types than f32."""

from __future__ import annotations

from compiler.errors import BuildError
from compiler.kernels.spec import KernelSpec


def require_f32(spec: KernelSpec) -> None:
    """Raises: BuildError if operands lie in another type than the kernel computes in, or in panels."""
    asked = [name for name in ("stored", "products", "b_panel") if getattr(spec, name, None)]
    if asked:
        what = ", ".join(f"{name} {getattr(spec, name)}" for name in asked)
        raise BuildError(
            f"{type(spec).__name__} kernels for a grid read and write f32 as it lies, not {what}",
            where=type(spec).__name__,
            hint="build the step in f32",
        )
