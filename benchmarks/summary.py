"""The tables that hold our figures against the goals, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks import goals
from benchmarks.compare import Comparison, SideResult, ratio_of
from benchmarks.compiling import Compilation
from benchmarks.goals import CHANNELS_LAST, PLAIN, PlanRatio, at_least, at_most, verdict
from benchmarks.held_out import WORKLOADS as HELD_OUT
from benchmarks.markdown import ratio, table
from benchmarks.prepare import PLANS
from benchmarks.scaling import Scaling
from benchmarks.sides import OURS, OURS_BF16, OURS_TUNED

FRAMEWORKS: Mapping[str, tuple[str, ...]] = {
    "PyTorch": (PLAIN, CHANNELS_LAST, "PyTorch tuned"),
    **{name: (name,) for name in ("torch.compile", "TensorFlow", "JAX", "ONNX Runtime")},
}
"""The variants of each."""


Shares = Mapping[tuple[str, str], float]
"""Of the machine's roofline, by workload and plan."""


def speed(comparisons: Sequence[Comparison], shares: Shares) -> list[str]:
    """Tables per plan: ours against the fastest variant of any framework and against plain eager PyTorch."""
    parts = [
        "## Against the fastest framework",
        "All in f32. *of roofline*: the sum of the kernels' bounds over the time of the step, both of one run (below); "
        "where both have a goal, either is enough. Nothing was tuned on what is held out.",
    ]
    for plan in PLANS:
        of_plan = [one for one in comparisons if one.plan == plan]
        for title, held_out in ((plan, False), (f"{plan}, held out", True)):
            chosen = [one for one in of_plan if (one.workload in HELD_OUT) == held_out]
            rows = [_speed_row(one, mine, shares) for one in chosen if (mine := one.side(OURS))]
            parts += [f"### {title}", table(_SPEED_HEAD, rows)] if rows else []
    return parts


_SPEED_HEAD = ("", "ours ms", "fastest other", "ms", "ratio", "goal", "of roofline", "goal", "", PLAIN, "goal", "")


def _speed_row(one: Comparison, mine: SideResult, shares: Shares) -> Sequence[str]:
    best, plain = one.fastest_other(), one.side(PLAIN)
    goal = goals.FASTER.get(one.plan, {}).get(one.workload)
    share, share_goal = shares.get((one.workload, one.plan)), goals.OR_ROOFLINE.get((one.workload, one.plan))
    plain_goal = goals.FASTER_THAN_PLAIN.get((one.workload, one.plan))
    to_best = ratio_of(best, mine) if best else None
    to_plain = ratio_of(plain, mine) if plain else None
    return (
        one.workload,
        f"{mine.median_ms:.1f}",
        best.name if best else "-",
        f"{best.median_ms:.1f}" if best else "-",
        ratio(to_best),
        _times(goal),
        _percent(share),
        _percent(share_goal),
        goals.speed_verdict(one.workload, one.plan, to_best[0] if to_best else None, share),
        ratio(to_plain),
        _times(plain_goal),
        at_least(to_plain[0] if to_plain else None, plain_goal),
    )


def _times(goal: float | None) -> str:
    return f"{goal:g}x" if goal is not None else ""


def _percent(share: float | None) -> str:
    return f"{share:.0%}" if share is not None else ""


def frameworks(comparisons: Sequence[Comparison]) -> list[str]:
    """The best f32 variant of each framework over ours, a row for each workload and plan."""
    rows = [_framework_row(one, mine) for one in comparisons if (mine := one.side(OURS))]
    text = (
        "Times of the best variant of each framework over ours. *-*: it does not run this, or was not measured; each "
        "comparison below says which."
    )
    return ["## Each framework", text, table(("", "plan", "ours ms", *FRAMEWORKS), rows)] if rows else []


def _framework_row(one: Comparison, mine: SideResult) -> Sequence[str]:
    found = []
    for names in FRAMEWORKS.values():
        best = min((side for side in one.others() if side.name in names), key=lambda side: side.median_ms, default=None)
        found.append(f"{ratio_of(best, mine)[0]:.2f}x" if best else "-")
    return (one.workload, one.plan, f"{mine.median_ms:.1f}", *found)


