"""Speed of every contraction of one training step of MobileNetV2 (1.0, 224 px), against the machine's measured peak.

    python -m benchmarks.kernels [--batch 8] [--threads 1 2] [--repeat 15] [--only TEXT]

Each distinct kernel is built and timed alone (best of several runs, operands as the last run left them in the caches).
Prints, slowest first: time, GFLOP/s, GB/s of its operands, and how often the step calls it; then the totals by kind.
Peak is the rate of a product that fits the first-level cache. Threads are started anew in each parallel phase here
(tens of microseconds), which the training binary's pool avoids.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np

from compiler.codegen.workers import kept_workers
from compiler.kernels.spec import ConvSpec, DepthwiseSpec, MatmulSpec
from compiler.targets import Target, load
from tests.kernel_harness.launch import Kernel
from tests.kernel_harness.machine import native_target

Contraction = MatmulSpec | ConvSpec | DepthwiseSpec
Row = tuple[str, Contraction]
_BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, repeats, first stride."""
_ENOUGH_S = 0.25


def pointwise(positions: int, c_in: int, c_out: int) -> Iterator[Row]:
    """A 1x1 convolution (or a classifier) as three matrix products."""
    name = f"{positions}x{c_in}->{c_out}"
    yield f"pointwise forward {name}", MatmulSpec(1, positions, c_out, c_in, dtype="f32")
    yield f"pointwise input_grad {name}", MatmulSpec(1, positions, c_in, c_out, b_transposed=True, dtype="f32")
    yield f"pointwise weight_grad {name}", MatmulSpec(1, c_in, c_out, positions, a_transposed=True, dtype="f32")


def depthwise(batch: int, size: int, channels: int, stride: int) -> Iterator[Row]:
    """A 3x3 depth-wise convolution."""
    out = size // stride
    for kind in ("forward", "input_grad", "weight_grad"):
        spec = DepthwiseSpec(
            kind,
            batch,
            size,
            size,
            channels,
            out,
            out,
            (3, 3),
            (stride,) * 2,
            (1, 1, 1, 1),
            dtype="f32",
        )
        yield f"depthwise {kind} {size}x{size}x{channels} stride {stride}", spec


def mobilenet_v2(batch: int, size: int = 224) -> Iterator[Row]:
    """Every contraction of a full training step."""
    half = size // 2
    for kind in ("forward", "weight_grad"):
        sizes = (batch, size, size, 3, 32, half, half)
        spec = ConvSpec(kind, *sizes, (3, 3), (2, 2), (1, 1, 1, 1), dtype="f32")
        yield f"stem {kind}", spec
    size, c_in = half, 32
    for expansion, channels, repeats, first_stride in _BLOCKS:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            hidden = c_in * expansion
            if expansion > 1:
                yield from pointwise(batch * size * size, c_in, hidden)
            yield from depthwise(batch, size, hidden, stride)
            size //= stride
            yield from pointwise(batch * size * size, hidden, channels)
            c_in = channels
    yield from pointwise(batch * size * size, c_in, 1280)
    yield from pointwise(batch, 1280, 1000)


def flops(spec: Contraction) -> float:
    """Multiplications and additions."""
    if isinstance(spec, MatmulSpec):
        return 2.0 * spec.batch * spec.m * spec.n * spec.k
    each = spec.k if isinstance(spec, ConvSpec) else 1
    return 2.0 * spec.n * spec.oh * spec.ow * spec.c * spec.kernel[0] * spec.kernel[1] * each


def best_seconds(kernel: Kernel, repeat: int) -> float:
    """The shortest of some runs."""
    storages = kernel.storages()
    random = np.random.default_rng(0)
    for storage, tensor in zip(storages, kernel.types.inputs, strict=False):
        storage.view(tensor)[...] = random.standard_normal(tensor.shape, dtype=np.float32)
    times: list[float] = []
    while len(times) < 3 or (len(times) < repeat and sum(times) < _ENOUGH_S):
        start = time.perf_counter()
        kernel.call(storages)
        times.append(time.perf_counter() - start)
    return min(times)


def peak(target: Target, threads: int) -> float:
    """GFLOP/s of independent small products, one per thread."""
    spec = MatmulSpec(64 * threads, 54, 48, 128, dtype="f32")
    return flops(spec) / best_seconds(Kernel(spec, target, threads), 200) / 1e9


def table(batch: int, target: Target, threads: int, repeat: int, only: str) -> None:
    """Time and print everything for one number of threads."""
    print(f"\n{target.name}, {threads} thread(s), peak {peak(target, threads):.0f} GFLOP/s")
    calls: Counter[Contraction] = Counter()
    names: dict[Contraction, str] = {}
    for name, spec in mobilenet_v2(batch):
        if only in name:
            calls[spec] += 1
            names.setdefault(spec, name)
    timed = []
    for spec, name in names.items():
        kernel = Kernel(spec, target, threads)
        size_bytes = sum(tensor.size_bytes for tensor in kernel.types.inputs + kernel.types.outputs)
        timed.append((best_seconds(kernel, repeat), name, spec, size_bytes))
    timed.sort(key=lambda entry: -entry[0] * calls[entry[2]])
    totals: dict[str, list[float]] = {}
    for seconds, name, spec, size_bytes in timed:
        rates = f"{flops(spec) / seconds / 1e9:7.1f} GFLOP/s {size_bytes / seconds / 1e9:6.1f} GB/s"
        print(f"{seconds * 1e6:9.0f} us x{calls[spec]:<2} {rates}  {name}", flush=True)
        total = totals.setdefault(" ".join(name.split()[:2]), [0.0, 0.0])
        total[0] += seconds * calls[spec]
        total[1] += flops(spec) * calls[spec]
    for kind, (seconds, count) in sorted(totals.items()):
        print(f"{seconds * 1e3:9.2f} ms {count / seconds / 1e9:7.1f} GFLOP/s  {kind}")
    print(f"{sum(s for s, _ in totals.values()) * 1e3:9.2f} ms in all")


@kept_workers(1)
def main() -> None:
    """Parse the command line and print the tables."""
    parser = argparse.ArgumentParser(description="Speed of every contraction of a MobileNetV2 training step.")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--only", default="", help="only kernels whose name contains this")
    options = parser.parse_args()
    for threads in options.threads:
        table(options.batch, load(native_target()), threads, options.repeat, options.only)


if __name__ == "__main__":
    main()
