"""What went wrong, with `--json`: one object on the last line of standard error, with the same exit code."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from compiler.errors import SpecError
from pockfarm import cli
from pockfarm.errors import AS_LINES, BELOW, Failed, FarmDown, PockfarmError, Refused, Unreachable, UsageError
from pockfarm.output import error_messages as error_output
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
    ("problem", "text", "code", "where", "message", "hint"),
    [
        (
            UsageError("no npz", where="d.npz", hint="write one\nanew", code="data.invalid", hint_form=BELOW),
            "d.npz: no npz [data.invalid]\n  write one\n  anew",
            "data.invalid",
            "d.npz",
            "no npz",
            "write one anew",
        ),
        (
            UsageError("there is no folder a", where="--out a/b.pfb", hint="make it first"),
            "--out a/b.pfb: there is no folder a; make it first",
            "usage",
            "--out a/b.pfb",
            "there is no folder a",
            "make it first",
        ),
        (
            Failed("train failed: it ended", state="failed", cause="device", code="device.lost", hint="try again"),
            "train failed: it ended [device: device.lost]\n  try again",
            "device.lost",
            "",
            "train failed: it ended",
            "try again",
        ),
        (Failed("it has not ended", state="running"), "it has not ended", "failed", "", "it has not ended", ""),
        (
            Unreachable("no answer from the farm at https://farm: refused", hint="is it up?"),
            "no answer from the farm at https://farm: refused; is it up?",
            "farm.unreachable",
            "",
            "no answer from the farm at https://farm: refused",
            "is it up?",
        ),
        (
            FarmDown("valkey ended; its log:", hint="line 1\n\nline 3", hint_form=AS_LINES),
            "valkey ended; its log:\nline 1\n\nline 3",
            "farm.down",
            "",
            "valkey ended; its log:",
            "line 1 line 3",
        ),
        (
            UsageError.of_compiler(SpecError("got 0", where="spec.batch", hint="from 1")),
            "spec.batch: got 0 (from 1) [spec.invalid]",
            "spec.invalid",
            "spec.batch",
            "got 0",
            "from 1",
        ),
        (
            UsageError("no input 'x'", where="m.npz", hint="name one").at("validation_data"),
            "validation_data: m.npz: no input 'x'; name one",
            "usage",
            "validation_data",
            "m.npz: no input 'x'",
            "name one",
        ),
        (FarmDown("valkey does not start"), "valkey does not start", "farm.down", "", "valkey does not start", ""),
        (Refused("no", status=409), "no", "refused", "", "no", ""),
        (
            Refused("no plan 'x'", status=409, code="plan.unknown", where="plan", hint="name one"),
            "no plan 'x' [plan.unknown]\n  name one",
            "plan.unknown",
            "plan",
            "no plan 'x'",
            "name one",
        ),
    ],
)
def test_text_and_object_have_the_same_fields(
    problem: PockfarmError, text: str, code: str, where: str, message: str, hint: str
) -> None:
    assert str(problem) == text
    assert error_output.error_object(problem) == {
        "exit_code": problem.exit_code,
        "code": code,
        "message": message,
        "where": where,
        "hint": hint,
    }


@pytest.mark.parametrize(
    ("words", "where", "message", "hint"),
    [
        ("exec nothing.pfb profile", "nothing.pfb", "no such file", "`pockfarm build` makes one"),
        ("exec nothing.pfb trian", "mode", "invalid choice: 'trian'", "did you mean 'train'? see pockfarm exec --help"),
        ("exec a.pfb train --steps 1e3", "--steps", "'1e3' is not a whole number", "see pockfarm exec --help"),
        (
            "exec a.pfb train --lr 1",
            "",
            "no option '--lr'",
            "here it is called --learning-rate; see",
        ),
        ("exec a.pfb profile --learning-rate 1", "--learning-rate", "mode profile takes none", "it is for train"),
        (
            "build m.onnx -o a.pfb",
            "",
            "'-o' is one too many here",
            "here it is called --out; see pockfarm",
        ),
        ("build m.onnx", "", "a build needs --out FILE.pfb, or --stop-after STAGE", ""),
        ("build m.onnx --out a.pfb", "m.onnx", "No such file or directory", "name an ONNX model (.onnx)"),
        (
            "build m.onnx --out a.pfb --plan -",
            "--plan -",
            "nothing came on the standard input",
            "it can be given to one",
        ),
        ("comple", "", "no command 'comple'", "did you mean 'compile'? see pockfarm --help"),
        ("groups zzz", "", "no action 'zzz'", "there are: list, show, cancel; see pockfarm groups --help"),
        (
            "runs --state nope",
            "--state",
            "invalid choice: 'nope' (choose from",
            "did you mean 'open'? see pockfarm runs --help",
        ),
        ("runs --profile nope", "", "no profile 'nope' in ", "pockfarm init --profile nope"),
        ("runs", "", "no farm: set POCKFARM_URL and POCKFARM_API_KEY", "for a farm elsewhere: run `pockfarm init`"),
        ("up --port 99999", "--port 99999", "ports are 1 to 65,535", "0 takes one that is free"),
        ("compare net.pfb", "compare", "2 to 4 bundles take turns, not 1", "name another"),
    ],
)
def test_fields_of_mistakes(
    words: str,
    where: str,
    message: str,
    hint: str,
    nowhere: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    _, problem = told(capsys, *words.split(), "--json")
    assert problem["where"] == where
    assert problem["message"].startswith(message)
    assert problem["hint"].startswith(hint)
    assert bool(problem["hint"]) == bool(hint)


def test_without_json_it_is_words(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", str(nowhere / "no.onnx"), "--target", "host"]) == 2
    assert capsys.readouterr().err.startswith("pockfarm: ")
