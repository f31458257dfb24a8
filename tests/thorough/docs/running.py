"""Runs a page's snippets in order, in a folder of the page's own: shell, Python and files see what those before left.

All Python blocks of a page are one program; variables of its shell blocks are there in those after.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.thorough.docs.snippets import Snippet

LIMIT_S = 900
"""Of a snippet that hangs. With built kernels none takes a minute; the first on a fresh clone builds the linker's own
libraries, which takes minutes where other tests do so too."""
_DRIVER = """
import contextlib, io, json, sys, traceback
space = {"__name__": "__main__"}
for line in sys.stdin:
    output, failed = io.StringIO(), False
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            exec(compile(json.loads(line), "snippet", "exec"), space)
        except BaseException:
            failed = True
            traceback.print_exc()
    sys.__stdout__.write(json.dumps([failed, output.getvalue()]) + "\\n")
    sys.__stdout__.flush()
"""


class SnippetError(AssertionError):
    """A snippet does not do what its page says."""


@dataclass
class Page:
    """A folder, an environment, and the Python program of the page, which begins with its first block."""

    folder: Path
    environment: Mapping[str, str]
    output: str = ""
    _python: list[subprocess.Popen[str]] = field(default_factory=list)
    _shells: list[int] = field(default_factory=list)
    """Process groups of what the page's shell blocks left running."""

    @property
    def home(self) -> dict[str, str]:
        """The environment, with the page's folder as home."""
        return {**self.environment, "HOME": str(self.folder)}

    def run(self, snippet: Snippet) -> None:
        """Raises: SnippetError."""
        if snippet.mark == "prints":
            self._compare(snippet)
        elif snippet.mark == "file":
            (self.folder / snippet.told).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / snippet.told).write_text(snippet.text)
        elif snippet.language == "bash":
            self._shell(snippet)
        elif snippet.language == "python":
            self._program(snippet)

    def close(self) -> None:
        for process in self._python:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for group in self._shells:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def _shell(self, snippet: Snippet) -> None:
        kept = self.folder / ".variables"
        kept.touch()
        before = f"source {kept}\nshopt -s expand_aliases\nset -euo pipefail -a\n"
        script = f"{before}{snippet.text}\n{{ export -p; declare -f; }} > {kept}\n"
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._shells.append(shell.pid)
        self.output, _ = shell.communicate(timeout=LIMIT_S)
        if shell.returncode != 0:
            output = self.output[-4000:]
            raise SnippetError(f"{snippet.place}: ended with {shell.returncode}\n{snippet.text}\n{output}")

    def _program(self, snippet: Snippet) -> None:
        if not self._python:
            self._python.append(
                subprocess.Popen(
                    [sys.executable, "-c", _DRIVER],
                    cwd=self.folder,
                    env=self.home,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        (process,) = self._python
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(snippet.text) + "\n")
        process.stdin.flush()
        failed, self.output = json.loads(process.stdout.readline())
        if failed:
            raise SnippetError(f"{snippet.place}\n{snippet.text}\n{self.output[-4000:]}")

    def _compare(self, snippet: Snippet) -> None:
        """Each line of the snippet is one of the output's, in this order; … stands for anything."""
        left = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", self.output).splitlines()]
        for line in filter(None, map(str.strip, snippet.text.splitlines())):
            pattern = ".*".join(r"\s+".join(map(re.escape, part.split())) for part in re.split(r"\s*…\s*", line))
            at = next((i for i, one in enumerate(left) if re.fullmatch(pattern, one)), None)
            if at is None:
                raise SnippetError(f"{snippet.place}: nothing was printed like {line!r}\n{self.output[-3000:]}")
            left = left[at + 1 :]


def environment(root: Path, state: Path, url: str, key: str, cache: Path) -> dict[str, str]:
    """As a reader has it after set-up: the checkout's commands first, and a farm that is up."""
    ours = ("PYTEST", "POCKFARM_TEST", "POCKFARM_VERIFY")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(root),
        "POCKFARM_STATE": str(state),
        "POCKFARM_URL": url,
        "POCKFARM_API_KEY": key,
        "POCKFARM_CACHE_DIR": str(cache),
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
    }
