"""A report as a person reads it: one table row per run, or a page of text for one run.

The curve in a sustained run's report, as rows for a terminal and for Markdown.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from device_agents.figures.comparison import ENDS
from device_agents.figures.digits import rounded, step_time, time_span
from device_agents.figures.one_run import LEAST_BLOCKS, run_interval
from device_agents.figures.sustained import curve_of, format_duration
from device_agents.wire import OF_REAL_BOARDS, REAL_CLASSES, DeviceState, ProtocolError, Sustained, from_json
from pockfarm.output.table import NONE, bytes_text, energy_text, facts_text, figure, loss_text, text_table, time_of
from pockfarm.screen import Meaning, painted
from pockfarm.values import CompileWarning, Json, optional_number, part, parts, text


def curve_medians(report: Json) -> list[float]:
    """The median of each window that has steps, in microseconds; empty of another mode."""
    medians = [window.get("median_us") for window in parts(part(report, "sustained"), "windows")]
    return [float(us) for us in medians if isinstance(us, (int, float))]


def curve_rows(report: Json) -> list[tuple[str, str]]:
    """The step at first and over the last third, whether it slows down, what the board said; empty of another mode."""
    block = part(report, "sustained")
    if not block:
        return []
    try:
        measured = from_json(Sustained, block, "sustained")
        curve = curve_of(measured, [from_json(DeviceState, state) for state in parts(report, "device_states")])
    except ProtocolError as problem:
        return [("curve", f"cannot be read: {problem}")]
    steps, threads = figure(measured.steps, 0), measured.threads
    many = f"{steps} steps in {format_duration(curve.lasted_s)}, batch {measured.batch}, {threads} threads"
    first, sustained = (time_of(us) for us in (curve.first_us, curve.sustained_us))
    return [
        ("step", f"{first} at first, {sustained} sustained; {many}"),
        ("curve", curve.message if measured.ended == "time" else f"{curve.message}; it was ended before"),
        ("board", curve.board_message or "said nothing of throttling or of its clock"),
        ("protocol", measured.protocol),
    ]


CURVE_LEVELS = "▁▂▃▄▅▆▇█"
TABLE_HEADER = (
    "target",
    "class",
    "plan",
    "step",
    "p90",
    "samples/s",
    "arena",
    "peak",
    "energy",
    "bundle",
    "first loss",
    "last loss",
)
"""Units are those that fit. The arena is planned, the peak RSS measured; energy is that of a step."""
SLOWEST_KERNELS = 12


def table_row(report: Json, *, target: str, plan: str, bundle_bytes: int) -> tuple[str, ...]:
    """Returns a row under `TABLE_HEADER`; `-` stands for what was not measured."""
    report = without_played_times(report)
    measurement, memory = part(report, "measurement"), part(report, "memory")
    return (
        target,
        text(report, "measurement_class"),
        plan,
        time_of(optional_number(measurement, "median_us")),
        time_of(optional_number(measurement, "p90_us")),
        rate_text(measurement),
        bytes_text(optional_number(memory, "arena_bytes")),
        bytes_text(optional_number(memory, "peak_rss_bytes")),
        energy_text(optional_number(part(report, "energy"), "per_step_mj")),
        bytes_text(bundle_bytes),
        *(loss_text(loss) for loss in first_and_last(report)),
    )


def rate_text(measurement: Json) -> str:
    """Samples a second, three digits; `-` for none."""
    rate = optional_number(measurement, "samples_per_second")
    return NONE if rate is None else rounded(rate)


def loss_curve(report: Json) -> list[float]:
    """The finite losses of a report, in order."""
    values = report.get("losses")
    return [float(value) for value in values if isinstance(value, (int, float))] if isinstance(values, list) else []


def without_played_times(report: Json) -> Json:
    """As `device_agents.wire.without_played_times`, of a report as JSON."""
    if text(report, "measurement_class") in REAL_CLASSES:
        return report
    results = {name: value for name, value in report.items() if name not in OF_REAL_BOARDS}
    planned = {name: value for name, value in part(report, "memory").items() if not name.endswith("peak_rss_bytes")}
    return {**results, "memory": planned}


def first_and_last(report: Json) -> tuple[float | None, float | None]:
    """The losses of the first step and of the last; None where there was none, or it was not finite."""
    values = report.get("losses")
    if not isinstance(values, list) or not values:
        return None, None
    first, last = (float(value) if isinstance(value, (int, float)) else None for value in (values[0], values[-1]))
    return first, last


def curve_text(values: Sequence[float], width: int = 40) -> str:
    """A curve drawn with block characters, each the mean of its share of the values."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in zip(edges, edges[1:])]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(CURVE_LEVELS[round((mean - low) / span * (len(CURVE_LEVELS) - 1))] for mean in means)


