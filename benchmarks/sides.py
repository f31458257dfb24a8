"""The sides of a comparison: our binary and each variant of each framework, as command lines."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import python_of
from benchmarks.frameworks.steps import MANY_STEPS, MOMENTUM
from benchmarks.machine import has_bf16, instructions
from benchmarks.prepare import BENCH, Prepared, plan_of
from compiler.api import NO_TUNING, BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.precision import Compute
from compiler.targets import load
from device_agents.wire import RunSettings
from pockfarm.local.toolchain import read_tuning, tune

TUNING = BENCH / "tuning.json"
BUNDLE = "step.pfb"
COMPARED_LOSSES = 5
FRAMEWORKS = Path(__file__).parent / "frameworks"
KEEP_FREED_MEMORY = {
    name: str(1 << 34) for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")
}
"""glibc settings that spare a framework a page fault per reused byte; the fair setting for it."""


@dataclass(frozen=True)
class Side:
    """One process that trains and prints its steps. `compared_losses`: how many of them must equal ours."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    compared_losses: int = COMPARED_LOSSES
    build_s: float = 0.0
    """What it took to compile ours, before any process starts."""
    flops: int = 0
    """Floating-point operations of a step of ours; what runs again to save memory counts once."""
    state_bytes: int = 0
    """Weights and optimizer state of ours."""


@dataclass(frozen=True)
class Variant:
    """A framework's side, before it is bound to a workload."""

    framework: str
    script: str
    tuned_allocator: bool
    options: Mapping[str, object]
    compared_losses: int = COMPARED_LOSSES
    compute: Compute = "f32"


OURS, OURS_FULL, OURS_TUNED, OURS_BF16 = "PockFarm", "PockFarm full", "PockFarm tuned", "PockFarm bf16"
"""Our step under the plan; beside other plans under the full one; if this machine was tuned, with what won; and with
activations in bfloat16."""
AUTOCAST = "PyTorch autocast"
OPTIONAL = (OURS_FULL, OURS_TUNED, OURS_BF16, AUTOCAST, f"{AUTOCAST} compiled")
HALF_PLANS = ("full", "sparse")
"""Where sides in half precision take their turns."""
VARIANTS: Mapping[str, Variant] = {
    "PyTorch plain": Variant("torch", "torch_side.py", False, {"fused": False}),
    "PyTorch channels-last": Variant("torch", "torch_side.py", False, {"channels_last": True}),
    "PyTorch tuned": Variant("torch", "torch_side.py", True, {"channels_last": True}),
    "torch.compile": Variant("torch", "torch_side.py", True, {"channels_last": True, "compile": True}),
    "TensorFlow": Variant("tensorflow", "tensorflow_side.py", True, {}),
    "JAX": Variant("jax", "jax_side.py", True, {}),
    # Its SGD has no momentum: the third loss already differs.
    "ONNX Runtime": Variant("onnxruntime", "ort_side.py", True, {}, compared_losses=2),
    AUTOCAST: Variant("torch", "torch_side.py", True, {"channels_last": True, "autocast": True}, compute="bf16"),
    f"{AUTOCAST} compiled": Variant(
        "torch", "torch_side.py", True, {"channels_last": True, "autocast": True, "compile": True}, compute="bf16"
    ),
}
NAMES = (OURS, OURS_FULL, OURS_TUNED, OURS_BF16, *VARIANTS)


def native_target(compute: Compute = "f32") -> str:
    """The widest x86-64 target that this machine runs, with products of `compute` where it has them."""
    if compute == "bf16" and has_bf16():
        return instructions()
    return "x86-64-v4" if instructions().startswith("x86-64-v4") else "x86-64-v3"


def has_side(prepared: Prepared, plan: str, name: str) -> bool:
    """False for our own side a second time, and for half precision under plans that say nothing new of it.

    Autocast has no turn either on a machine without instructions for it: nobody would choose what it takes there.
    """
    if name == OURS_BF16:
        return plan in HALF_PLANS
    if name in VARIANTS and VARIANTS[name].compute != "f32":
        return plan in HALF_PLANS and has_bf16()
    if name == OURS_FULL:
        return plan != "full"
    if name == OURS_TUNED:
        return TUNING.exists()
    return True


