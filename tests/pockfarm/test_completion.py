"""Completion of a command line, in a real bash; other shells' scripts are theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pockfarm import cli
from tests.agents.live_farm import LiveFarm

ASK = """
source {script}
COMP_LINE={line!r}
COMP_POINT=${{#COMP_LINE}}
COMP_WORDS=($COMP_LINE)
[[ $COMP_LINE == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_TYPE=9
entry=$(complete -p pockfarm | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$entry pockfarm "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pockfarm` and the script that it prints for bash."""
    folder = tmp_path_factory.mktemp("bash")
    program = folder / "pockfarm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pockfarm.cli "$@"\n')
    program.chmod(0o755)
    made = subprocess.run([program, "completion", "bash"], capture_output=True, text=True, check=True).stdout
    (folder / "script").write_text(made)
    return folder


def offered(bash: Path, line: str) -> list[str]:
    ask = ASK.format(script=bash / "script", line=line)
    environment = {**os.environ, "PATH": f"{bash}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, env=environment, check=False)
    assert not done.stderr
    return [word.strip() for word in done.stdout.split()]


@pytest.mark.parametrize(
    ("line", "some", "none"),
    [
        ("pockfarm re", {"report", "regressions", "reproduce", "retry", "releases", "receipt", "restore"}, {"runs"}),
        ("pockfarm devices sh", {"show"}, {"drain"}),
        ("pockfarm build m.onnx --ta", {"--target"}, {"--plan"}),
        ("pockfarm build m.onnx --target rasp", {"raspberry-pi-4", "raspberry-pi-5"}, {"x86-64-v3"}),
        ("pockfarm compile m.onnx --plan bi", {"bias-only"}, {"full"}),
        ("pockfarm runs --mode tr", {"train"}, {"eval"}),
        ("pockfarm --color n", {"never"}, {"always"}),
        ("pockfarm help devices en", {"enrol"}, {"show"}),
    ],
)
def test_bash_offers_what_may_follow(bash: Path, line: str, some: set[str], none: set[str]) -> None:
    found = set(offered(bash, line))
    assert some <= found
    assert not none & found


def test_bash_offers_ids_of_a_farm_that_answers(bash: Path, live: LiveFarm) -> None:
    run = live.run(live.keep_bundle())
    assert run in offered(bash, "pockfarm report run_")
    assert run in offered(bash, "pockfarm why ru")
    assert not [word for word in offered(bash, "pockfarm devices show dev_") if word.startswith("run_")]


def test_without_a_farm_nothing_is_offered_and_nothing_is_said(
    bash: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    assert offered(bash, "pockfarm report run_") == []


@pytest.mark.parametrize(("shell", "word"), [("zsh", "#compdef pockfarm"), ("fish", "complete")])
def test_the_other_shells_have_a_script_too(shell: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert word in out
    assert "pockfarm" in out
