"""Log lines: one object each, with what they are about, and no secret whatever is logged."""

from __future__ import annotations

import io
import json
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from device_agents.wire import log_lines
from service.base.settings import Settings
from tests.agents.conftest import AgentProcess
from tests.agents.live_farm import LiveFarm, live_farm
from tests.service.farms import TestFarm

SECRET = sha256(b"a secret, the same in every process").hexdigest()
DIGEST = "sha256:" + "5" * 64


@contextmanager
def kept_lines(formatter: logging.Formatter, level: int = logging.DEBUG) -> Iterator[io.StringIO]:
    """What the process logs meanwhile."""
    out, root = io.StringIO(), logging.getLogger()
    handler, before = logging.StreamHandler(out), root.level
    handler.setFormatter(formatter)
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield out
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (f"key {SECRET} used", "key [hidden] used"),
        (f"GET /agent/attempts/{SECRET}/report", "GET /agent/attempts/[hidden]/report"),
        (f'"token": "{SECRET}"', '"token": "[hidden]"'),
        (f"token:{SECRET}", "token[hidden]"),
        (f"bundle {DIGEST} kept", f"bundle {DIGEST} kept"),
        ("Authorization: Bearer abc.DEF-1", "Authorization: Bearer [hidden]"),
        ("postgresql+psycopg://farm:pa55@db/farm", "postgresql+psycopg://farm:[hidden]@db/farm"),
        ("redis://:pa55word@broker:6379/0", "redis://:[hidden]@broker:6379/0"),
        (
            "http://s3/b/k?X-Amz-Signature=ab12&X-Amz-Expires=60",
            "http://s3/b/k?X-Amz-Signature=[hidden]&X-Amz-Expires=60",
        ),
        ("connect(password='pa55')", "connect(password='[hidden]')"),
        ("run run_01m82jzkp21hv57tpe81j4g8cr attempt 2", "run run_01m82jzkp21hv57tpe81j4g8cr attempt 2"),
    ],
)
def test_secrets_are_told_from_what_only_looks_like_them(said: str, kept: str) -> None:
    assert log_lines.without_secrets(said) == kept


def test_a_secret_that_was_given_is_hidden_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "_secrets", set())
    log_lines.hide("correct horse")
    log_lines.hide(None)
    log_lines.hide("pw")  # too short to be told from words
    assert log_lines.without_secrets("the correct horse, pw") == "the [hidden], pw"


STRANGE = "\x1b[2J\x1b]0;t\x07 \x9b2J \x7f \r \x00 \t \u2028 \u202e \U000e0001 é\n2000-01-01 CRITICAL forged"


@pytest.mark.parametrize("formatter", [log_lines.JsonLines("test"), log_lines.TextLines("test")])
def test_a_strangers_words_neither_steer_a_terminal_nor_pass_for_a_line(formatter: logging.Formatter) -> None:
    with kept_lines(formatter) as out, log_lines.bind(run=STRANGE):
        logging.getLogger("strange").warning("said: %s", STRANGE)
    written = out.getvalue()
    assert {one for one in written if not one.isprintable()} <= {"\n"}
    assert "é" in written
    first, *others = written.rstrip("\n").split("\n")
    assert "said: " in first
    assert all(line.startswith("    ") for line in others)
    if isinstance(formatter, log_lines.JsonLines):
        found = json.loads(first)
        assert (found["event"], found["run"]) == (f"said: {STRANGE}", STRANGE)
    # By itself: pytest keeps what is logged, and could not send this one from a worker of its own to the next process.
    assert formatter.format(logging.makeLogRecord({"msg": "half \ud800", "levelname": "INFO"})).isprintable()


@pytest.mark.parametrize("formatter", [log_lines.JsonLines("test"), log_lines.TextLines("test")])
def test_message_fields_ids_and_traceback_are_all_cleaned(formatter: logging.Formatter) -> None:
    with kept_lines(formatter) as out, log_lines.bind(run="run_1", key=SECRET):
        try:
            raise RuntimeError(f"no luck with {SECRET}")
        except RuntimeError:
            logging.getLogger("x").exception("failed on %s", SECRET, extra={"fields": {"path": SECRET}})
    assert SECRET not in out.getvalue()
    assert "run_1" in out.getvalue()
    assert "no luck with [hidden]" in out.getvalue()


def test_a_line_says_what_it_is_about() -> None:
    with kept_lines(log_lines.JsonLines("worker")) as out:
        with log_lines.bind(job="job_1"), log_lines.bind(attempt=2):
            threading.Thread(target=lambda: log_lines.note(run="run_9")).start()  # another context: not ours
            log_lines.note(device="dev_1")
            logging.getLogger("a.b").warning("it's %d\nlines", 2)
        with log_lines.bind_process(run="run_2"):
            other = threading.Thread(target=lambda: logging.getLogger("c").error("elsewhere"))
            other.start()
            other.join()
        logging.getLogger("c").debug("after")
    first, second, third = lines(out)
    assert {name: first[name] for name in ("level", "part", "event", "logger", "job", "attempt", "device")} == {
        "level": "warning",
        "part": "worker",
        "event": "it's 2\nlines",
        "logger": "a.b",
        "job": "job_1",
        "attempt": "2",
        "device": "dev_1",
    }
    assert "run" not in first
    assert second["run"] == "run_2"
    assert set(third) == {"at", "level", "part", "event", "logger"}


