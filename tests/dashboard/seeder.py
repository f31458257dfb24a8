"""Adds the rows of a farm's past: one method for each kind, with ids that sort by age."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from sqlalchemy.orm import Session

from device_agents.wire import MeasurementClass, Mode, Report, RunSettings, to_json
from service.people.holdings import service as holdings
from service.store.database.models import (
    HOME,
    ApiKey,
    Attempt,
    Bundle,
    CanaryChange,
    CanaryTime,
    ComparedBundle,
    Device,
    DeviceEvent,
    Job,
    Organisation,
    Result,
    Run,
)
from tests.dashboard.layers import Layer, layers_section, plan_section, training_step
from tests.dashboard.reports import compared, sample_report, sustained

HOUR_S = 3600.0


def digest(name: str) -> str:
    """A digest that a name stands for."""
    return "sha256:" + hashlib.sha256(name.encode()).hexdigest()


class Seeder:
    """Adds rows; ids are readable and sort by age."""

    def __init__(self, session: Session, now: float) -> None:
        self.session = session
        self.now = now
        self.count = 0
        if session.get(Organisation, HOME) is None:  # migrations make it
            self.add(Organisation(id=HOME, name="the farm's own"))
        self.key = ApiKey(id="key_seed", name="seed", role="operator", secret_hash="0" * 64, created_at=now - 900000)
        self.add(self.key)

    def add(self, row: Any) -> Any:
        """One row, visible at once."""
        self.session.add(row)
        self.session.flush()
        return row

    def next_id(self, kind: str) -> str:
        """`run_000012…`: later calls sort later."""
        self.count += 1
        return f"{kind}_{self.count:06d}{hashlib.sha256(str(self.count).encode()).hexdigest()[:20]}"

    def canaries(self, device: Device, layers: list[Layer]) -> None:
        """Forty days of timed canaries, of which one was throttled, and a release that made one of them slower."""
        random = np.random.default_rng(3)
        for canary, base_us, slower in (("convolutions", 11_200.0, 1.062), ("attention", 5_300.0, 1.0)):
            series, runs = digest(f"series-{canary}"), []
            bundle = self.bundle(canary, "full", device.targets[0], layers, set())
            for day in range(40):
                is_new, is_hot = day >= 31, day == 12
                us = base_us * (slower if is_new else 1.0) * (1.35 if is_hot else 1.0) * (1 + 0.004 * random.normal())
                run = self.add(
                    Run(
                        id=self.next_id("run"),
                        api_key_id=self.key.id,
                        bundle_digest=bundle.digest,
                        target=bundle.target,
                        wanted_device_id=device.id,
                        device_id=device.id,
                        is_canary=True,
                        settings=RunSettings("profile"),
                        state="succeeded",
                        queue_deadline_at=self.now,
                        created_at=self.now - (40 - day) * 24 * HOUR_S,
                    )
                )
                runs.append(run.id)
                self.add(
                    CanaryTime(
                        run_id=run.id,
                        device_id=device.id,
                        series=series,
                        canary=canary,
                        target=bundle.target,
                        model_digest=digest(canary),
                        plan_digest=digest("full"),
                        spec_digest=digest("spec"),
                        median_us=us,
                        verdict="throttled" if is_hot else "valid",
                        at=self.now - (40 - day) * 24 * HOUR_S,
                        facts={
                            "compiler": digest("new" if is_new else "old"),
                            "commit": ("b2" if is_new else "a1") * 20,
                            "bundle": bundle.digest,
                        },
                    )
                )
            if slower > 1.0:
                self.add(
                    CanaryChange(
                        id=self.next_id("chg"),
                        device_id=device.id,
                        series=series,
                        canary=canary,
                        target=bundle.target,
                        before_run_id=runs[30],
                        after_run_id=runs[31],
                        ratio=slower,
                        ratio_low=1.058,
                        ratio_high=1.066,
                        deviation=0.004,
                        found_at=self.now - 4 * 24 * HOUR_S,
                        differences=[
                            {"what": "compiler", "before": digest("old"), "after": digest("new"), "away": 0},
                            {"what": "commit", "before": "a1" * 20, "after": "b2" * 20, "away": 0},
                        ],
                    )
                )

    def device(self, name: str, device_class: str, measurement_class: str, targets: list[str], **more: Any) -> Device:
        """An enrolled device with one line of history."""
        fields: dict[str, Any] = {
            "architecture": "aarch64",
            "cpu_model": "Cortex-A72",
            "features": ["asimd", "crc32", "fp"],
            "cores": 4,
            "memory_bytes": 4 << 30,
            "sensors": ["frequency", "temperature", "throttling"],
            "isolation_level": 3,
            "agent_version": "0.1.0",
            "runner": None,
            "environment": {"governor": "performance", "kernel": "6.1.0-28"},
            "created_at": self.now - 80 * HOUR_S,
            "last_seen_at": self.now - 4,
            **more,
        }
        found = self.add(
            Device(
                id=self.next_id("dev"),
                told_name=name,
                device_class=device_class,
                measurement_class=measurement_class,
                targets=targets,
                public_key=digest(name)[-44:],
                session="session-1",
                **fields,
            )
        )
        self.add(DeviceEvent(device_id=found.id, at=fields["created_at"], kind="enrolled", message="with a token"))
        return found

    def bundle(
        self, model: str, plan: str, target: str, layers: list[Layer], trained: set[str], compiler: str = ""
    ) -> Bundle:
        """A compiled bundle with its manifest and compile report. `compiler`: another one makes other bytes of it."""
        step = training_step(layers, trained)
        manifest = {
            "schema": "pockfarm.bundle/1",
            "plan": plan,
            "target": target,
            "memory": step.memory,
            "kernels": step.kernels,
            "inputs": [{"name": "input", "dtype": "f32", "shape": [8, 3, 224, 224]}],
            "outputs": [{"name": "logits", "dtype": "f32", "shape": [8, 1000]}],
            "batch": 8,
            "threads": 2,
            "loss": "cross_entropy",
            "optimizer": "sgd",
            "learning_rate": 0.01,
            "parameters": {
                "total": step.memory["weights_bytes"] // 4,
                "trained": step.memory["optimizer_bytes"] // 4,
            },
        }
        report = {
            "schema": "pockfarm.compile-report/1",
            "arena": step.arena,
            "memory_curve": [
                {
                    "name": f"{count} forward kernels repeated",
                    "needed_bytes": int(step.memory["peak_bytes"] * share),
                    "flops": 100,
                    "flops_ratio": ratio,
                    "taken": not count,
                }
                for count, share, ratio in ((0, 1.0, 1.0), (6, 0.7, 1.06), (20, 0.5, 1.1))
            ],
            "graph": {
                "forward nodes": len(layers) * 2,
                "training nodes": len(step.kernels) * 2,
                "kernel calls": len(step.kernels),
                "distinct kernels": len(step.kernels) // 2,
                "kernels scheduled by measurement": 0,
                "executable bytes": 340_104,
            },
            "plan": plan_section(layers, trained),
            "layers": layers_section(layers, trained),
            "passes": [
                {"on": "forward graph", "pass": "fold_constants", "ran": 3, "changed": 1},
                {"on": "forward graph", "pass": "merge_norms", "ran": 1, "changed": 0},
                {"on": "train", "pass": "fuse_updates", "ran": 1, "changed": 1},
            ],
            "declined": [
                {
                    "pass": "fuse_updates",
                    "code": "update.no_product",
                    "count": 4,
                    "where": "blocks.16.project",
                    "needs": "a gradient that one kernel makes as a product",
                },
            ],
            "notes": [
                "52 BatchNormalization nodes folded into convolutions",
                "gradients stop at blocks.10.expand: nothing below learns",
            ],
            "warnings": [
                {
                    "code": "plan.ratio_ignored",
                    "where": model,
                    "message": "has no channel axis, so all of it learns",
                    "hint": "name it with ratio 1 or 0",
                }
            ],
        }
        name = f"{model}/{plan}/{target}{compiler}"
        holdings.hold(self.session, "bundle", digest(name), size_bytes=1, name=model, plan_name=plan)
        return self.add(
            Bundle(
                digest=digest(name),
                size_bytes=step.memory["weights_bytes"] + 900_000,
                target=target,
                model_name=model,
                model_digest=digest(model),
                plan_name=plan,
                plan_digest=digest(plan),
                spec_digest=digest("spec"),
                manifest=manifest,
                compile_report=report,
                created_at=self.now - 20 * HOUR_S,
            )
        )

    def job(self, model: str, plan: str, target: str, *, state: str, bundle: Bundle | None = None, **more: Any) -> Job:
        """One compile job."""
        created = more.pop("created_at", self.now - 20 * HOUR_S)
        ended = state in ("succeeded", "failed", "cancelled", "expired")
        body = {
            "name": plan,
            "preset": "frozen",
            "update": [{"parameters": ["blocks.1?.expand.weight"], "kind": "any", "ratio": 1.0}],
        }
        spec = {"batch": 8, "loss": {"kind": "cross_entropy", "output": ""}, "batch_norm": "fold"}
        return self.add(
            Job(
                id=self.next_id("job"),
                api_key_id=self.key.id,
                state=state,
                model_name=model,
                model_digest=digest(model),
                request_digest=digest(f"{model}{plan}{target}{self.count}"),
                model_bytes=14_203_412,
                plan_name=plan,
                plan_digest=digest(plan),
                plan_json=json.dumps(body),
                spec_digest=digest("spec"),
                spec_json=json.dumps(spec),
                target=target,
                compiler_version=more.pop("compiler_version", digest("compiler")),
                created_at=created,
                queue_deadline_at=created + 6 * HOUR_S,
                started_at=created + 1 if state != "queued" else None,
                finished_at=created + 48.3 if ended else None,
                attempts=1,
                bundle_digest=bundle.digest if bundle else None,
                fraction=more.pop("fraction", 1.0 if ended else 0.0),
                **more,
            )
        )

    def run(
        self,
        bundle: Bundle,
        device: Device | None,
        *,
        mode: Mode = "profile",
        state: str = "succeeded",
        age_s: float = HOUR_S,
        report: dict[str, Any] | None = None,
        others: Sequence[tuple[Bundle, float]] = (),
        **more: Any,
    ) -> Run:
        """One run; with `report` (arguments of `sample_report`) also its attempt and result. With `others`, bundles and
        how many times as long they take, it is one that compares them."""
        created = self.now - age_s
        found = self.add(
            Run(
                id=self.next_id("run"),
                api_key_id=self.key.id,
                state=state,
                bundle_digest=bundle.digest,
                target=bundle.target,
                wanted_device_class=device.device_class if device else "jetson-orin-nano",
                settings=RunSettings(mode, steps=more.pop("steps", 120), warmup=10, seed=7),
                device_id=device.id if device else None,
                attempts=1 if device else 0,
                queue_deadline_at=created + 6 * HOUR_S,
                created_at=created,
                started_at=created + 2 if device else None,
                finished_at=created + 33 if state in ("succeeded", "failed", "inconclusive") else None,
                **more,
            )
        )
        for place, (other, _) in enumerate(others, 1):
            self.add(ComparedBundle(run_id=found.id, place=place, bundle_digest=other.digest))
        if device is not None:
            made = self._result(found, bundle, device, mode, created, report) if report else None
            if made and others:
                told = [bundle.digest, *(other.digest for other, _ in others)]
                made = compared(made, told, [1.0, *(factor for _, factor in others)])
            if made and mode == "sustained":
                made = sustained(made)
            if made:
                found.finished_at = made.finished_at
            if mode in ("compare", "sustained"):
                found.median_us = found.p90_us = found.samples_per_second = found.verdict = None
            self._attempt(found, device, made)
        return found

    def _result(self, run: Run, bundle: Bundle, device: Device, mode: Mode, at: float, more: dict[str, Any]) -> Report:
        made = sample_report(
            run.id,
            device.id,
            bundle,
            mode=mode,
            measurement_class=cast(MeasurementClass, device.measurement_class),
            seed=self.count,
            at=at + 3,
            steps=run.settings.steps,
            **more,
        )
        measured = made.measurement
        assert measured is not None
        assert made.verdict is not None
        run.measurement_class, run.verdict, run.batch = made.measurement_class, made.verdict.kind, measured.batch
        if device.measurement_class == "emulated":
            run.verdict = "function"
        run.median_us, run.p90_us, run.samples_per_second = (
            measured.median_us,
            measured.p90_us,
            measured.samples_per_second,
        )
        run.arena_bytes, run.peak_rss_bytes = made.memory.arena_bytes, made.memory.peak_rss_bytes
        run.energy_per_step_mj = made.energy.per_step_mj if made.energy else None
        run.training_outcome = made.training.outcome if made.training else None
        if made.losses:
            run.loss_first, run.loss_last = made.losses[0], made.losses[-1]
        if made.evaluation_before and made.evaluation_after:
            run.accuracy_before, run.accuracy_after = made.evaluation_before.accuracy, made.evaluation_after.accuracy
        return made

    def _attempt(self, run: Run, device: Device, report: Report | None) -> None:
        state = run.state if run.state != "queued" else "leased"
        attempt = self.add(
            Attempt(
                id=self.next_id("att"),
                run_id=run.id,
                n=1,
                device_id=device.id,
                state=state,
                token_hash=digest(run.id)[7:],
                lease_expires_at=run.created_at + 60,
                deadline_at=run.created_at + 999,
                cause=run.cause,
                code=run.code,
                message=run.message,
                created_at=run.created_at + 2,
                started_at=run.created_at + 3,
                finished_at=run.finished_at,
            )
        )
        if report is not None:
            self.add(
                Result(
                    attempt_id=attempt.id,
                    run_id=run.id,
                    state="recorded",
                    digest=digest(f"report {run.id}"),
                    envelope="{}",
                    report=to_json(report),
                    recorded_at=run.finished_at or self.now,
                )
            )
