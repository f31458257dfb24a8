"""Verbs of the command line at a real farm: cancel, retry, logs, queue, open, devices enrol."""

from __future__ import annotations

import json
import shlex
import webbrowser
from urllib.parse import urlsplit

import httpx
import pytest

from pockfarm import cli
from pockfarm.commands.mending import cancelled_text
from pockfarm.errors import UsageError
from service.store import events, states
from service.store.database.models import Job
from tests.agents.live_farm import LiveFarm

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def digest(running: LiveFarm) -> str:
    return running.keep_bundle()


def submitted(live: LiveFarm, spec: str) -> str:
    """A compile job's id."""
    fields = {"plan": "full", "spec": spec, "target": "x86-64-v3"}
    answer = live.http.post("/compile", files={"model": ("net.onnx", b"model")}, data=fields)
    assert answer.is_success, answer.text
    return str(answer.json()["id"])


def refusal(arguments: list[str], capsys: Capture) -> str:
    assert cli.main(arguments) == UsageError.exit_code
    return capsys.readouterr().err


def test_runs_and_compiles_are_cancelled(live: LiveFarm, digest: str, capsys: Capture) -> None:
    run, job = live.run(digest), submitted(live, "batch: 2")
    assert cli.main(["cancel", run, job]) == 0
    assert capsys.readouterr().out == f"{run} is cancelled\n{job} is cancelled\n"
    assert live.http.get(f"/runs/{run}").json()["state"] == live.http.get(f"/jobs/{job}").json()["state"] == "cancelled"
    assert cli.main(["cancel", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["id"] == run


def test_what_runs_is_asked_to_stop_and_what_has_ended_stays() -> None:
    asked = {"id": "run_1", "state": "running", "cancel_requested": True, "finished_at": None}
    assert cancelled_text(asked).startswith("run_1 is asked to stop; `pockfarm why run_1` ")
    ended = {"id": "run_1", "state": "succeeded", "cancel_requested": False, "finished_at": "2026-01-01T00:00:00Z"}
    assert cancelled_text(ended) == "run_1 had ended before: succeeded"


@pytest.mark.parametrize(
    "words", ["cancel dev_1", "cancel x", "retry sha256:b", "logs grp_1", "open key_1", "open run"]
)
def test_an_id_of_another_kind_is_refused_with_those_that_are_taken(
    words: str, live: LiveFarm, capsys: Capture
) -> None:
    stderr = refusal(words.split(), capsys)
    assert f"'{words.split()[1]}' is no id " in stderr
    assert "run_… or job_…" in stderr
    assert "`pockfarm runs`, `pockfarm jobs`" in stderr
    assert stderr.count("\n") == 1


def test_a_run_that_ended_is_queued_once_more(live: LiveFarm, digest: str, capsys: Capture) -> None:
    run = live.run(digest)
    assert f"{run} is queued yet: `pockfarm cancel {run}` stops it" in refusal(["retry", run], capsys)
    live.http.post(f"/runs/{run}/cancel")
    assert cli.main(["retry", run]) == 0
    again = capsys.readouterr().out.strip()
    assert again != run
    found = live.http.get(f"/runs/{again}").json()
    assert (found["state"], found["steps"], found["bundle_digest"]) == ("queued", 4, digest)
    live.http.post(f"/runs/{again}/cancel")


def test_a_compile_that_failed_is_asked_for_again(live: LiveFarm, capsys: Capture) -> None:
    job = submitted(live, "batch: 3")
    assert f"{job} is queued yet" in refusal(["retry", job], capsys)
    with live.farm.database.transaction() as session:
        row = session.get_one(Job, job)
        row.cause, row.code, row.message = "limits", "compile.time", "took too long"
        states.move(session, row, "cancel")
    assert "leave them out" in refusal(["retry", job, "--device", "dev_1"], capsys)
    assert cli.main(["retry", job]) == 0
    again = capsys.readouterr().out.strip()
    assert again != job
    before, now = (live.http.get(f"/jobs/{one}").json() for one in (job, again))
    same = ("model", "plan", "spec_digest", "target", "compiler_version")
    assert {name: now[name] for name in same} == {name: before[name] for name in same}
    assert now["state"] == "queued"
    live.http.post(f"/jobs/{again}/cancel")
    assert cli.main(["retry", again, "--json"]) == 0
    third = json.loads(capsys.readouterr().out)
    assert third["id"] not in (job, again)
    live.http.post(f"/jobs/{third['id']}/cancel")


def test_what_a_device_said_is_printed(live: LiveFarm, digest: str, capsys: Capture) -> None:
    run = live.run(digest)
    assert cli.main(["logs", run]) == 0
    assert capsys.readouterr().err == f"nothing was said in {run}; `pockfarm watch {run}` shows what happened in it\n"
    with live.farm.database.transaction() as session:
        for n in range(3):
            events.add(session, run, "log", message=f"line {n}")
    assert cli.main(["logs", run]) == 0
    assert [line[10:] for line in capsys.readouterr().out.splitlines()] == ["line 0", "line 1", "line 2"]
    live.http.post(f"/runs/{run}/cancel")
    assert cli.main(["logs", run, "--follow", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["body"]["message"] for one in lines] == ["line 0", "line 1", "line 2"]


def test_a_compiles_log_is_its_states_and_stages(live: LiveFarm, capsys: Capture) -> None:
    job = submitted(live, "batch: 4")
    with live.farm.database.transaction() as session:
        events.add(session, job, "progress", stage="lower", fraction=0.25)
    live.http.post(f"/jobs/{job}/cancel")
    assert cli.main(["logs", job, "--follow"]) == 0
    said = [line[10:] for line in capsys.readouterr().out.splitlines()]
    assert said[:2] == ["queued", " 25%  lower"]
    assert said[-1].startswith("cancelled")
    assert cli.main(["logs", job, "--json"]) == 0
    assert [one["kind"] for one in json.loads(capsys.readouterr().out)][:2] == ["state", "progress"]


def test_what_waits_is_listed_with_the_reason(live: LiveFarm, digest: str, capsys: Capture) -> None:
    first, second, job = live.run(digest), live.run(digest), submitted(live, "batch: 5")
    assert cli.main(["queue"]) == 0
    out = capsys.readouterr().out
    assert out.index(first) < out.index(second) < out.index(job), "those that came first on top"
    assert live.http.get(f"/runs/{first}/why").json()["waiting"]["message"] in out
    assert cli.main(["queue", "--json", "--limit", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"][0]["id"], found["runs"][0]["why"]["id"]) == (first, first)
    assert cli.main(["queue", "--limit", "1"]) == 0
    assert "more: --limit N" in capsys.readouterr().out
    assert cli.main(["cancel", first, second, job]) == 0


def test_the_page_of_a_run_opens_in_a_browser(
    live: LiveFarm, digest: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def browser(link: str) -> bool:
        opened.append(link)
        return False

    monkeypatch.setattr(webbrowser, "open", browser)
    run = live.run(digest)
    assert cli.main(["open", run]) == 0
    out, err = capsys.readouterr()
    assert opened == [out.strip()]
    assert "no browser opens here" in err
    public = urlsplit(out.strip())
    answer = httpx.get(f"{live.url}{public.path}?{public.query}", trust_env=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/dashboard/runs/{run}")
    opened.clear()
    assert cli.main(["open", "--print"]) == 0
    assert "?" not in capsys.readouterr().out
    assert not opened


def test_a_board_is_enrolled_by_one_line(live: LiveFarm, capsys: Capture) -> None:
    assert cli.main(["devices", "enrol", "my board", "--class", "raspberry-pi-5", "--hours", "2"]) == 0
    out, err = capsys.readouterr()
    fetch, _, run = out.strip().partition(" | ")
    assert shlex.split(fetch) == ["curl", "-fsS", f"{live.url}/enrol.sh"]
    token, name, shell = shlex.split(run)
    assert (name, shell) == ("POCKFARM_NAME=my board", "sh")
    assert "a board elsewhere does not reach" in err
    tokens = live.http.get("/devices/enrolment-tokens").json()["items"]
    (listed,) = [item for item in tokens if item["name"] == "my board"]
    assert (listed["device_class"], listed["max_uses"]) == ("raspberry-pi-5", 1)
    assert listed["id"] in err
    assert cli.main(["devices", "enrol", "x", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert f"POCKFARM_ENROL_TOKEN={printed['token']} " in printed["line"]
    assert token.removeprefix("POCKFARM_ENROL_TOKEN=") != printed["token"]
