"""Kernels in several schedules -> the C source of a tuning binary's tables (`compiler/runtime/tuner/trials.h`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.choice import Choice, Variant
from compiler.codegen.linking.tables import SAME_ALIGNMENT
from compiler.graph import TensorType
from compiler.kernels.spec import KernelSpec
from compiler.program.operands import operand_types
from compiler.targets import CpuTarget

MAX_VARIANTS = 64
"""The most variants of one kernel; the tuner's own limit."""
_POOL_L2S = 8


@dataclass(frozen=True, slots=True)
class Trial:
    """A kernel in the schedules to compare, the default first. `weight`: its expected share of the step's time."""

    spec: KernelSpec
    choices: tuple[Choice, ...]
    weight: float

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Returns the variants to build for it."""
        return tuple(Variant(self.spec, choice) for choice in self.choices)


def pool_bytes(target: CpuTarget) -> int:
    """Operands move about in this much memory: well beyond a core's own cache, as a training step's do."""
    return _POOL_L2S * target.l2_bytes


def trial_source(
    trials: Sequence[Trial], kernels: Mapping[Variant, CompiledKernel], *, threads: int, pool_bytes: int
) -> str:
    """C source that defines `pf_trials_data`, and the `pf_image_data` of a binary without programs."""
    symbols = sorted({kernels[variant].symbol for trial in trials for variant in trial.variants})
    parts = [
        '#include "trials.h"\n',
        SAME_ALIGNMENT,
        *(f"extern pf_kernel_fn __tvm_ffi_{symbol};\n" for symbol in symbols),
        *(_trial_tables(index, trial, kernels) for index, trial in enumerate(trials)),
        "static const pf_trial trials[] = {\n",
        *(f"{_trial_row(index, trial)},\n" for index, trial in enumerate(trials)),
        "};\n",
        f"const pf_trials pf_trials_data = {{trials, {len(trials)}u, {pool_bytes}u}};\n",
        f"const pf_image pf_image_data = {{.threads = {threads}}};\n",
    ]
    return "".join(parts)


def _trial_tables(index: int, trial: Trial, kernels: Mapping[Variant, CompiledKernel]) -> str:
    types = operand_types(trial.spec)
    operands = ", ".join(_extent(tensor) for tensor in types.inputs + types.outputs)
    built = [kernels[variant] for variant in trial.variants]
    variants = ", ".join(f"{{__tvm_ffi_{kernel.symbol}, {kernel.workspace_bytes}u}}" for kernel in built)
    return (
        f"static const pf_extent operands_{index}[] = {{{operands}}};\n"
        f"static const pf_variant variants_{index}[] = {{{variants}}};\n"
    )


def _trial_row(index: int, trial: Trial) -> str:
    types = operand_types(trial.spec)
    inputs, operands = len(types.inputs), len(types.inputs) + len(types.outputs)
    return (
        f"{{operands_{index}, {operands}u, {inputs}u, variants_{index}, {len(trial.choices)}u, {trial.weight.hex()}}}"
    )


def _extent(tensor: TensorType) -> str:
    return f"{{{tensor.size}, {tensor.element.c_name}}}"
