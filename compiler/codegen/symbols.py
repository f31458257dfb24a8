"""Names of compiled kernels."""

from compiler.kernel_spec import KernelSpec, signature


def symbol_of(spec: KernelSpec) -> str:
    """The kernel's symbol; the object exports `__tvm_ffi_<symbol>`."""
    return f"pf_{signature(spec)[:16]}"