def test_an_unknown_level_or_form_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^POCKFARM_LOG_LEVEL=loud: .* debug, info"):
        log_lines.configure("test", level="loud")
    with pytest.raises(ValueError, match=r"^POCKFARM_LOG_FORMAT=xml: .* auto, json"):
        log_lines.configure("test", form="xml")


def test_a_request_is_named_in_all_its_lines_and_in_its_answer(small_farm: TestFarm) -> None:
    with kept_lines(log_lines.JsonLines("api")) as out:
        answer = small_farm.http.get("/jobs", headers={"X-Request-Id": "mine-12345"})
        small_farm.anonymous.get("/jobs", headers={"X-Request-Id": "a b\tc"})
        small_farm.anonymous.get("/healthz")
    told = [line for line in lines(out) if line["event"] == "request"]
    assert answer.headers["x-request-id"] == told[0]["request"] == "mine-12345"
    assert (told[0]["route"], told[0]["status"], told[0]["key"][:4]) == ("/jobs", 200, "key_")
    assert told[1]["request"].startswith("req-")
    assert "key" not in told[1]
    assert [line["level"] for line in told] == ["info", "info", "debug"]


class Issued:
    """Every secret that this process makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: set[str] = set()
        make = secrets.token_hex

        def token_hex(size: int | None = None) -> str:
            made = make(size)
            if size == 32:
                self.all.add(made)
            return made

        monkeypatch.setattr(secrets, "token_hex", token_hex)


@pytest.fixture
def issued(monkeypatch: pytest.MonkeyPatch) -> Issued:
    return Issued(monkeypatch)


def test_no_log_of_a_farm_at_work_holds_a_secret(loopback: None, issued: Issued, tmp_path: Path) -> None:
    """API and sweeper, an agent that enrols, works and is told off, with everything logged that can be."""
    with kept_lines(log_lines.JsonLines("api")) as out, live_farm(tmp_path / "farm") as farm:
        run_id, agent_log = farm.run(farm.keep_bundle()), work_off(farm, tmp_path / "agent")
        assert farm.http.get(f"/runs/{run_id}").json()["state"] == "succeeded", agent_log
        bad = secrets.token_hex(32)
        farm.http.post(f"/agent/attempts/{bad}/heartbeat", json={}, headers={"X-Pockfarm-Protocol": "pockfarm.agent/1"})
        farm.http.get(f"/open/{bad}")
        farm.http.get("/jobs", headers={"Authorization": f"Bearer {bad}"})
    api_log = out.getvalue()
    credential = json.loads((tmp_path / "agent" / "credential.json").read_text())["token"]
    assert credential in issued.all
    assert len(issued.all) >= 4, "a key, a token, a credential and a lease at least"
    assert [secret for secret in issued.all if secret in api_log + agent_log] == []
    told = [json.loads(line) for line in agent_log.splitlines()]
    assert {line["part"] for line in told} == {"agent"}
    assert any(line.get("device", "").startswith("dev_") for line in told)
    routes = {line.get("route") for line in lines(out)}
    assert {"/agent/lease", "/agent/attempts/{lease_token}/report"} <= routes
    reported = next(line for line in lines(out) if line.get("route") == "/agent/attempts/{lease_token}/report")
    assert (reported["run"], reported["device"][:4], reported["attempt"]) == (run_id, "dev_", "1")


def work_off(farm: LiveFarm, state: Path) -> str:
    """Let a real agent do one run; what it logged."""
    environment = {**os.environ, "POCKFARM_LOG_LEVEL": "debug", "POCKFARM_LOG_FORMAT": "json"}
    agent = AgentProcess(farm.url, farm.token(), state, "--once", environment=environment)
    try:
        ended, log = agent.wait(), agent.log.read_text()
    finally:
        agent.end()
    assert ended == 0, log
    return log


def test_passwords_of_the_settings_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    from service.base.logs import set_up_logs

    monkeypatch.setattr(log_lines, "_secrets", set())
    monkeypatch.setattr(log_lines, "configure", lambda *_, **__: None)
    monkeypatch.setattr(logging, "captureWarnings", lambda _: None)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "storage-secret")
    set_up_logs(Settings(database_url="postgresql+psycopg://farm:a-good-password@db/farm"), "api")
    assert log_lines.without_secrets("a-good-password storage-secret") == "[hidden] [hidden]"
