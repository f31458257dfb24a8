"""A farm with a realistic past: devices, compile jobs, runs with whole reports. Synthetic and deterministic.

The figures have the shape of real ones (MobileNetV2's layers, drifting step times, falling losses) so that pages are
looked at as people will see them.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy.orm import Session

from device_agents.wire import MeasurementClass, Mode, Report, RunSettings, to_json
from service.database.models import (
    ApiKey,
    Attempt,
    Bundle,
    Dataset,
    Device,
    DeviceEvent,
    Event,
    Job,
    Result,
    Run,
)
from tests.dashboard.layers import Layer, mobilenet_layers, small_layers, training_step
from tests.dashboard.reports import sample_report

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
                name=name,
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

    def bundle(self, model: str, plan: str, target: str, layers: list[Layer], trained: set[str]) -> Bundle:
        """A compiled bundle with its manifest and compile report."""
        step = training_step(layers, trained)
        manifest = {
            "schema": "pockfarm.bundle/1",
            "plan": plan,
            "target": target,
            "memory": step.memory,
            "kernels": step.kernels,
            "inputs": [{"name": "input", "dtype": "float32", "shape": [8, 3, 224, 224]}],
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
            "graph": {
                "imported_nodes": len(layers) * 3,
                "training_nodes": len(step.kernels) * 4,
                "after_passes": len(step.kernels) * 2,
                "kernels": len(step.kernels),
            },
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
        name = f"{model}/{plan}/{target}"
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
                compiler_version=digest("compiler"),
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
        **more: Any,
    ) -> Run:
        """One run; with `report` (arguments of `sample_report`) also its attempt and result."""
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
        if device is not None:
            self._attempt(found, device, self._result(found, bundle, device, mode, created, report) if report else None)
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
        run.median_us, run.p90_us, run.samples_per_second = (
            measured.median_us,
            measured.p90_us,
            measured.samples_per_second,
        )
        run.arena_bytes, run.peak_rss_bytes = made.memory.arena_bytes, made.memory.peak_rss_bytes
        run.energy_per_step_mj = made.energy.per_step_mj if made.energy else None
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


PLANS = {"full": 1.0, "sparse": 0.62, "bias-only": 0.51}


def trained_layers(layers: list[Layer], plan: str) -> set[str]:
    """Which layers a plan trains."""
    if plan == "full":
        return {layer.name for layer in layers}
    if plan == "bias-only":
        return {"classifier", "head.conv"} & {layer.name for layer in layers}
    return {layer.name for layer in layers if layer.name.startswith("blocks.1") and "expand" in layer.name} | {
        "classifier"
    }


@dataclass(frozen=True)
class Seeded:
    """Ids of rows that tests open by name."""

    sparse_run: str
    full_run: str
    train_run: str
    second_train_run: str
    emulated_run: str
    noisy_run: str
    pi_run: str
    throttled_run: str
    failed_run: str
    running_run: str
    done_job: str
    compiling_job: str
    failed_job: str
    host: str
    quarantined: str
    offline: str


def seed(session: Session, now: float | None = None) -> Seeded:
    """The whole past of a small farm."""
    rows = Seeder(session, now or time.time())
    host = rows.device(
        "build-box",
        "x86-64",
        "host",
        ["x86-64-v4", "x86-64-v3"],
        architecture="x86_64",
        cores=2,
        cpu_model="AMD EPYC 9V74",
        memory_bytes=16 << 30,
        sensors=[],
        features=["avx2", "avx512f", "fma", "f16c", "avx512vnni"],
    )
    emulated = rows.device(
        "pi-4 under qemu", "raspberry-pi-4", "emulated", ["raspberry-pi-4"], sensors=[], runner="qemu-aarch64-static"
    )
    pi = rows.device("bench pi 4, shelf 2", "raspberry-pi-4", "hardware", ["raspberry-pi-4"])
    jetson = rows.device(
        "orin-nano-01",
        "jetson-orin-nano",
        "hardware",
        ["jetson-orin-nano"],
        cores=6,
        cpu_model="Cortex-A78AE",
        memory_bytes=8 << 30,
        sensors=["energy", "frequency", "power", "temperature", "throttling"],
    )
    hot = rows.device(
        "phone-gen2-03",
        "snapdragon-8-gen-2",
        "hardware",
        ["snapdragon-8-gen-2"],
        cores=8,
        state="quarantined",
        state_reason="3 attempts in a row were lost (last: lease expired at 71 °C)",
        strikes=3,
        cpu_model="Kryo",
        last_seen_at=rows.now - 5 * HOUR_S,
    )
    rows.add(DeviceEvent(device_id=hot.id, at=rows.now - 5 * HOUR_S, kind="quarantined", message="3 attempts lost"))
    gone = rows.device(
        "pi-4, window sill", "raspberry-pi-4", "hardware", ["raspberry-pi-4"], last_seen_at=rows.now - 26 * HOUR_S
    )
    digits = rows.add(
        Dataset(
            digest=digest("digits-a"),
            name="digits, first half",
            size_bytes=230_000,
            samples=898,
            arrays={"x": {"dtype": "float32", "shape": [898, 1, 8, 8]}},
        )
    )
    layers = mobilenet_layers(8)
    ids: dict[str, str] = {"host": host.id, "quarantined": hot.id, "offline": gone.id}
    base_us = {"x86-64-v4": 212_000.0, "raspberry-pi-4": 2_840_000.0, "jetson-orin-nano": 611_000.0}
    on = {"x86-64-v4": host, "raspberry-pi-4": pi, "jetson-orin-nano": jetson}
    bundles: dict[tuple[str, str], Bundle] = {}
    for target in base_us:
        for plan, factor in PLANS.items():
            built = rows.bundle("mobilenet_v2", plan, target, layers, trained_layers(layers, plan))
            bundles[plan, target] = built
            made = rows.job("mobilenet_v2", plan, target, state="succeeded", bundle=built)
            run = rows.run(
                built,
                on[target],
                age_s=8 * HOUR_S,
                report={
                    "median_us": base_us[target] * factor,
                    "energy": target.startswith("jetson"),
                    "sensors": target != "x86-64-v4",
                },
            )
            if target == "x86-64-v4":
                ids |= {"done_job": made.id, f"{plan}_run": run.id}
            if (plan, target) == ("sparse", "raspberry-pi-4"):
                ids["pi_run"] = run.id
    again = rows.run(
        bundles["sparse", "x86-64-v4"], host, age_s=3 * HOUR_S, report={"median_us": 133_500.0, "sensors": False}
    )
    ids["sparse_run"] = again.id
    ids["noisy_run"] = rows.run(
        bundles["full", "x86-64-v4"],
        host,
        age_s=2.5 * HOUR_S,
        report={"median_us": 248_000.0, "verdict": "noisy", "sensors": False},
    ).id
    ids["throttled_run"] = rows.run(
        bundles["full", "raspberry-pi-4"],
        pi,
        age_s=2.4 * HOUR_S,
        report={"median_us": 3_310_000.0, "verdict": "throttled"},
    ).id
    ids["emulated_run"] = rows.run(
        bundles["sparse", "raspberry-pi-4"],
        emulated,
        age_s=2 * HOUR_S,
        steps=2,
        report={"median_us": 91_000_000.0, "blocks": 1, "sensors": False},
    ).id
    rows.run(
        bundles["full", "raspberry-pi-4"],
        emulated,
        age_s=1.9 * HOUR_S,
        steps=2,
        report={"median_us": 160_000_000.0, "blocks": 1, "sensors": False},
    )
    ids |= _digits(rows, host, digits)
    ids |= _troubles(rows, host, pi, hot, bundles)
    return Seeded(**{name: ids[name] for name in Seeded.__dataclass_fields__})


def _digits(rows: Seeder, host: Device, digits: Dataset) -> dict[str, str]:
    layers = small_layers(32)
    first = rows.bundle("small_cnn", "full", "x86-64-v4", layers, {"conv1", "conv2", "dense"})
    second = rows.bundle("small_cnn", "sparse", "x86-64-v4", layers, {"dense"})
    rows.job("small_cnn", "full", "x86-64-v4", state="succeeded", bundle=first, created_at=rows.now - 2 * HOUR_S)
    full = rows.run(
        first,
        host,
        mode="train",
        age_s=1.5 * HOUR_S,
        steps=280,
        dataset_digest=digits.digest,
        trained_weights_digest=digest("trained"),
        trained_weights_bytes=38_400,
        report={
            "median_us": 412.0,
            "batch": 32,
            "losses": True,
            "accuracy": (0.094, 0.961),
            "blocks": 1,
            "sensors": False,
        },
    )
    sparse = rows.run(
        second,
        host,
        mode="train",
        age_s=1.2 * HOUR_S,
        steps=280,
        dataset_digest=digits.digest,
        weights_digest=digest("trained"),
        trained_weights_digest=digest("trained-2"),
        trained_weights_bytes=38_400,
        report={
            "median_us": 263.0,
            "batch": 32,
            "losses": True,
            "accuracy": (0.912, 0.972),
            "blocks": 1,
            "sensors": False,
        },
    )
    return {"train_run": full.id, "second_train_run": sparse.id}


def _troubles(
    rows: Seeder, host: Device, pi: Device, hot: Device, bundles: dict[tuple[str, str], Bundle]
) -> dict[str, str]:
    failed_job = rows.job(
        "resnet_x",
        "full",
        "raspberry-pi-4",
        state="failed",
        created_at=rows.now - HOUR_S,
        cause="model",
        code="model.unsupported",
        message="operator NonMaxSuppression (opset 11) has no rule",
        place="node /head/nms",
        hint="train the model without its detection head",
    )
    for code in ("lease.expired", "lease.expired", "device.lost"):
        rows.run(
            bundles["full", "raspberry-pi-4"],
            hot,
            state="failed",
            age_s=5.5 * HOUR_S,
            cause="device",
            code=code,
            message="the device stopped answering in mid-run",
            hint="look at the device's page: it may be too hot or short of memory",
        )
    failed = rows.run(
        bundles["full", "x86-64-v4"],
        host,
        mode="train",
        state="failed",
        age_s=0.7 * HOUR_S,
        cause="user",
        code="data.nan",
        message="input `input` of the data set holds NaN in sample 17",
        hint="clean the data set and upload it again; POST /datasets checks it at once",
    )
    running = rows.run(
        bundles["sparse", "raspberry-pi-4"],
        pi,
        mode="train",
        state="running",
        age_s=95,
        steps=400,
        steps_done=148,
        phase="run",
    )
    for step in range(1, 149):
        body = {"attempt": 1, "step": step, "loss": 2.3 * 0.992**step + 0.02 * (step % 5), "step_us": 1_760_000.0}
        rows.add(Event(subject=running.id, at=rows.now - 95 + step * 0.5, kind="step", body=body))
    rows.run(bundles["full", "jetson-orin-nano"], None, state="queued", age_s=60)
    compiling = rows.job(
        "resnet18",
        "sparse",
        "jetson-orin-nano",
        state="compiling",
        created_at=rows.now - 31,
        fraction=0.55,
        stage="codegen: 61 of 112 kernels",
    )
    rows.job("resnet18", "bias-only", "jetson-orin-nano", state="queued", created_at=rows.now - 30)
    return {
        "failed_job": failed_job.id,
        "failed_run": failed.id,
        "running_run": running.id,
        "compiling_job": compiling.id,
    }
