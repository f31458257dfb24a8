"""The words of the command line: what is misspelt is refused in one line that names what was meant."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from pockfarm import cli, version
from pockfarm.suggestions import LONGEST, nearest, suggestion


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"pockfarm {version.version_in(version.PROJECT)}\n"


def test_a_checkout_that_is_not_installed_has_a_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert version.version() == version.version_in(version.PROJECT) != "unknown"
    assert version.version_in(tmp_path / "pyproject.toml") == "unknown"


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: pockfarm")
    assert "compile a training bundle on the farm" in out
    assert not err


@pytest.mark.parametrize(
    ("arguments", "meant_word", "command"),
    [
        ("complie", "no command 'complie'; did you mean 'compile'?", "pockfarm"),
        ("cancle run_1 --x", "did you mean 'cancel'?", "pockfarm"),
        ("--color never complie", "did you mean 'compile'?", "pockfarm"),
        ("frobnicate", "no command 'frobnicate';", "pockfarm"),
        ("devices shwo x", "no action 'shwo'; did you mean 'show'?", "pockfarm devices"),
        ("groups zzz", "no action 'zzz'; there are: list, show, cancel;", "pockfarm groups"),
        ("groups", "ACTION (list, show, cancel);", "pockfarm groups"),
        ("compile m.onnx --targt x", "no option '--targt'; did you mean '--target'?", "pockfarm compile"),
        ("compile --targt=x", "no option '--targt'; did you mean '--target'?", "pockfarm compile"),
        ("--verson", "did you mean '--version'?", "pockfarm"),
        ("schema plen", "(choose from plan, spec); did you mean 'plan'?", "pockfarm schema"),
        ("runs --mode trian", "did you mean 'train'?", "pockfarm runs"),
    ],
)
def test_what_was_meant_is_told_in_one_line(
    arguments: str, meant_word: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments.split())
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("pockfarm: ")
    assert err.endswith(f" {meant_word} see {command} --help\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--target", "raspbery-pi-4"], "did you mean 'raspberry-pi-4'?"),
        (["--plan", "biasonly"], "did you mean 'bias-only'?"),
        (["--plan", "{updat: []}"], "did you mean 'update'?"),
        (["--spec", "bach: 2"], "did you mean 'batch'?"),
        (["--spec", "optimizer: {kind: sdg}"], "did you mean 'sgd'?"),
    ],
)
def test_what_was_meant_by_a_recipe_is_told(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(b"")
    assert cli.main(["build", str(model), "--out", "x", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_options_may_be_shortened_and_values_may_look_like_anything(capsys: pytest.CaptureFixture[str]) -> None:
    options = cli.parser().parse_args(["devices", "tag", "board", "rack=7", "--", "-old"])
    assert options.tags == ["rack=7", "-old"]
    assert cli.parser().parse_args(["runs", "--verd", "valid"]).verdict == "valid"


def test_only_near_names_are_suggested() -> None:
    assert nearest("Compile", ["compile", "cancel"]) == "compile"
    assert nearest("q", ["compile", "cancel"]) == ""
    assert suggestion("cancle", ["compile", "cancel"]) == "; did you mean 'cancel'?"
    assert suggestion("x" * 10 * LONGEST, ["compile"]) == ""
