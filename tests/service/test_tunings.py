"""Tuning on the farm: the job, the run, what its report decides, and what later compiles get."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from compiler.tuning.table import TuningTable
from device_agents import wire as p
from tests.service.board import Board
from tests.service.farms import TestFarm

CONV, PRODUCT = "a" * 64, "b" * 64
TRIALS = [
    {"kernel": CONV, "name": "conv1", "calls": 3, "choices": ["", "rows=6"]},
    {"kernel": PRODUCT, "name": "fc", "calls": 1, "choices": ["", "rows=8"]},
]
FIELDS = {"kind": "tuning", "trials": TRIALS, "version": "c" * 64, "device_class": "x86-64"}


def tuning_bundle(farm: TestFarm, training: str | None = None, **fields: Any) -> str:
    """The digest of the tuning bundle of a training bundle."""
    job = farm.http.post("/tune", json={"bundle": training or farm.bundle()})
    assert job.status_code == 202, job.text
    return farm.work_off(job.json()["id"], fields=FIELDS | fields)


def row(kernel: str, winner: str, *, default_us: float = 20.0, other: str = "rows=6") -> p.KernelTuning:
    variants = (p.VariantTime("", 9, default_us, 1.0, 1.0, 1.0, 0.0), p.VariantTime(other, 9, 10.0, 0.4, 0.5, 0.6, 0.0))
    return p.KernelTuning(kernel, "name", 3, variants, winner)


def measure(farm: TestFarm, board: Board, bundle: str, *rows: p.KernelTuning, threads: int = 2, **report: Any) -> str:
    """A run of mode tune that reports these rows; its id."""
    run = farm.run(bundle=bundle, mode="tune", tune_s=5)
    work = board.lease()
    assert work is not None
    answer = board.report(work, tuning=p.Tuning(threads, rows), losses=(), verdict=None, **report)
    assert answer.status_code == 200, answer.text
    return str(run["id"])


def table(farm: TestFarm, target: str = "x86-64-v3") -> TuningTable:
    """What the farm hands to compilers, as they read it."""
    return TuningTable.parse(farm.http.get("/tunings", params={"target": target}).content)


def test_a_board_measures_and_later_compiles_use_what_won(farm: TestFarm) -> None:
    bundle, board = tuning_bundle(farm), farm.board()
    before = farm.compile(b"another").json()["id"]
    run = farm.run(bundle=bundle, mode="tune", tune_s=7.5, steps=9)
    assert (run["mode"], run["steps"], run["tune_s"]) == ("tune", 0, 7.5)
    work = board.lease()
    assert work is not None
    assert work.settings == p.RunSettings("tune", steps=0, warmup=0, tune_s=7.5)
    rows = (row(CONV, "rows=6"), row(PRODUCT, "", other="rows=8"))
    assert board.report(work, tuning=p.Tuning(2, rows), losses=(), verdict=None).status_code == 200
    assert farm.show(run["id"])["state"] == "succeeded"
    found = table(farm)
    assert [(one.kernel, one.choice, one.default_us, one.tuned_us) for one in found.entries] == [
        (CONV, "rows=6", 20.0, 10.0),
        (PRODUCT, "", 20.0, 20.0),
    ]
    assert {one.version for one in found.entries} == {"c" * 64}
    assert table(farm, "raspberry-pi-4").entries == ()
    assert farm.compile(b"another").json()["id"] != before, "the same request now gives another bundle"


def test_the_runs_page_shows_what_won(small_farm: TestFarm) -> None:
    run_id = measure(small_farm, small_farm.board(), tuning_bundle(small_farm), row(CONV, "rows=6"))
    link = urlsplit(small_farm.http.post("/dashboard/links").json()["url"])
    assert small_farm.anonymous.get(link.path).status_code == 200
    assert "rows=6" in small_farm.anonymous.get(f"/dashboard/runs/{run_id}", headers={"Accept": "text/html"}).text
    [shown] = small_farm.anonymous.get(f"/dashboard/runs/{run_id}/schedules.json").json()["rows"]
    assert "rows=6" in str(shown)


def test_a_new_measurement_replaces_the_old_one(farm: TestFarm) -> None:
    bundle, board = tuning_bundle(farm), farm.board()
    measure(farm, board, bundle, row(CONV, "rows=6"), row(PRODUCT, "rows=8", other="rows=8"))
    measure(farm, board, bundle, row(CONV, "", default_us=9.0))
    assert [(one.kernel, one.choice, one.default_us) for one in table(farm).entries] == [
        (CONV, "", 9.0),
        (PRODUCT, "rows=8", 20.0),
    ]


def test_compiles_get_the_version_that_was_measured_last(small_farm: TestFarm) -> None:
    board = small_farm.board()
    measure(small_farm, board, tuning_bundle(small_farm), row(CONV, "rows=6"))
    newer = tuning_bundle(small_farm, small_farm.bundle(b"newer"), version="d" * 64)
    measure(small_farm, board, newer, row(PRODUCT, "rows=8", other="rows=8"))
    assert [(one.version, one.kernel) for one in table(small_farm).entries] == [("d" * 64, PRODUCT)]


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        ((row(CONV, "rows=7", other="rows=7"),), {}),
        ((row("e" * 64, "rows=6"),), {}),
        ((row(CONV, "rows=6"),), {"threads": 1}),
        ((row(CONV, "rows=6"),), {"outcome": p.Outcome("failed", "device", "step.killed", "killed")}),
    ],
    ids=["a schedule not offered", "a kernel not offered", "fewer threads", "a failed run"],
)
def test_what_cannot_decide_is_not_kept(
    small_farm: TestFarm, rows: tuple[p.KernelTuning, ...], changes: dict[str, Any]
) -> None:
    measure(small_farm, small_farm.board(), tuning_bundle(small_farm), *rows, **changes)
    assert table(small_farm).entries == ()


def test_an_emulator_decides_nothing(small_farm: TestFarm) -> None:
    board = small_farm.board(measurement_class="emulated")
    measure(small_farm, board, tuning_bundle(small_farm), row(CONV, "rows=6"))
    assert table(small_farm).entries == ()


def test_modes_go_with_kinds_of_bundles(small_farm: TestFarm) -> None:
    training = small_farm.bundle()
    tuning = tuning_bundle(small_farm, training)
    for body, code in (
        ({"bundle": training, "mode": "tune"}, "run.mode"),
        ({"bundle": tuning, "mode": "profile"}, "run.mode"),
        ({"bundle": tuning, "mode": "tune", "tune_s": 80_000}, "run.tune-time"),
    ):
        answer = small_farm.http.post("/runs", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, code)
    answer = small_farm.http.post("/runs", json={"bundle": tuning, "mode": "tune", "tune_s": 0})
    assert answer.status_code == 422


def test_only_training_bundles_are_tuned_and_each_once(small_farm: TestFarm) -> None:
    training = small_farm.bundle()
    first, again = (small_farm.http.post("/tune", json={"bundle": training}).json() for _ in range(2))
    assert first["id"] == again["id"]
    tuning = small_farm.work_off(first["id"], fields=FIELDS)
    done = small_farm.http.post("/tune", json={"bundle": training})
    assert (done.status_code, done.json()["bundle_digest"]) == (200, tuning)
    assert small_farm.http.post("/tune", json={"bundle": tuning}).json()["code"] == "bundle.kind"
    assert small_farm.http.post("/tune", json={"bundle": "sha256:" + "0" * 64}).json()["code"] == "bundle.unknown"
    assert small_farm.anonymous.post("/tune", json={"bundle": training}).status_code == 401
