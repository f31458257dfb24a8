"""The tables of states: complete, the only way to write a state, and what the documentation says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from service.store import states
from service.store.database.models import Device, DeviceEvent, Event, Job, Run
from service.store.states import MACHINES, RUN, IllegalTransition, Machine, move
from tests.architecture.sources import ROOT, python_files
from tests.service.farms import TestFarm

WRITER = Path("service/store/states.py")


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_table_names_its_states_only_and_leads_to_each(machine: Machine) -> None:
    named = {name for one in machine.transitions for name in (*one.sources, one.target)} | {machine.first}
    assert named == set(machine.states)
    assert set(machine.ends) <= set(machine.states)
    keys = [(one.event, source) for one in machine.transitions for source in one.sources]
    assert len(keys) == len(set(keys)), "an event leads from a state to one other"
    assert machine.row.__table__.c.state.default.arg == machine.first
    reached, more = {machine.first}, True
    while more:
        found = {one.target for one in machine.transitions if reached & set(one.sources)} - reached
        reached, more = reached | found, bool(found)
    assert reached == set(machine.states)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_what_has_ended_stays_so_but_for_a_lost_attempt_whose_report_comes_late(machine: Machine) -> None:
    out = {(source, one.target) for one in machine.transitions for source in one.sources if source in machine.ends}
    late = {("lost", state) for state in ("succeeded", "failed", "cancelled", "inconclusive")}
    allowed = {"attempt": late, "device": {("removed", "removed")}}
    assert out == allowed.get(machine.name, set())


def test_the_page_is_made_of_the_tables() -> None:
    assert (ROOT / "docs/states.md").read_text() == states.document(), "make golden"


def state_writes(text: str) -> Iterator[int]:
    """Lines that assign an attribute `state`, or give a column of that name to an UPDATE or to `setattr`."""
    for node in ast.walk(ast.parse(text)):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        flat = [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
        if isinstance(node, ast.stmt) and any(isinstance(one, ast.Attribute) and one.attr == "state" for one in flat):
            yield node.lineno
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        named = any(keyword.arg == "state" for keyword in node.keywords)
        texts = {part.value for argument in node.args for part in ast.walk(argument) if isinstance(part, ast.Constant)}
        if (called == "values" and (named or "state" in texts)) or (called == "setattr" and "state" in texts):
            yield node.lineno


NO_RECORD = {
    "service/features/webhooks/courier.py": "a delivery waits, is sent or failed: it is no part of what a run was",
    "service/boards/releases/offering.py": "an update of a board's agent is given, done or failed: nor is that",
    "service/boards/releases/publishing.py": "a release is offered or halted: nor is that",
}


def test_no_other_code_writes_a_state() -> None:
    found = {
        path.as_posix(): list(state_writes((ROOT / path).read_text()))
        for path in python_files("service", "workers")
        if path != WRITER and path.as_posix() not in NO_RECORD
    }
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert list(state_writes((ROOT / WRITER).read_text())), "the search finds what it is for"


@pytest.mark.parametrize(
    "text",
    [
        "run.state = 'x'",
        "run.state, b = 1, 2",
        "update(Run).values(state='x')",
        "update(Run).values({'state': 1})",
        "setattr(run, 'state', 1)",
        "run.state: str = 'x'",
    ],
)
def test_the_search_itself(text: str) -> None:
    assert list(state_writes(text)) == [1]


def test_an_illegal_transition_is_typed_and_changes_nothing(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    farm.http.post(f"/runs/{run['id']}/cancel")
    before = farm.show(run["id"])
    with farm.farm.database.transaction() as session:
        row = session.get_one(Run, run["id"])
        count = len(session.scalars(select(Event).where(Event.subject == row.id)).all())
        with pytest.raises(IllegalTransition, match=r"^run run_\w+ is cancelled: .*'lease'"):
            move(session, row, "lease", attempt=1)
        with pytest.raises(IllegalTransition):
            move(session, row, "such an event does not exist")
        assert not session.dirty
        assert len(session.scalars(select(Event).where(Event.subject == row.id)).all()) == count
    assert farm.show(run["id"]) == before


def test_every_pair_that_no_line_names_is_refused(small_farm: TestFarm) -> None:
    """Of every machine, every event in every state, on rows that are never written."""
    events = {one.event for machine in MACHINES for one in machine.transitions}
    with small_farm.farm.database.read() as session:
        for machine in MACHINES:
            for state in machine.states:
                for event in events:
                    row = machine.row(id="x", state=state)
                    line = machine.transition(event, state)
                    if line is None:
                        with pytest.raises(IllegalTransition):
                            move(session, row, event)
                        assert row.state == state
                    else:
                        move(session, row, event)
                        assert row.state == line.target
                        if not isinstance(row, Device):
                            assert (row.finished_at is not None) == (line.target in machine.ends)
        session.expunge_all()


def test_a_move_writes_its_history(farm: TestFarm) -> None:
    run, board = farm.run(bundle=farm.bundle()), farm.board()
    farm.http.post(f"/devices/{board.device_id}/quarantine", json={"reason": "moved house"})
    job_id = farm.compile(b"another").json()["id"]
    farm.http.post(f"/jobs/{job_id}/cancel")
    with farm.farm.database.read() as session:
        lines = session.scalars(select(DeviceEvent).where(DeviceEvent.device_id == board.device_id)).all()
        assert [(line.kind, line.message) for line in lines][1:] == [("quarantined", "moved house")]
        for subject, expected in ((run["id"], ["queued"]), (job_id, ["queued", "cancelled"])):
            said = session.scalars(select(Event).where(Event.subject == subject, Event.kind == "state")).all()
            assert [event.body["state"] for event in said] == expected
        assert session.get_one(Job, job_id).finished_at is not None


def test_an_illegal_transition_is_a_typed_failure_of_the_farm(
    small_farm: TestFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_farm.run(bundle=small_farm.bundle())
    monkeypatch.setattr(RUN.__class__, "transition", lambda *_: None)
    answer = small_farm.http.post(f"/runs/{run['id']}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (500, "service.illegal-transition")
    monkeypatch.undo()
    assert small_farm.show(run["id"])["state"] == "queued"
