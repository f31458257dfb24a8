"""The wheel alone is a farm, a worker, a compiler and an agent: what git tracks is in it, and each runs from it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from compiler.identity import compiler_identity
from service.boards.canary.building import HEALTH
from service.boards.installation.agent_file import agent_file
from service.devices import canary_reference as reference
from service.store.database.schema import known_revisions
from tests.architecture.sources import ROOT, tracked_files
from tests.thorough.release.installed import PACKAGES, Installed, Release, build

pytestmark = pytest.mark.xdist_group("release")
TRACKED = frozenset(path.as_posix() for path in tracked_files())
OURS = frozenset(name for name in TRACKED if name.partition("/")[0] in PACKAGES)
NEEDED = (
    "compiler/runtime/main.c",
    "compiler/runtime/tvm_abi.h",
    "compiler/runtime/tuner/tuner.c",
    "compiler/runtime/library/pockfarm.h",
    "compiler/runtime/example/train.c",
    "pockfarm/ondevice/step.py",
    "compiler/targets/raspberry-pi-4.toml",
    "migrations/env.py",
    "migrations/versions/0001_initial.py",
    "service/boards/installation/enrol.sh",
    "service/boards/installation/pockfarm-agent.service",
    "service/boards/canary/model.onnx",
    "service/dashboard/static/app.css",
    "service/dashboard/templates/base.html",
)
"""One of each kind, so that an empty list of tracked files cannot pass."""


def test_every_tracked_file_of_a_package_is_in_the_wheel(release: Release) -> None:
    assert set(NEEDED) <= OURS
    assert sorted(OURS - release.wheel_names()) == [], "package-data of pyproject.toml leaves these out"


SITE = {f"service/dashboard/manual/site/{name}" for name in ("index.html", "_static/styles/theme.css")}
LIBRARY = {
    f"service/dashboard/node_modules/uplot/{name}"
    for name in ("LICENSE", "package.json", "dist/uPlot.iife.min.js", "dist/uPlot.min.css")
}


def test_nothing_else_is_in_the_wheel_but_the_chart_library(release: Release) -> None:
    about = {name for name in release.wheel_names() if name.startswith("pockfarm") and ".dist-info/" in name}
    assert about
    assert release.wheel_names() - about - OURS == LIBRARY | SITE


def test_the_source_distribution_is_what_git_tracks(release: Release) -> None:
    with tarfile.open(release.source) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    made = {name for name in names if name in ("PKG-INFO", "setup.cfg") or name.startswith("pockfarm.egg-info/")}
    assert sorted(TRACKED - names) == [], "MANIFEST.in leaves these out"
    assert sorted(names - made - TRACKED) == []


def test_the_wheel_says_its_licence_and_brings_it_along(release: Release) -> None:
    with zipfile.ZipFile(release.wheel) as archive:
        (about,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        said = message_from_string(archive.read(f"{about}/METADATA").decode())
        for name in ("LICENSE", "THIRD_PARTY.md"):
            assert archive.read(f"{about}/licenses/{name}") == (ROOT / name).read_bytes()
    assert (said["License-Expression"], said["Name"]) == ("Apache-2.0", "pockfarm")
    assert said["Version"] in release.wheel.name
    assert said["Version"] in release.source.name


def test_the_digests_are_those_of_the_files(release: Release) -> None:
    told = [tuple(line.split("  ")) for line in release.sums.read_text().splitlines()]
    files = (release.source, release.client, release.wheel)
    assert told == [(hashlib.sha256(path.read_bytes()).hexdigest(), path.name) for path in files]


def test_the_same_tree_gives_the_same_wheel(release: Release, site: Path, tmp_path: Path) -> None:
    assert build(tmp_path / "again", site).wheel.read_bytes() == release.wheel.read_bytes()


def test_the_command_answers(installed: Installed, release: Release) -> None:
    version = release.wheel.name.split("-")[1]
    assert installed.run("pockfarm", "--version") == f"pockfarm {version}\n"
    assert installed.run("python", "-c", "import pockfarm; print(pockfarm.__version__)") == f"{version}\n"
    assert "build" in installed.run("pockfarm", "--help")
    assert "raspberry-pi-5" in installed.run("pockfarm", "targets")


FARM = """
import sqlalchemy
from fastapi.testclient import TestClient
from service.app import create_app
from service.store.database import schema
from service.base.settings import Settings
settings = Settings(sweep_s=0.0)
engine = sqlalchemy.create_engine(settings.database)
with engine.connect() as connection:
    print(schema.MIGRATIONS, schema.current_revision(connection), sep="\\n")
