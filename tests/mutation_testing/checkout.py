"""A checkout of its own with its own environment, whose sources are changed and put back."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutation_testing.mutant import Mutant

WITH_THOROUGH = ("tests", "tests/thorough", "-m", "not resolution_224 and not soak")
"""What `make test-all` says to pytest."""
HANGS_S = 300
"""A test that takes so long under a mutant is taken to hang, which kills it."""
FAILED, NONE_LEFT = 1, 5
"""Exit statuses of pytest: tests failed; none was collected."""


@dataclass(frozen=True)
class Checkout:
    """A clone of what is committed, in which tests run."""

    root: Path

    @classmethod
    def make(cls, source: Path, root: Path) -> Checkout:
        """Clone and set up. Raises: CalledProcessError."""
        if not (root / ".venv" / "ready").exists():
            subprocess.run(["git", "clone", "--quiet", str(source), str(root)], check=True)
            subprocess.run(["make", "set-up-test"], cwd=root, check=True)
            (root / ".venv" / "ready").touch()
        return cls(root)

    @property
    def site_packages(self) -> Path:
        return next((self.root / ".venv" / "lib").glob("python3*/site-packages"))

    def commit(self) -> str:
        return subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=self.root, check=True, capture_output=True, text=True
        ).stdout.strip()

    def collected(self, arguments: Sequence[str] = ()) -> list[str]:
        """Node ids of the tests that pytest would run."""
        words = [*arguments, "--collect-only", "-q", "-n", "0"]
        lines = self._pytest(words, {}, stdout=subprocess.PIPE).stdout.splitlines()
        return [line for line in lines if "::" in line]

    def run_everything(self, outcomes: Path, kernels: Path) -> int:
        """Run what has no outcome yet, with the kernels that a folder holds already."""
        words = [*WITH_THOROUGH, "-n", "3", "--dist", "loadgroup"]
        environment = {"OUTCOMES": str(outcomes), "GO_ON": "1", "POCKFARM_TEST_CACHE": str(kernels)}
        return self._pytest(words, environment).returncode

    def passes(self, tests: Sequence[str], listed: Path, outcomes: Path) -> bool:
        """Run these, in this order, until one fails; `listed` is where they are written down."""
        listed.write_text("\n".join(tests) + "\n")
        outcomes.unlink(missing_ok=True)
        files = sorted({test.partition("::")[0] for test in tests})
        words = [
            *files,
            "-m",
            "not resolution_224 and not soak",
            "-x",
            "-q",
            "-n",
            "2",
            "--dist",
            "loadgroup",
            "--timeout",
            str(HANGS_S),
        ]
        environment = {"TESTS_TO_RUN": str(listed), "OUTCOMES": str(outcomes)}
        status = self._pytest(words, environment, stdout=subprocess.DEVNULL).returncode
        return status in (0, NONE_LEFT)

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """The mutant's file with its change, and afterwards as it was."""
        file = self.root / mutant.path
        text = file.read_text()
        try:
            self._write(file, mutant.applied(text))
            yield
        finally:
            self._write(file, text)

    def restore(self) -> None:
        subprocess.run(["git", "checkout", "--quiet", "--", "."], cwd=self.root, check=True)

    def _write(self, file: Path, text: str) -> None:
        """With a time of its own, by which Python knows its compiled file from that of another text."""
        file.write_text(text)
        at = next(_times)
        os.utime(file, (at, at))

    def _pytest(
        self, words: Sequence[str], environment: dict[str, str], stdout: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        python = self.root / ".venv" / "bin" / "python"
        command = [str(python), "-m", "pytest", "-p", "tests.mutation_testing.selection", *words]
        return subprocess.run(
            command,
            cwd=self.root,
            env={**os.environ, **environment},
            stdout=stdout,
            preexec_fn=_ends_first,
            text=True,
            check=False,
        )


_times = itertools.count(1_500_000_000)


def _ends_first() -> None:
    """A mutant that fills the memory must not end anything else."""
    if sys.platform == "linux":
        Path("/proc/self/oom_score_adj").write_text("1000")