def report_text(report: Json, *, with_kernels: bool = False) -> str:
    """A run's report on one screen."""
    report = without_played_times(report)
    text = facts_text(_facts(report))
    return f"{text}\n\n{kernel_table(report)}" if with_kernels else text


def warnings_text(warnings: Sequence[CompileWarning]) -> str:
    """Returns the warnings that a run's user should read beside its report, a paragraph each; empty without any."""
    return "\n".join(f"{painted('warning:', Meaning.CARE)} {warning}" for warning in warnings)


def kernel_table(report: Json) -> str:
    """The slowest kernels: time of one call, share of the step, GFLOP/s, GB/s."""
    kernels = parts(report, "kernels")
    if not kernels:
        return "no kernel was timed: mode profile does that"
    total = sum(optional_number(kernel, "us") or 0.0 for kernel in kernels) or 1.0
    slowest = sorted(kernels, key=lambda kernel: -(optional_number(kernel, "us") or 0.0))[:SLOWEST_KERNELS]
    rows = []
    for kernel in slowest:
        us = optional_number(kernel, "us") or 0.0
        moved = (optional_number(kernel, "bytes_read") or 0.0) + (optional_number(kernel, "bytes_written") or 0.0)
        rows.append(
            (
                text(kernel, "name"),
                text(kernel, "phase"),
                time_of(us),
                f"{100 * us / total:.1f}%",
                rounded((optional_number(kernel, "flops") or 0.0) / us / 1e3) if us else NONE,
                rounded(moved / us / 1e3) if us else NONE,
            )
        )
    note = f"\n({len(kernels) - len(rows)} more)" if len(kernels) > len(rows) else ""
    return text_table(("kernel", "phase", "time", "share", "GFLOP/s", "GB/s"), rows) + note


def memory_text(memory: Json) -> str:
    """Returns the memory that a step takes, by a manifest: the arena beside the bound that no packing can go below."""
    arena, bound = optional_number(memory, "arena_bytes") or 0.0, optional_number(memory, "bound_bytes") or 0.0
    gap = f" (bound {bytes_text(bound)}, gap {arena / bound - 1:.2%})" if bound else ""
    state = (f"{name} {bytes_text(optional_number(memory, f'{name}_bytes'))}" for name in ("weights", "optimizer"))
    peak = bytes_text(optional_number(memory, "peak_bytes"))
    return f"memory {peak}: arena {bytes_text(arena)}{gap}, {', '.join(state)}"


def evaluation_text(report: Json, name: str) -> str:
    """`evaluation_before` or `evaluation_after` in words; empty if there was none."""
    evaluation = part(report, name)
    if not evaluation:
        return ""
    accuracy = optional_number(evaluation, "accuracy")
    words = f"loss {loss_text(optional_number(evaluation, 'loss'))}"
    return words if accuracy is None else f"{words}, accuracy {accuracy:.1%}"


def measured_step(measured: Json) -> str:
    """The median with its interval, made here of the blocks; and why there is none."""
    medians = [statistics.median(times) for block in parts(measured, "blocks") if (times := _times(block))]
    median_us, interval = optional_number(measured, "median_us"), run_interval(medians)
    if median_us is None or interval is None:
        return f"{time_of(median_us)} (no interval: {len(medians)} of {LEAST_BLOCKS} blocks)"
    return f"{step_time(median_us)} (95%: {time_span(median_us, interval)})"


def _times(block: Json) -> list[float]:
    times = block.get("step_us")
    return [float(us) for us in times if isinstance(us, (int, float))] if isinstance(times, list) else []


def training_text(report: Json) -> str:
    """Returns the outcome of the training, and the step that the weights are of; empty for other modes."""
    training = part(report, "training")
    if not training:
        return ""
    outcome, steps = text(training, "outcome"), optional_number(training, "steps")
    words = f"{outcome.replace('_', ' ')} {'at' if outcome == 'diverged' else 'after'} step {figure(steps, 0)}"
    if text(training, "reason"):
        words += f": {text(training, 'reason')}"
    weights_step = optional_number(training, "weights_step")
    return (
        f"{words}; weights of step {figure(weights_step, 0)}"
        if weights_step is not None
        else f"{words}; no weights are left"
    )


def validation_text(report: Json) -> str:
    """First, best and last loss of the validations; empty without one."""
    validations = parts(part(report, "training"), "validations")
    losses = [optional_number(validation, "loss") or 0.0 for validation in validations]
    if not losses:
        return ""
    best = losses.index(min(losses))
    at = figure(optional_number(validations[best], "step"), 0)
    first, last, least = map(loss_text, (losses[0], losses[-1], losses[best]))
    return f"{first} -> {last}, best {least} after step {at}  {curve_text(losses)}"


def _why_no_times(report: Json) -> str:
    played = text(report, "measurement_class")
    if played in REAL_CLASSES or text(report, "mode") == "eval":
        return ""
    return f"{NONE} (on an {played} board: that it works counts, its times say nothing of a board)"