def halves(comparisons: Sequence[Comparison]) -> list[str]:
    """Our step in bfloat16 beside our own in f32 and the faster of PyTorch's autocast."""
    able = any(one.machine.get("bf16") for one in comparisons)
    rows = [
        _half_row(comparison, ours, half)
        for comparison in comparisons
        if (ours := comparison.side(OURS)) and (half := comparison.side(OURS_BF16))
    ]
    text = (
        "`precision: {compute: bf16, state: f32}` beside our own f32 and PyTorch's `autocast` to bfloat16, "
        f"all in turns of one run. Goals: {goals.FASTER_IN_HALF:g} times as fast as our f32, "
        f"{goals.FASTER_THAN_AUTOCAST:g} times as fast as autocast."
    )
    if not able:
        text += (
            " **This machine has no instructions for bfloat16, so that no goal applies**: numbers are widened, "
            "multiplied in f32 and rounded again, and what is saved is memory. Autocast, many times as slow as f32 "
            "there, takes turns in some of the comparisons only."
        )
    head = (
        "",
        "plan",
        "ours f32 ms",
        "ours bf16 ms",
        "f32 / bf16",
        "",
        "autocast",
        "ms",
        "/ ours bf16",
        "",
        "MB f32",
        "MB bf16",
        "MB autocast",
    )
    return ["## Half precision", text, table(head, rows)] if rows else []


def _half_row(one: Comparison, mine: SideResult, half: SideResult) -> Sequence[str]:
    best = min(one.halves(), key=lambda side: side.median_ms, default=None)
    able = bool(one.machine.get("bf16"))
    own, theirs = ratio_of(mine, half), ratio_of(best, half) if best else None
    return (
        one.workload,
        one.plan,
        f"{mine.median_ms:.1f}",
        f"{half.median_ms:.1f}",
        ratio(own),
        at_least(own[0], goals.FASTER_IN_HALF if able else None),
        best.name.removeprefix("PyTorch ") if best else "-",
        f"{best.median_ms:.1f}" if best else "-",
        ratio(theirs),
        at_least(theirs[0] if theirs else None, goals.FASTER_THAN_AUTOCAST if able else None),
        *(f"{side.peak_rss_bytes / 1e6:.0f}" if side else "-" for side in (mine, half, best)),
    )


def plans(comparisons: Iterable[Comparison]) -> list[str]:
    """Our plans beside our own full step, in time and in work."""
    rows = [_plan_row(one) for one in goals.plan_ratios(comparisons)]
    if not rows:
        return []
    text = (
        "Both take turns in one run. *share*: the ratio of times over the ratio of FLOPs, at least "
        f"{goals.FLOP_SHARE:.0%}; where a ratio of times has a goal of its own, it stands beside it."
    )
    head = ("", "plan", "GFLOP full", "GFLOP", "FLOP ratio", "time ratio", "goal", "share", "")
    return ["## Plans against our own full step", text, table(head, rows)]


def _plan_row(one: PlanRatio) -> Sequence[str]:
    workload, plan = one.one.workload, one.one.plan
    work = (f"{one.full.flops / 1e9:.2f}", f"{one.mine.flops / 1e9:.2f}", f"{one.flops:.2f}x")
    least = _times(goals.PLAN_RATIO.get((workload, plan)))
    return (workload, plan, *work, ratio(one.time), least, f"{one.share:.0%}", verdict(one.met))


def memory(comparisons: Sequence[Comparison]) -> list[str]:
    """Peak resident sizes: the goals, then every comparison."""
    parts = ["## Memory", f"Peak resident size of the process; PyTorch is *{CHANNELS_LAST}*, default allocator."]
    judged = [_memory_goal_row(one) for one in goals.memory_ratios(comparisons)]
    if judged:
        head = ("", "ours", "against", "ours MB", "PyTorch MB", "ratio", "goal", "")
        parts.append(table(head, judged))
    rows = [_memory_row(one, mine) for one in comparisons if (mine := one.side(OURS))]
    head = ("", "plan", "weights and state MB", "ours MB", f"{CHANNELS_LAST} MB", "ratio", "smallest other", "MB")
    return [*parts, table(head, rows)] if rows else []


