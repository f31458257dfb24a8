"""A step for an NVIDIA GPU on this machine: its own binary and runtime, over a driver (played_gpu.c) that runs the CUDA
text of its kernels as C++ on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from compiler.api import BuildSettings
from compiler.codegen.choice import DEFAULT, Variant
from compiler.codegen.family import emit_kernel
from compiler.codegen.linking.toolchain import RUNTIME
from compiler.codegen.symbols import symbol_of
from compiler.kernels.spec import signature
from compiler.pipeline import compile_step
from compiler.targets import GridTarget
from tests.compiler.runtime.drivers import build_stub
from tests.kernel_harness.cuda import cuda_object
from tests.kernel_harness.objects import link_library

Memory = Literal["discrete", "integrated", "coherent"]
"""Of its own; the host's, handed over and back; the host's, at once."""
Order = Literal["ascending", "descending"]
"""In which a group's items run up to the next barrier, and the groups of a launch."""
_SOURCE = Path(__file__).with_suffix(".c")
_AT_ONCE = 2
"""Compilers."""


@dataclass(frozen=True)
class PlayedGpu:
    """Folders of the driver, and of the kernels that it runs."""

    driver: Path
    kernels: Path

    def runner(
        self, memory: Memory = "discrete", order: Order = "ascending", log: Path | None = None
    ) -> tuple[str, ...]:
        """What runs a binary so that it finds this GPU; `log` gets a line of each graph, and of each single launch."""
        settings = {
            "LD_LIBRARY_PATH": self.driver,
            "PLAYED_KERNELS": self.kernels,
            "PLAYED_GPU": memory,
            "PLAYED_ORDER": order,
            **({"PLAYED_LOG": log} if log else {}),
        }
        return ("env", *(f"{name}={value}" for name, value in settings.items()))

    def play(self, model: bytes, settings: BuildSettings) -> None:
        """Give it the kernels of a model's step, which is compiled once more: a bundle does not hold their specs."""
        target = cast(GridTarget, settings.target)
        sources = {symbol_of(one.spec, one.choice): source_of(one, target) for one in variants_of(model, settings)}
        self.kernels.mkdir(exist_ok=True)
        with ThreadPoolExecutor(_AT_ONCE) as compilers:
            list(compilers.map(partial(_build, self.kernels), sources, sources.values()))


def runner_of(model: bytes, settings: BuildSettings, folder: Path) -> tuple[str, ...]:
    """What runs the binary of a model's step: for CUDA a GPU that is played, for all else nothing."""
    if settings.target.engine != "cuda":
        return ()
    gpu = PlayedGpu(build_driver(folder), folder / "kernels")
    gpu.play(model, settings)
    return gpu.runner()


def build_driver(folder: Path) -> Path:
    """The driver as the library that a binary loads; its folder."""
    return build_stub(_SOURCE, folder / "libcuda.so.1", "-D_GNU_SOURCE", "-I", str(RUNTIME / "devices"), "-ldl")


def variants_of(model: bytes, settings: BuildSettings) -> Sequence[Variant]:
    """The kernels of all programs of a step, each once."""
    step = compile_step(model, settings)
    specs = {signature(call.spec): call.spec for program in step.programs.values() for call in program.calls}
    return [Variant(spec, step.choices.get(name, DEFAULT)) for name, spec in specs.items()]


def source_of(kernel: Variant, target: GridTarget) -> str:
    """The kernel's text, and words by which the driver finds and calls its launches."""
    from compiler.codegen.grid.cuda import cuda_text  # imports TVM, as `emit_kernel` does

    emitted = cast(Any, emit_kernel(kernel.spec, target, 1, kernel.choice))
    text, launches = cuda_text(emitted, symbol_of(kernel.spec, kernel.choice), capability=target.capability)
    words = [
        f'extern "C" {{ extern const int operands_of_{one.entry} = {len(one.operands)};\n'
        f"void run_{one.entry}(void **p) {{ pf_call({one.entry}, p); }} }}\n"
        for one in launches
    ]
    return text + "".join(words)


def _build(folder: Path, symbol: str, source: str) -> None:
    """A library of its own, as each has the shim's functions and its own shared memory."""
    link_library(folder / f"{symbol}.so", cuda_object(source))
