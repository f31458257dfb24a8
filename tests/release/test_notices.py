"""What a company looks for first is there, says what is so, and says the same number everywhere."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import pockfarm
from device_agents import AGENT_VERSION
from pockfarm import version
from tests.architecture.sources import ROOT, tracked_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of the licence's text as the Apache Software Foundation publishes it."""


def notices(root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.third_party"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_the_licence_is_apaches_word_by_word() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE", "THIRD_PARTY.md"]


def test_the_notices_are_current() -> None:
    done = notices()
    assert done.returncode == 0, done.stderr
    assert (ROOT / "THIRD_PARTY.md").read_text() == done.stdout, "write them again: make notices"


def test_every_requirement_has_its_row() -> None:
    page = (ROOT / "THIRD_PARTY.md").read_text()
    for line in (line for extra in PROJECT["optional-dependencies"].values() for line in extra):
        name = re.sub(r"[-_.]+", "[-_.]", re.split(r"[^\w.-]", line)[0])
        assert name == "pockfarm" or re.search(rf"^\| {name} \|", page, re.M | re.I), line


def test_the_notices_name_no_place_of_a_machine() -> None:
    page = (ROOT / "THIRD_PARTY.md").read_text()
    assert re.findall(r"(?<![\w/:.-])/(?:root|home|tmp|usr|work|opt)/\S*|file:", page) == []


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that notices are made from."""
    names = [
        "pyproject.toml",
        "constraints.txt",
        "docker-compose.yml",
        "scripts/__init__.py",
        "scripts/third_party.py",
        *(path.relative_to(ROOT).as_posix() for path in (ROOT / "scripts" / "set_up").glob("*.py")),
        "service/dashboard/package-lock.json",
    ]
    for name in [*names, *(path.as_posix() for path in tracked_files() if path.suffix == ".Dockerfile")]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("scripts/third_party.py", '"LGPL-3.0-only",', "", "psycopg says of its licence .*nobody has looked at"),
        ("docker-compose.yml", "image: caddy:2.11-alpine", "image: nginx:1.29", "no licence is known of nginx"),
        ("constraints.txt", "amqp==", "zope-interface==1\namqp==", "nothing asks for .*: zope-interface"),
        ("pyproject.toml", '    "alembic>=1.16",', '    "not-there>=1",', "not-there is not installed here"),
    ],
)
def test_a_page_with_a_hole_is_not_written(copy: Path, file: str, old: str, new: str, said: str) -> None:
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new, 1))
    done = notices(copy)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(said, done.stderr), done.stderr


def test_the_version_is_the_projects_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's file knows no metadata, and manifests are read by other programs: both hold a copy."""
    number = PROJECT["version"]
    manifest = (ROOT / "deploy/kubernetes/farm.yaml").read_text()
    images = re.findall(r"image: registry\.example\.com/pockfarm/\w+:(\S+)", manifest)
    assert images
    assert {AGENT_VERSION, *images} == {number}
    assert pockfarm.__version__ == number, "installed from an older pyproject.toml: make set-up-test"
    monkeypatch.setattr(metadata, "version", _not_installed)
    assert version.version() == number
    monkeypatch.setattr(version, "PROJECT", tmp_path / "pyproject.toml")
    assert version.version() == "unknown"


def _not_installed(name: str) -> str:
    raise metadata.PackageNotFoundError(name)


def test_the_changelog_has_this_version_and_room_for_the_next() -> None:
    titles = re.findall(r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert titles[0] == "Unreleased"
    assert titles[1] == PROJECT["version"]


def test_every_make_target_that_a_page_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "THIRD_PARTY.md"):
        named = set(re.findall(r"`make ([a-z0-9-]+)", (ROOT / name).read_text()))
        named |= set(re.findall(r"^    make ([a-z0-9-]+)", (ROOT / name).read_text(), re.M))
        assert named - targets == set(), name