def side_of(prepared: Prepared, plan: str, name: str, threads: int) -> Side:
    """Make one side. Raises: CompileError (ours), EnvironmentFailed (a framework that cannot be installed)."""
    if name not in VARIANTS:
        own = plan_of(prepared.workload.model, "full" if name == OURS_FULL else plan)
        compute: Compute = "bf16" if name == OURS_BF16 else "f32"
        return ours(prepared, own, threads, prepared.workload.batch, tuned=name == OURS_TUNED, compute=compute)
    variant = VARIANTS[name]
    options = {
        "channels_last": False,
        "fused": True,
        "compile": False,
        "autocast": False,
        "model": prepared.workload.model,
        "state": str(prepared.state_path),
        "onnx": str(prepared.onnx_path),
        "inputs": _inputs(prepared),
        "learning_rate": prepared.definition.learning_rate,
        **variant.options,
    }
    if not prepared.definition.is_image:
        options["channels_last"] = False
    script = str(FRAMEWORKS / variant.script)
    command = (
        str(python_of(variant.framework)),
        script,
        str(prepared.folder),
        plan,
        str(threads),
        json.dumps(options),
    )
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str((BENCH / "inductor").resolve()),
        **(KEEP_FREED_MEMORY if variant.tuned_allocator else {}),
    }
    return Side(name, command, environment, variant.compared_losses)


def ours(
    prepared: Prepared,
    plan: SparsePlan,
    threads: int,
    batch: int,
    *,
    tuned: bool = False,
    compute: Compute = "f32",
) -> Side:
    """Compile the step into the workload's folder, and run its binary. Raises: CompileError."""
    folder, build_s = build_step(prepared, plan, threads, batch, tuned=tuned, compute=compute)
    command = [str(folder / "bin/step"), "train", "--weights", str(folder / "weights.safetensors")]
    command += ["--order", "sequential", "--threads", str(threads), "--steps", str(MANY_STEPS)]
    manifest = json.loads((folder / "manifest.json").read_text())
    flops = sum(kernel["flops"] for kernel in manifest["kernels"] if not kernel["again"])
    memory = manifest["memory"]
    state_bytes = memory["weights_bytes"] + memory["optimizer_bytes"]
    command += data_arguments(prepared)
    return Side(OURS, tuple(command), {}, build_s=build_s, flops=flops, state_bytes=state_bytes)


def build_step(
    prepared: Prepared,
    plan: SparsePlan,
    threads: int,
    batch: int,
    *,
    tuned: bool = False,
    compute: Compute = "f32",
) -> tuple[Path, float]:
    """(folder of the bundle and its files, seconds of compiling); kernels are cached between builds."""
    spec = spec_of(prepared, threads, batch, compute)
    cache = BENCH / "kernels"
    cache.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    bundle = compile_training(
        prepared.onnx_path.read_bytes(),
        BuildSettings(
            plan=plan,
            spec=spec,
            target=load(native_target(compute)),
            cache_dir=cache,
            tuning=read_tuning(TUNING) if tuned else NO_TUNING,
        ),
    )
    build_s = time.perf_counter() - started
    folder = prepared.folder / f"step-{plan.name}-b{batch}-t{threads}{'-tuned' if tuned else ''}"
    folder = folder if compute == "f32" else folder.with_name(f"{folder.name}-{compute}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BUNDLE).write_bytes(bundle.data)
    with tarfile.open(fileobj=io.BytesIO(bundle.data)) as archive:
        archive.extractall(folder, filter="data")
    return folder, build_s


def tune_step(prepared: Prepared, plan: str, threads: int, budget_s: float) -> str:
    """Measure the schedules of a step's kernels, and keep what wins for the *tuned* side; says how many there are.

    Raises: CompileError, pockfarm.errors.UserError.
    """
    own = plan_of(prepared.workload.model, plan)
    folder, _ = build_step(prepared, own, threads, prepared.workload.batch)
    settings = RunSettings("tune", tune_s=budget_s, threads=threads)
    found = tune(folder / BUNDLE, settings, table=TUNING, progress=lambda stage, share: None)
    return f"{found.decisions} kernels decided"


def spec_of(prepared: Prepared, threads: int, batch: int, compute: Compute = "f32") -> TrainingSpec:
    """SGD with momentum, as on every side."""
    rate = prepared.definition.learning_rate
    optimizer = {"kind": "sgd", "learning_rate": rate, "momentum": MOMENTUM}
    precision = {"compute": compute}
    return TrainingSpec.parse({"batch": batch, "threads": threads, "optimizer": optimizer, "precision": precision})


def _inputs(prepared: Prepared) -> Sequence[str]:
    """Input names in the model's order."""
    names: Sequence[str] = json.loads((prepared.folder / "inputs.json").read_text())
    return names


def data_arguments(prepared: Prepared) -> list[str]:
    """The workload's batch, as options of the binary."""
    arguments = ["--labels", str(prepared.folder / "labels.npy")]
    for name in _inputs(prepared):
        arguments += ["--input", f"{name}={prepared.folder / f'{name}.npy'}"]
    return arguments
