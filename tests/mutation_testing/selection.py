"""A pytest plugin that runs listed tests in their order, and writes down what came of each.

TESTS_TO_RUN names a file of node ids, one on each line; OUTCOMES a file for lines of JSON: node id, outcome, seconds.
With GO_ON, tests that have an outcome there are left out.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.mutation_testing.probes import node_id


class Outcomes:
    """What workers report, in the process that starts them."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            line = json.dumps([node_id(report.nodeid), report.outcome, round(report.duration, 3)])
            print(line, file=self._file, flush=True)


def pytest_configure(config: pytest.Config) -> None:
    if (file := os.environ.get("OUTCOMES")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(file)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if file := os.environ.get("TESTS_TO_RUN"):
        _choose(config, items, Path(file).read_text().splitlines())
    outcomes = Path(os.environ.get("OUTCOMES", os.devnull))
    if "GO_ON" in os.environ and outcomes.exists():
        finished = {json.loads(line)[0] for line in outcomes.read_text().splitlines()}
        config.hook.pytest_deselected(items=[item for item in items if node_id(item.nodeid) in finished])
        items[:] = [item for item in items if node_id(item.nodeid) not in finished]


def _choose(config: pytest.Config, items: list[pytest.Item], names: list[str]) -> None:
    """Leave the named tests in `items`, in the order of the names."""
    order = {name: number for number, name in enumerate(names)}
    chosen = [item for item in items if node_id(item.nodeid) in order]
    config.hook.pytest_deselected(items=[item for item in items if node_id(item.nodeid) not in order])
    items[:] = sorted(chosen, key=lambda item: order[node_id(item.nodeid)])
