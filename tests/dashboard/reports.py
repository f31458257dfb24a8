"""Whole reports with noise of the kind that machines have. Synthetic and deterministic."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace

from device_agents.figures.rounds import LOOKS, order_of
from device_agents.measure.measurement import measure
from device_agents.wire import (
    Block,
    ComparedProcess,
    Comparison,
    DeviceState,
    Energy,
    Evaluation,
    KernelTime,
    MeasurementClass,
    Memory,
    Mode,
    Outcome,
    Report,
    Sustained,
    SustainedWindow,
    Training,
    Validation,
    Verdict,
    VerdictKind,
    best_step,
)
from service.store.database.models import Bundle

MIB = 1 << 20
WARMUP, TRANSFER_S = 10, 0.8
LOOKS_AT, LOOK_EACH_S = 90, 0.2
"""How often a device was looked at: so many times in a run that lasts, and no more often than that."""


def sample_report(
    run_id: str,
    device_id: str,
    bundle: Bundle,
    *,
    mode: Mode,
    median_us: float,
    seed: int,
    verdict: VerdictKind = "valid",
    measurement_class: MeasurementClass = "host",
    steps: int = 120,
    blocks: int = 5,
    batch: int = 8,
    losses: bool = False,
    stops_early: bool = False,
    accuracy: tuple[float, float] | None = None,
    sensors: bool = True,
    energy: bool = False,
    at: float | None = None,
) -> Report:
    """A whole report with noise of the kind that machines have."""
    dice = random.Random(seed)
    spread = 0.012 if verdict == "valid" else 0.09
    per_block = max(1, steps // blocks)
    block_list = []
    for number in range(blocks):
        centre = median_us * (1 + dice.gauss(0, spread / 3) + (0.05 * number if verdict == "throttled" else 0))
        step_us = tuple(
            round(centre * (1 + abs(dice.gauss(0, spread)) + (dice.random() < 0.02) * dice.random()), 1)
            for _ in range(per_block)
        )
        block_list.append(Block(step_us=step_us, load_us=median_us * (9 if number == 0 else 2.5), cold=number == 0))
    measured = measure(block_list, batch=batch, warmup_steps=WARMUP, threads=2)
    middle = measured.median_us
    start = at or time.time()
    run_s = sum((block.load_us or 0.0) + WARMUP * middle + sum(block.step_us) for block in block_list) / 1e6
    memory = bundle.manifest["memory"]
    curve = tuple(round(2.302 * 0.9 ** (i / 12) + 0.08 + abs(dice.gauss(0, 0.05)), 5) for i in range(steps))
    return Report(
        run_id=run_id,
        attempt=1,
        device_id=device_id,
        bundle_digest=bundle.digest,
        mode=mode,
        outcome=Outcome("succeeded"),
        measurement_class=measurement_class,
        started_at=start,
        finished_at=start + TRANSFER_S + run_s + 1,
        transfer_s=TRANSFER_S,
        run_s=run_s,
        measurement=measured,
        kernels=_kernel_times(bundle, middle, dice),
        losses=curve if losses else (),
        training=_stopped_early(curve, dice) if stops_early else None,
        evaluation_before=Evaluation(898, 2.31, accuracy[0]) if accuracy else None,
        evaluation_after=Evaluation(898, 0.21 + dice.random() / 50, accuracy[1]) if accuracy else None,
        memory=Memory(
            memory["arena_bytes"],
            memory["weights_bytes"],
            memory["optimizer_bytes"],
            memory["peak_bytes"] + 3 * MIB,
            None,
        ),
        energy=Energy(middle / 1000 * 4.1 * steps, middle / 1000 * 4.1, "ina3221 VDD_IN") if energy else None,
        device_states=_states(start, TRANSFER_S + run_s, dice, sensors, verdict == "throttled"),
        verdict=_verdict(verdict),
        isolation_level=3,
        environment={"governor": "performance", "kernel": "6.1.0-28", "power_mode": "default", "python": "3.11.2"},
    )


def compared(report: Report, bundles: Sequence[str], factors: Sequence[float]) -> Report:
    """The report of bundles that took turns, which take so many times as long as the report's."""
    assert report.measurement is not None
    dice, processes = random.Random(3), []
    for number in range(LOOKS[1]):
        for which in order_of(number, bundles=len(bundles), seed=7):
            us = report.measurement.median_us * factors[which] * (1 + abs(dice.gauss(0, 0.004)))
            processes.append(ComparedProcess(which, tuple(us * (1 + abs(dice.gauss(0, 0.002))) for _ in range(24))))
    found = Comparison(tuple(bundles), 20, tuple(processes), "known", (2,) * len(bundles), LOOKS[-1])
    run_s = sum(2.5 * max(one.step_us) + sum(one.step_us) for one in processes) / 1e6
    states = _states(report.started_at, TRANSFER_S + run_s, dice, False, False)
    finished_at = report.started_at + TRANSFER_S + run_s + 1
    return replace(
        report,
        run_s=run_s,
        finished_at=finished_at,
        device_states=states,
        mode="compare",
        measurement=None,
        verdict=None,
        kernels=(),
        energy=None,
        comparison=found,
    )


