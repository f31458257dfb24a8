"""One value for what a user sets for a run: what it refuses, who reads it, and what one more setting costs."""

from __future__ import annotations

import argparse
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, get_type_hints

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from device_agents import wire as p
from device_agents.wire import MODES, RunSettings, Setting, settings_of
from device_agents.wire.settings import setting
from pockfarm.commands.settings import add_setting_options, given_settings
from pockfarm.errors import UsageError
from service.store.database.models import Run
from service.store.database.models.runs import settings_of_row
from service.work.runs.filter import RunFilter
from service.work.runs.settings import settings_body, settings_in, settings_view
from tests.architecture.sources import ROOT, python_files
from tests.service.farms import TestFarm

BLOB = p.Blob("sha256:" + "a" * 64, 1)


def assignment(settings: RunSettings) -> p.Assignment:
    fields = ("run", 1, "dev", "x86-64", "x86-64-v3", "lease-0001", 1.0, 60.0, 0.0, 1e12, 1, "", "", BLOB)
    return p.Assignment(*fields, settings)


@pytest.mark.parametrize(
    ("given", "where", "bounds"),
    [
        ({"steps": -1}, "steps", "1 to 100,000"),
        ({"steps": 100_001}, "steps", "1 to 100,000"),
        ({"warmup": 10_001}, "warmup", "0 to 10,000"),
        ({"seed": 1 << 63}, "seed", "0 to 9,223,372,036,854,775,807"),
        ({"learning_rate": -0.1}, "learning_rate", "at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate", "at least 0"),
        ({"learning_rate": float("inf")}, "learning_rate", "at least 0"),
        ({"threads": 0}, "threads", "1 to 1,024"),
        ({"tune_s": 0}, "tune_s", "above 0, at most 86,400"),
        ({"steps": None}, "steps", "1 to 100,000"),
        ({"steps": "7"}, "steps", "1 to 100,000"),
        ({"mode": "dance"}, "mode", "one of profile, train, eval, tune"),
    ],
)
def test_a_value_beyond_its_bounds_is_refused_by_name(given: dict[str, Any], where: str, bounds: str) -> None:
    with pytest.raises(p.ProtocolError, match=re.escape(f"{where}: must be {bounds}")):
        RunSettings(**given)


def test_a_mode_runs_without_what_it_does_not_take() -> None:
    given = RunSettings("train", 7, 2, 3, 0.5, 4, 9.0)
    as_mode = {mode: dataclasses.replace(given, mode=mode).fitted() for mode in p.LOCAL_MODES}
    assert as_mode["profile"] == RunSettings("profile", 7, 2, 3, None, 4, None)
    assert as_mode["train"] == RunSettings("train", 7, 0, 3, 0.5, 4, None)
    assert as_mode["eval"] == RunSettings("eval", 0, 0, 0, None, 4, None)
    assert as_mode["tune"] == RunSettings("tune", 0, 0, 0, None, 4, 9.0)
    assert as_mode["compare"] == RunSettings("compare", 7, 0, 3, None, 4, None)
    assert as_mode["sustained"] == RunSettings("sustained", 0, 0, 3, None, 4, None)
    assert as_mode["infer"] == RunSettings("infer", 0, 0, 0, None, 4, None)
    assert RunSettings("tune", tune_s=None).fitted().tune_s == 60.0


OLDER_KEYS = {"mode", "steps", "warmup", "seed", "learning_rate", "threads", "tune_s"}
"""Of an assignment, that agents know which were there before settings were one value."""


@pytest.mark.parametrize("mode", p.FIRST_MODES)
def test_an_older_agent_reads_what_this_farm_assigns(mode: p.Mode) -> None:
    """It refuses keys that it does not know, and wants `mode` and `steps`; for others it has the same defaults."""
    settings = RunSettings(mode).fitted()
    said = p.to_json(assignment(settings))
    own = set(said) - {field.name for field in dataclasses.fields(p.Assignment)}
    assert {"mode", "steps"} <= own <= OLDER_KEYS
    settings = dataclasses.replace(settings, warmup=3) if mode == "profile" else settings  # it knows no rule
    older = {"warmup": 3, "seed": 0, "learning_rate": None, "threads": None, "tune_s": 60.0} | said
    assert {name: older[name] for name in OLDER_KEYS} == {name: getattr(settings, name) for name in OLDER_KEYS}


def test_this_agent_reads_what_an_older_farm_assigns() -> None:
    older = {"mode": "tune", "steps": 0, "warmup": 0, "seed": 5, "learning_rate": None, "threads": 2, "tune_s": 7.5}
    said = {name: value for name, value in p.to_json(assignment(RunSettings())).items() if name not in OLDER_KEYS}
    assert p.from_json(p.Assignment, said | older).settings == RunSettings("tune", 0, 0, 5, None, 2, 7.5)


@pytest.mark.parametrize("name", ["mode", "steps"])
def test_an_assignment_without_a_mode_or_steps_is_refused(name: str) -> None:
    said = p.to_json(assignment(RunSettings()))
    del said[name]
    with pytest.raises(p.ProtocolError, match=f"^{name}: missing field of Assignment"):
        p.from_json(p.Assignment, said)


def test_a_farm_assigns_no_mode_that_is_for_one_machine_only() -> None:
    with pytest.raises(p.ProtocolError, match=r"^mode: .* profile, train, eval, tune"):
        assignment(RunSettings("infer"))


