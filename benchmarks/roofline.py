"""How close each of our kernels is to the machine's limits, measured in the same run.

A kernel's bound is the longer of two times: its arithmetic at the multiply-add peak, and its traffic (each operand read
or written once) at the bandwidth of memory. Operands that stay in a cache can beat that bound.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import Limits, describe, measure_limits
from benchmarks.prepare import Prepared, plan_of
from benchmarks.results import keep
from benchmarks.sides import build_step, data_arguments

GOAL = 0.5
LAUNCH_US = 5.0
"""Below this, waking and joining the threads is a good part of a kernel."""
SHORT_US = 40.0
"""Below this, uneven parts and operands that another core wrote weigh in."""
RUNS = 2
"""Profiles on each number of threads, in turns; a kernel's time is the better of their medians."""
CONTRACTIONS = ("matmul", "conv", "depthwise")
ACCESSES = ("gather", "scatter", "pool", "reduce")


@dataclass(frozen=True)
class KernelPoint:
    """One kernel call of a step: its cost and the time it took, with all threads and (0: not measured) with one."""

    name: str
    phase: str
    family: str
    us: float
    flops: int
    moved_bytes: int
    one_thread_us: float = 0.0

    def compute_us(self, limits: Limits, threads: int) -> float:
        """Its arithmetic at the peak."""
        return self.flops / limits.fma_gflop_s[threads] / 1e3

    def memory_us(self, limits: Limits) -> float:
        """Its traffic at the bandwidth of memory."""
        return self.moved_bytes / limits.memory_gb_s / 1e3

    def cache_us(self, limits: Limits) -> float:
        """Its traffic at the bandwidth of the cache that its operands would fit."""
        return self.moved_bytes / limits.cache_gb_s(self.moved_bytes) / 1e3


@dataclass(frozen=True)
class Position:
    """A kernel on the roofline. `fraction`: bound / measured; `reason`: why, where that is below the goal."""

    kernel: KernelPoint
    bound: str
    bound_us: float
    fraction: float
    cache_fraction: float
    reason: str

    @property
    def lost_us(self) -> float:
        """Time beyond the bound."""
        return max(0.0, self.kernel.us - self.bound_us)


@dataclass(frozen=True)
class Roofline:
    """Every kernel of one step, and the limits that they were held against."""

    workload: str
    plan: str
    threads: int
    step_ms: float
    limits: Limits
    positions: tuple[Position, ...]

    @property
    def share(self) -> float:
        """The sum of the kernels' bounds over the time of the step."""
        return sum(position.bound_us for position in self.positions) / 1e3 / self.step_ms

    def below_goal(self) -> list[Position]:
        """Kernels below half of their bound, those that lose most time first."""
        return sorted((p for p in self.positions if p.fraction < GOAL), key=lambda p: -p.lost_us)


def place(kernel: KernelPoint, limits: Limits, threads: int) -> Position:
    """Where a kernel stands."""
    compute_us, memory_us = kernel.compute_us(limits, threads), kernel.memory_us(limits)
    bound, bound_us = ("compute", compute_us) if compute_us >= memory_us else ("memory", memory_us)
    fraction = bound_us / kernel.us if kernel.us > 0 else 0.0
    cached_us = max(compute_us, kernel.cache_us(limits))
    cache_fraction = cached_us / kernel.us if kernel.us > 0 else 0.0
    reason = "" if fraction >= GOAL else why(kernel, compute_us, memory_us, threads)
    return Position(kernel, bound, bound_us, fraction, cache_fraction, reason)


def why(kernel: KernelPoint, compute_us: float, memory_us: float, threads: int) -> str:
    """The class of reason for a kernel below the goal, from its figures alone."""
    if kernel.us < LAUNCH_US:
        return f"launch: {kernel.us:.1f} us is little more than starting and joining the threads"
    short, long = sorted((compute_us, memory_us))
    if short + long >= GOAL * kernel.us and short >= long / 3:
        return "balanced: arithmetic and traffic are of one size and do not overlap"
    if long * threads >= GOAL * kernel.one_thread_us > 0:
        gained = kernel.one_thread_us / kernel.us
        return f"threads: {gained:.1f}x of one: uneven parts, operands in another core's cache, or a core taken away"
    if kernel.us < SHORT_US:
        return f"short: {kernel.us:.0f} us of work do not amortise start, uneven parts and cold operands"
    return _by_family(kernel)


def _by_family(kernel: KernelPoint) -> str:
    if kernel.family == "attention":
        return "softmax: exponentials and sums of rows take turns with the products"
    if kernel.family in CONTRACTIONS:
        return "shape: narrow or short sides leave register tiles partly empty; packing and sums of parts weigh in"
    if kernel.family in ACCESSES or kernel.flops < kernel.moved_bytes:
        return "access: elements change places, are read out of order, or are added across lanes"
    return "element-wise arithmetic: polynomials of exp, erf, tanh and divisions cost more than the traffic"


