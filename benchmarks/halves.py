"""What is half precision worth? bfloat16 beside our own f32 and PyTorch's autocast, taking turns in one run.

    python -m benchmarks.halves --models vit_tiny_b4 distilbert_b4 [--target x86-64-v4-bf16] [--threads 1] [--rounds 5]

Products alone on one thread: in f32, with operands held in half, and of pairs; weights lie in f32 in all three. Then
whole training steps, SGD with momentum over the full plan: ours are processes of their own, PyTorch's (channels as they
are, fused SGD) a process too that times its own steps. Medians of a round's steps; ratios of the same round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.models import MODELS, WORKLOADS, build
from benchmarks.old_and_new import step_us
from benchmarks.prepare import BENCH, Prepared, plan_of, prepare
from benchmarks.sides import data_arguments
from compiler.api import BuildSettings, compile_training
from compiler.cache_folder import cache_folder
from compiler.codegen.workers import kept_workers
from compiler.kernels.spec import MatmulSpec
from compiler.program.halves import Held, holding
from compiler.spec.documents import TrainingSpec
from compiler.spec.precision import Compute
from compiler.targets import CpuTarget, load_cpu, names
from tests.compiler.agreement.step_binary import StepBinary
from tests.kernel_harness.launch import Kernel
from tests.kernel_harness.machine import runs

FORWARD: Held = ("bf16", None, "bf16")
GRADIENT: Held = ("bf16", "bf16", None)
PRODUCTS: dict[str, tuple[MatmulSpec, Held]] = {
    "512 x 3072 over 768": (MatmulSpec(1, 512, 3072, 768, dtype="f32"), FORWARD),
    "512 x 768 over 3072, weights as columns": (MatmulSpec(1, 512, 768, 3072, dtype="f32", b_transposed=True), FORWARD),
    "gradient of 768 x 3072 over 512": (MatmulSpec(1, 768, 3072, 512, dtype="f32", a_transposed=True), GRADIENT),
    "12544 x 96 over 16": (MatmulSpec(1, 12544, 96, 16, dtype="f32"), FORWARD),
    "gradient of 96 x 16 over 12544": (MatmulSpec(1, 96, 16, 12544, dtype="f32", a_transposed=True), GRADIENT),
}
ONE = 0x3F80
"""1 as a bfloat16."""
TURNS, STEPS = 15, 5


def product_ms(kernel: Kernel) -> list[float]:
    """Processor time of each of a few calls."""
    storages, random, found = kernel.storages(), np.random.default_rng(0), []
    for storage, tensor in zip(storages, kernel.types.inputs, strict=False):
        if tensor.dtype == "f32":
            storage.view(tensor)[...] = random.standard_normal(tensor.shape, np.float32)
        else:
            storage.view(tensor).view(np.uint16)[...] = ONE
    for _ in range(3):
        begun = time.thread_time()
        kernel.call(storages)
        found.append((time.thread_time() - begun) * 1e3)
    return found


def products(target: CpuTarget) -> None:
    """A line for each product."""
    print(f"{'product, one thread':42} {'f32 ms':>8} {'held':>8} {'pairs':>8}   f32 / held  f32 / pairs")
    for name, (spec, held) in PRODUCTS.items():
        half = holding(spec, held)
        assert isinstance(half, MatmulSpec)
        sides = [Kernel(one, target, 1) for one in (spec, half, replace(half, products="bf16"))]
        rounds = [[min(product_ms(kernel)) for kernel in sides] for _ in range(TURNS)]
        plain, stored, pairs = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratios = (statistics.median(one[0] / one[side] for one in rounds) for side in (1, 2))
        print(f"{name:42} {plain:8.3f} {stored:8.3f} {pairs:8.3f}   {next(ratios):10.2f}  {next(ratios):11.2f}")


def ours(prepared: Prepared, compute: Compute, target: CpuTarget, threads: int) -> list[str]:
    """Build a step; its command line."""
    spec = {
        "batch": prepared.workload.batch,
        "threads": threads,
        "precision": {"compute": compute},
        "optimizer": {"kind": "sgd", "learning_rate": prepared.definition.learning_rate, "momentum": 0.9},
    }
    settings = BuildSettings(
        plan_of(prepared.workload.model, "full"), TrainingSpec.parse(spec), target, cache_dir=cache_folder()
    )
    folder = BENCH / "halves" / f"{prepared.name}-{compute}"
    folder.mkdir(parents=True, exist_ok=True)
    bundle = compile_training(prepared.onnx_path.read_bytes(), settings)
    memory = bundle.manifest["memory"]
    print(f"  {compute}: arena {memory['arena_bytes'] / 1e6:.1f} MB", flush=True)
    binary = StepBinary.unpack(bundle, folder)
    words = ["train", "--weights", str(binary.weights), "--threads", str(threads), *data_arguments(prepared)]
    return [str(binary.folder / "bin/step"), *words]


def theirs(prepared: Prepared, threads: int, *, autocast: bool) -> float:
    """Median milliseconds of PyTorch's step, in a process of its own."""
    told = {"model": prepared.workload.model, "folder": str(prepared.folder), "threads": threads, "autocast": autocast}
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks.halves", "--torch", json.dumps(told)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(completed.stdout)


