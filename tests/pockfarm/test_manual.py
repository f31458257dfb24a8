"""What help says of each command is there, and is true of the parser."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pockfarm import cli
from pockfarm.command_line.manual import CODES, MANUAL, epilogue
from pockfarm.command_line.words import runs, walk

GUIDE = Path(__file__).parents[2] / "docs/guide/farm.md"
ALL = {" ".join(path): command for path, command in walk(cli.parser())}


def test_each_command_that_runs_has_a_row_and_no_other_has() -> None:
    assert {path for path, command in ALL.items() if runs(command)} == set(MANUAL)


@pytest.mark.parametrize("path", sorted(MANUAL))
def test_an_example_is_taken_by_the_parser_and_is_of_its_command(path: str) -> None:
    program, *words = shlex.split(MANUAL[path].example.partition(" > ")[0])
    assert program == "pockfarm"
    assert words[: len(path.split())] == path.split()
    assert cli.parser().parse_args(words).run


@pytest.mark.parametrize("path", ["compile", "devices show"])
def test_help_has_an_example_and_exit_codes(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", *path.split()]) == 0
    out = capsys.readouterr().out
    for part in ("prints:\n", f"example:\n  pockfarm {path}", "exit codes:\n  0    done", epilogue(path)):
        assert part in out
    with pytest.raises(SystemExit):
        cli.main([*path.split(), "--help"])
    assert capsys.readouterr().out == out


def test_help_of_what_there_is_not_is_refused_with_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "devices", "shwo"]) == 2
    err = capsys.readouterr().err
    assert "no command 'shwo'; did you mean 'show'?" in err
    assert "pockfarm devices --help" in err


def test_each_command_stands_under_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^  ([a-z ]+):$", out, re.MULTILINE) == list(cli.COMMANDS)
    listed = re.findall(r"^    ([a-z-]+)", out, re.MULTILINE)
    assert sorted(listed) == sorted({path.split()[0] for path in ALL})


def test_every_exit_code_of_the_guide_is_told_by_help() -> None:
    (line,) = re.findall(r"Exit codes: ([^.]*)\.", GUIDE.read_text())
    assert {int(word) for word in re.findall(r"(?:^|; |\n)(\d+) ", line)} == set(CODES)