engine.dispose()
app = create_app(settings)
with TestClient(app) as http:
    assert http.get("/healthz").status_code == 200
    link = open("link").read().split("/open/")[1].strip()
    page = http.get("/open/" + link)
    assert (page.status_code, page.url.path) == (200, "/dashboard"), page.text
    assert "</html>" in page.text
    for name in ("/dashboard/devices", "/dashboard/runs", "/dashboard/static/app.css", "/dashboard/static/live.js",
                 "/dashboard/static/uPlot.iife.min.js", "/dashboard/static/uPlot.min.css"):
        assert http.get(name).status_code == 200, name
    assert "[Service]" in http.get("/enrol.sh").text
    assert http.get("/docs/").text == "<h1>PockFarm</h1>"
    open("agent.pyz", "wb").write(http.get("/agent.pyz").content)
"""


def test_a_farm_has_its_database_its_pages_and_what_boards_ask_for(installed: Installed) -> None:
    installed.run("python", "-m", "service.admin", "migrate")
    link = installed.run("python", "-m", "service.admin", "one-time-link").splitlines()[-1]
    (installed.empty / "link").write_text(link)
    migrations, revision = installed.run("python", "-W", "ignore", "-c", FARM).splitlines()
    assert Path(migrations) == installed.site / "migrations"
    assert revision == known_revisions()[1]
    assert (installed.empty / "agent.pyz").read_bytes() == agent_file()


def test_the_api_is_the_one_that_is_described(installed: Installed) -> None:
    assert json.loads(installed.run("python", "-m", "service.admin", "openapi")) == json.loads(
        (ROOT / "openapi.json").read_text()
    )


def test_the_worker_and_the_agent_start(installed: Installed) -> None:
    tasks = "import workers.app; print(*workers.app.TASK_FUNCTIONS)"
    assert "compile" in installed.run("python", "-c", tasks)
    assert "--enrol-token" in installed.run("python", "-m", "device_agents.agent", "--help")


def test_what_it_compiles_trains_as_the_mathematics_says(installed: Installed) -> None:
    """The farm's own canary model, whose losses are known in float64; every kernel and the runtime are built anew."""
    shutil.copy(installed.site / "service" / "canary" / HEALTH.file, installed.empty / "model.onnx")
    (installed.empty / "spec.json").write_text(json.dumps(HEALTH.spec))
    (installed.empty / "data.npz").write_bytes(reference.archive(seed=3))
    installed.run("pockfarm", "build", "model.onnx", "--spec", "spec.json", "--out", "model.pfb")
    words = ("exec", "model.pfb", "train", "--data", "data.npz", "--steps", str(reference.STEPS), "--json")
    report = json.loads(installed.run("pockfarm", *words))
    assert reference.difference(3, report["losses"]) == ""


def test_it_is_the_same_compiler_as_in_the_checkout(installed: Installed) -> None:
    """So bundles of one answer the other's requests, and a farm that changes from one to the other compiles nothing
    anew."""
    script = "from compiler.identity import compiler_identity; print(compiler_identity())"
    assert installed.run("python", "-c", script).strip() == compiler_identity()


def test_a_release_is_made_of_what_is_committed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in (
        "pyproject.toml",
        "CHANGELOG.md",
        "scripts/__init__.py",
        "scripts/release.py",
        "scripts/client_wheel.py",
        ".gitignore",
    ):
        (tree / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=tree, check=True)
    (tree / "CHANGELOG.md").write_text("nothing yet\n")
    assert "commit these first, or put them aside:\nM CHANGELOG.md" in refusal(tree)
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "less"], cwd=tree, check=True)
    assert "CHANGELOG.md has no section `## [" in refusal(tree)


def refusal(tree: Path) -> str:
    command = ["python3", "-m", "scripts.release", "dist"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr
