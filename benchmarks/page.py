"""Writes `docs/benchmarks`: a page for each kind of machine, of the figures in its folder, and an index of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

from benchmarks import compiling, roofline, scaling, summary
from benchmarks.compare import Comparison, SideResult, load, ratio_of
from benchmarks.markdown import ratio, table
from benchmarks.models import WORKLOADS
from benchmarks.prepare import PLANS
from benchmarks.results import INDEX, Results
from benchmarks.roofline import GOAL, Position, Roofline, by_family
from benchmarks.sides import NAMES, OPTIONAL, OURS

WORST = 12
PLOTS = {"batch.svg": scaling.batch_plot, "depth.svg": scaling.depth_plot}
KERNELS = "kernels.md"
READING = """\
Made by `make bench` (`python -m benchmarks`); the raw figures are in `docs/benchmarks/figures`. Every side trains the
same exported weights on the same batch with the same plan, on the same cores, each in its own process; the processes
take turns, and the ones that wait are stopped. A turn's median divided by ours of the same round is one pair; the
tables show the median of the pairs with a 95% bootstrap interval. Absolute times drift: compare within a table only.

- Norms are folded into convolutions on every side. The optimizer is SGD with momentum (fused in PyTorch, except in
  *plain*); ONNX Runtime's SGD has no momentum, so it does a little less.
- *tuned* and all but *plain* and *channels-last*: glibc is told to keep freed memory. TensorFlow and JAX run functions
  built from the exported model's operators, NHWC; ONNX Runtime trains the exported file itself.
- *loss difference*: the largest relative difference from our losses over the first five steps (two for ONNX Runtime);
  sides in bfloat16, ours too, are held against our f32.
- *start*: from starting the process to the end of its first step, compiling included for frameworks that compile there;
  ours is compiled before (*built*, with a warm or cold kernel cache as the run found it).
