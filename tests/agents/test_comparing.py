"""Mode compare on this machine, with the real binary and with those that lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from device_agents.errors import Stopped
from device_agents.execute import run_bundle
from device_agents.figures.rounds import order_of
from device_agents.figures.warm_up import allowance
from device_agents.wire import Comparison, ProtocolError, Report, RunSettings, dumps, from_json, loads, to_json
from tests.agents.fake_step import bundle as fake_bundle
from tests.agents.fake_step import script
from tests.agents.real_step import real_bundle, real_data

SETTINGS = RunSettings("compare", steps=5, seed=11, compare_s=600.0)
"""After some rounds it is known that one takes much longer, however busy the machine is."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bundle, and one whose step does about forty times as much."""
    folders = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    one, two = (real_bundle(folder, turns=turns) for folder, turns in zip(folders, (100_000, 4_000_000), strict=True))
    return one, two


def test_bundles_take_turns_as_the_seed_says(paths: tuple[Path, Path]) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    result = run_bundle(paths[0], SETTINGS, others=[paths[1]], notify=lambda kind, **said: told.append((kind, said)))
    assert result.error is None
    found = result.report.comparison
    assert found is not None
    assert found.bundles[0] == result.report.bundle_digest
    assert len(set(found.bundles)) == 2
    rounds = [found.processes[start : start + 4] for start in range(0, len(found.processes), 4)]
    assert [tuple(one.bundle for one in part) for part in rounds] == [
        order_of(number, bundles=2, seed=11) for number in range(len(rounds))
    ]
    assert {len(one.step_us) for one in found.processes} == {5 + allowance(5)}
    fastest = [min(min(one.step_us) for one in found.processes if one.bundle == which) for which in (0, 1)]
    assert fastest[1] > 1.5 * fastest[0], "the second does forty times as much"
    assert found.ended in ("known", "time", "rounds")
    assert all(found.threads)
    assert result.report.measurement is None, "a comparison is no measurement of one bundle"
    assert result.report.verdict is None
    assert result.report.memory.arena_bytes
    assert loads(Report, dumps(result.report)) == result.report
    fractions = [fields["fraction"] for kind, fields in told if kind == "progress"]
    assert fractions == sorted(fractions)
    assert any("nineteen times of twenty" in str(fields.get("message")) for _, fields in told)


def stop_after(processes: int) -> tuple[Callable[..., None], Callable[[], Stopped | None]]:
    seen: list[str] = []

    def notify(kind: str, **_: Any) -> None:
        if kind == "progress":
            seen.append(kind)

    return notify, lambda: Stopped("test", "enough", cause="infra") if len(seen) >= processes else None


def test_one_that_is_ended_leaves_its_whole_rounds(paths: tuple[Path, Path]) -> None:
    for processes, whole in ((3, None), (6, 4)):
        notify, should_stop = stop_after(processes)
        result = run_bundle(paths[0], SETTINGS, others=[paths[0]], notify=notify, should_stop=should_stop)
        assert result.report.outcome.code == "test"
        found = result.report.comparison
        assert (found and len(found.processes)) == whole
        assert found is None or found.ended == "cut"


def test_what_does_not_go_together_is_refused(paths: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = paths
    data = real_data(tmp_path / "data.npz")
    foreign = real_bundle(tmp_path, target="raspberry-pi-4")
    cases: tuple[tuple[str, RunSettings, dict[str, Any]], ...] = (
        ("compare.bundles", SETTINGS, {}),
        ("compare.bundles", SETTINGS, {"others": [two] * 4}),
        ("compare.mode", RunSettings("profile", steps=3), {"others": [two]}),
        ("compare.data", SETTINGS, {"others": [two], "data": data}),
        ("compare.data", SETTINGS, {"others": [two], "weights": data}),
        ("bundle.target", SETTINGS, {"others": [foreign]}),
        ("steps.missing", replace(SETTINGS, steps=0), {"others": [two]}),
    )
    for code, settings, given in cases:
        assert run_bundle(one, settings, **given).report.outcome.code == code, given


def test_times_of_an_emulated_board_are_not_compared(tmp_path: Path) -> None:
    file = real_bundle(tmp_path, target="raspberry-pi-4", required_features=[])
    outcome = run_bundle(file, SETTINGS, others=[file], runner="qemu-aarch64-static").report.outcome
    assert (outcome.cause, outcome.code) == ("user", "compare.emulated")


@pytest.mark.usefixtures("scripts_for_binaries")
@pytest.mark.parametrize(
    ("then", "code"),
    [
        ('print(\'{"event": "step", "step": 99, "loss": 1.0, "us": 5.0}\', flush=True)', "step.output"),
        ("sys.exit(0)", "step.incomplete"),
    ],
)
def test_a_binary_that_tells_more_steps_or_does_not_end(tmp_path: Path, then: str, code: str) -> None:
    file = tmp_path / "fake.pfb"
    file.write_bytes(fake_bundle(step=script(then=then)))
    result = run_bundle(file, replace(SETTINGS, compare_s=0.5), others=[file])
    assert result.report.outcome.code == code


def test_what_cannot_be_is_no_comparison(paths: tuple[Path, Path]) -> None:
    report = run_bundle(paths[0], replace(SETTINGS, compare_s=0.2), others=[paths[1]]).report
    assert report.comparison is not None
    told = to_json(report.comparison)
    changes: tuple[dict[str, Any], ...] = (
        {"bundles": told["bundles"][:1]},
        {"bundles": ["mine", "yours"]},
        {"steps": 0},
        {"ended": "soon"},
        {"processes": told["processes"][:-1]},
        {"threads": [1]},
        {"foreseen_rounds": 0},
        {"processes": [{**told["processes"][0], "step_us": []}] * 4},
        {"processes": [{**told["processes"][0], "step_us": [1e-300]}] * 4},
        {"processes": []},
        {"processes": [{**told["processes"][0], "bundle": 9}] * 4},
    )
    for change in changes:
        with pytest.raises(ProtocolError):
            from_json(Comparison, {**told, **change})
    with pytest.raises(ProtocolError, match="comparison"):
        replace(report, mode="profile")
