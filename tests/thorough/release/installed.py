"""A release as it would be published, and the wheel of it in an environment that knows nothing of the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

from compiler.cache_folder import LINKER, cache_folder
from tests.architecture.sources import ROOT

PACKAGES = ("compiler", "device_agents", "migrations", "pockfarm", "service", "workers")
WATCH = """\
import atexit, fcntl, json, os, sys

def say():
    files = {{name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}}
    line = json.dumps({{name: file for name, file in files.items() if file}}) + "\\n"
    log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    fcntl.flock(log, fcntl.LOCK_EX)  # processes that end together write into one file, which may take a line in parts
    os.write(log, line.encode())

atexit.register(say)
"""
"""Started with every process of the environment: which file each of its modules is of."""


@dataclass(frozen=True)
class Release:
    """What `make release` writes."""

    source: Path
    client: Path
    wheel: Path
    """The farm's: all but the client."""
    sums: Path

    def wheel_names(self) -> set[str]:
        """What lies in an environment that has both."""
        return names_in(self.client) | names_in(self.wheel)


def names_in(wheel: Path) -> set[str]:
    """Files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel; what it depends on is looked up in this one's packages."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    @property
    def site(self) -> Path:
        return self.folder / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    @property
    def empty(self) -> Path:
        """Where its processes are started."""
        return self.folder / "empty"

    @property
    def log(self) -> Path:
        return self.folder / "modules.jsonl"

    def run(self, program: str, *words: str) -> str:
        """What a program of the environment prints; none of its modules, or its children's, is the checkout's."""
        self.log.write_text("")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "LANG": "C.UTF-8",
            "POCKFARM_STATE": str(self.folder / "state"),
            "POCKFARM_CACHE_DIR": str(self.folder / "cache"),  # but the linker's own C library takes a minute to build
            "ZIG_GLOBAL_CACHE_DIR": os.environ.get("ZIG_GLOBAL_CACHE_DIR", str(cache_folder() / LINKER)),
        }
        command = [str(self.bin / program), *words]
        completed = subprocess.run(
            command,
            cwd=self.empty,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.returncode == 0, (
            f"{program} {' '.join(words)[:200]}\n{completed.stdout[-2000:]}\n{completed.stderr[-4000:]}"
        )
        self.check_modules()
        return completed.stdout

    def check_modules(self) -> None:
        """Ours are of the wheel, and there are some."""
        said = [json.loads(line) for line in self.log.read_text().splitlines()]
        files = {(name, Path(file)) for modules in said for name, file in modules.items()}
        ours = {(name, file) for name, file in files if name.split(".")[0] in PACKAGES}
        assert ours, "no process told what it loaded"
        assert {name for name, file in ours if not file.is_relative_to(self.site)} == set()
        near = {file.relative_to(ROOT) for _, file in files if file.is_relative_to(ROOT)}
        assert {file for file in near if file.parts[0] != ".venv"} == set()


def build(folder: Path, site: Path) -> Release:
    """The release of this tree as it is, by the script that makes releases."""
    command = [sys.executable, str(ROOT / "scripts" / "release.py"), "--as-it-is", "--site", str(site), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Release(*map(Path, done.stdout.splitlines()))


def install(folder: Path, *wheels: Path) -> Installed:
    """A new environment with these wheels, without a network."""
    made = Installed(folder)
    for new in (folder, made.empty, folder / "home"):
        new.mkdir()
    _call("-m", "venv", "--without-pip", str(folder / "venv"))
    _call(
        "-m",
        "pip",
        "--python",
        str(made.bin / "python"),
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        *map(str, wheels),
    )
    (made.site / "watch_modules.py").write_text(WATCH.format(log=str(made.log)))
    places = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
    (made.site / "test.pth").write_text("\n".join(["import watch_modules", *places]) + "\n")
    return made


def _call(*words: str) -> None:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