def test_a_row_of_another_version_is_read_as_far_as_it_goes() -> None:
    later = {**p.to_json(RunSettings("eval", seed=4)), "clip": 0.5}
    assert settings_of_row(later) == RunSettings("eval", seed=4)
    assert settings_of_row({"mode": "train", "steps": 7}) == RunSettings("train", 7)


def test_a_row_that_no_version_wrote_is_no_agents_fault() -> None:
    with pytest.raises(ValueError, match=r"^a run's row holds .*: settings") as refusal:
        settings_of_row({"mode": "prune", "steps": 7})
    assert not isinstance(refusal.value, p.ProtocolError)


@pytest.mark.parametrize("seed", [10**400, -1, True])
def test_a_seed_that_cannot_be_is_refused_by_name(seed: int) -> None:
    with pytest.raises(p.ProtocolError, match=r"^seed: must be 0 to"):
        RunSettings("train", seed=seed)


def test_runs_are_found_by_the_mode_in_their_settings(farm: TestFarm) -> None:
    bundle = farm.bundle()
    made = farm.run(bundle=bundle, mode="profile", steps=9, threads=2)
    assert (made["mode"], made["steps"], made["threads"], made["tune_s"]) == ("profile", 9, 2, None)
    listed = {
        mode: [run["id"] for run in farm.http.get("/runs", params={"mode": mode}).json()["items"]] for mode in MODES
    }
    assert listed == {mode: [made["id"]] if mode == "profile" else [] for mode in MODES}
    with farm.farm.database.read() as session:
        [row] = session.scalars(select(Run).where(*RunFilter(mode="profile").conditions()))
        assert row.settings == RunSettings("profile", steps=9, threads=2).fitted()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eval", "--warmup", "3"], "--warmup: mode eval takes none; it is for profile"),
        (["profile", "--budget", "3"], "--budget: mode profile takes none; it is for tune"),
    ],
)
def test_an_option_that_the_mode_passes_over_is_refused(words: list[str], said: str) -> None:
    command = argparse.ArgumentParser()
    command.add_argument("mode")
    add_setting_options(command, MODES)
    options = command.parse_args(words)
    with pytest.raises(UsageError, match=re.escape(said)):
        given_settings(options, options.mode)


# What one more setting costs: here it is a field of a class of its own, and nothing else is written for it.


@dataclass(frozen=True)
class ClippedSettings(RunSettings):
    clip: Optional[float] = setting(  # noqa: UP045 (as in the agent's own files)
        None, Setting("Clip", "largest norm of a gradient", ("train",), None, above=0, most=10, absent="unclipped")
    )


def test_one_more_setting_is_an_option_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    command = argparse.ArgumentParser()
    add_setting_options(command, ("train",), ClippedSettings)
    assert given_settings(command.parse_args(["--clip", "0.5"]), "train", ClippedSettings) == {"clip": 0.5}
    assert "(above 0, at most 10; default: unclipped)" in " ".join(command.format_help().split())
    with pytest.raises(SystemExit):
        command.parse_args(["--clip", "11"])
    assert re.search(r" 11 .* above 0, at most 10\b", capsys.readouterr().err)


def test_one_more_setting_is_in_the_api() -> None:
    body, view = settings_body(ClippedSettings), settings_view(ClippedSettings)
    assert settings_in(body(mode="train", clip=0.5), ClippedSettings).clip == 0.5  # type: ignore[arg-type, attr-defined, call-arg]
    assert settings_in(body(mode="eval", clip=0.5), ClippedSettings).clip is None  # type: ignore[arg-type, attr-defined, call-arg]
    with pytest.raises(ValidationError, match="less than or equal to 10"):
        body(mode="train", clip=11)  # type: ignore[call-arg]
    for schema in (body.model_json_schema(), view.model_json_schema()):
        words = "Largest norm of a gradient; train only (null: unclipped)"
        assert schema["properties"]["clip"]["description"] == words


def test_one_more_setting_goes_through_the_row_and_the_assignment() -> None:
    given = ClippedSettings("train", clip=0.5)
    assert settings_of_row(p.to_json(given), ClippedSettings) == given
    plain = settings_of_row(p.to_json(RunSettings("train")), ClippedSettings)
    assert isinstance(plain, ClippedSettings)
    assert plain.clip is None
    told = dataclasses.make_dataclass(
        "Told", [("settings", ClippedSettings, dataclasses.field(metadata={"flat": True}))], frozen=True
    )
    assert p.from_json(told, p.to_json(told(given))).settings == given
    assert set(p.to_json(told(ClippedSettings("train")))) == {"mode", "steps"}, (
        "unset, an older agent does not hear of it"
    )


def test_the_modes_stand_once() -> None:
    listed = re.compile(r"[\"']profile[\"'],\s*[\"']train[\"'],\s*[\"']eval[\"']")
    product = ("device_agents", "service", "workers", "pockfarm")
    found = [path for path in python_files(*product) if listed.search((ROOT / path).read_text())]
    assert found == [Path("device_agents/wire/settings.py")]


def test_every_setting_says_all_that_is_derived_from_it() -> None:
    hints = get_type_hints(RunSettings)
    for name, known in settings_of(RunSettings).items():
        assert known.label, name
        assert known.words[0].islower(), name
        assert set(known.modes) <= set(p.LOCAL_MODES), name
        assert known.allows(p.default_of(RunSettings, name)), name
        assert known.least is not None or known.above is not None or known.choices or known.is_flag, name
        assert (type(None) in getattr(hints[name], "__args__", ())) == (known.unused is None or bool(known.absent)), (
            name
        )
