"""From a spec's canonical text (`kernel_spec.canonical`) back to the spec, so that a bundle can carry kernels."""

from __future__ import annotations

from compiler.codegen.family import VECTORS
from compiler.errors import TuningError
from compiler.kernels.canonical import canonical
from compiler.kernels.spec import KernelSpec
from compiler.kernels.text import read

MAX_CHARACTERS = 1_000_000
_SHOWN = 80


def parse_spec(text: str) -> KernelSpec:
    """The spec whose canonical text this is. Raises: TuningError if there is none."""
    try:
        spec = read(text[: MAX_CHARACTERS + 1])
        is_spec = type(spec) in VECTORS and len(text) <= MAX_CHARACTERS and canonical(spec) == text
    except (ValueError, TypeError, KeyError, StopIteration, RecursionError) as problem:
        raise TuningError(f"not a kernel's text: {text[:_SHOWN]!r} ({problem})", where="kernels") from None
    if not is_spec:
        raise TuningError(f"not a kernel's text: {text[:_SHOWN]!r}", where="kernels")
    return spec  # type: ignore[return-value]