def is_diverged(report: Json) -> bool:
    """Whether the run trained, and its training diverged."""
    return text(part(report, "training"), "outcome") == "diverged"


def _facts(report: Json) -> list[tuple[str, str]]:
    measurement, memory, verdict = (part(report, name) for name in ("measurement", "memory", "verdict"))
    energy, outcome = part(report, "energy"), part(report, "outcome")
    losses, (first, last) = loss_curve(report), first_and_last(report)
    curve = f"{loss_text(first)} (first step) -> {loss_text(last)} (last)  {curve_text(losses)}"
    ending = " ".join(text(outcome, name) for name in ("state", "message")).strip()
    step = (
        f"median {measured_step(measurement)}, "
        f"p90 {time_of(optional_number(measurement, 'p90_us'))}, "
        f"{rate_text(measurement)} samples/s, "
        f"batch {figure(optional_number(measurement, 'batch'), 0)}, "
        f"{figure(optional_number(measurement, 'threads'), 0)} threads"
    )
    planned = (
        f"planned arena {bytes_text(optional_number(memory, 'arena_bytes'))}, "
        f"weights {bytes_text(optional_number(memory, 'weights_bytes'))}, "
        f"optimizer {bytes_text(optional_number(memory, 'optimizer_bytes'))}; "
        f"measured peak {bytes_text(optional_number(memory, 'peak_rss_bytes'))}"
    )
    return [
        ("outcome", ending),
        ("class", text(report, "measurement_class")),
        ("step", step if measurement else _why_no_times(report)),
        *curve_rows(report),
        ("medians", curve_text(curve_medians(report))),
        ("training", training_text(report)),
        ("verdict", f"{text(verdict, 'kind')}: {text(verdict, 'rule')}" if verdict else ""),
        ("memory", planned if memory else ""),
        (
            "energy",
            f"{energy_text(optional_number(energy, 'per_step_mj'))} per step" if energy else f"{NONE} (no sensor)",
        ),
        ("loss", curve if losses else ""),
        ("validation", validation_text(report)),
        ("before", evaluation_text(report, "evaluation_before")),
        ("after", evaluation_text(report, "evaluation_after")),
    ]


def comparison_text(comparison: Json, names: Sequence[str]) -> str:
    """Bundles that took turns, a row for each; then how many rounds, and what they could find."""
    rows = []
    for name, row in zip(names, parts(comparison, "bundles")):
        rows.append((name, time_of(optional_number(row, "median_us")), text(row, "message") or "the first"))
    rounds, ending = optional_number(comparison, "rounds"), text(comparison, "ended")
    lines = [text_table(("bundle", "step", "beside the first"), rows), ""]
    lines.append(f"{figure(rounds, 0)} rounds: {ENDS.get(ending, ending)}")
    least = optional_number(comparison, "detectable")
    if least is not None:
        lines.append(f"foreseen: a difference of {least:.2%} is found nineteen times of twenty")
    return "\n".join(lines)


def comparison_rows(comparison: Json) -> list[tuple[str, str]]:
    """Returns a row for each bundle of a farm's comparison: its name, and its step beside the first one's."""
    rows = []
    for name, row in zip(names_of(comparison), parts(comparison, "bundles")):
        verdict = text(row, "message")
        rows.append((name, f"{time_of(optional_number(row, 'median_us'))}{verdict and f', {verdict}'}"))
    return rows


def names_of(comparison: Json) -> list[str]:
    """Returns the names of the bundles of a farm's comparison: model, plan and the beginning of the digest."""
    return [
        f"{text(row, 'model_name')} {text(row, 'plan_name')} {text(row, 'bundle_digest')[7:15]}"
        for row in parts(comparison, "bundles")
    ]


def tuning_text(report: Json) -> str:
    """Returns the measurements of a tuning run: a row per kernel, and how much the winners save in a step."""
    kernels = parts(part(report, "tuning"), "kernels")
    if not kernels:
        return "nothing was measured in the time given"
    rows, before_us, after_us = [], 0.0, 0.0
    for kernel in kernels:
        times = {
            text(variant, "choice"): optional_number(variant, "median_us") or 0.0
            for variant in parts(kernel, "variants")
        }
        winner, calls = text(kernel, "winner"), optional_number(kernel, "calls") or 0.0
        before_us, after_us = before_us + calls * times.get("", 0.0), after_us + calls * times.get(winner, 0.0)
        figures = (figure(calls, 0), str(len(times)), time_of(times.get("")), time_of(times.get(winner)))
        rows.append((text(kernel, "name"), *figures, winner or "default"))
    header = ("kernel", "calls", "schedules", "by default", "with winner", "winner")
    saved = f"these calls of a step: {time_of(before_us)} by default, {time_of(after_us)} with winners"
    return f"{text_table(header, rows)}\n\n{saved}"
