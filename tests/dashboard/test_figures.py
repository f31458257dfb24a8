"""What a job's and a run's page say of figures that they were given."""

from __future__ import annotations

from collections.abc import Mapping

from device_agents.wire import Training
from service.dashboard import memory_plan
from service.dashboard.charts.ways import WayPoint, worthwhile
from service.dashboard.facts import BundleFacts
from service.dashboard.pages.memory import memory_figure, ways_figure
from service.dashboard.pages.training import training_notice


def bundle(manifest: Mapping[str, object], report: Mapping[str, object]) -> BundleFacts:
    return BundleFacts("sha256:0", 1, "x86-64-v3", "net", "full", manifest, report)


def test_the_arena_is_pictured_over_the_training_programs_calls() -> None:
    """The manifest's kernels go on with those of the other micro-batches, of which the report tells no values."""
    value = {"name": "x", "offset_bytes": 0, "size_bytes": 64, "first": 0, "last": 1}
    report = {"arena": {"arena_bytes": 64, "values": [value]}, "graph": {"kernel calls": 3}}
    kernels = [{"phase": phase} for phase in ("forward", "backward", "update", "forward", "backward")]
    several = bundle({"kernels": kernels, "micro_batches": 2}, report)
    plan = memory_plan.arena_plan(several)
    assert plan is not None
    assert plan.phases == ("forward", "backward", "update")
    figure, single = memory_figure(several, ""), memory_figure(bundle({"kernels": kernels[:3]}, report), "")
    assert figure is not None
    assert single is not None
    assert "last micro-batch" in figure.note
    assert "micro-batch" not in single.note


def test_a_way_that_another_beats_is_off_the_line() -> None:
    ways = [WayPoint("whole", 4, 1.0, True), WayPoint("worse", 3, 1.2, False), WayPoint("less", 2, 1.1, False)]
    assert [way.name for way in worthwhile(ways)] == ["whole", "less"]


def test_a_curve_of_one_size_is_no_choice() -> None:
    way = {"name": "whole", "needed_bytes": 4, "flops_ratio": 1.0, "taken": True}
    assert ways_figure(bundle({}, {"memory_curve": [way, way]})) is None


def test_a_notice_is_whole_sentences() -> None:
    for reason in ("the loss of step 3 is NaN; check the data", "the loss of step 3 is NaN; check the data."):
        training = Training(outcome="diverged", steps=3, reason=reason)
        said = training_notice(training)
        assert said == "At step 3: the loss of step 3 is NaN; check the data. It left no weights."
