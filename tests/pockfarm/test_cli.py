"""The command line as a person meets it: help, figures, refusals in a line or two, exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pockfarm import cli
from pockfarm.client import Client, answers
from pockfarm.client.synchronous import lists, looks
from pockfarm.command_line.words import walk
from pockfarm.commands.local import plan_source, source
from pockfarm.errors import PockfarmError, UsageError
from tests.pockfarm.fake_farm import Answer, FakeFarm, fake_farm

DIGEST = "sha256:" + "b" * 64


@pytest.fixture
def farm(loopback: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFarm]:
    monkeypatch.setattr(answers, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(looks, "POLL_INTERVAL_S", 0.01)
    with fake_farm() as farm:
        monkeypatch.setenv("POCKFARM_URL", farm.url)
        monkeypatch.setenv("POCKFARM_API_KEY", "key-1")
        yield farm


WORDS = [" ".join(path) for path, _ in walk(cli.parser())]


@pytest.mark.parametrize("command", ["", *WORDS])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command.split(), "--help"])
    assert ended.value.code == 0
    assert "usage: pockfarm" in capsys.readouterr().out


def test_no_option_takes_the_place_of_what_a_command_does() -> None:
    """`run` is the function: an argument of that name would be called instead."""
    for path, one in walk(cli.parser()):
        assert "run" not in {action.dest for action in one._actions}, path


def test_a_wrong_option_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["exec", "x.pfb", "dance"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "dance" in told
    assert "--help" in told


def test_targets_are_listed_and_host_is_resolved(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["targets"]) == 0
    out = capsys.readouterr().out
    assert "raspberry-pi-4" in out
    assert "\nhost is x86-64-v" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "none.onnx", "--out", "x"], "none.onnx: No such file"),
        (["build", "{model}", "--target", "toaster", "--out", "x"], "no target 'toaster'"),
        (["build", "{model}", "--plan", "none.yaml", "--out", "x"], "--plan none.yaml: no such file"),
        (["build", "{model}", "--spec", "batch: -3", "--out", "x"], "spec.batch"),
        (["build", "{model}", "--plan", "update: [{parameters: 7}]", "--out", "x"], "plan.update"),
        (["build", "{model}", "--out", "x"], "[model."),
        (["exec", "none.pfb", "profile"], "none.pfb: no such file"),
        (["exec", "none.pfb", "train", "--adapter", "a"], "none.pfb: No such file"),
        (["exec", "{model}", "train", "--adapter", "a"], "is no bundle"),
        (["delta", "--base", "{noise}", "--apply", "x", "--out", "y"], "its header is no text"),
    ],
)
def test_what_a_user_can_change_is_told_without_a_traceback(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tmp_path / "broken.onnx"
    model.write_bytes(b"this is no model")
    (tmp_path / "noise").write_bytes(b"\x04" + bytes(7) + b"\x8f\xff\x00\x01")
    monkeypatch.chdir(tmp_path)
    places = {"{model}": str(model), "{noise}": "noise"}
    assert cli.main([places.get(word, word) for word in arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_devices_and_runs_are_tables(farm: FakeFarm, capsys: pytest.CaptureFixture[str]) -> None:
    device = {"id": "dev_1", "name": "desk", "state": "active", "device_class": "x86-64", "measurement_class": "host"}
    off = {**device, "state": "quarantined", "state_reason": "its clock is 3,600 s behind the farm's; set it"}
    items = [{**device, "targets": ["x86-64-v4", "x86-64-v3"]}, off]
    farm.on("GET", "/devices", Answer(200, {"items": items}))
    run = {"id": "run_1", "state": "failed", "mode": "train", "ending": {"cause": "user", "code": "data.shape"}}
    farm.on("GET", "/runs", Answer(200, {"items": [run]}))
    assert cli.main(["devices"]) == 0
    assert cli.main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "x86-64-v4 x86-64-v3" in out
    assert "its clock is 3,600 s behind the farm's" in out
    assert "user: data.shape" in out


def test_empty_lists_say_so(farm: FakeFarm, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("/jobs", "/runs", "/devices"):
        farm.on("GET", path, Answer(200, {"items": []}))
    assert [cli.main([name]) for name in ("jobs", "runs", "devices")] == [0, 0, 0]
    assert capsys.readouterr().out.startswith("no jobs yet\nno runs yet\nno devices yet")


def test_compile_waits_and_prints_the_digest(
    farm: FakeFarm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "net.onnx", tmp_path / "net.pfb"
    model.write_bytes(b"onnx")
    farm.on("POST", "/compile", Answer(202, {"id": "job_1", "state": "queued"}))
    farm.on("GET", "/jobs/job_1", Answer(200, {"id": "job_1", "state": "succeeded", "bundle_digest": DIGEST}))
    farm.on("GET", f"/bundles/{DIGEST}", Answer(200, b"the bundle"))
    assert cli.main(["compile", str(model), "--target", "raspberry-pi-4", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{DIGEST}\n"
    assert out.read_bytes() == b"the bundle"


def test_compile_says_what_the_compiler_warns_of(
    farm: FakeFarm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(b"onnx")
    warnings = [{"code": "model.example", "where": f"fc{i}", "message": "is odd", "hint": ""} for i in range(25)]
    done = {"id": "job_1", "state": "succeeded", "bundle_digest": DIGEST, "warnings": warnings}
    farm.on("POST", "/compile", Answer(202, {"id": "job_1", "state": "queued"}))
    farm.on("GET", "/jobs/job_1", Answer(200, done))
    assert cli.main(["compile", str(model), "--target", "raspberry-pi-4"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{DIGEST}\n"
    assert "warning: fc0: is odd [model.example]\n" in err
    assert err.count("warning: ") == 21
    assert re.search(r"^warning: and 5 more: .* /dashboard/jobs/job_1$", err, re.M)


def test_a_refusal_is_told_with_code_and_next_step(
    farm: FakeFarm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(b"onnx")
    problem = {
        "detail": "matches nothing",
        "code": "plan.invalid",
        "where": "plan.update[0]",
        "hint": "names are: a, b",
    }
    farm.on("POST", "/compile", Answer(422, problem))
    assert cli.main(["compile", str(model), "--target", "x86-64-v3"]) == 3
    assert capsys.readouterr().err == "pockfarm: plan.update[0]: matches nothing [plan.invalid]\n  names are: a, b\n"


def test_a_failed_run_exits_with_4(farm: FakeFarm, capsys: pytest.CaptureFixture[str]) -> None:
    ending = {"cause": "device", "code": "device.lost", "message": "the board went silent"}
    farm.on("POST", "/runs", Answer(202, {"id": "run_1", "state": "queued"}))
    farm.on("GET", "/runs/run_1", Answer(200, {"id": "run_1", "state": "inconclusive", "ending": ending}))
    assert cli.main(["run", DIGEST, "profile"]) == 4
    assert "the board went silent [device: device.lost]" in capsys.readouterr().err


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 4)])
def test_what_happens_in_a_run_is_watched(
    farm: FakeFarm, capsys: pytest.CaptureFixture[str], state: str, code: int
) -> None:
    said: list[tuple[str, dict[str, object]]] = [
        ("state", {"state": "leased", "name": "desk-pi"}),
        ("phase", {"message": "train"}),
        ("step", {"step": 99, "loss": 0.75}),
        ("step", {"step": 100, "loss": 0.5}),
        ("eval", {"message": "validation", "step": 100, "loss": 0.25, "accuracy": 0.875}),
        ("progress", {"fraction": 0.5}),
        ("log", {"message": "goes on after step 50"}),
        ("state", {"state": "failed", "message": "the board went silent"}),
    ]
    at = "2026-03-01T12:34:56Z"
    events = [{"id": n, "at": at, "kind": kind, "body": body} for n, (kind, body) in enumerate(said, 1)]
    farm.on("GET", "/runs/run_1", Answer(200, {"id": "run_1", "state": state}))
    farm.on("GET", "/runs/run_1/events", Answer(200, events), Answer(200, []))
    assert cli.main(["watch", "run_1", "--steps", "100"]) == code
    assert capsys.readouterr().out.splitlines() == [
        "12:34:56  leased: desk-pi",
        "12:34:56  train",
        "12:34:56  step 100: loss 0.5",
        "12:34:56  validation after step 100: loss 0.25, accuracy 0.8750",
        "12:34:56  goes on after step 50",
        "12:34:56  failed: the board went silent",
    ]


def test_who_leaves_a_run_alone_is_told_how_to_come_back(
    farm: FakeFarm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "wait_for_run", leave)
    farm.on("POST", "/runs", Answer(202, {"id": "run_1", "state": "queued"}))
    assert cli.main(["run", DIGEST, "profile"]) == cli.INTERRUPTED
    assert "`pockfarm watch run_1`" in capsys.readouterr().err


def test_a_run_starts_from_the_weights_of_another(farm: FakeFarm, tmp_path: Path) -> None:
    data = tmp_path / "d.npz"
    data.write_bytes(b"npz")
    farm.on("GET", "/runs/run_0", Answer(200, {"id": "run_0", "state": "succeeded", "trained_weights_digest": DIGEST}))
    farm.on("POST", "/datasets", Answer(201, {"digest": "sha256:" + "d" * 64, "name": "d", "samples": 3}))
    farm.on("POST", "/runs", Answer(202, {"id": "run_1", "state": "queued"}))
    arguments = ["run", DIGEST, "train", "--weights", "run_0", "--dataset", str(data), "--steps", "7", "--no-wait"]
    assert cli.main(arguments) == 0
    body = next(request.body for request in farm.seen if request.path == "/runs" and request.method == "POST")
    assert DIGEST.encode() in body
    assert b"d" * 64 in body
    assert b'"steps":7' in body.replace(b" ", b"")


def test_a_run_names_a_second_data_set_to_validate_on(farm: FakeFarm, tmp_path: Path) -> None:
    digests = ["sha256:" + letter * 64 for letter in "de"]
    files = [tmp_path / "d.npz", tmp_path / "v.npz"]
    for file in files:
        file.write_bytes(b"npz")
    farm.on("POST", "/datasets", *(Answer(201, {"digest": one, "name": "d", "samples": 3}) for one in digests))
    farm.on("POST", "/runs", Answer(202, {"id": "run_1", "state": "queued"}))
    named = ["--dataset", str(files[0]), "--validation-dataset", str(files[1])]
    assert cli.main(["run", DIGEST, "train", *named, "--patience", "3", "--no-wait"]) == 0
    body = json.loads(next(one.body for one in farm.seen if one.path == "/runs"))
    assert body == {
        "bundle": DIGEST,
        "mode": "train",
        "patience": 3,
        "dataset": digests[0],
        "validation_dataset": digests[1],
    }
    assert [b'filename="v.npz"' in one.body for one in farm.seen if one.path == "/datasets"] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", DIGEST, "train", "--validation-dataset", "v.npz", "--validation", "0.5"],
            "--validation-dataset: must be left out, or `validation`",
        ),
        (["run", DIGEST, "eval", "--validation-dataset", "v.npz"], "--validation-dataset: must be left out: mode eval"),
        (["run", DIGEST, "train", "--patience", "3"], "or `validation` or `--validation-dataset` set"),
        (
            ["exec", "b.pfb", "train", "--validation-data", "v.npz", "--validation", "0.5"],
            "--validation-data: must be left out, or `validation`",
        ),
        (["exec", "b.pfb", "profile", "--validation-data", "v.npz"], "--validation-data: must be left out: mode pro"),
        (["exec", "b.pfb", "train", "--save-best"], "--save-best: must be left out, or `validation`"),
        (["exec", "b.pfb", "train", "--min-delta", "0.5", "--validation", "0.5"], "min_delta: must be left out"),
    ],
)
def test_what_to_validate_on_is_said_once_and_before_anything_is_sent(
    farm: FakeFarm, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not farm.seen


def test_the_documented_exit_codes_are_those_that_there_are() -> None:
    def below(kind: type[PockfarmError]) -> set[int]:
        return {kind.exit_code}.union(*map(below, kind.__subclasses__())) if kind.__subclasses__() else {kind.exit_code}

    guide = (Path(__file__).parents[2] / "docs/guide/farm.md").read_text()
    (told,) = re.findall(r"Exit codes: ([^.]*)\.", guide)
    documented = {int(word) for word in re.findall(r"(?:^|; |\n)(\d+) ", told)}
    errors = {code for one in PockfarmError.__subclasses__() for code in below(one)}
    assert documented == {0, 1, cli.DEFECT, cli.NO_ROOM, cli.INTERRUPTED} | errors


def test_whatever_else_answers_at_the_address_is_no_farm(farm: FakeFarm, capsys: pytest.CaptureFixture[str]) -> None:
    farm.on("GET", "/organisation", Answer(200, b"<html>"))
    assert cli.main(["org", "show"]) == 5
    assert "is this the address of a farm?" in capsys.readouterr().err


@pytest.mark.usefixtures("nowhere")
def test_no_farm_is_told_with_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["devices"]) == 2
    assert "pockfarm up" in capsys.readouterr().err
    assert cli.main(["status"]) == 5
    assert "no farm is up" in capsys.readouterr().err


def test_a_defect_is_told_as_one(
    farm: FakeFarm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lists, "device_of", lambda body: 1 // 0)
    farm.on("GET", "/devices", Answer(200, {"items": [{}]}))
    assert cli.main(["devices"]) == cli.DEFECT
    err = capsys.readouterr().err
    assert "defect of ours: ZeroDivisionError" in err
    assert "Traceback" not in err


def test_a_plan_is_a_preset_a_file_or_inline_text(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("preset: full\n")
    assert plan_source("bias-only") == "bias-only"
    assert plan_source(str(plan)) == "preset: full\n"
    assert source("batch: 2", "--spec") == "batch: 2"
    with pytest.raises(UsageError, match="no such file"):
        plan_source("missing.yaml")
