"""Three minutes of a campaign: faults in flight over most parts, and nothing lost, doubled, wrong or stuck.

`make chaos` has the figures. This one mostly waits.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.service.lone_processes import sleeping_process
from tests.thorough.chaos.campaign import Campaign, Log, Record
from tests.thorough.chaos.faults import fault, stopped
from tests.thorough.chaos.faults.fault import Harm, freeze
from tests.thorough.chaos.field import ROOT, Field
from tests.thorough.chaos.play import play
from tests.thorough.chaos.points import ASKED, NEVER_BACK, POINTS, document
from tests.thorough.chaos.topology import Topology
from tests.thorough.chaos.verdict import Findings, missing, shown
from tests.thorough.chaos.victims import Victim, Work

pytestmark = pytest.mark.xdist_group("chaos")
SECONDS = 120.0
"""Of faults; the farm also starts, comes to rest and stops."""
FEWEST_POINTS, FEWEST_FAULTS = 8, 20
"""What a machine does that is busy with other tests; a quiet one, half as many again, a slow one takes longer."""


@pytest.mark.thorough
@pytest.mark.usefixtures("loopback")
def test_a_short_campaign_loses_nothing(tmp_path: Path) -> None:
    """`make chaos` in small, for `make test-all`: it takes minutes."""
    said: list[str] = []
    records, findings = play(
        "sqlite",
        faults=1000,
        seconds=SECONDS,
        rng=random.Random(1),
        say=said.append,
        log=tmp_path / "log",
        is_long=False,
        boards=4,
        fewest=FEWEST_FAULTS,
    )
    table = shown(records, findings)
    print(table)
    assert findings.is_good, table
    confirmed = [one for one in records if one.evidence]
    assert len(confirmed) >= FEWEST_FAULTS, said
    assert len({one.point for one in confirmed}) >= FEWEST_POINTS, said


def a_record(**more: Any) -> Record:
    return replace(Record("API", "killed", "api-1", "run", 1.0, 2.0, 20.0), **more)


@pytest.mark.parametrize(
    ("record", "is_slow"),
    [
        (a_record(), False),
        (a_record(recovery_s=60.0), False),  # p95 is for these
        (a_record(recovery_s=None), True),
        (a_record(recovery_s=None, evidence=""), False),
        (a_record(kind=NEVER_BACK, recovery_s=74.0, within_s=75.0), False),
        (a_record(kind=NEVER_BACK, recovery_s=76.0, within_s=75.0), True),
        (a_record(note=f"paused for 12.1 s {stopped.verdict(12.1, is_replaced=True)}"), True),
        (a_record(note=f"paused for 14.0 s {stopped.verdict(14.0, is_replaced=True)}"), False),
        (a_record(note=f"paused for 12.1 s {stopped.verdict(12.1, is_replaced=False)}"), False),
        (a_record(note=stopped.UNNOTICED), True),
    ],
)
def test_what_is_slow(record: Record, is_slow: bool) -> None:
    assert record.is_slow is is_slow


def test_a_campaign_with_less_than_was_asked_says_so() -> None:
    enough = [a_record(point=str(number)) for number in range(12)]
    assert missing(enough, 12, fewest_points=12) == []
    few = missing([*enough[:11], a_record(point="12", evidence="")], 12, fewest_points=12)
    assert [line.split(",")[0] for line in few] == ["11 faults confirmed", "11 points with a confirmed fault"]
    assert missing([a_record(recovery_s=21.0)], 1, fewest_points=1) == ["recovery p95 21.0 s, at most 20 s wanted"]
    gone = a_record(kind=NEVER_BACK, recovery_s=70.0, within_s=75.0)
    assert missing([a_record(), gone], 1, fewest_points=1) == []


def field_of(folder: Path) -> Field:
    topology = Topology(str(folder), "sqlite", {}, {"agent-1": 1}, {}, {})
    return Field(topology, None, {}, {}, {}, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("then", ["goes on", "is killed afterwards"])
def test_a_pause_looks_once_more_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """A watchdog may kill right after the part goes on."""
    monkeypatch.setattr(stopped, "WATCHED_S", 1.5)
    with sleeping_process() as process:
        pids = {"worker-1": process.pid}
        monkeypatch.setattr(Field, "pid", lambda self, part: pids[part])
        victim = Victim("worker-1", (process.pid,), (), "a job", lambda: True, is_part=True)
        wound = stopped.pause(0.1)(field_of(tmp_path), victim)
        assert wound is not None
        assert wound.note == "paused for 0.1 s"
        if then == "is killed afterwards":
            pids["worker-1"] = 1
        assert wound.afterwards() == ("" if then == "goes on" else f"{stopped.IN_VAIN} (another part)")


@pytest.mark.parametrize("is_of_work", [True, False])
def test_what_serves_all_is_not_blamed_for_work_that_began_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_of_work: bool
) -> None:
    """Another fault may have hit the board that does it."""
    monkeypatch.setattr(stopped, "WATCHED_S", 1.0)
    monkeypatch.setattr(Field, "pid", lambda self, part: 1)
    attempts = iter(range(1, 1000))
    for asking in (fault, stopped):
        monkeypatch.setattr(asking, "work_of", lambda field, run: Work(run, False, next(attempts), 0.0))
    with sleeping_process() as process:
        victim = Victim("api-1", (process.pid,), ("run_1",), "requests open", lambda: True, is_part=True)
        said = said_after(stopped.pause(0.1, is_of_work=is_of_work), tmp_path, victim)
    assert said == (f"{stopped.IN_VAIN} (its work began anew)" if is_of_work else "")


def said_after(harm: Harm, folder: Path, victim: Victim) -> str:
    """What a pause is found to have done, some time after it."""
    wound = harm(field_of(folder), victim)
    assert wound is not None
    return wound.afterwards()


@pytest.mark.parametrize("still_runs", [True, False])
def test_what_goes_with_its_run_during_a_pause_was_not_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still_runs: bool
) -> None:
    monkeypatch.setattr(stopped, "WATCHED_S", 1.0)
    monkeypatch.setattr(Field, "pid", lambda self, part: 1)
    asked: list[bool] = []
    with sleeping_process() as process:

        def is_in_flight() -> bool:
            asked.append(True)
            if len(asked) == 1:  # it is stopped now; its agent ends it in the middle of the pause
                process.kill()
            return len(asked) == 1 or still_runs

        said = said_after(stopped.pause(0.1), tmp_path, Victim("agent-1", (process.pid,), (), "a run", is_in_flight))
    assert said == (f"{stopped.IN_VAIN} (it did not stay stopped)" if still_runs else "")


def test_the_time_that_asking_takes_is_part_of_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Field, "pid", lambda self, part: 1)
    with sleeping_process() as process:
        asked = threading.Event()
        victim = Victim("worker-1", (process.pid,), (), "a job", lambda: not asked.wait(0.5))
        wound = stopped.pause(0.1)(field_of(tmp_path), victim)
    assert wound is not None
    assert float(wound.note.split()[2]) >= 0.5


def test_a_victim_that_is_gone_is_not_in_flight() -> None:
    with sleeping_process() as process:
        process.kill()
        process.wait()
        assert freeze(Victim("agent-1", (process.pid,), (), "a run", lambda: True)) is None


def test_there_are_twelve_points_and_each_row_is_one_of_a_kind() -> None:
    assert len({one.point for one in POINTS}) >= 12
    assert len({(one.point, one.kind) for one in POINTS}) == len(POINTS)


def test_whatever_a_campaign_is_to_do_is_a_row_and_the_page_says_which() -> None:
    rows = [f"{one.point}: {one.kind}" for one in POINTS]
    named = [name for names in ASKED.values() for name in names]
    assert sorted(named) == sorted(rows), "each row is an answer to one thing that is asked for"
    assert all(ASKED.values())
    page = (ROOT / "docs/chaos.md").read_text()
    assert page.rstrip().endswith(document()), "renew its table: python -m tests.thorough.chaos.points"


def test_a_campaign_goes_on_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = [
        Record("API", "killed", "api-1", evidence, 1.0, 2.0, 20.0, session="first") for evidence in ("run", "run", "")
    ]
    for one in (*done, replace(done[0], session="cut off")):
        Log(log).add(one)
    Log(log).judge("first", {"lost": ["run_1"], "doubled": []})
    campaign = Campaign(field_of(tmp_path), 3, time.monotonic() + 60, random.Random(1), Log(log))
    assert campaign.confirmed() == 2, "neither what was not confirmed counts, nor what nobody has judged"
    assert Findings([], [], [], [], [], []).beside(Log(log).offenders()).lost == ["run_1"], "no session washes another"
    assert not campaign.is_over()
    chosen = campaign._next([one for one in POINTS if one.point == "API"])
    assert chosen is not None
    assert chosen.kind != "killed", "those that were tried least come first"
    campaign.records.append(done[0])
    assert campaign.is_over()


@pytest.mark.parametrize(("late_s", "hits", "is_over"), [(-5, 0, False), (5, 0, False), (5, 1, True), (65, 0, True)])
def test_a_campaign_has_patience_where_its_faults_are_few(
    tmp_path: Path, late_s: float, hits: int, is_over: bool
) -> None:
    ends_at = time.monotonic() - late_s
    log = Log(tmp_path / "log")
    campaign = Campaign(field_of(tmp_path), 3, ends_at, random.Random(1), log, fewest=1, patience_s=60.0)
    campaign.records += hits * [a_record()]
    assert campaign.is_over() is is_over
    if not is_over and late_s > 0:
        chosen = campaign._next(POINTS)
        assert chosen is not None
        assert chosen.needs_s == 0, "there is no time for those that take long"
