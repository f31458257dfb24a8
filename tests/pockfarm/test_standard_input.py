"""What a command reads from the standard input, in place of a file."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pockfarm import cli
from tests.agents.live_farm import LiveFarm
from tests.pockfarm.test_said import mlp

Capture = pytest.CaptureFixture[str]


def give(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_a_model_may_come_from_another_program(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    give(monkeypatch, mlp())
    assert cli.main(["plan", "explain", "-", "--plan", "full", "--spec", "batch: 2", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["rows"]][:2] == ["fc1", "fc2"]


@pytest.mark.parametrize(
    ("option", "given", "told"),
    [
        ("--spec", b"bach: 2", "did you mean 'batch'?"),
        ("--plan", b"updat: []", "did you mean 'update'?"),
        ("--plan", b"", "--plan -: nothing came on the standard input"),
        ("--spec", b"\xff", "--spec -: "),
    ],
)
def test_a_recipe_may_come_too(
    option: str, given: bytes, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "net.onnx").write_bytes(mlp())
    give(monkeypatch, given)
    assert cli.main(["plan", "explain", str(tmp_path / "net.onnx"), option, "-"]) == 2
    assert told in capsys.readouterr().err


def test_it_can_be_given_once(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    give(monkeypatch, mlp())
    assert cli.main(["plan", "explain", "-", "--spec", "-"]) == 2
    assert "it can be given to one option only" in capsys.readouterr().err


def test_what_is_sent_to_a_farm_may_come_too(live: LiveFarm, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    sent: list[object] = []

    def compile_(_: object, model: object, **__: object) -> None:
        sent.append(model)
        raise KeyboardInterrupt

    monkeypatch.setattr("pockfarm.Client.compile", compile_)
    give(monkeypatch, b"onnx")
    assert cli.main(["compile", "-", "--target", "x86-64-v3"]) == cli.INTERRUPTED
    assert sent == [b"onnx"]
    give(monkeypatch, b"no npz")
    assert cli.main(["dataset", "-"]) == 3
    assert "npz" in capsys.readouterr().err
