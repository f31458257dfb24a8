"""The request of a run, and the conditions under which it was measured."""

from __future__ import annotations

from typing import Any

from device_agents.figures.one_run import LEAST_BLOCKS
from device_agents.wire import RunSettings, Setting, default_of, settings_of
from service.dashboard import addresses
from service.dashboard import format as fmt
from service.dashboard.facts import RunFacts
from service.dashboard.pages.training import training_facts
from service.dashboard.parts import Fact

SHARES = ("effect",)
"""Settings that are a share of something."""


def request_facts(run: RunFacts) -> tuple[Fact, ...]:
    device = addresses.device(run.device_id) if run.device_id else ""
    start = run.start_weights_digest
    return (
        Fact("Run", run.id),
        Fact("Device", run.device_name or run.wanted or "any that fits", device),
        Fact("Device class", run.device_class or fmt.ABSENT),
        Fact("Mode", run.mode),
        *_settings(run.settings),
        *training_facts(run),
        Fact("Batch", fmt.number(run.batch)),
        *([] if run.mode == "compare" else [Fact("Threads", fmt.number(run.threads))]),
        Fact("Data set", run.dataset_name or "synthetic", hint=run.dataset_digest or ""),
        *_validation_dataset(run),
        Fact("Starts from", fmt.short_digest(start) if start else "the bundle's weights", hint=start or ""),
        Fact("Bundle", fmt.short_digest(run.bundle_digest), addresses.bundle(run.bundle_digest)),
        Fact("Bundle size", fmt.size(run.bundle_bytes)),
        Fact("Created", f"{fmt.clock_seconds(run.created_at)} UTC"),
        Fact("Queued for", fmt.duration(_between(run.created_at, run.started_at))),
        Fact("Took", fmt.duration(_between(run.started_at, run.finished_at))),
    )


def _validation_dataset(run: RunFacts) -> tuple[Fact, ...]:
    digest = run.validation_dataset_digest
    return (Fact("Validated on", run.validation_dataset_name or "", hint=digest),) if digest else ()


def _settings(chosen: RunSettings) -> tuple[Fact, ...]:
    """Returns the settings of its user, as far as the mode takes them; the threads are told as measured."""
    kind = type(chosen)
    return tuple(
        Fact(setting.label, _setting(name, getattr(chosen, name), setting))
        for name, setting in settings_of(kind).items()
        if chosen.mode in setting.modes
        and name != "threads"
        and (setting.is_shown_unset or getattr(chosen, name) != default_of(kind, name))
    )


def _setting(name: str, value: Any, setting: Setting) -> str:
    if value is None:
        value = setting.absent or fmt.ABSENT
    if setting.is_flag:
        return "yes" if value else "no"
    if str(value).replace(".", "", 1).isdigit() and (name in SHARES or setting.metavar == "SECONDS"):
        return fmt.percent(float(value)) if name in SHARES else fmt.duration(float(value))
    return value if isinstance(value, str) else f"{value:,}"


def conditions(run: RunFacts) -> tuple[Fact, ...]:
    report = run.report
    if report is None or report.measurement is None:
        return ()
    measured = report.measurement
    cold = next((block.load_us for block in measured.blocks if block.cold), None)
    return (
        Fact("Protocol", measured.protocol),
        Fact("Counts as", _counts_as(run)),
        Fact("Warm-up", fmt.plural(measured.warmup_steps, "step")),
        Fact("Measured", fmt.plural(len(measured.step_us), "step")),
        Fact("Blocks", fmt.number(len(measured.blocks))),
        Fact("Spread within blocks", fmt.percent(measured.cv_within), hint="Coefficient of variation, median block"),
        Fact("Spread between blocks", fmt.percent(measured.cv_between), hint="Coefficient of variation of medians"),
        Fact("Step p99", fmt.latency(measured.p99_us / 1000)),
        Fact("Step mean", fmt.latency(measured.mean_us / 1000)),
        Fact("Cold load", fmt.latency(fmt.milliseconds(cold))),
        Fact("Transfer", fmt.duration(report.transfer_s)),
        Fact("Isolation level", str(report.isolation_level)),
        *(Fact(f"Board's own limit, {name}", fmt.number(value)) for name, value in (report.own_limits or {}).items()),
        Fact("Peak of its cgroup", fmt.size(report.memory.cgroup_peak_bytes), hint="Counts page cache"),
    )


def _counts_as(run: RunFacts) -> str:
    """Whether it is a benchmark, which a valid profile run of enough blocks is, and else why not."""
    if run.mode != "profile":
        return "no benchmark: another mode"
    if not run.timing_means_something:
        return "no benchmark: its times say nothing of a board"
    if run.verdict != "valid":
        return f"no benchmark: {run.verdict or 'not judged'}"
    return "a benchmark" if run.has_interval else f"no benchmark: fewer than {LEAST_BLOCKS} blocks"


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)
