"""The tables that hold our figures against the goals, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks import goals
from benchmarks.compare import Comparison, SideResult, ratio_of
from benchmarks.compiling import Compilation
from benchmarks.goals import CHANNELS_LAST, PLAIN, PlanRatio, at_least, at_most, verdict
from benchmarks.markdown import ratio, table
from benchmarks.prepare import PLANS
from benchmarks.scaling import Scaling
from benchmarks.sides import OURS, OURS_TUNED


def speed(comparisons: Sequence[Comparison]) -> list[str]:
    """One table per plan: ours against the fastest variant of any framework and against plain eager PyTorch."""
    parts = ["## Against the fastest framework"]
    head = ("", "ours ms", "fastest other", "ms", "ratio", "goal", "", PLAIN, "goal", "")
    for plan in PLANS:
        rows = [_speed_row(one, mine) for one in comparisons if one.plan == plan and (mine := one.side(OURS))]
        parts += [f"### {plan}", table(head, rows)] if rows else []
    return parts


def _speed_row(one: Comparison, mine: SideResult) -> Sequence[str]:
    best, plain = one.fastest_other(), one.side(PLAIN)
    goal = goals.FASTER.get(one.plan, {}).get(one.workload)
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
        at_least(to_best[0] if to_best else None, goal),
        ratio(to_plain),
        _times(plain_goal),
        at_least(to_plain[0] if to_plain else None, plain_goal),
    )


def _times(goal: float | None) -> str:
    return f"{goal:g}x" if goal is not None else ""


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
            f"{one.goal_s:.0f}" if one.goal_s is not None else "",
            at_most(one.seconds, one.goal_s),
        )
        for one in found
    ]
    text = "`pockfarm build` in a process of its own, Python's start included. *cold*: no kernel is cached."
    return ["## Compiling", text, table(("", "plan", "kernels", "s", "goal s", ""), rows)]


def scaling(found: Scaling) -> list[str]:
    """Threads as a table, batch and depth as plots."""
    rows = []
    for name, values in found.threads.items():
        most, goal = max(values), goals.THREAD_RATIO.get(name)
        gained = values[1] / values[most]
        times = (f"{values[1]:.1f}", f"{values[most]:.1f}", f"{gained:.2f}x", _times(goal))
        rows.append((name, *times, at_least(gained, goal)))
    most = max(max(values) for values in found.threads.values())
    return [
        table(("", "1 thread ms", f"{most} threads ms", "speed-up", "goal", ""), rows),
        "![Cost per sample against the batch](benchmarks/batch.svg)",
        "![Cost of a step against the depth that trains](benchmarks/depth.svg)",
    ]