def measure(prepared: Prepared, plan: str, threads: int, steps: int) -> Roofline:
    """Build the step, profile it kernel by kernel between two measurements of the limits."""
    folder, _ = build_step(prepared, plan_of(prepared.workload.model, plan), threads, prepared.workload.batch)
    before = measure_limits(threads)
    profiles = [[_profile(prepared, folder, count, steps) for count in (threads, 1)] for _ in range(RUNS)]
    limits = before.best(measure_limits(threads))
    manifest = json.loads((folder / "manifest.json").read_text())
    families = [kernel["kind"] for kernel in manifest["kernels"]]
    times = [_best([profile[index] for profile in profiles], "kernel") for index in (0, 1)]
    kernels = [event for event in profiles[0][0] if event["event"] == "kernel"]
    points = [_point(*one) for one in zip(kernels, families, *times, strict=True)]
    positions = tuple(place(point, limits, threads) for point in points)
    step_ms = min(statistics.median(_times(profile[0], "step")) for profile in profiles) / 1e3
    return Roofline(prepared.name, plan, threads, step_ms, limits, positions)


def _profile(prepared: Prepared, folder: Path, threads: int, steps: int) -> list[dict[str, Any]]:
    command = [str(folder / "bin/step"), "profile", "--weights", str(folder / "weights.safetensors")]
    command += ["--threads", str(threads), "--steps", str(steps), *data_arguments(prepared)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _times(events: Iterable[Mapping[str, Any]], kind: str) -> list[float]:
    return [float(event["us"]) for event in events if event["event"] == kind]


def _best(profiles: Iterable[Iterable[Mapping[str, Any]]], kind: str) -> list[float]:
    """The least time of each event over the profiles."""
    return [min(times) for times in zip(*(_times(profile, kind) for profile in profiles), strict=True)]


def _point(event: Mapping[str, Any], family: str, us: float, one_thread_us: float) -> KernelPoint:
    moved = event["bytes_read"] + event["bytes_written"]
    return KernelPoint(event["name"], event["phase"], family, us, event["flops"], moved, one_thread_us)


@dataclass(frozen=True)
class FamilyTotal:
    """All kernels of a family and phase in one step."""

    family: str
    phase: str
    calls: int
    ms: float
    gflop_s: float
    gb_s: float
    fraction: float


def by_family(positions: Iterable[Position]) -> list[FamilyTotal]:
    """Totals, the family that takes most time first. `fraction`: sum of bounds / sum of times."""
    groups: dict[tuple[str, str], list[Position]] = defaultdict(list)
    for position in positions:
        groups[position.kernel.family, position.kernel.phase].append(position)
    totals = []
    for (family, phase), members in groups.items():
        us = sum(member.kernel.us for member in members)
        flops = sum(member.kernel.flops for member in members)
        moved = sum(member.kernel.moved_bytes for member in members)
        bound = sum(member.bound_us for member in members)
        totals.append(
            FamilyTotal(family, phase, len(members), us / 1e3, flops / us / 1e3, moved / us / 1e3, bound / us)
        )
    return sorted(totals, key=lambda total: -total.ms)


def save(found: Roofline, path: Path) -> None:
    """Write as JSON."""
    keep({**asdict(found), "limits": found.limits.to_json(), "machine": describe()}, path)


def load(path: Path) -> Roofline:
    """Read what `save` wrote."""
    body: dict[str, Any] = json.loads(path.read_text())
    limits = Limits(
        {int(key): value for key, value in body["limits"]["fma_gflop_s"].items()},
        {int(key): value for key, value in body["limits"]["copy_gb_s"].items()},
    )
    positions = tuple(
        Position(**{**position, "kernel": KernelPoint(**position["kernel"])}) for position in body["positions"]
    )
    return Roofline(body["workload"], body["plan"], body["threads"], body["step_ms"], limits, positions)


def table(found: Roofline, worst: int = 20) -> str:
    """Plain text: families, then the kernels below the goal that lose most."""
    peak, memory = found.limits.fma_gflop_s[found.threads], found.limits.memory_gb_s
    lines = [
        f"{found.workload} {found.plan}: step {found.step_ms:.1f} ms; limits {peak:.0f} GFLOP/s, {memory:.1f} GB/s",
        f"{'family':<12}{'phase':<10}{'calls':>6}{'ms':>9}{'GFLOP/s':>9}{'GB/s':>7}{'of bound':>9}",
    ]
    for one in by_family(found.positions):
        rates = f"{one.gflop_s:>9.1f}{one.gb_s:>7.1f}{one.fraction:>9.0%}"
        lines.append(f"{one.family:<12}{one.phase:<10}{one.calls:>6}{one.ms:>9.2f}{rates}")
    below = found.below_goal()
    lost_ms = sum(position.lost_us for position in below) / 1e3
    lines.append(f"{len(below)} of {len(found.positions)} kernels below {GOAL:.0%}; they lose {lost_ms:.1f} ms")
    lines += [f"  {line(position)}" for position in below[:worst]]
    return "\n".join(lines)


def line(position: Position) -> str:
    """One kernel below the goal."""
    kernel = position.kernel
    rates = f"{kernel.flops / kernel.us / 1e3:7.1f} GFLOP/s {kernel.moved_bytes / kernel.us / 1e3:6.1f} GB/s"
    return (
        f"{kernel.us:9.1f} us {rates} {position.fraction:4.0%} of {position.bound:<8}"
        f"{kernel.family} {kernel.name} ({kernel.phase}): {position.reason}"
    )
