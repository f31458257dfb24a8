"""The agent where boards are: Python 3.9, and Debian 12's `cryptography`; installed as docs/agent.md says, and run."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agents.conftest import ROOT, AgentProcess, npz
from tests.agents.fake_farm import FakeFarm
from tests.agents.fake_step import bundle
from tests.architecture.sources import python_files
from tests.thorough.docs.snippets import snippets

Start = Callable[..., AgentProcess]
OLDEST = "38.0.4"
"""What Debian 12 has, and the least that the extra `agent` allows."""
PLATFORMS = ("manylinux2014_x86_64", "manylinux2014_aarch64")
VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints-agent.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["agent"])


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def old_pythons() -> list[str]:
    """Interpreters of Python 3.9 on this machine (`scripts/set_up` installs Debian 12's pypy3)."""
    found = [path for name in ("python3.9", "pypy3.9", "pypy3") if (path := shutil.which(name))]
    said = [subprocess.run([path, "-c", VERSION], capture_output=True, text=True, check=False).stdout for path in found]
    return [path for path, version in zip(found, said, strict=True) if version.strip() == "3.9"]


def distribution_python() -> str | None:
    """The system's interpreter, if the system's `cryptography` is there and new enough."""
    show = "import cryptography; print(cryptography.__version__)"
    done = subprocess.run(["/usr/bin/python3", "-I", "-c", show], capture_output=True, text=True, check=False)
    return "/usr/bin/python3" if done.returncode == 0 and int(done.stdout.split(".")[0]) >= 38 else None


def documented(python: str, venv: Path, *, with_system: bool) -> list[str]:
    """The commands of docs/agent.md to install an agent, for this interpreter and place; apt-get's left out."""
    blocks = [snippet.text for snippet in snippets("docs/agent.md")]
    [block] = [block for block in blocks if "-m venv" in block and ("--system-site-packages" in block) is with_system]
    commands = [line.strip() for line in block.splitlines() if "apt-get" not in line]
    return [re.sub(r"^python3 ", f"{python} ", line).replace("/opt/pockfarm", str(venv)) for line in commands]


def installed(tmp_path: Path, python: str, *, with_system: bool) -> str:
    """Do what the documentation says, in a copy of the files that it needs. Returns the interpreter to start."""
    checkout, venv = tmp_path / "checkout", tmp_path / "venv"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "device_agents", checkout / "device_agents", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "THIRD_PARTY.md", "constraints-agent.txt"):
        shutil.copy(ROOT / name, checkout)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for command in documented(python, venv, with_system=with_system):
        done = subprocess.run(command, shell=True, cwd=checkout, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    shutil.rmtree(checkout)
    return str(venv / "bin" / "python")


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


def test_the_constraints_can_be_satisfied_on_python_3_9(tmp_path: Path) -> None:
    """The resolver's answer for each kind of board, from the package index."""
    for platform in PLATFORMS:
        told = tmp_path / f"{platform}.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--python-version", "3.9"]
        command += ["--implementation", "cp", "--abi", "cp39", "--abi", "abi3", "--abi", "none", "--platform", platform]
        command += ["--only-binary", ":all:", "--target", str(tmp_path / "x"), "--report", str(told)]
        command += ["-c", str(ROOT / "constraints-agent.txt"), *requirements()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        chosen = {
            row["metadata"]["name"]: row["metadata"]["version"] for row in json.loads(told.read_text())["install"]
        }
        assert chosen == pins(), "all that is installed is pinned, and nothing else is"


def test_the_oldest_cryptography_is_the_least_that_is_asked_for() -> None:
    assert requirements() == [f"cryptography>={OLDEST.split('.')[0]}"]


def test_installed_as_documented_it_works_on_python_3_9(farm: FakeFarm, start_agent: Start, tmp_path: Path) -> None:
    for python in old_pythons()[:1]:  # where there is none, the resolver's run above has to do
        installed_python = installed(tmp_path, python, with_system=False)
        assert works(farm, start_agent, tmp_path, installed_python)["python"].startswith("3.9.")
        version = output(installed_python, "-c", "import cryptography; print(cryptography.__version__)")
        assert version == pins()["cryptography"]


@pytest.mark.thorough
def test_installed_as_documented_it_works_with_the_distributions_cryptography(
    farm: FakeFarm, start_agent: Start, tmp_path: Path
) -> None:
    """The next test has that version too, without the commands."""
    python = distribution_python()
    if python is None:
        return  # the next test has the version that matters, from the package index
    installed_python = installed(tmp_path, python, with_system=True)
    where = output(installed_python, "-c", "import cryptography; print(cryptography.__file__)")
    assert where.startswith("/usr/lib/python3/dist-packages/")
    works(farm, start_agent, tmp_path, installed_python)


def test_it_works_with_debian_12s_version_of_cryptography(farm: FakeFarm, start_agent: Start, tmp_path: Path) -> None:
    """From the package index, so that it is tried on every machine."""
    folder = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--only-binary", ":all:", "--target", str(folder)]
    subprocess.run([*pip, f"cryptography=={OLDEST}"], check=True, capture_output=True)
    path = f"{folder}{os.pathsep}{ROOT}"
    show = "import cryptography; print(cryptography.__version__)"
    assert output("env", f"PYTHONPATH={path}", sys.executable, "-c", show) == OLDEST
    works(farm, start_agent, tmp_path, sys.executable, PYTHONPATH=path)


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