def _memory_goal_row(one: goals.MemoryRatio) -> Sequence[str]:
    goal = one.goal
    beyond = ", beyond weights and optimizer state" if goal.beyond_state else ""
    sizes = (f"{one.mine_bytes / 1e6:.0f}", f"{one.other_bytes / 1e6:.0f}", f"{one.ratio:.3f}", f"{goal.most:.3f}")
    return (goal.workload + beyond, goal.plan, goal.other_plan, *sizes, at_most(one.ratio, goal.most))


def _memory_row(one: Comparison, mine: SideResult) -> Sequence[str]:
    channels_last = one.side(CHANNELS_LAST)
    smallest = min(one.others(), key=lambda side: side.peak_rss_bytes, default=None)
    return (
        one.workload,
        one.plan,
        f"{mine.state_bytes / 1e6:.0f}",
        f"{mine.peak_rss_bytes / 1e6:.0f}",
        f"{channels_last.peak_rss_bytes / 1e6:.0f}" if channels_last else "-",
        f"{mine.peak_rss_bytes / channels_last.peak_rss_bytes:.2f}" if channels_last else "-",
        smallest.name if smallest else "-",
        f"{smallest.peak_rss_bytes / 1e6:.0f}" if smallest else "-",
    )


def start(comparisons: Iterable[Comparison]) -> list[str]:
    """From starting a process to the end of its first step, under the full plan."""
    rows = [_start_row(one, mine) for one in comparisons if one.plan == "full" and (mine := one.side(OURS))]
    text = "From starting the process to the end of its first step; frameworks import, trace and compile in it."
    head = ("", "ours ms", "goal", "", "quickest other", "ms")
    return ["## Start to first step", text, table(head, rows)] if rows else []


def _start_row(one: Comparison, mine: SideResult) -> Sequence[str]:
    goal = goals.START_MS.get(one.workload)
    quickest = min(one.others(), key=lambda side: side.start_ms, default=None)
    return (
        one.workload,
        f"{mine.start_ms:.0f}",
        f"{goal:.0f}" if goal else "",
        at_most(mine.start_ms, goal),
        quickest.name if quickest else "-",
        f"{quickest.start_ms:.0f}" if quickest else "-",
    )


def tuning(comparisons: Iterable[Comparison]) -> list[str]:
    """Our step with measured schedules beside the default ones."""
    rows = []
    for one in comparisons:
        mine, tuned = one.side(OURS), one.side(OURS_TUNED)
        if mine is not None and tuned is not None:
            times = (f"{mine.median_ms:.1f}", f"{tuned.median_ms:.1f}", ratio(ratio_of(mine, tuned)))
            rows.append((one.workload, one.plan, *times))
    text = "The same step built with the schedules that `pockfarm tune` kept for this machine, in the same turns."
    head = ("", "plan", "default ms", "tuned ms", "default / tuned")
    return ["## Tuned schedules against default ones", text, table(head, rows)] if rows else []


def compiling(found: Sequence[Compilation]) -> list[str]:
    """Times of compiling."""
    rows = [
        (
            one.workload,
            one.plan,
            one.what,
            f"{one.seconds:.1f}",
            f"{one.processor_s:.1f}" if one.processor_s else "",
            f"{one.goal_s:.0f}" if one.goal_s is not None else "",
            at_most(one.seconds, one.goal_s),
        )
        for one in found
    ]
    text = (
        "`pockfarm build` in a process of its own, Python's start included. *cold*: no kernel is cached; the linker's "
        "C library is, as a machine builds it once. *processor*: time of the process and of those it starts, which "
        "other work on the machine changes less."
    )
    return ["## Compiling", text, table(("", "plan", "kernels", "s", "processor s", "goal s", ""), rows)]


def scaling(found: Scaling, batch_plot: str, depth_plot: str) -> list[str]:
    """Threads as a table, batch and depth as plots, files beside the page."""
    rows = []
    for name, values in found.threads.items():
        most, goal = max(values), goals.THREAD_RATIO.get(name)
        gained = values[1] / values[most]
        times = (f"{values[1]:.1f}", f"{values[most]:.1f}", f"{gained:.2f}x", _times(goal))
        rows.append((name, *times, at_least(gained, goal)))
    most = max(max(values) for values in found.threads.values())
    return [
        table(("", "1 thread ms", f"{most} threads ms", "speed-up", "goal", ""), rows),
        f"![Cost per sample against the batch]({batch_plot})",
        f"![Cost of a step against the depth that trains]({depth_plot})",
    ]
