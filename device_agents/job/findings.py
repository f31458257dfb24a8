"""Findings of a run so far: filled event by event, turned into a report at any moment (also after a failure)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from device_agents.job.comparison import ComparisonFindings
from device_agents.job.output import KeptOutput
from device_agents.job.quota import Throttling
from device_agents.job.sustained import SustainedFindings
from device_agents.job.training import TrainingFindings
from device_agents.measure.energy import EnergyUse
from device_agents.measure.measurement import judge, measure
from device_agents.measure.tuning import Trial, tuned
from device_agents.wire import (
    Block,
    DeviceState,
    Energy,
    Evaluation,
    KernelTime,
    Measurement,
    MeasurementClass,
    Memory,
    Mode,
    Outcome,
    Report,
    Tuning,
    VariantTime,
    Verdict,
)


@dataclass
class Findings:
    """Collected during a run; plain values, no effects."""

    batch: int
    cores: int
    is_emulated: bool = False
    warmup_steps: int = 0
    threads: int = 0
    blocks: list[Block] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    kernels: dict[int, list[KernelTime]] = field(default_factory=dict)
    evaluation_before: Evaluation | None = None
    evaluation_after: Evaluation | None = None
    memory: Memory = field(default_factory=Memory)
    energy_use: EnergyUse | None = None
    states: tuple[DeviceState, ...] = ()
    clock: tuple[tuple[float, float], ...] = ()
    """(when, hertz), of more samples than the states."""
    run_s: float = 0.0
    throttling: Throttling | None = None
    """The throttling by a processor quota; None without one."""
    variants: dict[tuple[int, int], VariantTime] = field(default_factory=dict)
    """The times by (trial, variant), as numbered in the bundle."""
    training: TrainingFindings | None = None
    comparison: ComparisonFindings | None = None
    sustained: SustainedFindings | None = None
    exported: KeptOutput | None = None
    """Parameters only: what is uploaded."""

    def measurement(self) -> Measurement | None:
        blocks = [block for block in self.blocks if block.step_us]
        if not blocks:
            return None
        return measure(blocks, batch=self.batch, warmup_steps=self.warmup_steps, threads=self.threads)

    def verdict(self) -> Verdict | None:
        measurement = self.measurement()
        if measurement is None:
            return None
        if not self.is_emulated and self.throttling is not None and (reason := self.throttling.reason(self.run_s)):
            return Verdict("throttled", reason)
        return judge(measurement, self.states, cores=self.cores, is_emulated=self.is_emulated, clock=self.clock)

    def energy(self) -> Energy | None:
        """Mean power while steps ran, times the median step, or the time for each of those that were sustained."""
        measurement, use = self.measurement(), self.energy_use
        sustained = self.sustained.report() if self.sustained else None
        if use is None or use.total_mj is None or (measurement is None and sustained is None):
            return None
        step_s = measurement.median_us * 1e-6 if measurement else sustained.step_s if sustained else 0.0
        return Energy(use.total_mj, use.total_mj / use.seconds * step_s, use.sensor)

    def kernel_table(self) -> tuple[KernelTime, ...]:
        """Returns a row per kernel: the median over blocks of the time of one call."""
        rows = []
        for index in sorted(self.kernels):
            times = self.kernels[index]
            us = statistics.median(time.us for time in times)
            last = times[-1]
            rows.append(KernelTime(index, last.name, last.phase, us, last.flops, last.bytes_read, last.bytes_written))
        return tuple(rows)

    def tuning(self, trials: Sequence[Trial] | None) -> Tuning | None:
        """Returns the measurements of a tuning bundle's trials; None for another bundle."""
        if trials is None:
            return None
        measured: dict[int, list[VariantTime]] = {}
        for (trial, _), variant in sorted(self.variants.items()):
            measured.setdefault(trial, []).append(variant)
        rows = tuple(tuned(trials[index], variants) for index, variants in measured.items())
        return Tuning(self.threads, rows)

    def report(
        self,
        outcome: Outcome,
        *,
        run_id: str,
        attempt: int,
        device_id: str,
        bundle_digest: str,
        mode: Mode,
        measurement_class: MeasurementClass,
        started_at: float,
        finished_at: float,
        transfer_s: float,
        isolation_level: int,
        environment: Mapping[str, str],
        trials: Sequence[Trial] | None = None,
        others: Sequence[str] = (),
    ) -> Report:
        """The report of the attempt; `weights` is filled in by whoever uploads them. `others`: digests of the bundles
        that take turns with the first."""
        return Report(
            run_id=run_id,
            attempt=attempt,
            device_id=device_id,
            bundle_digest=bundle_digest,
            mode=mode,
            outcome=outcome,
            measurement_class=measurement_class,
            started_at=started_at,
            finished_at=finished_at,
            transfer_s=transfer_s,
            run_s=self.run_s,
            measurement=self.measurement(),
            kernels=self.kernel_table(),
            losses=tuple(self.losses),
            evaluation_before=self.evaluation_before,
            evaluation_after=self.evaluation_after,
            memory=self.memory,
            energy=self.energy(),
            energy_notes=self.energy_use.notes or None if self.energy_use else None,
            device_states=self.states,
            verdict=self.verdict(),
            tuning=self.tuning(trials),
            training=self.training.report(has_weights=self.exported is not None) if self.training else None,
            comparison=self.comparison.report((bundle_digest, *others)) if self.comparison else None,
            sustained=self.sustained.report() if self.sustained else None,
            isolation_level=isolation_level,
            environment={**environment, **(self.throttling.facts() if self.throttling is not None else {})},
        )
