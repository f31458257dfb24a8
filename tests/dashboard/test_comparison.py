"""Which numbers may stand beside each other: rules, dominance, groups, what is hidden."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from device_agents.figures.separate_runs import Variation
from device_agents.wire import Mode, RunSettings
from service.dashboard import render
from service.dashboard.comparison import (
    Variations,
    comparable,
    dominated_flags,
    dominates,
    obstacles,
    standing,
    time_difference,
)
from service.dashboard.facts import RunFacts
from service.dashboard.pages import compare
from service.dashboard.pages.benchmarks import (
    Group,
    benchmarks_page,
    grouped,
    newest_of_each,
    ranked_axes,
    ranked_groups,
    tradeoff_points,
)
from service.store.database.models import Bundle, Run
from service.work.runs.filter import RunFilter
from service.work.runs.variation import variations
from tests.dashboard.conftest import SeededFarm
from tests.dashboard.layers import small_layers, training_step
from tests.dashboard.markup import check_page
from tests.dashboard.reports import sample_report
from tests.service.client import Client

BASE_US = 1000.0


def facts(name: str = "run_a", *, median_us: float = BASE_US, mode: Mode = "train", **changes: object) -> RunFacts:
    """A run with a report."""
    step = training_step(small_layers(8), {"dense"})
    bundle = Bundle(digest="sha256:" + "0" * 64, manifest={"memory": step.memory, "kernels": step.kernels})
    report = sample_report(name, "dev_1", bundle, mode=mode, median_us=median_us, seed=1, losses=True, steps=50)
    measured = report.measurement
    assert measured is not None
    made = RunFacts(
        id=name,
        state="succeeded",
        settings=RunSettings(mode, steps=50),
        model_name="m",
        model_digest="sha256:aa",
        plan_name="full",
        target="x86-64-v3",
        bundle_digest=bundle.digest,
        created_at=0.0,
        device_id="dev_1",
        batch=8,
        measurement_class="host",
        verdict="valid",
        median_us=measured.median_us,
        arena_bytes=step.memory["arena_bytes"],
        threads=2,
        report=report,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_equal_conditions_are_comparable_whatever_the_plan() -> None:
    found = obstacles([facts(), facts("run_b", plan_name="sparse")])
    assert comparable("time", found)
    assert comparable("memory", found)
    assert comparable("loss", found)
    assert not comparable("energy", found)


@pytest.mark.parametrize(
    ("change", "blocked", "free"),
    [
        ({"measurement_class": "hardware"}, {"time"}, {"memory", "loss"}),
        ({"measurement_class": "emulated"}, {"time"}, {"memory", "loss"}),
        ({"model_digest": "sha256:bb"}, {"time", "memory", "loss"}, set()),
        ({"batch": 16}, {"time", "memory", "loss"}, set()),
        ({"threads": 4}, {"time"}, {"memory", "loss"}),
        ({"dataset_digest": "sha256:cc"}, {"loss"}, {"time", "memory"}),
        ({"start_weights_digest": "sha256:dd"}, {"loss"}, {"time", "memory"}),
        ({"settings": RunSettings("train", steps=60)}, {"loss"}, {"time", "memory"}),
        ({"verdict": "noisy"}, {"time"}, {"memory", "loss"}),
        ({"device_id": "dev_2", "target": "x86-64-v4"}, set(), {"time", "memory", "loss"}),
    ],
)
def test_each_difference_blocks_just_what_it_spoils(change: dict[str, Any], blocked: set[str], free: set[str]) -> None:
    found = obstacles([facts(), facts("run_b", **change)])
    assert {q for q in ("time", "memory", "loss") if not comparable(q, found)} == blocked
    assert all(comparable(q, found) for q in free)  # type: ignore[arg-type]
    assert all(obstacle.reason for obstacle in found)


def test_a_governor_matters_on_one_device_only() -> None:
    other = facts("run_b")
    assert other.report is not None
    slow = replace(other, report=replace(other.report, environment={"governor": "powersave"}))
    assert not comparable("time", obstacles([facts(), slow]))
    assert comparable("time", obstacles([facts(), replace(slow, device_id="dev_2")]))


CALM, RESTLESS = {"dev_1": Variation(0.003, 20)}, {"dev_1": Variation(0.2, 20)}


def test_two_runs_are_likely_different_or_nothing_is_told() -> None:
    near = time_difference(facts(), facts("run_b", median_us=BASE_US * 1.0005), CALM)
    assert near is not None
    assert near.words.startswith("cannot tell (0.9")
    for times, words in ((0.5, "likely 2.00× faster (1.9"), (1.5, "likely 1.50× slower (1.4")):
        found = time_difference(facts(), facts("run_b", median_us=BASE_US * times), CALM)
        assert found is not None
        assert found.is_likely
        assert found.words.startswith(words)
        restless = time_difference(facts(), facts("run_b", median_us=BASE_US * times), RESTLESS)
        assert restless is not None
        assert not restless.is_likely, "a device's own variation is in it"
        unknown = time_difference(facts(), facts("run_b", median_us=BASE_US * times), {})
        assert unknown is not None
        assert unknown.words == "cannot tell"


def test_a_run_of_one_block_has_no_interval_and_no_rank() -> None:
    short = with_blocks(facts("run_b", median_us=BASE_US / 2), 1)
    assert facts().interval_ms is not None
    assert short.interval_ms is None
    found = time_difference(facts(), short, CALM)
    assert found is not None
    assert found.words == "cannot tell"
    assert "latency" not in ranked_axes([facts(), short])


def ticked(runs: list[RunFacts], variations: Variations) -> dict[str, list[bool]]:
    """Which runs each line marks as its best."""
    lines = [line for section in compare._sections(runs, (), variations) for line in section.lines]
    return {line.title: [best for *_, best in line.cells] for line in lines}


def test_only_what_is_likely_faster_than_each_other_run_is_marked_in_time_and_nothing_in_energy() -> None:
    base, fast = facts(energy_mj=2.0), facts("run_b", median_us=BASE_US / 2, energy_mj=1.0)
    marks = ticked([base, fast], CALM)
    assert marks["Step median"] == [False, True]
    assert marks["Energy per step"] == [False, False]
    assert ticked([base, fast], RESTLESS)["Step median"] == [False, False]
    one, other = replace(base, p90_us=2 * BASE_US, rss_bytes=9 << 20), replace(fast, p90_us=BASE_US, rss_bytes=8 << 20)
    for unknown in ("Step p90", "Peak RSS"):
        assert ticked([one, other], CALM)[unknown] == [False, False], "nothing says how it varies from run to run"
    near = facts("run_c", median_us=BASE_US * 0.5001)
    assert ticked([base, fast, near], CALM)["Step median"] == [False, False, False]


def with_blocks(run: RunFacts, count: int) -> RunFacts:
    """The same, measured in so many of its blocks."""
    assert run.report is not None
    assert run.report.measurement is not None
    measured = replace(run.report.measurement, blocks=run.report.measurement.blocks[:count])
    return replace(run, report=replace(run.report, measurement=measured))


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=25))
def test_dominance_against_its_definition(points: list[tuple[int, int, int]]) -> None:
    flags = dominated_flags(points)
    assert not all(flags), "the best of a finite set is never empty"
    for point, flag in zip(points, flags, strict=True):
        better = [o for o in points if all(a <= b for a, b in zip(o, point, strict=True)) and o != point]
        assert flag == bool(better)
        assert not dominates(point, point)


def test_emulated_time_is_never_an_axis() -> None:
    runs = [facts(), facts("run_b", median_us=500.0)]
    assert ranked_axes(runs) == ("latency", "memory", "loss")
    emulated = [replace(run, measurement_class="emulated") for run in runs]
    assert ranked_axes(emulated) == ("memory", "loss")
    assert ranked_axes([facts(mode="profile")]) == ("latency", "memory")


def test_dimmed_points_are_the_dominated_ones() -> None:
    fast_small = facts("a", median_us=500.0, arena_bytes=100)
    slow_big = facts("b", median_us=1000.0, arena_bytes=200)
    slow_small = facts("c", median_us=1000.0, arena_bytes=50)
    runs = [fast_small, slow_big, slow_small]
    points = tradeoff_points(runs, ("latency", "memory"), [standing(run, CALM) for run in runs])
    assert [point.dominated for point in points] == [False, True, False]
    assert [point.letter for point in points] == ["A", "B", "C"]
    unsure = tradeoff_points(runs, ("latency", "memory"), [standing(run, RESTLESS) for run in runs])
    assert not any(point.dominated for point in unsure), "which is faster cannot be told"
    exact = tradeoff_points([replace(slow_big, id="d"), slow_small], ("memory", "loss"), [None, None])
    assert [point.dominated for point in exact] == [True, False]


def one_group(runs: list[RunFacts], variations: Variations) -> Group:
    (group,) = ranked_groups(runs, variations, Counter(), "")
    return group


def test_runs_that_are_not_likely_different_share_their_ranks() -> None:
    runs = [
        facts("a", median_us=1000.0, plan_name="full"),
        facts("b", median_us=1001.0, plan_name="sparse"),
        facts("c", median_us=500.0, plan_name="tiny"),
    ]
    group = one_group(runs, CALM)
    assert [(row.values["plan"], row.values["rank"]) for row in group.table.rows] == [
        ("tiny", "1"),
        ("full", "2 to 3"),
        ("sparse", "2 to 3"),
    ]
    assert [(row.values["rank_best"], row.values["rank_worst"]) for row in group.table.rows] == [(1, 1), (2, 3), (2, 3)]
    assert group.unranked == ()
    assert [row.values["rank"] for row in one_group(runs, RESTLESS).table.rows] == ["1 to 3"] * 3
    assert group.figure
    assert "no line joins the best" in group.figure.note
    assert 'class="front"' not in group.figure.drawing


def test_a_row_without_a_rank_says_why_and_pushes_nobody() -> None:
    runs = [
        facts("a"),
        facts("b", verdict="noisy", plan_name="sparse"),
        facts("d", device_id="dev_9", plan_name="tiny"),
        with_blocks(facts("c", median_us=10.0, plan_name="bias"), 1),
    ]
    group = one_group(runs, CALM)
    ranks = {row.values["run"]: (row.values["rank"], row.values["no_rank"]) for row in group.table.rows}
    assert ranks["a"] == ("1", None)
    assert ranks["b"] == (None, "noisy, not valid")
    assert ranks["c"] == (None, "1 block, 5 are needed")
    assert ranks["d"][0] is None
    assert str(ranks["d"][1]).endswith(" 5× again")
    assert len(group.unranked) == 3
    assert any(reason.startswith("tiny on ") for reason in group.unranked)
    (alone,) = one_group([with_blocks(facts("c"), 1)], CALM).unranked
    assert alone == "1 block, 5 are needed"
    (emulated,) = one_group([facts("e", measurement_class="emulated", verdict="function")], CALM).table.rows
    assert (emulated.values["rank"], emulated.values["no_rank"]) == (None, "emulated: function only")


def test_groups_hold_like_runs_and_the_newest_of_each_configuration() -> None:
    runs = [
        facts("new", median_us=900.0),
        facts("old"),
        facts("pi", measurement_class="hardware"),
        facts("b4", batch=4),
    ]
    newest, counted = newest_of_each(runs)
    assert [run.id for run in newest] == ["new", "pi", "b4"]
    assert max(counted.values()) == 2
    groups = grouped(newest)
    assert [[run.id for run in group] for group in groups] == [["pi"], ["b4"], ["new"]]


@pytest.mark.thorough
def test_the_benchmarks_page_hides_and_counts_what_is_not_valid(seeded: SeededFarm, browser: Client) -> None:
    page = check_page(browser.get("/dashboard/benchmarks").text)
    assert "2 runs hidden: 1 noisy, 1 throttled." in page.visible_text()
    rows = browser.get("/dashboard/benchmarks.json").json()["rows"]
    assert {row["verdict"] for row in rows} == {"valid", "function"}
    everything = browser.get("/dashboard/benchmarks.json?verdicts=all").json()["rows"]
    assert {row["run"] for row in everything} >= {seeded.ids.noisy_run, seeded.ids.throttled_run}
    only = browser.get("/dashboard/benchmarks.json?class=emulated").json()["rows"]
    assert {row["measurement_class"] for row in only} == {"emulated"}
    assert all(row[name] is None for row in only for name in ("peak_rss_mib", "median_ms", "samples_per_second"))
    assert {row["no_rank"] for row in only} == {"emulated: function only"}


def test_a_benchmarks_page_whose_runs_are_all_hidden_says_so(seeded: SeededFarm) -> None:
    with seeded.farm.database.read() as session:
        page = benchmarks_page(session, RunFilter(model="small_cnn", plan="none"), all_verdicts=False, sort="")
    assert (page.groups, page.hidden) == ((), ())
    hidden = replace(page, hidden=(("noisy", 2),))
    text = check_page(
        bytes(render.page("benchmarks.html", page=hidden, section="benchmarks").body).decode()
    ).visible_text()
    assert "No run here is valid" in text
    assert "2 runs brought numbers that do not count" in text


def test_the_benchmarks_page_ranks_within_groups(browser: Client) -> None:
    rows = browser.get("/dashboard/benchmarks.json?class=host&model=mobilenet_v2").json()["rows"]
    assert [row["plan"] for row in rows] == ["bias-only", "sparse", "full"], "by what is planned: none has a rank"
    assert [row["dominated"] for row in rows] == ["no"] * 3
    assert {row["rank"] for row in rows} == {None}
    assert next(row for row in rows if row["plan"] == "sparse")["runs"] == 2


@pytest.mark.thorough
def test_the_benchmarks_page_has_ranks_once_a_device_is_known(seeded: SeededFarm) -> None:
    with seeded.farm.database.transaction() as session:
        before = benchmarks_page(session, RunFilter(device=seeded.ids.host), all_verdicts=False, sort="")
        repeated(session, seeded.ids.full_run, 7)
        after = benchmarks_page(session, RunFilter(device=seeded.ids.host), all_verdicts=False, sort="")
        pages = [
            bytes(render.page("benchmarks.html", page=page, section="benchmarks").body).decode()
            for page in (before, after)
        ]
        session.rollback()
    texts = [check_page(page).visible_text() for page in pages]
    assert "No rank by time: how its device varies" in texts[0]
    assert "No rank by time: 1 block, 5 are needed" in texts[1], "training is one block"
    assert "how its device varies" not in texts[1]
    ranks = [row.values["rank"] for row in after.groups[0].table.rows]
    assert ranks == ["1", "2", "3"]


def repeated(session: Session, run_id: str, count: int) -> None:
    """The same profile run again, older than all others, by 0.5% this way and that."""
    columns = {column.name: getattr(session.get_one(Run, run_id), column.name) for column in Run.__table__.columns}
    for number in range(count):
        median_us = columns["median_us"] * (1 + 0.005 * (number % 3 - 1))
        session.add(Run(**columns | {"id": f"run_000000{number}", "median_us": median_us}))
    session.flush()


def test_compare_says_why_not(seeded: SeededFarm, browser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = seeded.ids
    text = check_page(
        browser.get(f"/dashboard/compare?run={ids.sparse_run}&run={ids.emulated_run}").text
    ).visible_text()
    assert "Time is not comparable because" in text
    assert "different measurement class: host / emulated" in text
    assert "faster" not in text
    fine = check_page(browser.get(f"/dashboard/compare?run={ids.full_run}&run={ids.sparse_run}").text).visible_text()
    assert "not comparable" not in fine.replace("Not comparable", "")
    assert "cannot tell" in fine
    assert "A, B: how its device varies" in fine
    monkeypatch.setattr(compare, "variations", lambda _, ids, judged: dict.fromkeys(ids, Variation(0.005, 20)))
    page_text = check_page(
        browser.get(f"/dashboard/compare?run={ids.full_run}&run={ids.sparse_run}").text
    ).visible_text()
    assert "likely" in page_text
    assert "× faster (" in page_text
    assert "cannot" not in page_text
    data = browser.get(f"/dashboard/compare.json?run={ids.sparse_run}&run={ids.emulated_run}").json()
    median = next(row for row in data["rows"] if row["metric"] == "median_ms")
    assert "emulated" in median["not_comparable"]


def test_how_a_device_varies_is_learned_from_runs_that_were_the_same_again(seeded: SeededFarm) -> None:
    """Of one bundle with the same settings, valid, profile: others say nothing of it."""
    with seeded.farm.database.transaction() as session:
        first = session.get_one(Run, seeded.ids.full_run)
        columns = {column.name: getattr(first, column.name) for column in Run.__table__.columns}
        again = RunSettings("profile", steps=100)
        for number, median_us in enumerate((1000.0, 1010.0, 990.0, 1005.0, 995.0, 1000.0, 1001.0)):
            new = columns | {"id": f"run_again_{number}", "settings": again, "median_us": median_us}
            session.add(Run(**new))
        session.add(Run(**columns | {"id": "run_again_noisy", "settings": again, "median_us": 9e9, "verdict": "noisy"}))
        session.flush()
        known = variations(session, {seeded.ids.host})[seeded.ids.host]
        left = variations(session, {seeded.ids.host, seeded.ids.offline}, judged=["run_again_0", "run_again_1"])
        session.info["organisation"] = "org_other"
        theirs = variations(session, {seeded.ids.host})[seeded.ids.host]
        session.rollback()
    assert theirs.freedom == 0, "another organisation's runs are not counted"
    assert left[seeded.ids.host].freedom == known.freedom - 2
    assert left[seeded.ids.offline].freedom == 0
    assert known.is_known
    assert 6 <= known.freedom <= 8
    assert known.deviation < 0.05


def test_compare_names_unknown_runs(seeded: SeededFarm, browser: Client) -> None:
    ids = seeded.ids
    four = [ids.full_run, ids.sparse_run, ids.noisy_run, "run_nobody"]
    page = check_page(browser.get("/dashboard/compare?" + "&".join(f"run={i}" for i in four)).text)
    assert "There is no run run_nobody" in page.visible_text()
    shuffled = random.Random(1).sample(four[:3], 3)
    data = browser.get("/dashboard/compare.json?" + "&".join(f"run={i}" for i in shuffled)).json()
    assert [data["rows"][0][letter] for letter in "ABC"] == shuffled
