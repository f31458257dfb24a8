"""The agent's packages from the package index: pinned for Python 3.9, installed as docs/agent.md says, and run.

`make agent-packages`; no test command collects this file, for no test leaves the machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents.conftest import ROOT
from tests.agents.fake_farm import FakeFarm
from tests.agents.test_old_python import OLDEST, Start, distribution_python, old_python, output, requirements, works
from tests.thorough.docs.snippets import snippets

PLATFORMS = ("manylinux2014_x86_64", "manylinux2014_aarch64")


@pytest.fixture(autouse=True)
def with_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests have none."""
    monkeypatch.delenv("PIP_NO_INDEX")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints-agent.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


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


def test_installed_as_documented_it_works_on_python_3_9(farm: FakeFarm, start_agent: Start, tmp_path: Path) -> None:
    python = old_python()
    assert python, "install a Python 3.9 (on Debian 12: pypy3-venv)"
    installed_python = installed(tmp_path, python, with_system=False)
    assert works(farm, start_agent, tmp_path, installed_python)["python"].startswith("3.9.")
    version = output(installed_python, "-c", "import cryptography; print(cryptography.__version__)")
    assert version == pins()["cryptography"]


def test_installed_as_documented_it_works_with_the_distributions_cryptography(
    farm: FakeFarm, start_agent: Start, tmp_path: Path
) -> None:
    python = distribution_python()
    assert python, "install the distribution's own (on Debian 12: python3-cryptography)"
    installed_python = installed(tmp_path, python, with_system=True)
    where = output(installed_python, "-c", "import cryptography; print(cryptography.__file__)")
    assert where.startswith("/usr/lib/python3/dist-packages/")
    works(farm, start_agent, tmp_path, installed_python)


def test_it_works_with_debian_12s_version_of_cryptography(farm: FakeFarm, start_agent: Start, tmp_path: Path) -> None:
    """Of this Python, whatever the distribution is."""
    folder = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--only-binary", ":all:", "--target", str(folder)]
    subprocess.run([*pip, f"cryptography=={OLDEST}"], check=True, capture_output=True)
    path = f"{folder}{os.pathsep}{ROOT}"
    show = "import cryptography; print(cryptography.__version__)"
    assert output("env", f"PYTHONPATH={path}", sys.executable, "-c", show) == OLDEST
    works(farm, start_agent, tmp_path, sys.executable, PYTHONPATH=path)
