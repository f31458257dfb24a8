"""Our kernels against libraries on the same shapes: should a kernel be handed to a BLAS or a DNN library?

    python -m benchmarks.libraries --models mobilenet_v2_b8 distilbert_b4 [--plan full] [--rounds 7]

The products and dense convolutions of a workload's training step, each alone on one thread: ours as the step has it,
with what is fused into it; OpenBLAS (NumPy's) and oneDNN (PyTorch's) without that, which is less work.
The sides take turns; each keeps its best time, its operands as its last run left them in the caches. Prints the kernels
that a library does faster, and what the step's kernels take in all with each side and with the faster of both.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compiler.kernels.spec import ConvSpec, MatmulSpec

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""For the libraries, which read it when they are imported: so their imports stand in the functions that use them."""
ENOUGH_S = 0.4
"""Time for one kernel and side."""

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Compared:
    """Best seconds of one kernel by side, and how often a step calls it."""

    name: str
    calls: int
    flops: int
    """Of one call."""
    seconds: dict[str, float]

    @property
    def library(self) -> str:
        """The fastest library."""
        return min((side for side in self.seconds if side != "ours"), key=self.seconds.__getitem__)

    @property
    def ratio(self) -> float:
        """The fastest library's time over ours: below 1, the library wins."""
        return self.seconds[self.library] / self.seconds["ours"]


def product_runs(spec: MatmulSpec) -> dict[str, Run]:
    """OpenBLAS and oneDNN for the bare product of a spec, as its operands lie in memory."""
    import numpy as np
    import torch

    random = np.random.default_rng(0)
    batches = (spec.batch if spec.a_batched else 1, spec.batch if spec.b_batched else 1)
    a = random.standard_normal((batches[0], *((spec.k, spec.m) if spec.a_transposed else (spec.m, spec.k))), np.float32)
    b = random.standard_normal((batches[1], *((spec.n, spec.k) if spec.b_transposed else (spec.k, spec.n))), np.float32)
    a, b = (x.swapaxes(1, 2) if swapped else x for x, swapped in ((a, spec.a_transposed), (b, spec.b_transposed)))
    out = np.empty((spec.batch, spec.m, spec.n), np.float32)
    ta, tb, to = torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(out)
    if spec.batch == 1:
        a, b, out, ta, tb, to = a[0], b[0], out[0], ta[0], tb[0], to[0]
    return {"OpenBLAS": lambda: np.matmul(a, b, out=out), "oneDNN": lambda: torch.matmul(ta, tb, out=to)}


def convolution_runs(spec: ConvSpec) -> dict[str, Run]:
    """oneDNN for the bare convolution of a spec, channels last."""
    import torch

    last = torch.channels_last
    top, left, bottom, right = spec.pads
    padded = torch.nn.functional.pad(torch.randn(spec.n, spec.c, spec.h, spec.w), (left, right, top, bottom))
    x = padded.contiguous(memory_format=last)
    w = torch.randn(spec.k, spec.group[0], *spec.kernel).contiguous(memory_format=last)
    d_y = torch.randn(spec.n, spec.k, spec.oh, spec.ow).contiguous(memory_format=last)
    strides, dilations = list(spec.strides), list(spec.dilations)
    if spec.kind == "forward":
        return {"oneDNN": lambda: torch.conv2d(x, w, None, strides, 0, dilations, spec.groups)}
    wanted = [spec.kind == "input_grad", spec.kind == "weight_grad", False]
    backward = torch.ops.aten.convolution_backward
    return {"oneDNN": lambda: backward(d_y, x, w, None, strides, [0, 0], dilations, False, [0, 0], spec.groups, wanted)}


def best_of_turns(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Each side's best seconds; the sides take turns."""
    best: dict[str, float] = {}
    for side, run in runs.items():
        run()
        start = time.perf_counter()
        run()
        best[side] = time.perf_counter() - start
    for _ in range(rounds):
        for side, run in runs.items():
            for _ in range(max(1, int(ENOUGH_S / rounds / best[side]))):
                start = time.perf_counter()
                run()
                best[side] = min(best[side], time.perf_counter() - start)
    return best


def compare(workload: str, plan: str, rounds: int) -> list[Compared]:
    """Every distinct product and dense convolution of the step."""
    from benchmarks.models import WORKLOADS
    from benchmarks.prepare import plan_of, prepare
    from benchmarks.sides import build_step
    from compiler.bundle.archive import KERNELS
    from compiler.codegen.workers import kept_workers
    from compiler.kernels.spec import ConvSpec, MatmulSpec
    from compiler.targets import load
    from compiler.tuning.catalogue import Catalogue
    from tests.kernel_harness.launch import Kernel
    from tests.kernel_harness.machine import native_target

    prepared, target = prepare(workload, WORKLOADS[workload]), load(native_target())
    folder, _ = build_step(prepared, plan_of(prepared.workload.model, plan), 1, prepared.workload.batch)
    found = []
    with kept_workers(1):
        for one in Catalogue.parse((folder / KERNELS).read_bytes()).kernels:
            if isinstance(one.spec, MatmulSpec):
                runs = product_runs(one.spec)
            elif isinstance(one.spec, ConvSpec):
                runs = convolution_runs(one.spec)
            else:
                continue
            kernel = Kernel(one.spec, target, 1)
            storages = kernel.storages()
            for storage, tensor in zip(storages, kernel.types.inputs, strict=False):
                storage.view(tensor)[...] = 1
            call = functools.partial(kernel.call, storages)
            found.append(
                Compared(one.name, one.calls, one.flops // one.calls, best_of_turns({"ours": call, **runs}, rounds))
            )
    return found


def show(workload: str, rows: list[Compared]) -> None:
    """Print what a library does faster, and the sums."""
    print(f"\n{workload}: {len(rows)} distinct kernels, {sum(row.calls for row in rows)} calls a step, one thread")
    for row in sorted(rows, key=lambda row: row.ratio):
        if row.ratio < 1:
            rates = "  ".join(f"{side} {row.flops / seconds / 1e9:5.1f}" for side, seconds in row.seconds.items())
            print(f"  {row.ratio:4.2f}x  {row.library:8}  x{row.calls:<3} {rates} GFLOP/s  {row.name}")
    sums = {
        "ours": sum(row.calls * row.seconds["ours"] for row in rows),
        "the fastest library": sum(row.calls * row.seconds[row.library] for row in rows),
        "the faster of both, kernel by kernel": sum(row.calls * min(row.seconds.values()) for row in rows),
    }
    for side, seconds in sums.items():
        print(f"  {seconds * 1e3:8.1f} ms  {side}", flush=True)


def main() -> None:
    """Parse the command line and print a table for each workload."""
    parser = argparse.ArgumentParser(description="Our products and convolutions beside OpenBLAS and oneDNN.")
    parser.add_argument("--models", nargs="+", default=["mobilenet_v2_b8", "resnet50_b4", "distilbert_b4"])
    parser.add_argument("--plan", default="full")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    os.environ.update(ONE_THREAD)
    for workload in options.models:
        show(workload, compare(workload, options.plan, options.rounds))


if __name__ == "__main__":
    main()
