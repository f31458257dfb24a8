"""Completion of a command line in real shells: bash, and zsh and fish where set-up could install them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents.live_farm import LiveFarm
from tests.architecture.sources import ROOT
from tests.sample import sample
from tests.skips import needs_program

ASK = {
    "bash": """
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
""",
    "zsh": """
compdef() {{ entry=$1 }}
_describe() {{ print -rl -- "${{(@P)2}}" }}
source {script}
BUFFER={line!r} CURSOR=${{#BUFFER}}
words=(${{=BUFFER}})
$entry
""",
    "fish": "source {script}; complete -C {line!r}",
}
"""What each does when somebody presses Tab; of zsh, what it hands to the list that it draws (`word:what it is`)."""
PROGRAM = (
    "import sys; from pockfarm import cli; from pockfarm.commands import completion; "
    "completion.PATIENCE_S = 60.0; sys.exit(cli.main(sys.argv[1:]))"
)
"""Patient, for a machine that is busy with other tests."""
START = {"bash": ["bash", "--norc", "-c"], "zsh": ["zsh", "-f", "-c"], "fish": ["fish", "--no-config", "-c"]}
SHELLS = [pytest.param(shell, id=shell, marks=needs_program(shell)) for shell in ASK]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pockfarm`, and the script that it prints for each shell."""
    folder = tmp_path_factory.mktemp("shells")
    program = folder / "pockfarm"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{PROGRAM}' \"$@\"\n")
    program.chmod(0o755)
    for shell in ASK:
        made = subprocess.run([program, "completion", shell], capture_output=True, text=True, check=True).stdout
        (folder / shell).write_text(made)
    return folder


def offered(scripts: Path, line: str, shell: str = "bash") -> list[str]:
    ask = ASK[shell].format(script=scripts / shell, line=line)
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "HOME": str(scripts)}
    done = subprocess.run([*START[shell], ask], capture_output=True, text=True, env=environment, check=False)
    assert not done.stderr
    lines = [line.split("\t")[0].strip() for line in done.stdout.splitlines()]
    return [line.split(":")[0] for line in lines] if shell == "zsh" else lines


@pytest.mark.parametrize("shell", sample(SHELLS, ("bash",)))
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
def test_a_shell_offers_what_may_follow(scripts: Path, shell: str, line: str, some: set[str], none: set[str]) -> None:
    """Tests below ask zsh and fish too, for files and ids."""
    found = set(offered(scripts, line, shell))
    assert some <= found
    assert not none & found


@pytest.mark.parametrize("shell", sample(SHELLS, ("bash",)))
def test_shells_offer_ids_of_a_farm_that_answers(scripts: Path, live: LiveFarm, shell: str) -> None:
    run = live.run(live.keep_bundle())
    assert run in offered(scripts, "pockfarm report run_", shell)
    assert run in offered(scripts, "pockfarm why ru", shell)
    devices = offered(scripts, "pockfarm devices show dev_", shell)
    assert not [word for word in devices if word.startswith("run_")]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_offers_files(scripts: Path, shell: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert offered(scripts, "pockfarm build mod", shell) == ["model.onnx"]


@pytest.mark.parametrize("shell", SHELLS)
def test_without_a_farm_nothing_is_offered_and_nothing_is_said(
    scripts: Path, shell: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert [word for word in offered(scripts, "pockfarm report run_", shell) if word] == []
