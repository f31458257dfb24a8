"""What tests cost: `python -m pytest -p tests.costs` prints processor time, processes and kernels by folder.

Processor time is that of the test's process and of the children that ended during it, so a server that several tests
share counts for the last of them. Other work disturbs it less than wall time. Each test's own lies in
build/test-costs.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.worker import Request
from compiler.codegen.workers import Worker

FILE = Path(__file__).resolve().parents[1] / "build" / "test-costs.json"
PARTS = 3
"""How many parts of a path name a folder in the table."""
_started = 0
_built = 0


@dataclass
class Cost:
    """Of one test, with its fixtures."""

    processor_s: float = 0.0
    wall_s: float = 0.0
    processes: int = 0
    kernels: int = 0
    """Built, not found in a cache: a tenth of a second each, of a process that counts where it ends."""

    def add(self, other: Cost) -> None:
        self.processor_s += other.processor_s
        self.wall_s += other.wall_s
        self.processes += other.processes
        self.kernels += other.kernels


@dataclass
class Costs:
    """Gathers what workers report, in the process that starts them."""

    by_test: dict[str, Cost] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by_test.setdefault(report.nodeid, Cost()).add(Cost(**report.__dict__["cost"]))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(json.dumps({test: asdict(cost) for test, cost in self.by_test.items()}))
        terminalreporter.section("processor seconds, processes, kernels, tests")
        for line in table(self.by_test):
            terminalreporter.write_line(line)


def table(by_test: dict[str, Cost], parts: int = PARTS) -> list[str]:
    """A line for each folder, the dearest first, and one for all."""
    folders: dict[str, tuple[Cost, list[str]]] = {}
    for test, cost in by_test.items():
        folder = "/".join(test.partition("::")[0].split("/")[:parts])
        total, tests = folders.setdefault(folder, (Cost(), []))
        total.add(cost)
        tests.append(test)
    lines = [
        f"{total.processor_s:9.1f} {total.processes:7} {total.kernels:7} {len(tests):7}  {folder}"
        for folder, (total, tests) in sorted(folders.items(), key=lambda row: -row[1][0].processor_s)
    ]
    whole = Cost()
    for cost in by_test.values():
        whole.add(cost)
    return [*lines, f"{whole.processor_s:9.1f} {whole.processes:7} {whole.kernels:7} {len(by_test):7}  all"]


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(_count)
    _count_kernels()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Costs())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEFORE] = _now()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    now, before = _now(), item.stash[_BEFORE]
    item.stash[_BEFORE] = now
    difference = Cost(
        now.processor_s - before.processor_s,
        now.wall_s - before.wall_s,
        now.processes - before.processes,
        now.kernels - before.kernels,
    )
    report.__dict__["cost"] = asdict(difference)
    return report


def _count(event: str, _: object) -> None:
    global _started
    _started += event in ("subprocess.Popen", "os.posix_spawn", "os.fork")


def _count_kernels() -> None:
    build = Worker.build

    def counted(self: Worker, request: Request) -> CompiledKernel:
        global _built
        _built += 1
        return build(self, request)

    Worker.build = counted  # type: ignore[method-assign]


def _now() -> Cost:
    times = os.times()
    processor_s = times.user + times.system + times.children_user + times.children_system
    return Cost(processor_s, time.monotonic(), _started, _built)


_BEFORE = pytest.StashKey[Cost]()