- A side that takes more than three times as long as the fastest gets one turn.
- *memory*: the process's peak resident size.
- `full` trains everything. `sparse` trains, in convolutional nets, the biases and the first point-wise convolution of
  the last blocks, in transformers the attention and first feed-forward layers of the last half of the blocks; and the
  classifier."""


INDEX_TEXT = """\
Our training step beside every framework, same weights, data, plan and cores, in turns of one run: `make bench`. Times
of two machines tell nothing of each other, so that each kind of machine has a page of its own with what was measured
there: every framework, memory, start, compiling, and our kernels against the machine's roofline. Below, what each holds
against the goals. Steps on a GPU have [a page of their own](gpu.md)."""


def write_all(kinds: Sequence[str]) -> None:
    """The pages of all kinds of machines, and the index with their goals."""
    parts = ["# Benchmarks", INDEX_TEXT]
    for kind in kinds:
        results = Results.published(kind)
        comparisons, rooflines = write(results)
        parts.append(f"## [{kind}]({results.page.name})")
        if comparisons:
            parts += [_machine(comparisons[-1].machine), _how_many(len(comparisons))]
            parts += summary.speed(comparisons, _shares(rooflines))[1:]  # under the machine's heading
        else:
            parts.append("Only compiling, or our own kernels, were measured there.")
    INDEX.write_text("\n\n".join(parts) + "\n")


def write(results: Results) -> tuple[list[Comparison], list[Roofline]]:
    """Write a page, its plots and its lists, and return what they are of. What was not measured is left out."""
    comparisons = [load(path) for path in results.comparisons()]
    rooflines = [roofline.load(path) for path in results.rooflines()]
    parts = [f"# {results.title}", READING]
    if comparisons:
        parts += [_machine(comparisons[-1].machine), _how_many(len(comparisons))]
        parts += _goals(comparisons, _shares(rooflines))
    if results.scaling.exists():
        parts += ["## Scaling of our step", _machine(json.loads(results.scaling.read_text())["machine"])]
        parts += summary.scaling(scaling.load(results.scaling), *(results.beside(name).name for name in PLOTS))
    if results.compiling.exists():
        parts += summary.compiling(compiling.load(results.compiling))
    parts += _roofline_parts(rooflines, results.beside(KERNELS).name) if rooflines else []
    parts += _details(comparisons) if comparisons else []
    results.page.parent.mkdir(parents=True, exist_ok=True)
    results.page.write_text("\n\n".join(parts) + "\n")
    _write_beside(results, rooflines)
    print(f"{results.page}: {len(comparisons)} comparisons, {len(rooflines)} rooflines", flush=True)
    return comparisons, rooflines


def _shares(rooflines: Sequence[Roofline]) -> summary.Shares:
    return {(one.workload, one.plan): one.share for one in rooflines}


def _write_beside(results: Results, rooflines: Sequence[Roofline]) -> None:
    """Plots, and every kernel below its goal."""
    if results.scaling.exists():
        found = scaling.load(results.scaling)
        for name, plot in PLOTS.items():
            results.beside(name).write_text(plot(found))
    if rooflines:
        text = "\n\n".join([f"# Kernels below their goal: {results.page.stem}", *map(_kernels, rooflines)])
        results.beside(KERNELS).write_text(f"{text}\n")


def _goals(comparisons: Sequence[Comparison], shares: summary.Shares) -> list[str]:
    return [
        *summary.speed(comparisons, shares),
        *summary.frameworks(comparisons),
        *summary.halves(comparisons),
        *summary.plans(comparisons),
        *summary.memory(comparisons),
        *summary.start(comparisons),
        *summary.tuning(comparisons),
    ]


def _machine(machine: Mapping[str, object]) -> str:
    memory_gib = int(str(machine["memory_bytes"])) / 2**30
    able = f" ({machine['instructions']})" if "instructions" in machine else ""
    return f"Machine: {machine['cpu']}{able}, {machine['cores']} cores, {memory_gib:.0f} GiB, {machine['system']}."


def _how_many(measured: int) -> str:
    """What a reader misses below is not measured, and nothing else."""
    return (
        f"Measured so far: {measured} of the {len(WORKLOADS) * len(PLANS)} pairs of a workload and a plan; "
        "`python -m benchmarks --left` lists the others."
    )


def _details(comparisons: Sequence[Comparison]) -> list[str]:
    parts = ["## Every side"]
    for one in comparisons:
        mine, commit = one.side(OURS), one.machine.get("commit")
        when = f"{one.finished_at} at commit {commit}" if commit else one.finished_at
        head = ("", "median ms", "quartiles", "samples/s", "/ ours", "memory MB", "start s", "loss difference")
        rows = [_detail_row(one, side, mine) for side in one.sides if side.rounds_ms]
        rounds = max((len(side.rounds_ms) for side in one.sides), default=0)
        built = f", built in {mine.build_s:.0f} s" if mine else ""
        parts += [
            f"### {one.workload}, {one.plan}",
            f"{rounds} rounds, {one.threads} threads{built}, {when}.",
        ]
        parts.append(table(head, rows))
        failed = [f"- {side.name} does not run: `{side.error}`" for side in one.sides if not side.rounds_ms]
        failed += [f"- **{side.name} did other work than we did**" for side in one.differing()]
        missing = [name for name in NAMES if name not in OPTIONAL and name not in {side.name for side in one.sides}]
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
        ratio(ratio_of(side, mine)) if mine is not None and side is not mine else "",
        f"{side.peak_rss_bytes / 1e6:.0f}",
        f"{side.start_ms / 1e3:.2f}",
        difference,
    )


def _roofline_parts(rooflines: Sequence[Roofline], kernels: str) -> list[str]:
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
            f"Step {one.step_ms:.1f} ms on {one.threads} threads, {one.share:.0%} of its roofline; limits {peak:.0f} "
            f"GFLOP/s, {memory:.1f} GB/s memory, {one.limits.cache_gb_s(8 << 20):.0f} GB/s at 8 MB."
        )
        head = ("family", "phase", "calls", "ms", "GFLOP/s", "GB/s", "of bound")
        rows = [
            (f.family, f.phase, f"{f.calls}", f"{f.ms:.2f}", f"{f.gflop_s:.1f}", f"{f.gb_s:.1f}", f"{f.fraction:.0%}")
            for f in by_family(one.positions)
        ]
        parts += [table(head, rows), _below(one, kernels)]
    return parts


def _below(one: Roofline, kernels: str) -> str:
    """Kernels below the goal: by class of reason, then the worst by name."""
    below = one.below_goal()
    if not below:
        return f"No kernel is below {GOAL:.0%} of its bound."
    classes: dict[str, list[Position]] = defaultdict(list)
    for position in below:
        classes[position.reason.partition(":")[0]].append(position)
    lines = [
        f"{len(below)} of {len(one.positions)} kernels are below {GOAL:.0%} of their bound "
        f"([each with its reason]({kernels})):",
        "",
    ]
    for name, members in sorted(classes.items(), key=lambda item: -sum(p.lost_us for p in item[1])):
        lost_ms = sum(position.lost_us for position in members) / 1e3
        lines.append(f"- *{name}*: {len(members)} kernels, {lost_ms:.2f} ms beyond their bounds")
    named = [position for position in below if not position.reason.startswith("launch")][:WORST]
    return "\n".join(lines) + ("\n\n" + _kernel_table(named) if named else "")


def _kernels(one: Roofline) -> str:
    """Every kernel of one step that is below its goal, and why."""
    title = f"## {one.workload}, {one.plan}"
    below = one.below_goal()
    return f"{title}\n\n" + (_kernel_table(below) if below else f"No kernel is below {GOAL:.0%} of its bound.")


def _kernel_table(positions: Sequence[Position]) -> str:
    head = ("kernel", "us", "GFLOP/s", "GB/s", "of bound", "of cache bound", "why")
    return table(head, [_kernel_row(position) for position in positions])


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