def sustained(report: Report, *, onset: int = 230, factor: float = 1.19) -> Report:
    """The report of a run of ten minutes whose board slows down, and says so."""
    assert report.measurement is not None
    dice, windows, level = random.Random(5), [], 0.0
    for number in range(600):
        level = 0.7 * level + dice.gauss(0, 0.002)
        warmth = 1 - math.exp(-max(0, number - onset) / 12)
        us = report.measurement.median_us * (1 + (factor - 1) * warmth) * math.exp(level) * (1.3 if number < 2 else 1)
        p90_us = us * (1.02 + abs(dice.gauss(0, 0.01)) + (dice.random() < 0.02) * dice.random())
        windows.append(SustainedWindow(max(1, int(0.97e6 / us)), us, p90_us))
    states = tuple(
        DeviceState(
            report.started_at + 2 + 2 * at,
            52 + min(30, at / 4),
            1.8e9 if 2 * at < onset else 1.5e9,
            2 * at >= onset - 4,
            None,
            0.02,
        )
        for at in range(300)
    )
    summary = Sustained(
        1.0,
        tuple(windows),
        sum(window.steps for window in windows),
        report.measurement.batch,
        2,
        report.started_at + 1,
        "time",
    )
    return replace(
        report,
        mode="sustained",
        measurement=None,
        verdict=None,
        kernels=(),
        energy=None,
        run_s=604.0,
        finished_at=report.started_at + 606,
        device_states=states,
        sustained=summary,
    )


def _stopped_early(losses: Sequence[float], dice: random.Random) -> Training:
    """Ten validations, of which the sixth is the best; a cosine schedule with a warm-up."""
    steps, every = len(losses), len(losses) // 10
    marks = [*range(every, 10 * every, every), steps]
    rise = [0.09 + 0.06 * max(0, number - 5) ** 1.4 + dice.random() / 90 for number in range(10)]
    validations = tuple(
        Validation(step, 180, round(losses[step - 1] + rise[number], 5), min(0.97, 0.4 + 0.1 * number))
        for number, step in enumerate(marks)
    )
    rates = tuple(0.05 * min(1.0, step / 20) * (1 + math.cos(math.pi * step / 400)) / 2 for step in range(steps))
    best = best_step(validations)
    return Training("stopped_early", steps, "", rates, validations, best, best)


def _verdict(kind: VerdictKind) -> Verdict:
    rules: dict[VerdictKind, str] = {
        "valid": "CV within blocks 1.2% ≤ 5%, between blocks 0.4% ≤ 3%, no throttling, other load 0.02 cores",
        "noisy": "CV within blocks 9.0% is above the limit of 5%",
        "throttled": "the board reported throttling in 31 of 120 samples (limit 0)",
    }
    return Verdict(kind, rules[kind])


def _kernel_times(bundle: Bundle, step_us: float, dice: random.Random) -> tuple[KernelTime, ...]:
    kernels = bundle.manifest["kernels"]
    weights = [(kernel["flops"] / 60 + kernel["bytes_read"] / 2 + 4000) * (0.7 + dice.random()) for kernel in kernels]
    scale = 0.97 * step_us / sum(weights)
    return tuple(
        KernelTime(
            index,
            kernel["name"],
            kernel["phase"],
            round(weight * scale, 2),
            kernel["flops"],
            kernel["bytes_read"],
            kernel["bytes_written"],
        )
        for index, (kernel, weight) in enumerate(zip(kernels, weights, strict=True))
    )


def _states(start: float, lasted_s: float, dice: random.Random, sensors: bool, hot: bool) -> tuple[DeviceState, ...]:
    """From the start to the end of what lasted so long."""
    states, count = [], max(2, min(LOOKS_AT, int(lasted_s / LOOK_EACH_S)))
    for index in range(count):
        warm = 47 + (34 if hot else 13) * (1 - 0.96 ** (LOOKS_AT * index / count)) + dice.gauss(0, 0.25)
        states.append(
            DeviceState(
                at=start + lasted_s * index / (count - 1),
                temperature_c=round(warm, 1) if sensors else None,
                frequency_hz=(1.5e9 if not hot or warm < 79 else 1.1e9 + dice.random() * 1e8) if sensors else None,
                throttled=(warm >= 79) if sensors else None,
                load=round(abs(dice.gauss(0.02, 0.015)), 3),
            )
        )
    return tuple(states)
