"""What was left out of a run and why: a table at its end, and a failure where nothing has to be missing.

On Debian 12 as root set-up installs all that tests need, so only what the machine itself lacks may be left out there.
Elsewhere, or as an ordinary user, whatever is left out is shown.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest

ALLOWED = (
    "no GPU: ",
    "no steps are built here, so check carried ones",
    "this processor has no ",
)
"""How reasons begin that hold anywhere."""
WHAT_TO_DO = (
    "install what is missing (make set-up-test), or say the reason in tests/skips.py if no machine needs to have it"
)


@dataclass(frozen=True)
class Skip:
    """A test that was left out."""

    test: str
    reason: str


def needs_instructions(target: str) -> pytest.MarkDecorator:
    """For what runs natively: left out where the processor lacks instructions of a target."""
    from compiler.targets import load_cpu
    from tests.kernel_harness.machine import runs

    return pytest.mark.skipif(not runs(load_cpu(target)), reason=f"this processor has no instructions of {target}")


def needs_program(name: str) -> pytest.MarkDecorator:
    """For what asks a program of the system that may be missing."""
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"there is no {name}")


def table(skips: Iterable[Skip]) -> list[str]:
    """A line for each reason: how many tests, and the first of them."""
    by_reason: dict[str, list[str]] = {}
    for skip in sorted(skips, key=lambda skip: (skip.reason, skip.test)):
        by_reason.setdefault(skip.reason, []).append(skip.test)
    return [
        f"{len(tests):5}  {reason}  ({tests[0]}{', ...' if tests[1:] else ''})" for reason, tests in by_reason.items()
    ]


def wrong(skips: Iterable[Skip], *, is_complete: bool) -> list[str]:
    """What must not have been left out, and what to do; `is_complete`: this machine can have all that tests need."""
    refused = [skip for skip in skips if is_complete and not skip.reason.startswith(ALLOWED)]
    return [f"{skip.test} was left out ({skip.reason}): {WHAT_TO_DO}" for skip in refused]


def can_have_everything(release: Mapping[str, str], user: int) -> bool:
    """Whether set-up installs all that tests need: on Debian 12 as root."""
    return (release.get("ID"), release.get("VERSION_ID"), user) == ("debian", "12", 0)


def this_can_have_everything() -> bool:
    try:
        return can_have_everything(platform.freedesktop_os_release(), os.geteuid())
    except OSError:
        return False


class Skips:
    """The plugin: hears of every report, also of those that workers of xdist send."""

    def __init__(self, *, is_complete: bool | None = None) -> None:
        self._is_complete = this_can_have_everything() if is_complete is None else is_complete
        self._skips: dict[str, Skip] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report.nodeid, report.longrepr)

    def _note(self, test: str, location: object) -> None:
        reason = location[2] if isinstance(location, tuple) else str(location)
        self._skips[test] = Skip(test, reason.removeprefix("Skipped: "))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if wrong(self._skips.values(), is_complete=self._is_complete) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        skips = self._skips.values()
        if skips:
            terminalreporter.section("left out")
            for line in table(skips):
                terminalreporter.write_line(line)
        for line in wrong(skips, is_complete=self._is_complete):
            terminalreporter.write_line(line, red=True)
