"""Names of compiled kernels."""

import hashlib

from compiler.codegen.choice import DEFAULT, Choice
from compiler.kernels.spec import KernelSpec, signature


def symbol_of(spec: KernelSpec, choice: Choice = DEFAULT) -> str:
    """The kernel's symbol; the object exports `__tvm_ffi_<symbol>`. Each choice has its own, so that several can be
    linked together."""
    name = signature(spec)
    if choice != DEFAULT:
        name = hashlib.sha256(f"{name}\0{choice.text}".encode()).hexdigest()
    return f"pf_{name[:16]}"
