"""The agent where boards are: Python 3.9, and Debian 12's `cryptography`; `from_the_index.py` asks the index."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agents.conftest import ROOT, AgentProcess, npz
from tests.agents.fake_farm import FakeFarm
from tests.agents.fake_step import bundle
from tests.architecture.sources import python_files

Start = Callable[..., AgentProcess]
OLDEST = "38.0.4"
"""What Debian 12 has, and the least that the extra `agent` allows."""
VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
LOADS_ALL = """
import importlib, importlib.machinery, pkgutil, sys, types

class Anything(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})

class Stand:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "cryptography":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Anything(spec.name)
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Stand())
import device_agents
for found in pkgutil.walk_packages(device_agents.__path__, "device_agents."):
    importlib.import_module(found.name)
print(len([name for name in sys.modules if name.startswith("device_agents.")]))
"""
"""Loads every module, with a stand-in for `cryptography`, which no index is asked for."""


def requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["agent"])


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def old_python() -> str | None:
    """An interpreter of Python 3.9 on this machine (`scripts/set_up` installs Debian 12's pypy3)."""
    paths = [path for name in ("python3.9", "pypy3.9", "pypy3") if (path := shutil.which(name))]
    said = [subprocess.run([path, "-c", VERSION], capture_output=True, text=True, check=False).stdout for path in paths]
    return next((path for path, version in zip(paths, said, strict=True) if version.strip() == "3.9"), None)


def distribution_python() -> str | None:
    """The system's interpreter, if the system's `cryptography` is there and new enough."""
    show = "import cryptography; print(cryptography.__version__)"
    done = subprocess.run(["/usr/bin/python3", "-I", "-c", show], capture_output=True, text=True, check=False)
    return "/usr/bin/python3" if done.returncode == 0 and int(done.stdout.split(".")[0]) >= 38 else None


def works(farm: FakeFarm, start_agent: Start, tmp_path: Path, python: str, **environment: str) -> dict[str, str]:
    """A whole training run on an agent of this interpreter; the environment that it reports."""
    farm.assign(bundle(), mode="train", steps=5, dataset=npz())
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    agent = start_agent("--once", python=python, cwd=tmp_path, environment={**kept, **environment})
    report = farm.report()
    assert agent.wait() == 0
    assert report.outcome.state == "succeeded", report.outcome
    assert report.weights is not None
    assert "lease-0001" in farm.weights
    return dict(report.environment)


def test_the_oldest_cryptography_is_the_least_that_is_asked_for() -> None:
    assert requirements() == [f"cryptography>={OLDEST.split('.')[0]}"]


@pytest.mark.skipif(distribution_python() is None, reason="the system's Python has no cryptography 38 or later")
def test_it_works_with_the_distributions_python(farm: FakeFarm, start_agent: Start, tmp_path: Path) -> None:
    """On Debian 12 that is the least that is asked for."""
    python = distribution_python()
    assert python is not None
    works(farm, start_agent, tmp_path, python, PYTHONPATH=str(ROOT))


@pytest.mark.skipif(old_python() is None, reason="there is no Python 3.9 on this machine")
def test_every_module_loads_on_python_3_9(tmp_path: Path) -> None:
    python = old_python()
    assert python is not None
    done = subprocess.run(
        [python, "-c", LOADS_ALL], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= len([path for path in python_files("device_agents") if path.stem != "__init__"])


@pytest.mark.parametrize("path", sorted((ROOT / "device_agents").rglob("*.py")), ids=lambda path: path.stem)
def test_every_file_is_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))


def test_the_agent_calls_nothing_that_python_3_9_lacks() -> None:
    """`zip(strict=)` is of 3.10, and PyPy's 3.9 takes it all the same, so that running it there does not tell."""
    for path in python_files("device_agents"):
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            is_call = (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("zip", "aiter")
            )
            assert not (is_call and node.keywords), f"{path}:{node.lineno}"  # type: ignore[attr-defined]