def torch_side(model: str, folder: str, threads: int, *, autocast: bool) -> None:
    """PyTorch's own process."""
    import torch

    torch.set_num_threads(threads)
    module, at, found = build(model), Path(folder), []
    inputs = [torch.from_numpy(np.load(at / f"{name}.npy")) for name in json.loads((at / "inputs.json").read_text())]
    labels = torch.from_numpy(np.load(at / "labels.npy")).reshape(-1)
    optimizer = torch.optim.SGD(module.parameters(), lr=MODELS[model].learning_rate, momentum=0.9, fused=True)
    for _ in range(STEPS + 2):
        begun = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = module(*inputs)
            loss = torch.nn.functional.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append((time.perf_counter() - begun) * 1e3)
    print(statistics.median(found[2:]))


def steps(name: str, target: CpuTarget, threads: int, rounds: int) -> None:
    """A workload's lines."""
    print(f"\n{name}, full plan, {threads} thread(s)")
    prepared = prepare(name, WORKLOADS[name])
    plain, half = (ours(prepared, compute, target, threads) for compute in ("f32", "bf16"))
    found = [
        (
            step_us(plain, STEPS) / 1e3,
            step_us(half, STEPS) / 1e3,
            theirs(prepared, threads, autocast=False),
            theirs(prepared, threads, autocast=True),
        )
        for _ in range(rounds)
    ]
    named = ("ours f32", "ours bf16", "PyTorch f32", "PyTorch autocast")
    for side, column in zip(named, zip(*found, strict=True), strict=True):
        print(f"  {side:17} {statistics.median(column):9.1f} ms")
    for over, by in ((0, 1), (2, 0), (3, 1)):
        ratios = sorted(one[over] / one[by] for one in found)
        print(f"  {named[over]} / {named[by]}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


@kept_workers(1)
def main() -> None:
    """Products, then the workloads that were asked for."""
    able = [name for name in names("cpu") if load_cpu(name).has_bf16 and runs(load_cpu(name))]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.halves", description=__doc__)
    parser.add_argument("--models", nargs="*", choices=WORKLOADS, default=["vit_tiny_b4"])
    parser.add_argument("--target", choices=able, default=able[0] if able else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.torch:
        torch_side(**json.loads(asked.torch))
        return
    if asked.target is None:
        parser.error("this machine has no instructions for bfloat16 (avx512_bf16 in /proc/cpuinfo)")
    target = load_cpu(asked.target)
    products(target)
    for name in asked.models:
        steps(name, target, asked.threads, asked.rounds)


if __name__ == "__main__":
    main()
