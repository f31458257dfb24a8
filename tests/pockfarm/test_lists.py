"""Lists and pages of a real farm: as tables, and with `--json` what the API answers; filters as the API takes them."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pockfarm import cli
from pockfarm.client import Client
from pockfarm.client.synchronous import lists
from pockfarm.command_line.words import runs
from pockfarm.own_farm.state import FarmStatus, PartStatus, StateFolder
from pockfarm.values import DEVICE_STATES, JOB_STATES, RUN_STATES
from service.store.database import models
from tests.agents.live_farm import LiveFarm
from tests.pockfarm.fake_farm import Answer, FakeFarm, fake_farm

SHOWING = {
    "list",
    "show",
    "history",
    "deliveries",
    "jobs",
    "runs",
    "devices",
    "regressions",
    "audit",
    "targets",
    "status",
    "why",
    "report",
}
"""Names of commands and actions that show something and change nothing."""


def commands(parser: argparse.ArgumentParser, words: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, one in action.choices.items():
                yield f"{words}{name}", one
                yield from commands(one, f"{words}{name} ")


ALL = dict(commands(cli.parser()))


@pytest.mark.parametrize("words", [words for words in ALL if words.split()[-1] in SHOWING])
def test_whatever_shows_something_takes_json(words: str) -> None:
    assert "--json" in ALL[words]._option_string_actions


@pytest.fixture(scope="module")
def names(running: LiveFarm) -> Mapping[str, str]:
    """Of things of every kind on the farm."""
    farm = running.http

    def made(path: str, body: object) -> str:
        answer = farm.post(path, json=body)
        assert answer.is_success, answer.text
        return str(answer.json()["id"])

    job = farm.post("/compile", files={"model": ("net.onnx", b"model")}, data={"plan": "full", "target": "x86-64-v3"})
    assert job.is_success, job.text
    digest = running.keep_bundle()
    return {
        "JOB": str(job.json()["id"]),
        "DIGEST": digest,
        "RUN": running.run(digest),
        "TOKEN": made("/devices/enrolment-tokens", {"name": "desk"}),
        "HOOK": made("/webhooks", {"url": "https://8.8.8.8/told"}),
        "USER": made("/users", {"name": "Ada"}),
        "KEY": made("/keys", {"name": "ci"}),
        "WINDOW": made("/maintenance", {"starts_at": "2036-12-01T02:00:00Z", "ends_at": "2036-12-01T03:00:00Z"}),
    }


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("bundles", "/bundles"),
        ("bundles --target x86-64-v3", "/bundles?target=x86-64-v3"),
        ("datasets", "/datasets"),
        ("bundles show DIGEST", "/bundles/DIGEST/info"),
        ("jobs", "/jobs"),
        ("runs", "/runs"),
        ("devices", "/devices"),
        ("regressions", "/regressions"),
        ("groups list", "/run-groups"),
        ("tokens list", "/devices/enrolment-tokens"),
        ("tokens show TOKEN", "/devices/enrolment-tokens/TOKEN"),
        ("maintenance list", "/maintenance"),
        ("releases list", "/agent-releases"),
        ("webhooks list", "/webhooks"),
        ("webhooks deliveries HOOK", "/webhooks/HOOK/deliveries"),
        ("org show", "/organisation"),
        ("org list", "/organisations"),
        ("key list", "/keys"),
        ("user list", "/users"),
        ("why JOB", "/jobs/JOB/why"),
        ("runs --state queued --mode profile", "/runs?state=queued&mode=profile"),
        ("jobs --target x86-64-v4", "/jobs?target=x86-64-v4"),
        ("jobs --state open --model net", "/jobs?state=open"),
        ("devices --state active --class jetson", "/devices?state=active&device_class=jetson"),
    ],
)
def test_json_is_what_the_farm_answers(
    live: LiveFarm, names: Mapping[str, str], words: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [names.get(word, word) for word in words.split()]
    assert cli.main([*named, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    answer = live.http.get("/".join(names.get(word, word) for word in path.split("/"))).json()
    said = answer["items"] if isinstance(answer, dict) and "items" in answer else answer
    assert drop_moments(printed) == drop_moments(said)
    assert cli.main(named) == 0
    assert capsys.readouterr().out.strip()


def drop_moments(said: object) -> object:
    """Without what may differ between two requests."""
    if isinstance(said, list):
        return [drop_moments(one) for one in said]
    if isinstance(said, dict):
        moments = ("last_used_at", "expected_start_at", "use")
        return {name: drop_moments(one) for name, one in said.items() if name not in moments}
    return said


def test_the_audit_is_json(live: LiveFarm, names: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "--limit", "3", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3


def test_filters_choose_and_an_empty_list_says_of_what(
    live: LiveFarm, names: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["runs", "--state", "queued", "--bundle", names["DIGEST"]]) == 0
    assert names["RUN"] in capsys.readouterr().out
    assert cli.main(["runs", "--state", "failed", "--mode", "train"]) == 0
    assert capsys.readouterr().out == "no runs of state failed, mode train\n"
    assert cli.main(["devices", "--state", "drained"]) == 0
    assert capsys.readouterr().out == "no such devices\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("runs --state faild", "did you mean 'failed'?"),
        ("jobs --state leased", "argument --state: invalid choice: 'leased' "),
        ("devices --state quarantine", "did you mean 'quarantined'?"),
        ("runs --verdict noise", "did you mean 'noisy'?"),
        ("runs --measurement-class hardwear", "did you mean 'hardware'?"),
        ("runs --limit 0", "0 is no number from 1 on"),
    ],
)
def test_a_value_of_a_closed_set_is_refused_by_its_name(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_states_are_those_of_the_farm() -> None:
    assert (JOB_STATES, RUN_STATES, DEVICE_STATES) == (models.JOB_STATES, models.RUN_STATES, models.DEVICE_STATES)


def test_a_path_is_still_the_folder_of_the_farm(tmp_path_factory: pytest.TempPathFactory) -> None:
    options = cli.parser().parse_args(["runs", "--state", "./queued", "--mode", "train"])
    assert (options.state, options.wanted_state) == ("./queued", None)
    options = cli.parser().parse_args(["runs", "--state", "queued", "--state-folder", "x"])
    assert (options.state, options.wanted_state) == ("x", "queued")
    assert cli.parser().parse_args(["report", "r", "--state", "x"]).state == "x"


@pytest.mark.parametrize("words", ["devices --json --state-folder F show x", "devices show x --json --state-folder F"])
def test_options_of_every_command_stand_before_an_action_or_after_it(words: str) -> None:
    options = cli.parser().parse_args(words.split())
    assert (options.json, options.state, options.device) == (True, "F", "x")
    plain = cli.parser().parse_args(["devices", "show", "x"])
    assert (plain.json, plain.state) == (False, None)


def test_more_than_a_page_comes_page_after_page(loopback: None) -> None:
    with fake_farm() as server, Client(server.url, "key") as farm:
        page = [{"id": f"run_{n}"} for n in range(lists.PAGE)]
        server.on("GET", "/runs", Answer(200, {"items": page, "next": "c1"}), Answer(200, {"items": page[:50]}))
        assert len(farm.runs(limit=1000)) == lists.PAGE + 50
        assert [query(one.path) for one in server.seen] == [{"limit": "200"}, {"limit": "200", "cursor": "c1"}]
        check_few(server, farm)


def query(path: str) -> dict[str, str]:
    return dict(one.split("=") for one in path.partition("?")[2].split("&") if one)


def check_few(server: FakeFarm, farm: Client) -> None:
    server.on("GET", "/runs", Answer(200, {"items": [{"id": "run_1"}] * 3, "next": "c1"}))
    assert len(farm.runs(limit=3)) == 3
    assert query(server.seen[-1].path) == {"limit": "3"}
    farm.runs()
    assert query(server.seen[-1].path) == {}


def test_the_status_of_a_farm_on_this_machine_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = StateFolder(tmp_path / "state")
    state.make()
    status = FarmStatus(pid=7, url="http://127.0.0.1:8000", ready=True, parts={"api": PartStatus(8, 0, "up")})
    state.save(status)
    descriptor = state.lock()
    assert descriptor is not None
    try:
        assert cli.main(["status", "--json", "--state", str(state.path)]) == 0
    finally:
        os.close(descriptor)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["url"], printed["parts"]["api"]["state"]) == ("http://127.0.0.1:8000", "up")


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("tokens add --name rack", "token"),
        ("key add reader --scope read", "secret"),
        ("user add Grace", "id"),
        ("webhooks add https://8.8.8.8/other", "secret"),
        ("maintenance add 2037-01-01T02:00Z 2037-01-01T03:00Z", "id"),
    ],
)
def test_what_was_made_is_json_too(live: LiveFarm, words: str, field: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words.split(), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed[field]
    assert cli.main(words.replace("Grace", "Hopper").split()) == 0
    assert printed["id"].partition("_")[0] in capsys.readouterr().out


def test_every_command_takes_json_but_those_that_print_text_for_a_shell_or_json_anyway() -> None:
    without = {words for words, one in ALL.items() if runs(one) and "--json" not in one._option_string_actions}
    assert without == set(cli.WITHOUT_JSON)


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("runs --plan ful", "no runs of plan ful; did you mean 'full'?"),
        ("jobs --target x86-64-v33", "no jobs of target x86-64-v33; did you mean 'x86-64-v3'?"),
        ("runs --mode sustained", "no runs of mode sustained\n"),
    ],
)
@pytest.mark.usefixtures("names")
def test_a_list_without_rows_says_what_may_have_been_meant(
    live: LiveFarm, words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 0
    assert told in capsys.readouterr().out
