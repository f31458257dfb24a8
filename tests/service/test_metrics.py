"""The figures for Prometheus: right, cheap, with a bounded number of series, and those that the dashboard asks for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event, inspect, update

from service.operations.health.figures import MOST_LABELS, Ended
from service.store.database.models import Attempt, Device, Job, Run
from tests.architecture.sources import ROOT
from tests.sample import some
from tests.service.farms import TestFarm, open_test_farm

DASHBOARD = json.loads((ROOT / "deploy/grafana/pockfarm.json").read_text())
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(farm: TestFarm) -> Series:
    """Every sample of an exposition, by name and labels."""
    text = farm.http.get("/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Series, name: str, **labels: str) -> float:
    return found[f"pockfarm_{name}", tuple(sorted(labels.items()))]


def settle(farm: TestFarm) -> None:
    """Let what has ended lie far enough back to be counted."""
    with farm.farm.database.transaction() as session:
        for table in (Attempt, Job):
            session.execute(update(table).values(finished_at=table.finished_at - 60))


def busy_farm(farm: TestFarm) -> None:
    """One of everything: a bundle, a run that went well, one leased, one that waits; a job that waits."""
    digest, board = farm.bundle(), farm.board()
    farm.compile(b"second")
    for _ in range(2):
        farm.run(bundle=digest, mode="profile", steps=4, device_class="x86-64")
    assert board.lease() is not None
    farm.worker_lives()


def test_figures_are_those_of_the_rows(farm: TestFarm) -> None:
    busy_farm(farm)
    settle(farm)
    with farm.farm.database.transaction() as session:
        session.execute(update(Run).where(Run.state == "queued").values(created_at=time.time() - 100))
        session.execute(update(Device).values(last_seen_at=time.time() - 200))
        session.execute(update(Attempt).values(lease_expires_at=time.time() - 30))
    found = series(farm)
    assert value(found, "jobs", state="succeeded") == 1
    assert value(found, "queue_depth", kind="compile", device_class="", target="x86-64-v3") == 1
    assert value(found, "queue_depth", kind="run", device_class="x86-64", target="x86-64-v3") == 1
    assert value(found, "queue_age_seconds", kind="run") == pytest.approx(100, abs=5)
    assert value(found, "leases") == 1
    assert value(found, "lease_overdue_seconds") == pytest.approx(30, abs=5)
    assert value(found, "devices", state="active") == 1
    assert value(found, "devices_seen", within_s="60") == 0
    assert value(found, "devices_seen", within_s="300") == 1
    assert value(found, "device_class_silence_seconds", device_class="x86-64") == pytest.approx(200, abs=5)
    assert value(found, "compiles_total", outcome="succeeded", cause="") == 1
    assert value(found, "compile_seconds_bucket", le="+Inf") == value(found, "compile_seconds_count") == 1
    assert value(found, "storage_bytes", kind="bundles") > 0
    assert value(found, "processes", kind="worker") == 1
    assert value(found, "requests_total", method="POST", route="/compile", status="202") == 2


def test_what_has_ended_is_counted_once(farm: TestFarm) -> None:
    busy_farm(farm)
    run_id = next(one["id"] for one in farm.http.get("/runs").json()["items"] if one["state"] == "leased")
    with farm.farm.database.transaction() as session:
        session.execute(
            update(Attempt)
            .where(Attempt.run_id == run_id)
            .values(state="failed", cause="device", finished_at=time.time() - 60)
        )
    counted = [
        sample.value
        for ended in [Ended()]
        for _ in range(3)
        for family in _read(farm, ended)
        for sample in family.samples
        if sample.name == "pockfarm_attempts_total" and sample.labels["cause"] == "device"
    ]
    assert counted == [1, 1, 1]


def _read(farm: TestFarm, ended: Ended) -> list[Any]:
    with farm.farm.database.read() as session:
        return ended.read(session)


def test_the_database_is_asked_once_in_a_while(sqlite_url: str, tmp_path: Path) -> None:
    with open_test_farm(tmp_path / "s", sqlite_url, metrics_s=60.0) as farm:
        first = series(farm)
        farm.compile()
        asked = []
        event.listen(farm.farm.database.engine, "before_cursor_execute", lambda *words: asked.append(words[2]))
        second = series(farm)
    assert value(second, "queue_depth", kind="compile", device_class="", target="") == value(
        first, "queue_depth", kind="compile", device_class="", target=""
    )
    assert [one for one in asked if "api_keys" not in one and "BEGIN" not in one] == []


def test_nobody_can_make_new_series_for_ever(small_farm: TestFarm) -> None:
    digest = small_farm.bundle()
    board = small_farm.board()
    with small_farm.farm.database.transaction() as session:
        device = session.get_one(Device, board.device_id)
        fields = {one.key: getattr(device, one.key) for one in inspect(Device).column_attrs}
        for n in range(3 * MOST_LABELS):
            session.add(Device(**fields | {"id": f"dev_{n}", "public_key": str(n), "device_class": f"made-up-{n}"}))
    for n in range(3 * MOST_LABELS):
        run = small_farm.run(bundle=digest, mode="profile", steps=4)
        with small_farm.farm.database.transaction() as session:
            session.execute(update(Run).where(Run.id == run["id"]).values(wanted_device_class=f"made-up-{n}"))
        small_farm.http.request(f"METHOD{n}", f"/nothing/{n}")
    after = series(small_farm)
    assert value(after, "queue_depth", kind="run", device_class="other", target="other") > 0
    sizes = Counter(name for name, _ in after if not name.startswith("pockfarm_request"))
    assert max(sizes.values()) <= MOST_LABELS + 3, sizes
    assert not [key for key in after if "METHOD" in str(key) or "/nothing" in str(key)]


def test_only_operators_see_the_farms_figures(small_farm: TestFarm) -> None:
    assert small_farm.anonymous.get("/metrics", headers=small_farm.key("user")).status_code == 403
    assert small_farm.anonymous.get("/metrics").status_code == 401


def test_requests_of_several_processes_are_added_up(tmp_path: Path) -> None:
    """As several uvicorn workers behind one port do it, when the variable names a folder."""
    script = (
        "from types import SimpleNamespace as N; import sys\n"
        "from prometheus_client import CollectorRegistry, generate_latest\n"
        "from prometheus_client.multiprocess import MultiProcessCollector\n"
        "from service.operations.health.metrics import Requests\n"
        "Requests(CollectorRegistry()).note({'method': 'GET', 'route': N(path='/jobs')}, 200, 0.1)\n"
        "found = CollectorRegistry(); MultiProcessCollector(found); print(generate_latest(found).decode())\n"
    )
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    for count in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert f'pockfarm_requests_total{{method="GET",route="/jobs",status="200"}} {count}.0' in done.stdout


def queries() -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_the_dashboard_asks_for_metrics_and_labels_that_exist(small_farm: TestFarm) -> None:
    busy_farm(small_farm)
    settle(small_farm)
    run_id = next(one["id"] for one in small_farm.http.get("/runs").json()["items"] if one["state"] == "leased")
    with small_farm.farm.database.transaction() as session:
        session.execute(
            update(Attempt).where(Attempt.run_id == run_id).values(state="lost", finished_at=time.time() - 60)
        )
    labels: dict[str, set[str]] = {}
    for name, pairs in series(small_farm):
        labels.setdefault(name, {"instance"}).update(key for key, _ in pairs)
    for title, query in some(queries()):
        names = re.findall(r"\bpockfarm_\w+", query)
        assert len(names) == 1, title
        assert names[0] in labels, f"{title}: no metric {names[0]}"
        grouped = re.findall(r"by \(([\w, ]+)\)", query)
        matched = re.findall(r"[{,](\w+)(?:!~|=~|!=|=)", query)
        used = {word.strip() for group in grouped for word in group.split(",")} | set(matched)
        assert used <= labels[names[0]], f"{title}: {used - labels[names[0]]}"


def test_the_dashboard_shows_every_figure_once_asked_for() -> None:
    """What the issue of watching a farm is about; panels have ids, places and units of their own."""
    text = " ".join(query for _, query in queries())
    for name in (
        "queue_depth",
        "queue_age_seconds",
        "lease_age_seconds",
        "attempts_total",
        "compile_seconds_bucket",
        "devices_seen",
        "storage_bytes",
        "sweeper_lag_seconds",
        "requests_total",
    ):
        assert f"pockfarm_{name}" in text
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
