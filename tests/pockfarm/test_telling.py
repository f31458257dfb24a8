"""What went wrong, with `--json`: one object on the last line of standard error, with the same exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pockfarm import cli, error_output
from pockfarm.errors import Failed, FarmDown, PockfarmError, Refused, Unreachable, UsageError
from tests.pockfarm.fake_farm import Answer, fake_farm

FIELDS = {"exit_code", "code", "message", "where", "hint"}


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    try:
        code = cli.main(list(words))
    except SystemExit as ended:
        code = int(ended.code or 0)
    printed = capsys.readouterr()
    assert printed.out == ""
    found = json.loads(printed.err.splitlines()[-1])
    assert set(found) == FIELDS
    assert found["exit_code"] == code
    return code, found


def test_problem_of_a_farm_is_told_field_by_field(
    loopback: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_farm() as farm:
        monkeypatch.setenv("POCKFARM_URL", farm.url)
        monkeypatch.setenv("POCKFARM_API_KEY", "key-1")
        problem = {"detail": "no run 'run_0'", "code": "run.unknown", "where": "run_id", "hint": "GET /runs lists them"}
        farm.on("GET", "/runs/run_0/report", Answer(404, problem))
        code, found = told(capsys, "report", "run_0", "--json")
    assert code == 3
    assert found == {
        "exit_code": 3,
        "code": "run.unknown",
        "message": "no run 'run_0'",
        "where": "run_id",
        "hint": "GET /runs lists them",
    }


def test_wrong_words_are_told_so_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = told(capsys, "runs", "--json", "--limti", "3")
    assert (code, found["code"]) == (2, "usage")
    assert found["message"] == "no option '--limti'"
    assert "did you mean '--limit'?" in found["hint"]


def test_place_of_a_wrong_value_is_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = told(capsys, "runs", "--limit", "many", "--json")
    assert (found["where"], found["hint"]) == ("--limit", "see pockfarm runs --help")
    assert "'many'" in found["message"]


def test_farm_that_is_not_there(
    loopback: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pockfarm.client.answers.RETRY_PAUSE_S", 0.0)
    monkeypatch.setenv("POCKFARM_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("POCKFARM_API_KEY", "k")
    code, found = told(capsys, "devices", "--json")
    assert (code, found["code"]) == (5, "farm.unreachable")
    assert "http://127.0.0.1:9" in found["message"]
    assert "pockfarm doctor" in found["hint"]


@pytest.mark.parametrize(
    ("ending", "code", "name"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (ValueError("odd"), 70, "defect"),
        (OSError(28, "full"), 74, "disk.full"),
    ],
)
def test_endings_that_no_error_of_ours_tells(
    ending: BaseException, code: int, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def act() -> int:
        raise ending

    error_output.choose(["runs", "--json"])
    assert cli.exit_code_of(act) == code
    assert json.loads(capsys.readouterr().err)["code"] == name
    error_output.choose([])


@pytest.mark.parametrize(
    ("problem", "code", "where", "message", "hint"),
    [
        (
            UsageError("d.npz: not a readable npz [data.invalid]\n  write one\n  anew"),
            "data.invalid",
            "d.npz",
            "not a readable npz",
            "write one anew",
        ),
        (
            UsageError("--out a/b.pfb: there is no folder a; make it first"),
            "usage",
            "--out a/b.pfb",
            "there is no folder a",
            "make it first",
        ),
        (
            Failed("train failed: it ended [device: device.lost]\n  try again", state="failed", code="device.lost"),
            "device.lost",
            "",
            "train failed: it ended",
            "try again",
        ),
        (Failed("it has not ended", state="running"), "failed", "", "it has not ended", ""),
        (
            Unreachable("no answer from the farm at https://farm: refused; is it up?"),
            "farm.unreachable",
            "",
            "no answer from the farm at https://farm: refused",
            "is it up?",
        ),
        (FarmDown("valkey does not start"), "farm.down", "", "valkey does not start", ""),
        (Refused("no", status=409), "refused", "", "no", ""),
    ],
)
def test_words_are_told_apart(problem: PockfarmError, code: str, where: str, message: str, hint: str) -> None:
    assert error_output.error_object(problem) == {
        "exit_code": problem.exit_code,
        "code": code,
        "message": message,
        "where": where,
        "hint": hint,
    }


def test_without_json_it_is_words(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", str(nowhere / "no.onnx"), "--target", "host"]) == 2
    assert capsys.readouterr().err.startswith("pockfarm: ")
