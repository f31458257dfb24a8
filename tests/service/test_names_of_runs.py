"""Names, notes and tags of runs: said by PATCH, shown everywhere, found by a filter that an index serves."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from service.store.database.models import Run
from service.work.runs.filter import RunFilter
from service.work.runs.tags import tags_in, text_of, typed_tags
from tests.service.farms import TestFarm


def test_what_is_said_of_a_run_is_shown_and_what_is_left_out_stays(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())["id"]
    said = farm.http.patch(f"/runs/{run}", json={"name": " first try ", "tags": ["night", "base", "night"]})
    assert said.status_code == 200, said.text
    farm.http.patch(f"/runs/{run}", json={"note": "cold room\nnew cable"})
    found = farm.http.get(f"/runs/{run}").json()
    assert (found["name"], found["note"], found["tags"]) == ("first try", "cold room\nnew cable", ["base", "night"])
    farm.http.patch(f"/runs/{run}", json={"name": "", "note": "", "tags": []})
    (listed,) = farm.http.get("/runs").json()["items"]
    assert (listed["name"], listed["note"], listed["tags"]) == ("", "", [])


def test_a_tag_finds_its_runs_and_no_others(farm: TestFarm) -> None:
    bundle = farm.bundle()
    tagged = {tag: farm.run(bundle=bundle)["id"] for tag in ("a_b", "axb", "a_b2")}
    for tag, run in tagged.items():
        farm.http.patch(f"/runs/{run}", json={"tags": [tag, "all"]})
    farm.run(bundle=bundle)
    for tag, run in tagged.items():
        assert [one["id"] for one in farm.http.get("/runs", params={"tag": tag}).json()["items"]] == [run]
    assert len(farm.http.get("/runs", params={"tag": "all"}).json()["items"]) == 3
    assert farm.http.get("/runs", params={"tag": "%"}).json()["items"] == []


def test_runs_without_tags_are_passed_over_by_index(farm: TestFarm) -> None:
    with farm.farm.database.snapshot() as session:  # one transaction on either database: the setting lasts it
        dialect = session.get_bind().dialect
        if dialect.name != "sqlite":
            session.execute(text("SET LOCAL enable_seqscan = off"))
        literally = {"literal_binds": True}
        conditions = [
            condition.compile(dialect=dialect, compile_kwargs=literally)
            for condition in RunFilter(tag="night").conditions()
        ]
        explain = "EXPLAIN QUERY PLAN" if dialect.name == "sqlite" else "EXPLAIN"
        query = (
            f"{explain} SELECT id FROM runs WHERE organisation_id = 'org_home' AND {' AND '.join(map(str, conditions))}"
        )
        plan = "\n".join(str(tuple(row)) for row in session.execute(text(query.replace(":", "\\:"))))
    assert "ix_runs_tagged" in plan


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, "name, note, tags"),
        ({"name": "x" * 101}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"note": "x" * 4001}, "note"),
        ({"tags": ["Capital"]}, "tags"),
        ({"tags": ["two words"]}, "tags"),
        ({"tags": ["a"] * 17}, "tags"),
        ({"nam": "x"}, "nam"),
    ],
)
def test_what_cannot_be_said_is_refused_with_its_place(farm: TestFarm, body: dict[str, object], where: str) -> None:
    run = farm.run(bundle=farm.bundle())["id"]
    answer = farm.http.patch(f"/runs/{run}", json=body)
    assert answer.status_code == 422
    assert where in f"{answer.json().get('where', '')} {answer.json()['detail']}"
    with farm.farm.database.read() as session:
        assert session.get_one(Run, run).tags == ""


def test_saying_something_changes_nothing_of_the_run(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())["id"]
    before = farm.http.get(f"/runs/{run}").json()
    farm.http.patch(f"/runs/{run}", json={"name": "n", "tags": ["a"]})
    after = farm.http.get(f"/runs/{run}").json()
    assert {key for key in before if before[key] != after[key]} == {"name", "tags"}
    assert farm.http.patch("/runs/run_none", json={"name": "n"}).status_code == 404


def test_tags_are_typed_as_people_type() -> None:
    assert typed_tags(" Night, cold-room;v2\nnight ") == ["night", "cold-room", "v2", "night"]
    assert tags_in(text_of(typed_tags("b a b"))) == ["a", "b"]
    assert (text_of([]), tags_in("")) == ("", [])
