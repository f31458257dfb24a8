"""Writes `docs/benchmarks.md` from the results that lie in `build/bench`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks import roofline, scaling
from benchmarks.compare import RESULTS, Comparison, SideResult, load, ratio_of
from benchmarks.models import WORKLOADS
from benchmarks.prepare import PLANS
from benchmarks.roofline import GOAL, Position, Roofline, by_family
from benchmarks.sides import NAMES, OURS, OURS_FULL

PAGE = Path("docs/benchmarks.md")
GOALS: Mapping[str, Mapping[str, float]] = {
    "full": {
        "mobilenet_v2_b8": 2.5,
        "mobilenet_v2_b1": 4.0,
        "mobilenet_v2_035_b8": 6.0,
        "resnet50_b4": 1.8,
        "distilbert_b4": 1.1,
        "bert_b2": 1.1,
        "llama_b1": 1.4,
    },
    "sparse": {
        "mobilenet_v2_b8": 2.0,
        "mobilenet_v2_b1": 2.0,
        "mobilenet_v2_035_b8": 2.0,
        "resnet50_b4": 2.0,
        "distilbert_b4": 1.1,
        "bert_b2": 1.2,
        "llama_b1": 1.2,
    },
}
"""How many times faster than the fastest variant of any framework we mean to be."""
FLOP_SHARE_GOAL = 0.85
PLAIN, CHANNELS_LAST = "PyTorch plain", "PyTorch channels-last"
WORST = 12
READING = """\
Made by `make bench` (`python -m benchmarks`); the raw figures are in `build/bench`. Every side trains the same exported
weights on the same batch with the same plan, on the same cores, each in its own process; the processes take turns, and
the ones that wait are stopped. A turn's median divided by ours of the same round is one pair; the tables show the
median of the pairs with a 95% bootstrap interval. Absolute times drift: compare within a table only.

- Norms are folded into convolutions on every side. The optimizer is SGD with momentum (fused in PyTorch, except in
  *plain*); ONNX Runtime's SGD has no momentum, so it does a little less.
- *tuned* and all but *plain* and *channels-last*: glibc is told to keep freed memory. TensorFlow and JAX run functions
  built from the exported model's operators, NHWC; ONNX Runtime trains the exported file itself.
- *loss difference*: the largest relative difference from our losses over the first five steps (two for ONNX Runtime).
- *start*: from starting the process to the end of its first step, compiling included for frameworks that compile there;
  ours is compiled before (*built*, with a warm or cold kernel cache as the run found it).
- *memory*: the process's peak resident size.
- `full` trains everything. `sparse` trains, in convolutional nets, the biases and the first point-wise convolution of
  the last blocks, in transformers the attention and first feed-forward layers of the last half of the blocks; and the
  classifier."""


def write() -> None:
    """Write the page. Parts that were not measured are left out."""
    comparisons = [
        load(path) for name in WORKLOADS for plan in PLANS if (path := RESULTS / f"{name}-{plan}.json").exists()
    ]
    rooflines = [roofline.load(path) for path in sorted(roofline.ROOFLINES.glob("*.json"))]
    parts = ["# Benchmarks", READING]
    if comparisons:
        parts += [_machine(comparisons[-1].machine), *_summary(comparisons), *_details(comparisons)]
    if rooflines:
        parts += _roofline_parts(rooflines)
    if scaling.PATH.exists():
        parts += _scaling_parts(scaling.load())
    PAGE.write_text("\n\n".join(parts) + "\n")
    print(f"{PAGE}: {len(comparisons)} comparisons, {len(rooflines)} rooflines", flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are right-aligned."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def _machine(machine: Mapping[str, object]) -> str:
    memory_gib = int(str(machine["memory_bytes"])) / 2**30
    return f"Machine: {machine['cpu']}, {machine['cores']} cores, {memory_gib:.0f} GiB, {machine['system']}."


def _ratio(slow: SideResult | None, fast: SideResult) -> str:
    if slow is None:
        return "-"
    middle, low, high = ratio_of(slow, fast)
    return f"{middle:.2f}x [{low:.2f}, {high:.2f}]"


def _summary(comparisons: Sequence[Comparison]) -> list[str]:
    """One table per plan: ours against the fastest other and against PyTorch; then memory and plans among ourselves."""
    parts = ["## Against the fastest framework"]
    for plan in PLANS:
        rows = [_summary_row(one) for one in comparisons if one.plan == plan and one.side(OURS)]
        if rows:
            columns = ("", "ours ms", "fastest other", "ms", "ratio", "goal", PLAIN, f"memory / {CHANNELS_LAST}")
            parts += [f"### {plan}", table(columns, rows)]
    rows = _plan_rows(comparisons)
    if rows:
        head = ("", "plan", "GFLOP full", "GFLOP", "FLOP ratio", "time ratio", "share", "memory full MB", "memory MB")
        text = f"Both run in turns. Time ratio over FLOP ratio (*share*) is to be at least {FLOP_SHARE_GOAL:.0%}."
        parts += ["## Sparse against our own full step", text, table(head, rows)]
    return parts


def _summary_row(one: Comparison) -> Sequence[str]:
    mine, best = one.side(OURS), one.fastest_other()
    assert mine is not None
    goal = GOALS.get(one.plan, {}).get(one.workload)
    channels_last = one.side(CHANNELS_LAST)
    memory = f"{mine.peak_rss_bytes / channels_last.peak_rss_bytes:.2f}" if channels_last else "-"
    return (
        one.workload,
        f"{mine.median_ms:.1f}",
        best.name if best else "-",
        f"{best.median_ms:.1f}" if best else "-",
        _ratio(best, mine),
        f"{goal:.1f}x" if goal else "-",
        _ratio(one.side(PLAIN), mine),
        memory,
    )


def _plan_rows(comparisons: Sequence[Comparison]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for one in comparisons:
        mine, whole = one.side(OURS), one.side(OURS_FULL)
        if mine is None or whole is None:
            continue
        work, (time, low, high) = whole.flops / mine.flops, ratio_of(whole, mine)
        sizes = (f"{whole.peak_rss_bytes / 1e6:.0f}", f"{mine.peak_rss_bytes / 1e6:.0f}")
        flops = (f"{whole.flops / 1e9:.2f}", f"{mine.flops / 1e9:.2f}", f"{work:.2f}x")
        times = (f"{time:.2f}x [{low:.2f}, {high:.2f}]", f"{time / work:.0%}")
        rows.append((one.workload, one.plan, *flops, *times, *sizes))
    return rows


def _details(comparisons: Sequence[Comparison]) -> list[str]:
    parts = ["## Every side"]
    for one in comparisons:
        mine = one.side(OURS)
        head = ("", "median ms", "quartiles", "samples/s", "/ ours", "memory MB", "start s", "loss difference")
        rows = [_detail_row(one, side, mine) for side in one.sides if side.rounds_ms]
        rounds = max((len(side.rounds_ms) for side in one.sides), default=0)
        built = f", built in {mine.build_s:.0f} s" if mine else ""
        parts += [
            f"### {one.workload}, {one.plan}",
            f"{rounds} rounds, {one.threads} threads{built}, {one.finished_at}.",
        ]
        parts.append(table(head, rows))
        failed = [f"- {side.name} does not run: `{side.error}`" for side in one.sides if not side.rounds_ms]
        failed += [f"- **{side.name} did other work than we did**" for side in one.differing()]
        missing = [name for name in NAMES if name != OURS_FULL and name not in {side.name for side in one.sides}]
        failed += [f"- Not compared here: {', '.join(missing)}"] if missing else []
        parts += ["\n".join(failed)] if failed else []
    return parts


def _detail_row(one: Comparison, side: SideResult, mine: SideResult | None) -> Sequence[str]:
    low, high = side.quartiles_ms()
    difference = "-" if side.loss_difference is None else f"{side.loss_difference:.1e}"
    return (
        side.name,
        f"{side.median_ms:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{one.batch / side.median_ms * 1e3:.1f}",
        _ratio(side, mine) if mine is not None and side is not mine else "",
        f"{side.peak_rss_bytes / 1e6:.0f}",
        f"{side.start_ms / 1e3:.2f}",
        difference,
    )


def _roofline_parts(rooflines: Sequence[Roofline]) -> list[str]:
    """Limits, totals of families, and every kernel below half of its bound."""
    parts = [
        "## Roofline of our kernels",
        "A kernel's bound is the longer of its arithmetic at the multiply-add peak and its operands (each once) at the "
        "bandwidth of memory, both measured in the same run. Operands that stay in a cache can beat it, so more than "
        f"100% is no error. *of cache bound* holds the traffic against the cache that would hold it. Kernels below "
        f"{GOAL:.0%} are listed with the class of reason that their figures show.",
    ]
    for one in rooflines:
        peak, memory = one.limits.fma_gflop_s[one.threads], one.limits.memory_gb_s
        parts.append(f"### {one.workload}, {one.plan}")
        parts.append(
            f"Step {one.step_ms:.1f} ms on {one.threads} threads; limits {peak:.0f} GFLOP/s, {memory:.1f} GB/s memory, "
            f"{one.limits.cache_gb_s(8 << 20):.0f} GB/s at 8 MB."
        )
        head = ("family", "phase", "calls", "ms", "GFLOP/s", "GB/s", "of bound")
        rows = [
            (f.family, f.phase, f"{f.calls}", f"{f.ms:.2f}", f"{f.gflop_s:.1f}", f"{f.gb_s:.1f}", f"{f.fraction:.0%}")
            for f in by_family(one.positions)
        ]
        parts += [table(head, rows), _below(one)]
    return parts


def _below(one: Roofline) -> str:
    """Kernels below the goal: by class of reason, then the worst by name."""
    below = one.below_goal()
    if not below:
        return f"No kernel is below {GOAL:.0%} of its bound."
    classes: dict[str, list[Position]] = defaultdict(list)
    for position in below:
        classes[position.reason.partition(":")[0]].append(position)
    lines = [f"{len(below)} of {len(one.positions)} kernels are below {GOAL:.0%} of their bound:", ""]
    for name, members in sorted(classes.items(), key=lambda item: -sum(p.lost_us for p in item[1])):
        lost_ms = sum(position.lost_us for position in members) / 1e3
        lines.append(f"- *{name}*: {len(members)} kernels, {lost_ms:.2f} ms beyond their bounds")
    head = ("kernel", "us", "GFLOP/s", "GB/s", "of bound", "of cache bound", "why")
    named = [position for position in below if not position.reason.startswith("launch")][:WORST]
    return "\n".join(lines) + ("\n\n" + table(head, [_kernel_row(position) for position in named]) if named else "")


def _kernel_row(position: Position) -> Sequence[str]:
    kernel = position.kernel
    return (
        f"{kernel.family} {kernel.name} ({kernel.phase})",
        f"{kernel.us:.0f}",
        f"{kernel.flops / kernel.us / 1e3:.1f}",
        f"{kernel.moved_bytes / kernel.us / 1e3:.1f}",
        f"{position.fraction:.0%} {position.bound}",
        f"{position.cache_fraction:.0%}",
        position.reason,
    )


def _scaling_parts(found: scaling.Scaling) -> list[str]:
    rows = []
    for name, values in found.threads.items():
        most = max(values)
        rows.append((name, f"{values[1]:.1f}", f"{values[most]:.1f}", f"{values[1] / values[most]:.2f}x"))
    most = max(max(values) for values in found.threads.values())
    machine = json.loads(scaling.PATH.read_text())["machine"]
    return [
        "## Scaling of our step",
        _machine(machine),
        table(("", "1 thread ms", f"{most} threads ms", "speed-up"), rows),
        "![Cost per sample against the batch](benchmarks/batch.svg)",
        "![Cost of a step against the depth that trains](benchmarks/depth.svg)",
    ]
