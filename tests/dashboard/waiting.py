"""What operators look after: a queue in lanes, work of two compilers, keys, tokens, webhooks, windows, releases."""

from __future__ import annotations

from service.store.database.models import (
    HOME,
    AgentRelease,
    ApiKey,
    Bundle,
    Device,
    EnrolmentToken,
    MaintenanceWindow,
    Organisation,
    Webhook,
)
from service.work.lanes.entering import enter_queued
from tests.dashboard.layers import small_layers
from tests.dashboard.seeder import HOUR_S, Seeder, digest

DAY_S = 24 * HOUR_S


def seed_queue(rows: Seeder, bundles: dict[tuple[str, str], Bundle], hot: Device) -> None:
    """Three runs wait for a board that is busy, two for one that is quarantined, and one for a tag that none has."""
    for place in range(3):
        waiting = rows.run(bundles["sparse", "raspberry-pi-4"], None, mode="train", state="queued", age_s=300 - place)
        waiting.wanted_device_class = "raspberry-pi-4"
    for place in range(2):
        stuck = rows.run(bundles["full", "raspberry-pi-4"], None, state="queued", age_s=5 * HOUR_S - place)
        stuck.wanted_device_class = hot.device_class
    tagged = rows.run(bundles["full", "raspberry-pi-4"], None, state="queued", age_s=120)
    tagged.wanted_device_class, tagged.wants = None, "tag:rack=7"
    rows.session.flush()
    enter_queued(rows.session, most=100)


def seed_compilers(rows: Seeder, pi: Device) -> str:
    """The same work by bundles of two compilers, of which the second one is slower; the id of the newest run."""
    newest = ""
    for compiler, median_us, count in (("old", 9_100.0, 8), ("new", 9_900.0, 2)):
        layers = small_layers(8)
        built = rows.bundle("keyword_cnn", "full", "raspberry-pi-4", layers, {one.name for one in layers}, compiler)
        rows.job(
            "keyword_cnn", "full", "raspberry-pi-4", state="succeeded", bundle=built, compiler_version=digest(compiler)
        )
        for place in range(count):
            age_s = (40 if compiler == "old" else 4) * HOUR_S - place * 600
            report = {"median_us": median_us * (1 + 0.002 * (place % 3)), "batch": 8}
            newest = rows.run(built, pi, age_s=age_s, report=report).id
    return newest


def seed_administration(rows: Seeder, pi: Device) -> str:
    """One of each that needs somebody, and one that does not; the id of a tenant with limits of its own."""
    now = rows.now
    for name, expires_at, revoked_at in (
        ("ci on build-1", now + 3 * DAY_S, None),
        ("laptop", None, None),
        ("old laptop", None, now - DAY_S),
    ):
        rows.add(
            ApiKey(
                name=name,
                role="user",
                scopes="read submit",
                secret_hash=digest(name)[7:],
                created_at=now - 90,
                expires_at=expires_at,
                revoked_at=revoked_at,
            )
        )
    for name, uses, expires_at in (("shelf-2", 1, now + HOUR_S), ("shelf-3", 0, now + HOUR_S), ("", 0, now - 60)):
        rows.add(
            EnrolmentToken(
                token_hash=digest(f"token {name}")[7:],
                id=rows.next_id("tok"),
                name=name,
                uses=uses,
                expires_at=expires_at,
                device_id=pi.id if uses else None,
            )
        )
    rows.add(Organisation(id=rows.next_id("org"), name="lab", retention={"events": None}))
    tenant = rows.add(
        Organisation(
            id=rows.next_id("org"),
            name="acme",
            retention={"weights": 90.0},
            quotas={"open_runs": 50.0, "storage_bytes": None},
        )
    )
    for url, failures in (("https://ci.example/hooks/farm", 0), ("https://old.example/hook", 7)):
        rows.add(
            Webhook(
                id=rows.next_id("hook"),
                api_key_id=rows.key.id,
                url=url,
                events=["run.ended"],
                secret="s",
                failures=failures,
            )
        )
    rows.add(
        MaintenanceWindow(
            id=rows.next_id("mnt"),
            organisation_id=HOME,
            device_id=pi.id,
            starts_at=now + DAY_S,
            ends_at=now + DAY_S + 2 * HOUR_S,
            reason="new heat sink",
        )
    )
    for sequence, state, reason in ((1, "offered", ""), (2, "halted", "2 devices failed to start it")):
        rows.add(
            AgentRelease(
                id=rows.next_id("rel"),
                sequence=sequence,
                version=f"0.{sequence}.0",
                digest=digest(f"agent {sequence}"),
                size_bytes=300_000,
                oldest_python="3.9",
                protocol="1",
                is_rollback=False,
                conditions=[],
                state=state,
                most_devices=1,
                halt_reason=reason,
            )
        )
    return str(tenant.id)
