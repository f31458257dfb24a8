"""A farm with a realistic past: devices, compile jobs, runs with whole reports. Synthetic and deterministic.

The figures have the shape of real ones (MobileNetV2's layers, drifting step times, falling losses) so that pages are
looked at as people will see them.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.people.holdings import service as holdings
from service.store.database.models import (
    QUARTER_S,
    Bundle,
    Dataset,
    Device,
    DeviceCondition,
    DeviceEvent,
    DeviceTemperature,
    Event,
)
from tests.dashboard.layers import Layer, mobilenet_layers, small_layers
from tests.dashboard.seeder import HOUR_S, Seeder, digest
from tests.dashboard.waiting import seed_administration, seed_compilers, seed_queue

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
    compare_run: str
    sustained_run: str
    pi_run: str
    pi: str
    throttled_run: str
    failed_run: str
    running_run: str
    done_job: str
    compiling_job: str
    failed_job: str
    host: str
    quarantined: str
    offline: str
    recompiled_run: str
    tenant: str


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
    holdings.hold(session, "dataset", digest("digits-a"), size_bytes=230_000, name="digits, first half")
    digits = rows.add(
        Dataset(
            digest=digest("digits-a"),
            name="digits, first half",
            size_bytes=230_000,
            samples=898,
            arrays={"x": {"dtype": "float32", "shape": [898, 1, 8, 8]}},
        )
    )
    seed_conditions(rows, pi, jetson)
    layers = mobilenet_layers(8)
    rows.canaries(pi, layers)
    ids: dict[str, str] = {"host": host.id, "quarantined": hot.id, "offline": gone.id, "pi": pi.id}
    ids["recompiled_run"] = seed_compilers(rows, pi)
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
            _stages(rows, made.id, made.created_at)
            if target == "x86-64-v4":
                ids |= {"done_job": made.id, f"{plan}_run": run.id}
            if (plan, target) == ("sparse", "raspberry-pi-4"):
                ids["pi_run"] = run.id
    again = rows.run(
        bundles["sparse", "x86-64-v4"], host, age_s=3 * HOUR_S, report={"median_us": 133_500.0, "sensors": False}
    )
    ids["sparse_run"] = again.id
    ids["compare_run"] = rows.run(
        bundles["full", "x86-64-v4"],
        host,
        mode="compare",
        age_s=2.7 * HOUR_S,
        steps=20,
        others=[(bundles["sparse", "x86-64-v4"], 0.63), (bundles["bias-only", "x86-64-v4"], 1.0)],
        report={"median_us": 212_000.0, "sensors": False},
    ).id
    ids["sustained_run"] = rows.run(
        bundles["full", "raspberry-pi-4"],
        pi,
        mode="sustained",
        age_s=2.6 * HOUR_S,
        report={"median_us": 24_000.0},
    ).id
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
    seed_queue(rows, bundles, hot)
    ids["tenant"] = seed_administration(rows, pi)
    return Seeded(**{name: ids[name] for name in Seeded.__dataclass_fields__})


def _stages(rows: Seeder, job_id: str, created_at: float) -> None:
    told = ((1, "import"), (2, "plan"), (4, "kernels: 1 of 112"), (9, "kernels: 90 of 112"), (44, "link"))
    for after_s, stage in told:
        body = {"stage": stage, "fraction": after_s / 48}
        rows.add(Event(subject=job_id, at=created_at + after_s, kind="progress", body=body))


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
            "stops_early": True,
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
        body = {"attempt": 1, "step": step, "loss": 2.3 * 0.992**step + 0.02 * (step % 5), "step_us": 498_000.0}
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


def seed_conditions(rows: Seeder, pi: Device, jetson: Device) -> None:
    """A week of one device's temperatures, with a day of which nothing is known; another one that is nearly full."""
    newest = int(rows.now // QUARTER_S)
    for ago in range(7 * 96):
        if not 200 <= ago < 296:
            heat_c = 46.0 + 9.0 * math.sin(ago / 15) + (17.5 if ago % 97 < 6 else 0.0)
            rows.add(DeviceTemperature(device_id=pi.id, quarter=newest - ago, hottest_c=round(heat_c, 1)))
    rows.add(
        DeviceCondition(
            device_id=pi.id,
            storage_total_bytes=29 << 30,
            storage_free_bytes=12 << 30,
            kept_bytes=37 << 20,
            temperature_c=61.2,
            at=rows.now - 20,
        )
    )
    rows.add(
        DeviceCondition(
            device_id=jetson.id,
            storage_total_bytes=59 << 30,
            storage_free_bytes=2 << 30,
            temperature_c=44.0,
            at=rows.now - 9,
        )
    )
