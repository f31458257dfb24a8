"""Running one kernel's CUDA text from NumPy: as C++ on this CPU, each item of a group a fiber.

Everything is run twice, items and groups in ascending and in descending order, so that a missing barrier, or a group
that reads what another one writes, shows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.family import emit_kernel, workspace_bytes_of
from compiler.codegen.symbols import symbol_of
from compiler.graph import Array
from compiler.kernels.spec import KernelSpec
from compiler.targets import GridTarget
from tests.kernel_harness.objects import load_library, object_file
from tests.kernel_harness.storage import Runnable, Storage

_SHIM = Path(__file__).parent / "cuda_shim.h"
_FLAGS = ("-x", "c++", "-O1", "-fPIC", "-fno-strict-aliasing")
"""Shared memory may hold words of one type, and then of another."""
_FAULTS = {1: "some items of a group wait at a barrier that others do not come by", 2: "an item's stack is too small"}


class CudaKernel(Runnable):
    """A kernel's CUDA text, compiled as C++ for this CPU."""

    def __init__(self, spec: KernelSpec, target: GridTarget, choice: Choice = DEFAULT) -> None:
        from compiler.codegen.grid.cuda import cuda_text  # imports TVM, as `emit_kernel` does

        super().__init__(spec, workspace_bytes_of(spec, target, 1, choice))
        emitted = cast(Any, emit_kernel(spec, target, 1, choice))
        text, self.launches = cuda_text(emitted, symbol_of(spec, choice), capability=target.capability)
        calls = [
            f'extern "C" void run_{each.entry}(void **p) {{ pf_call({each.entry}, p); }}\n' for each in self.launches
        ]
        self._library = load_library(cuda_object(text + "".join(calls)).read_bytes())
        self.is_backwards = False

    def call(self, storages: Sequence[Storage]) -> None:
        """All launches, one after the other; items and groups from the last to the first if `is_backwards`."""
        for launch in self.launches:
            body = getattr(self._library, f"run_{launch.entry}")
            operands = (ctypes.c_void_p * len(launch.operands))(
                *(storages[number].address for number in launch.operands)
            )
            fibers = _fibers(launch.items * self._library.pf_fiber_bytes())
            sizes = (launch.groups, launch.items, int(self.is_backwards))
            code = self._library.pf_launch(body, operands, ctypes.c_void_p(fibers.address), *sizes)
            assert code == 0, f"{launch.entry}: {_FAULTS[code]}"

    def run(self, *inputs: Array, initial: Sequence[Array | None] = ()) -> tuple[Array, ...]:
        """The outputs, which are the same in both orders. Raises: AssertionError, as `Runnable.run`, or if not."""
        both = []
        for self.is_backwards in (False, True):
            both.append(super().run(*inputs, initial=initial))
        for number, (forward, backward) in enumerate(zip(*both, strict=True)):
            assert forward.tobytes() == backward.tobytes(), f"output {number} depends on the order of items or groups"
        return both[0]


def cuda_object(text: str) -> Path:
    """CUDA text, and what calls it, as an object for this CPU. Raises: BuildError."""
    return object_file(_SHIM.read_text() + text, *_FLAGS, compiler="clang")


@cache
def _fibers(size_bytes: int) -> Storage:
    """Room for the stacks of a group, of all kernels in turn: libraries stay loaded, and each would have its own."""
    return Storage(size_bytes)
